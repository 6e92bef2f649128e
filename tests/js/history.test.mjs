import assert from "node:assert/strict";
import { test } from "node:test";

import { MAX_LOG, MAX_MOMENTS, MAX_POINTS, advanced, empty, greeted, missed, taken, totalSteps } from "../../javascript/vram_pilot/history.mjs";

const hello = (cursor = 0, stream = "s", reset = false) => ({ stream, cursor, reset, now_s: 100 });
const begun = (cursor = 0) => greeted(empty(), hello(cursor));
const step = (index, more = {}) => ({
  type: "StepFinished", t_s: index, session_id: "a", index, pass_name: "base", image: 0, calls: 1, start_s: index,
  duration_s: 0.1, allocated_bytes: 10, reserved_bytes: 20, streamed_bytes: null, ...more,
});
const started = (more = {}) => ({ type: "JobStarted", t_s: 0, session_id: "a", started_at: "", request: { steps: 3 }, ...more });
const all = (history, records) => records.reduce((state, record) => taken(state, state.cursor + 1, record), history);

test("a record that was taken before changes nothing", () => {
  const once = all(begun(), [step(0), step(1)]);
  assert.equal(taken(once, 2, step(1)), once);
  assert.equal(taken(once, 1, step(0)), once);
  assert.equal(once.points.length, 2);
});

test("after a drop the stream goes on without gap or double", () => {
  const before = all(begun(), [step(0), step(1)]);
  const again = greeted(before, hello(1));
  assert.equal(again.cursor, 2, "the server may send again what was already here");
  const after = [2, 3].reduce((state, cursor) => taken(state, cursor, step(cursor - 1)), again);
  assert.deepEqual(after.points.map(({ index }) => index), [0, 1, 2]);
  assert.equal(after.lost, 0);
});

test("what fell out is counted and told once", () => {
  const told = missed(all(begun(), [step(0)]), 5);
  const history = taken(told, 7, step(6));
  assert.equal(history.lost, 5);
  assert.deepEqual(history.log.map(({ kind }) => kind), ["lost"]);
});

test("cursors that are left out were not asked for, and are no gap", () => {
  const history = taken(all(begun(), [step(0)]), 4, step(1));
  assert.deepEqual([history.lost, history.cursor, history.log], [0, 4, []]);
  assert.equal(advanced(history, 9).cursor, 9);
  assert.equal(advanced(history, 3), history);
});

test("a page that begins has missed nothing", () => {
  const history = taken(missed(begun(), 100), 101, step(0));
  assert.equal(history.lost, 0);
  assert.equal(history.cursor, 101);
});

test("a server that was started anew is another story", () => {
  const old = all(begun(), [started(), step(0)]);
  const anew = greeted(old, hello(0, "other"));
  assert.deepEqual([anew.points, anew.job, anew.cursor, anew.stream], [[], null, 0, "other"]);
  assert.equal(taken(anew, 1, step(0)).points.length, 1);
  assert.deepEqual(greeted(old, hello(0, "s", true)).points, []);
});

test("memory is bounded", () => {
  const records = Array.from({ length: 5000 }, (_, index) => (index % 2 ? step(index) : { type: "Note", t_s: index, session_id: null, text: "x" }));
  const history = all(begun(), records);
  assert.equal(history.points.length, MAX_POINTS);
  assert.equal(history.log.length, MAX_LOG);
  assert.equal(history.points.at(-1).n, 2499);
  const marked = all(begun(), Array.from({ length: 3000 }, () => started()));
  assert.ok(marked.marks.length <= MAX_POINTS && marked.moments.length <= MAX_MOMENTS);
});

test("a job counts its steps, its phases and its end", () => {
  const phase = (name, duration) => ({ type: "PhaseFinished", t_s: 0, session_id: "a", name, start_s: 0, duration_s: duration });
  const done = all(begun(), [
    started(), phase("encode", 1), step(0), step(1, { pass_name: "hires" }), phase("denoise", 2), phase("denoise", 3),
    { type: "JobFinished", t_s: 9, session_id: "a", status: "oom", error: "out of memory" },
  ]);
  assert.deepEqual([done.job.steps, done.job.total, done.job.pass, done.job.status, done.job.endS], [2, 3, "hires", "oom", 9]);
  assert.deepEqual(done.job.phases.map(({ name, durationS }) => [name, durationS]), [["encode", 1], ["denoise", 5]]);
  assert.equal(done.log.at(-1).text, "out of memory");
});

test("another job's records do not count for this one", () => {
  const other = { type: "JobFinished", t_s: 9, session_id: "b", status: "error", error: "x" };
  assert.equal(all(begun(), [started(), other]).job.status, "running");
});

test("a page that comes in mid-job shows the job that it sees steps of", () => {
  const history = all(begun(40), [step(7)]);
  assert.deepEqual([history.job.id, history.job.total, history.job.steps], ["a", null, 1]);
});

test("marks stand where the mode, the pass and the job changed", () => {
  const change = { type: "ModeChanged", t_s: 1, session_id: "a", step: 1, from_mode: "full", to_mode: "lowvram", reason: "asked", failed: false };
  const history = all(begun(), [started(), step(0), change, step(1), step(0, { pass_name: "hires" }), { ...change, failed: true }]);
  assert.deepEqual(history.marks.map(({ kind, n }) => [kind, n]), [["job", 0], ["mode", 1], ["pass", 2], ["failed", 3]]);
  assert.deepEqual(history.moments.map(({ kind, tS }) => [kind, tS]), [["job", 0], ["mode", 1], ["pass", 0], ["failed", 1]], "by time, too");
  assert.match(history.log[1].text, /lowvram could not be entered; full stays in force/);
});

test("a type that this page does not know moves the cursor only", () => {
  const history = all(begun(), [{ type: "Later", t_s: 1 }, step(0)]);
  assert.deepEqual([history.cursor, history.points.length, history.lost], [2, 1, 0]);
});

test("the steps of a request", () => {
  assert.equal(totalSteps({ steps: 20 }), 20);
  assert.equal(totalSteps({ steps: 20, n_iter: 3, hires: { steps: 10 } }), 90);
  assert.equal(totalSteps({ steps: 20, hires: { steps: 0 } }), 40);
  assert.equal(totalSteps({}), null);
});
