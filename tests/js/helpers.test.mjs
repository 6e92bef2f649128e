import assert from "node:assert/strict";
import { test } from "node:test";

import { difference, figure, table } from "../../javascript/vram_pilot/compare.mjs";
import { bytes, count, median, mode, moment, quantile, rate, seconds } from "../../javascript/vram_pilot/format.mjs";
import { html } from "../../javascript/vram_pilot/markup.mjs";
import { answer, bar, hasCard, noteList, request } from "../../javascript/vram_pilot/now.mjs";
import { choose, rows } from "../../javascript/vram_pilot/sessions.mjs";
import { rootOf, route, sessionPath } from "../../javascript/vram_pilot/urls.mjs";

// ---------------------------------------------------------------------------------------------------------- addresses

const HELPER = "javascript/vram_pilot.mjs?1700000000.5";
for (const [script, page, root] of [
  [`http://h:7860/file=extensions/vram-pilot/${HELPER}`, "http://h:7860/", "http://h:7860/"],
  [`https://h/sub/deep/file=extensions/vram-pilot/${HELPER}`, "https://h/sub/deep/", "https://h/sub/deep/"],
  [`https://h/sub/file=/data/webui/extensions/vram-pilot/${HELPER}`, "https://h/sub", "https://h/sub/"],
  ["http://h/vram-pilot/assets/vram_pilot.mjs?1", "http://h/?__theme=dark#top", "http://h/"],
  ["http://h/sub/vram-pilot/assets/vram_pilot.mjs?1", "http://h/sub/index.html", "http://h/sub/"],
  ["http://h/elsewhere.mjs", "http://h/a/b/index.html?x=/y/", "http://h/a/b/"],
]) {
  test(`E16 the root of ${script} is ${root}`, () => assert.equal(rootOf(script, page), root));
}

test("E16 routes lie under the root, with what is known as parameters", () => {
  assert.equal(route("https://h/sub/", "events", { since: 0, stream: null, poll: undefined }), "https://h/sub/vram-pilot/v1/events?since=0");
  assert.equal(route("https://h/", sessionPath("a/b?", "/report")), "https://h/vram-pilot/v1/sessions/a%2Fb%3F/report");
});

// --------------------------------------------------------------------------------------------------------------- text

test("everything in a template is escaped, except markup", () => {
  const evil = `<img src=x onerror="alert('1')">&`;
  assert.equal(String(html`<b>${evil}</b>`), "<b>&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;&amp;</b>");
  assert.equal(String(html`<ul>${["<", ">"].map((text) => html`<li>${text}</li>`)}</ul>`), "<ul><li>&lt;</li><li>&gt;</li></ul>");
  assert.equal(String(html`${null}${undefined}${false}${0}${""}`), "0");
});

test("an object that looks like markup is no markup", () => {
  assert.equal(String(html`${{ text: "<b>", toString: () => "<i>" }}`), "&lt;i&gt;");
});

test("sizes as the program writes them elsewhere", () => {
  for (const [value, text] of [
    [0, "0 B"],
    [999, "999 B"],
    [1000, "1 KiB"],
    [1.5 * 2 ** 20, "1.5 MiB"],
    [745 * 2 ** 20, "745 MiB"],
    [1639 * 2 ** 20, "1.60 GiB"],
    [80 * 2 ** 30, "80.0 GiB"],
    [null, "—"],
    [undefined, "—"],
    [NaN, "—"],
    ["7", "—"],
  ]) assert.equal(bytes(value), text);
});

test("times and rates", () => {
  assert.deepEqual([0.0344, 0.5, 5.2, 192, 3700, null].map(seconds), ["34.4 ms", "500 ms", "5.20 s", "3 min 12 s", "1 h 1 min", "—"]);
  assert.deepEqual([29.41, 2.5, 133.4, null, Infinity].map((value) => rate(value)), ["29.4 it/s", "2.50 it/s", "133 it/s", "—", "—"]);
  assert.deepEqual([count(1, "step"), count(2, "step")], ["1 step", "2 steps"]);
});

test("a moment in the reader's time, and a text that is none", () => {
  assert.equal(moment("2026-01-02T03:04:05Z", "en-GB", "UTC"), "2 Jan 2026, 03:04:05");
  assert.equal(moment("then"), "then");
  assert.equal(moment(null), "—");
});

test("the middle and the edge of some numbers", () => {
  assert.equal(median([3, null, 1, 2]), 2);
  assert.equal(quantile([0, 10], 0.95), 9.5);
  assert.equal(median([]), null);
  assert.equal(median([null, NaN]), null);
});

test("modes in words", () => {
  assert.equal(mode({ mode: "lowvram", budget_mib: 0, accelerate: "graph" }), "lowvram, 0 MiB, graph");
  assert.equal(mode({ mode: "full", budget_mib: null, accelerate: "off" }), "full");
  assert.equal(mode(null), "—");
});

// ---------------------------------------------------------------------------------------------------------------- bar

const is = (name, budget = null) => ({ mode: name, budget_mib: budget, accelerate: "off" });
function state(control = {}, more = {}) {
  return {
    mode: { standing: is("full"), requested: is("full"), effective: is("full"), in_job: false, refusal: null, ...control },
    model: { name: "model", family: "sd1" },
    host: { name: "host", version: "1", device: "cuda:0" },
    memory: null,
    ...more,
  };
}

test("the bar says what is in force and why", () => {
  assert.deepEqual([bar(state()).mode, bar(state()).why, bar(state()).kind], ["full", "The standing mode.", "calm"]);
  assert.match(bar(state({ requested: is("lowvram"), in_job: true })).why, /^lowvram is applied at the running job's next step/);
  assert.match(bar(state({ effective: is("lowvram", 5), requested: is("lowvram", 5), in_job: true })).why, /running job.*After it: full/);
  assert.match(bar(state({ effective: is("lowvram", 5), requested: is("lowvram", 6) })).why, /^lowvram, 6 MiB is applied with the next job/);
  assert.match(bar(state({ effective: is("medvram"), requested: is("medvram") })).why, /Left by the last job.*full/);
  assert.deepEqual([bar(state({ refusal: "too small" })).why, bar(state({ refusal: "too small" })).kind], ["too small", "refused"]);
});

test("no model, no card", () => {
  assert.match(bar(state({}, { model: null })).why, /No model is loaded/);
  assert.match(bar(state({}, { host: { name: "host", version: "", device: "cpu" } })).meta, /no NVIDIA card \(cpu\)/);
  assert.equal(hasCard({ device: "cuda:1" }), true);
  assert.equal(hasCard({ device: "mps" }), false);
});

test("figures that are not measured are left out", () => {
  assert.deepEqual(bar(state({ resident_bytes: null, slot_bytes: 0 })).figures, []);
  const lean = state({ effective: is("lowvram"), resident_bytes: 0, slot_bytes: 2 ** 20 }, { memory: { allocated_bytes: 0 } });
  assert.deepEqual(bar(lean).figures.map(({ name, value }) => `${name} ${value}`), [
    "Allocated by torch 0 B",
    "Denoiser on the card 0 B",
    "Slots for streaming 1.0 MiB",
  ]);
});

test("speed and joules are the running job's, or said to be the last one's", () => {
  const shown = (job) => bar(state({}, { job })).figures.map(({ name, value }) => `${name} ${value}`);
  assert.deepEqual(shown({ running: true, steps_per_s: 29.41, energy_j: 812.4 }), ["Speed 29.4 it/s", "Energy 812 J"]);
  assert.deepEqual(shown({ running: false, steps_per_s: 0.5, energy_j: 15_400 }), ["Speed, last job 0.50 it/s", "Energy, last job 15.4 kJ"]);
  assert.deepEqual(shown({ running: true, steps_per_s: null, energy_j: null }), []);
});

test("graphs and the mode's own notes are shown as they are", () => {
  const { figures, notes } = bar(state({ graph_bytes: 2 ** 20, graph_replays: 31, notes: ["The denoiser runs without its graph: <b>."] }));
  assert.deepEqual(figures.map(({ name, value }) => `${name} ${value}`), ["CUDA graphs 1.0 MiB", "Calls by graph 31"]);
  assert.equal(String(noteList(notes)), "<li>The denoiser runs without its graph: &lt;b&gt;.</li>");
});

test("the form's request", () => {
  const form = { mode: "lowvram", takes: ["budget"], budget: " 0 ", accelerate: "graph", scope: "job" };
  assert.deepEqual(request(form), { mode: "lowvram", scope: "job", budget_mib: 0 });
  assert.deepEqual(request({ ...form, budget: "" }), { mode: "lowvram", scope: "job", budget_mib: null });
  assert.deepEqual(request({ ...form, mode: "full", takes: ["accelerate"] }), { mode: "full", scope: "job", accelerate: "graph" });
  assert.deepEqual(request({ ...form, mode: "as-launched", takes: [] }), { mode: "as-launched", scope: "job" });
  assert.equal(answer({ applies: "next_step", refusal: null }), "Applied at the running job's next step.");
  assert.equal(answer({ applies: "now", refusal: "no" }), "no");
});

// ----------------------------------------------------------------------------------------------------------- sessions

test("at most two sessions are chosen, and one is given up by a second click", () => {
  assert.deepEqual(choose(["a", "b"], "c"), ["b", "c"]);
  assert.deepEqual(choose(["a", "b"], "a"), ["b"]);
});

test("a row carries no markup of a session's own", () => {
  const evil = { id: `"><script>`, status: "<b>", mode: "<i>", model: "<u>", started_at: "<s>" };
  const text = String(rows([evil], { chosen: [], open: { id: evil.id, what: "export" }, formats: ["html"], links: (id) => `x?${id}` }));
  assert.doesNotMatch(text, /<(script|i>|u>|s>)/);
});

test("a running session cannot be deleted, and the question comes before", () => {
  const shown = (session, open = null) => String(rows([session], { chosen: [], open, formats: [], links: () => "" }));
  assert.match(shown({ id: "1", status: "running" }), /data-act="ask" disabled/);
  assert.doesNotMatch(shown({ id: "1", status: "ok" }), /data-act="delete"/);
  assert.match(shown({ id: "1", status: "ok" }, { id: "1", what: "delete" }), /data-act="keep".*data-act="delete"/s);
});

test("the export menu has every format that is offered, and the snapshot where one was kept", () => {
  const shown = (session, open) =>
    String(rows([session], { chosen: [], open, formats: ["html", "csv", "later"], links: (id, format, saved) => `/${id}/${format}/${saved}` }));
  const links = (text) => [...text.matchAll(/href="([^"]+)" download/g)].map(([, link]) => link);
  const open = { id: "1", what: "export" };
  assert.deepEqual(links(shown({ id: "1", status: "ok" }, null)), []);
  assert.deepEqual(links(shown({ id: "1", status: "ok" }, open)), ["/1/html/true", "/1/csv/true", "/1/later/true"]);
  assert.deepEqual(links(shown({ id: "1", status: "ok", snapshot: true }, open)).at(-1), "/1/memory_viz/true");
  assert.match(shown({ id: "1", status: "ok" }, open), /aria-expanded="true"/);
});

test("differences in words", () => {
  assert.equal(difference({ a: 2, b: 1, ratio: 0.5 }), "−50 %");
  assert.equal(difference({ a: 1, b: 1.05, ratio: 1.05 }), "+5.0 %");
  assert.equal(difference({ a: 1, b: 2.6, ratio: 2.6 }), "2.6 ×");
  assert.equal(difference({ a: 1, b: 1, ratio: 1 }), "the same");
  assert.equal(difference({ a: null, b: 1, ratio: null }), "");
  assert.deepEqual([figure(0.034, "s"), figure(2 ** 30, "B"), figure(3, "1"), figure(null, "s"), figure("x", "")], ["34.0 ms", "1.00 GiB", "3", "—", "x"]);
});

test("the comparison shows what differs, and what nobody knows not at all", () => {
  const row = (label, a, b, unit = "", better = null) => ({ label, unit, a, b, ratio: null, better });
  const text = String(
    table({
      a: { started_at: "" },
      b: { started_at: "" },
      rows: [row("Mode", "full", "<b>"), row("Model", "m", "m"), row("Energy", null, null, "J"), row("Median step", 1, 2, "s", "a")],
    }),
  );
  assert.match(text, /The same in both: model m\./);
  assert.match(text, /full.*&lt;b&gt;.*differs/s);
  assert.doesNotMatch(text, /Energy/);
  assert.match(text, /1\.00 s <span class="vp-best">better/);
});
