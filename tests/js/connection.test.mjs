import assert from "node:assert/strict";
import { test } from "node:test";

import { POLL_MS, SILENCE_MS, backoff, idle, next } from "../../javascript/vram_pilot/connection.mjs";
import { BACKLOG, Link } from "../../javascript/vram_pilot/link.mjs";
import { Timers } from "../../javascript/vram_pilot/timers.mjs";

const does = (answer) => answer.commands.map((command) => command.do);
const after = (...types) => types.reduce((state, type) => next(state, { type }).state, idle);

test("waiting grows and stays bounded", () => {
  assert.deepEqual([1, 2, 3, 4, 9, 99].map((failures) => backoff(failures)), [500, 1000, 2000, 4000, 15000, 15000]);
  assert.ok(backoff(99, 1) <= 20000 && backoff(1, 0.5) > 500);
});

test("hiding ends everything from every phase, and asks for nothing", () => {
  for (const phase of [["show"], ["show", "hello"], ["show", "silence"], ["show", "hello", "failed"]]) {
    const answer = next(after(...phase), { type: "hide" });
    assert.deepEqual(answer.state, idle);
    assert.deepEqual(does(answer), ["cancelAll", "close"]);
  }
  assert.deepEqual(next(idle, { type: "hide" }).commands, []);
});

test("a stream that says nothing in three seconds is polled for", () => {
  const shown = next(idle, { type: "show" });
  assert.deepEqual(shown.commands.find((command) => command.do === "timer"), { do: "timer", event: "silence", ms: 3000 });
  assert.equal(SILENCE_MS, 3000);
  const silent = next(shown.state, { type: "silence" });
  assert.equal(silent.state.phase, "polling");
  assert.ok(does(silent).includes("close") && does(silent).includes("poll"));
});

test("polling goes on, at once when there is more, and comes back to the stream", () => {
  const polling = after("show", "failed");
  assert.equal(polling.phase, "polling");
  assert.equal(next(polling, { type: "polled", more: false }).commands[0].ms, POLL_MS);
  assert.equal(next(polling, { type: "polled", more: true }).commands[0].ms, 0);
  assert.equal(next(polling, { type: "streamAgain" }).state.phase, "connecting");
});

test("a server that is away is asked less and less often", () => {
  let state = after("show", "failed");
  const waits = [];
  for (let round = 0; round < 8; round += 1) {
    const failed = next(state, { type: "pollFailed", spread: 0 });
    waits.push(failed.state.ms);
    state = next(next(failed.state, { type: "retry" }).state, { type: "failed" }).state;
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 15000, 15000, 15000]);
});

test("a greeting forgets the failures", () => {
  assert.equal(after("show", "failed", "pollFailed", "retry", "hello").failures, 0);
});

test("an event that a phase does not know changes nothing", () => {
  for (const phase of [[], ["show"], ["show", "hello"], ["show", "failed"], ["show", "hello", "failed"]]) {
    const state = after(...phase);
    for (const type of ["nonsense", phase.length ? "show" : "hello"]) assert.deepEqual(next(state, { type }), { state, commands: [] });
  }
});

// ------------------------------------------------------------------------------------------------------- with a world

/** Timers that the test fires, a server that the test speaks for. */
function world(answers = [], came = () => {}) {
  const pending = new Map();
  let last = 0;
  const clock = {
    setTimeout: (work, ms) => (pending.set((last += 1), { work, ms }), last),
    clearTimeout: (id) => pending.delete(id),
  };
  const fire = (ms) => {
    for (const [id, timer] of [...pending]) {
      if (timer.ms !== ms) continue;
      pending.delete(id);
      timer.work();
    }
  };
  const sources = [];
  const asked = [];
  const phases = [];
  const link = new Link({
    clock,
    ask: (path, parameters) => {
      asked.push(parameters);
      const given = answers.shift();
      return given ? Promise.resolve(given) : Promise.reject(new Error("away"));
    },
    listen: (parameters) => {
      const source = { parameters, open: true, on: {}, addEventListener: (name, take) => (source.on[name] = take), close: () => (source.open = false) };
      sources.push(source);
      return source;
    },
    changed: (phase) => phases.push(phase),
    came,
  });
  return { link, sources, asked, phases, pending, fire };
}

const say = (source, name, data = {}, lastEventId = "") => source.on[name]({ data: JSON.stringify(data), lastEventId });
const hello = (cursor) => ({ stream: "s", cursor, reset: false, now_s: 0 });
const step = { type: "StepFinished", t_s: 0, session_id: "a", index: 0, pass_name: "base", duration_s: 0.1 };
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("the stream begins with the backlog, and resumes at the cursor", () => {
  const { link, sources, fire, phases } = world();
  link.show({ cursor: 5000, stream: "s" });
  assert.deepEqual(sources[0].parameters, { since: 5000 - BACKLOG, stream: "s" });
  say(sources[0], "hello", hello(3000));
  say(sources[0], "record", step, "3001");
  say(sources[0], "error");
  assert.equal(sources[0].open, false);
  assert.equal(link.phase, "waiting");
  for (let ms = 500; ms <= 650; ms += 1) fire(ms);
  assert.deepEqual(sources[1].parameters, { since: 3001, stream: "s" });
  say(sources[1], "hello", hello(3001));
  say(sources[1], "record", step, "3002");
  assert.equal(link.history.points.length, 2);
  assert.deepEqual(phases, ["connecting", "streaming", "waiting", "connecting", "streaming"]);
});

test("a stream that was closed is heard no more", () => {
  const { link, sources } = world();
  link.show({ cursor: 0, stream: "s" });
  say(sources[0], "hello", hello(0));
  link.hide();
  say(sources[0], "record", step, "1");
  assert.equal(link.history.points.length, 0);
});

test("hidden, no timer runs and nothing is asked", () => {
  const { link, pending, asked, sources } = world();
  link.show({ cursor: 0, stream: "s" });
  link.hide();
  assert.deepEqual([pending.size, asked.length, sources.length, sources[0].open], [0, 0, 1, false]);
});

test("polled records are the streamed ones, without gap or double", async () => {
  const record = (cursor) => ({ cursor, ...step });
  const { link, sources, asked, fire } = world([
    { ...hello(2), since: 0, lost: 0, more: false, records: [record(1), record(2)] },
    { ...hello(3), since: 2, lost: 0, more: false, records: [record(3)] },
  ]);
  link.show({ cursor: 2, stream: "s" });
  fire(SILENCE_MS);
  await settled();
  assert.equal(sources[0].open, false);
  fire(POLL_MS);
  await settled();
  assert.deepEqual(asked.map(({ since, poll }) => [since, poll]), [[0, 1], [2, 1]]);
  assert.deepEqual([link.history.points.length, link.history.lost, link.history.cursor], [3, 0, 3]);
});

test("a stream that is held back on its way is left for polling", async () => {
  const { link, sources, fire, asked } = world([{ ...hello(9), since: 0, lost: 0, more: false, records: [] }]);
  link.show({ cursor: 0, stream: "s" });
  say(sources[0], "hello", hello(0));
  link.compare({ stream: "s", cursor: 0 });
  fire(SILENCE_MS);
  assert.equal(link.phase, "streaming");
  link.compare({ stream: "s", cursor: 4 });
  fire(SILENCE_MS);
  await settled();
  assert.equal(link.phase, "polling");
  assert.equal(asked.length, 1);
});

test("a stream that only lags is kept", () => {
  const { link, sources, fire } = world();
  link.show({ cursor: 0, stream: "s" });
  say(sources[0], "hello", hello(0));
  link.compare({ stream: "s", cursor: 1 });
  say(sources[0], "record", step, "1");
  fire(SILENCE_MS);
  assert.equal(link.phase, "streaming");
});

test("a page that begins goes back to the newest job's start, but not for ever", () => {
  for (const [job, since] of [[null, 8000], [{ cursor: 9000 }, 8000], [{ cursor: 7000 }, 7000], [{ cursor: 10 }, 4000]]) {
    const { link, sources } = world();
    link.show({ cursor: 10_000, stream: "s", job });
    assert.equal(sources[0].parameters.since, since);
  }
});

const sample = (t, values) => ({ type: "Sample", t_s: t, values });

test("the map is asked for while it is wanted, and the stream goes on where it was", () => {
  const { link, sources, phases } = world();
  link.wantMap(true);
  link.show({ cursor: 0, stream: "s" });
  assert.equal(sources[0].parameters.map, 1);
  say(sources[0], "hello", hello(0));
  say(sources[0], "record", sample(1, { gpu_power_w: 50 }), "7");
  link.wantMap(true);
  assert.equal(sources.length, 1, "nothing changed");
  link.wantMap(false);
  assert.deepEqual([sources[0].open, sources[1].parameters], [false, { since: 7, stream: "s" }]);
  say(sources[0], "record", sample(2, { gpu_power_w: 51 }), "8");
  say(sources[1], "hello", hello(7));
  say(sources[1], "record", sample(2, { gpu_power_w: 52 }), "8");
  assert.deepEqual([link.readings.at("gpu_power_w", 2), link.readings.metrics.get("gpu_power_w").length, link.history.lost], [52, 2, 0]);
  assert.deepEqual(phases, ["connecting", "streaming", "connecting", "streaming"]);
});

test("readings come in without gap or double after a drop, and anew from another server", () => {
  const { link, sources, fire } = world();
  link.show({ cursor: 0, stream: "s" });
  say(sources[0], "hello", hello(0));
  for (const cursor of [1, 2, 3]) say(sources[0], "record", sample(cursor, { gpu_power_w: cursor }), String(cursor));
  say(sources[0], "error");
  for (let ms = 500; ms <= 650; ms += 1) fire(ms);
  say(sources[1], "hello", hello(3));
  for (const cursor of [2, 3, 4, 5]) say(sources[1], "record", sample(cursor, { gpu_power_w: cursor }), String(cursor));
  const { t, begin, end } = link.readings.metrics.get("gpu_power_w");
  assert.deepEqual([...t.slice(begin, end)], [1, 2, 3, 4, 5]);
  say(sources[1], "hello", { ...hello(0), stream: "another", reset: true });
  say(sources[1], "record", sample(0.5, { gpu_power_w: 9 }), "1");
  assert.deepEqual([link.readings.metrics.get("gpu_power_w").length, link.readings.newestS], [1, 0.5]);
});

test("what came is told by what depends on it", () => {
  const told = [];
  const { link, sources } = world([], (what) => told.push(what));
  link.show({ cursor: 0, stream: "s" });
  say(sources[0], "hello", hello(0));
  say(sources[0], "record", sample(1, {}), "1");
  say(sources[0], "record", step, "2");
  say(sources[0], "record", { type: "Note", t_s: 2, text: "x" }, "3");
  say(sources[0], "lost", { count: 2 });
  const [reading, steps, news, lost] = told;
  assert.deepEqual(reading, { news: false, readings: true, steps: false });
  assert.deepEqual(steps, { news: false, readings: false, steps: true });
  assert.deepEqual([news.news, news.steps, lost.steps], [true, true, true]);
});

test("an answer whose records were for others is not asked for again", async () => {
  const { link, asked, fire } = world([
    { ...hello(600), since: 0, lost: 0, more: true, records: [] },
    { ...hello(700), since: 600, lost: 0, more: false, records: [] },
  ]);
  link.show({ cursor: 0, stream: "s" });
  fire(SILENCE_MS);
  await settled();
  fire(0);
  await settled();
  assert.deepEqual(asked.map(({ since }) => since), [0, 600]);
});

test("a name has one timer", () => {
  const fired = [];
  const works = [];
  const timers = new Timers({ setTimeout: (work) => works.push(work), clearTimeout: (id) => (works[id - 1] = () => {}) });
  timers.start("a", 1, () => fired.push("first"));
  timers.start("a", 1, () => fired.push("second"));
  timers.start("b", 1, () => fired.push("stopped"));
  timers.stop("b");
  works.forEach((work) => work());
  assert.deepEqual(fired, ["second"]);
  assert.equal(timers.has("a"), false);
});
