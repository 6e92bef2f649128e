import assert from "node:assert/strict";
import { test } from "node:test";

import { chart, layout, linePath, nearest, neighbour, placed, ticks, wholeTicks } from "../../javascript/vram_pilot/chart.mjs";
import { apart } from "../../javascript/vram_pilot/marks.mjs";
import { empty, greeted, taken } from "../../javascript/vram_pilot/history.mjs";
import { ago, job, latency, log, memory, phases, tooltip } from "../../javascript/vram_pilot/live.mjs";

const points = [{ n: 10, v: 1 }, { n: 11, v: null }, { n: 12, v: 3 }, { n: 13, v: 4 }];
const plan = (more = {}) => layout({ points, series: [{ key: "v", name: "latency" }], width: 400, height: 200, ...more });

test("ticks are round, begin at 0 and reach the highest value", () => {
  assert.deepEqual(ticks(153), [0, 50, 100, 150, 200]);
  assert.deepEqual(ticks(0.034), [0, 0.01, 0.02, 0.03, 0.04]);
  assert.deepEqual(ticks(4), [0, 1, 2, 3, 4]);
  for (const none of [0, -1, NaN]) assert.deepEqual(ticks(none), [0, 1]);
  for (let value = 0.001; value < 1e6; value *= 1.7) {
    const found = ticks(value);
    assert.ok(found.at(-1) >= value * (1 - 1e-9) && found.length >= 2 && found.length <= 6, `${value}: ${found}`);
  }
});

test("the horizontal axis counts whole steps", () => {
  assert.deepEqual(wholeTicks(0, 20, 5), [0, 5, 10, 15, 20]);
  assert.deepEqual(wholeTicks(7, 9, 5), [7, 8, 9]);
  assert.deepEqual(wholeTicks(3, 3, 5), [3]);
  for (const [first, last] of [[0, 399], [1e6, 1e6 + 399]]) assert.ok(wholeTicks(first, last, 6).length <= 8);
});

test("a line breaks where nothing was measured", () => {
  assert.equal(linePath([{ x: 0, y: 1 }, { x: 1, y: 2 }, { x: 2, y: null }, { x: 3, y: 4 }]), "M0 1L1 2M3 4");
  assert.equal(linePath([]), "");
});

test("every point lies inside the chart, higher values higher", () => {
  const { x, y, lines } = plan();
  assert.ok(x(10) >= 0 && x(13) <= 400 && x(10) < x(11));
  assert.ok(y(4) < y(1) && y(4) >= 0 && y(0) <= 200);
  assert.equal(lines[0].dots.length, 3);
  assert.equal((lines[0].path.match(/M/g) ?? []).length, 2);
});

test("one point, none, and a narrow place are no trouble", () => {
  for (const few of [[], [{ n: 0, v: 5 }], [{ n: 0, v: null }]]) {
    const text = String(chart(plan({ points: few, width: 10, height: 10 }), [], "none"));
    assert.doesNotMatch(text, /NaN|Infinity|undefined/);
  }
});

test("the nearest point is found, and its neighbours", () => {
  assert.equal(nearest(points, plan(), plan().x(12) + 1), 2);
  assert.equal(nearest(points, plan(), -999), 0);
  assert.equal(nearest([], plan(), 5), -1);
  assert.equal(neighbour(points, 12, 1), 13);
  assert.equal(neighbour(points, 13, 1), 13);
  assert.equal(neighbour(points, null, -1), 13);
  assert.equal(neighbour([], null, 1), null);
});

test("labels do not run into each other or out of the chart", () => {
  const marks = [10, 10.1, 13].map((n) => ({ n, kind: "mode", label: "lowvram, budget 512 MiB" }));
  const shown = placed([...marks, { n: 3, kind: "mode", label: "gone" }], plan({ width: 700 }));
  assert.deepEqual(shown.map(({ label }) => Boolean(label)), [true, false, true]);
  for (const { labelX, label } of shown) assert.ok(labelX >= 0 && labelX + (label?.length ?? 0) * 7 <= 700);
});

test("of marks that cannot be told apart the one that matters most is left", () => {
  const mark = (x, kind) => ({ x, kind });
  const close = [mark(10, "end"), mark(11, "job"), mark(12, "mode"), mark(13, "pass"), mark(15, "job"), mark(16, "job"), mark(19, "failed")];
  assert.deepEqual(apart(close), [close[2], close[6]]);
  const dense = Array.from({ length: 100 }, (_, x) => mark(x, "mode"));
  assert.deepEqual(apart(dense).map(({ x }) => x), Array.from({ length: 25 }, (_, index) => 4 * index));
  assert.deepEqual(apart([]), []);
});

test("what a mark says is escaped", () => {
  assert.doesNotMatch(String(chart(plan(), [{ n: 10, kind: "mode", label: "<script>" }], `"><script>`)), /<script>/);
});

// ------------------------------------------------------------------------------------------------------------ the view

function history(records) {
  return records.reduce((state, record, index) => taken(state, index + 1, record), greeted(empty(), { stream: "s", cursor: 0, now_s: 0 }));
}
const started = { type: "JobStarted", t_s: 0, session_id: "a", started_at: "", request: { steps: 4, width: 512, height: 768 } };
const step = (index, more = {}) => ({ type: "StepFinished", t_s: index, session_id: "a", index, pass_name: "base", duration_s: 0.05, allocated_bytes: 2 ** 30, reserved_bytes: 2 ** 31, ...more });

test("the job in words", () => {
  assert.equal(job(empty()), null);
  const running = job(history([started, step(0), step(1)]));
  assert.deepEqual([running.title, running.done, running.total], ["Running", 2, 4]);
  assert.equal(running.detail, "step 2 of 4 · 512×768 · 50.0 ms a step (20.0 it/s)");
  const done = job(history([started, step(0), { type: "JobFinished", t_s: 3, session_id: "a", status: "interrupted" }]));
  assert.equal(`${done.title}: ${done.detail}`, "Interrupted: 1 step · 512×768 · 50.0 ms a step (20.0 it/s) · 3.00 s in all");
});

test("the charts choose their unit and say in a sentence what they show", () => {
  const quick = latency(history([step(0), step(1)]), 500);
  assert.equal(quick.unit, "ms");
  assert.match(String(quick.svg), /aria-label="Time of each of the last 2 steps: median 50\.0 ms/);
  assert.equal(latency(history([step(0, { duration_s: 3 })]), 500).unit, "s");
  assert.equal(memory(history([step(0)]), 500).unit, "GiB");
  assert.equal(memory(history([step(0, { allocated_bytes: 5, reserved_bytes: null })]), 500).unit, "MiB");
});

test("without measurements the charts say so", () => {
  const none = history([step(0, { duration_s: null, allocated_bytes: null, reserved_bytes: null })]);
  assert.match(String(latency(none, 500).svg), /not measured/);
  assert.match(String(memory(none, 500).svg), /Not measured: the host does not compute on an NVIDIA card/);
  assert.match(String(latency(history([started]), 500).svg), /as soon as the first step has ended/);
  assert.equal(memory(history([started]), 500).plan, null);
  assert.match(String(tooltip(none.points[0])), /Step 1.*—/s);
});

test("phases are shares of the whole, once one has ended", () => {
  assert.equal(String(phases(history([started]))), "");
  const phase = (name, duration) => ({ type: "PhaseFinished", t_s: 0, session_id: "a", name, start_s: 0, duration_s: duration });
  assert.match(String(phases(history([started, phase("encode", 1), phase("denoise", 3)]))), /width:25\.00%.*width:75\.00%.*75 %/s);
});

test("the log is newest first and escaped", () => {
  const note = (text) => ({ type: "Note", t_s: 0, session_id: null, text });
  assert.match(String(log(history([note("one"), note("<b>")]))), /&lt;b&gt;.*one/s);
  assert.deepEqual([0, 7, 65, 7300].map(ago), ["just now", "5 s before", "1 min before", "2 h before"]);
});
