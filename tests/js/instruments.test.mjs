import assert from "node:assert/strict";
import { test } from "node:test";

import { GAUGES, eventNames, linkRate, missing, rate, readout } from "../../javascript/vram_pilot/gauges.mjs";
import { CARD_LAYERS } from "../../javascript/vram_pilot/holders.mjs";
import { afterKey, ago, rowOf, timeOf } from "../../javascript/vram_pilot/moment.mjs";
import { Readings } from "../../javascript/vram_pilot/readings.mjs";
import { Series } from "../../javascript/vram_pilot/series.mjs";
import { highest, line, marksIn, roundUp, spans, steps } from "../../javascript/vram_pilot/trace.mjs";
import { axis, limitLabels, mapHead, memoryHead, missingList, tracks } from "../../javascript/vram_pilot/tracks.mjs";

const GIB = 2 ** 30;
const series = (points, options = { gapS: 2 }) => {
  const made = new Series(10_000, { lanes: points[0]?.[1].length ?? 1, ...options });
  for (const [t, values] of points) made.push(t, values);
  return made;
};
const every = (stepS, length, value) => Array.from({ length }, (_, index) => [index * stepS, [value(index)]]);
const window = { from: 0, to: 100 };

// ------------------------------------------------------------------------------------------------------------ places

test("a line goes through every reading where there is room", () => {
  const points = line(series(every(1, 50, (index) => index)), window, 1000);
  assert.deepEqual(points.map(({ x, value }) => [x, value]), every(1, 50, (index) => index).map(([t, [value]]) => [t * 10, value]));
});

test("a line of many readings takes two a pixel, and loses no peak", () => {
  const peaks = new Set([777, 3210, 9002]);
  const points = line(series(every(0.01, 10_000, (index) => (peaks.has(index) ? 99 : index === 5000 ? -50 : 10))), window, 400);
  assert.ok(points.length <= 2 * 401, `${points.length}`);
  assert.deepEqual([points.filter(({ value }) => value === 99).length, points.filter(({ value }) => value === -50).length], [3, 1]);
  assert.ok(points.every(({ x }, index) => index === 0 || x >= points[index - 1].x));
});

test("a line breaks where nothing was read, and where a reading is missing", () => {
  const values = line(series([[1, [5]], [2, [null]], [3, [6]], [20, [7]]]), window, 1000).map(({ value }) => value);
  assert.deepEqual(values, [5, null, 6, null, 7]);
});

test("the reading before the window is where the line comes from, and none after it is drawn", () => {
  const points = line(series(every(1, 100, (index) => index)), { from: 10.5, to: 20.5 }, 100);
  assert.deepEqual([points[0].value, points[0].x, points.at(-1).value], [10, -5, 20]);
});

test("steps of a stack follow each other without a gap, the last one up to the window's end", () => {
  const found = steps(series([[0, [1, 2]], [40, [3, 4]], [99, [5, 6]]], { gapS: 100 }), window, 1000, 2);
  assert.deepEqual(found.map(({ x, end, place }) => [x, end, place]), [[0, 400, 0], [400, 990, 1], [990, 1000, 2]]);
});

test("a stack ends where readings ended", () => {
  const found = steps(series([[0, [1]], [50, [1]]], { gapS: 2 }), window, 1000, 1);
  assert.deepEqual(found.map(({ x, end }) => [x, end]), [[0, 20], [500, 520]]);
});

test("of a pixel's readings the highest stack stands for all", () => {
  const tall = series(every(0.01, 10_000, (index) => (index === 5005 ? 9 : 1)));
  const found = steps(tall, window, 100, 1);
  assert.ok(found.length <= 101);
  assert.equal(found.filter(({ place }) => tall.lanes[0][place] === 9).length, 1);
});

test("spans of reasons are those of the readings that had them", () => {
  const found = spans(series([[0, [4]], [1, [4]], [2, [36]], [3, [0]], [4, [null]], [5, [32]], [50, [4]]]), window, 100, { power_cap: 4, sw_thermal: 32 });
  assert.deepEqual(found, [
    { name: "power_cap", x: 0, end: 3 },
    { name: "power_cap", x: 50, end: 52 },
    { name: "sw_thermal", x: 2, end: 3 },
    { name: "sw_thermal", x: 5, end: 7 },
  ]);
});

test("scales end at round numbers, and the highest value is within", () => {
  assert.deepEqual([0, 0.9, 1, 13, 15.5, 76, 101].map((value) => roundUp(value)), [1, 1, 1, 15, 20, 80, 150]);
  assert.deepEqual([1.2 * GIB, 5 * GIB, 3 * GIB, 2 * GIB].map((value) => roundUp(value, 2) / GIB), [1.25, 5, 3, 2]);
  for (let value = 1e-3; value < 1e12; value *= 1.37) assert.ok(roundUp(value) >= value * 0.999 && roundUp(value, 2) >= value * 0.999);
  assert.equal(highest(series([[1, [3]], [2, [null]], [3, [9]], [200, [99]]]), window), 9);
  assert.equal(highest(new Series(5), window), null);
});

test("marks stand at their time", () => {
  const found = marksIn([{ kind: "job", label: "job", tS: -1 }, { kind: "mode", label: "full", tS: 25 }], window, 400);
  assert.deepEqual(found.map(({ label, x }) => [label, x]), [["full", 100]]);
});

// ------------------------------------------------------------------------------------------------------------ moments

test("the pointer stays where it is, the keys stay at their time until it leaves the window", () => {
  assert.equal(timeOf({ share: 0.25 }, window), 25);
  assert.equal(timeOf({ share: 0.25 }, { from: 10, to: 110 }), 35);
  assert.equal(timeOf({ tS: 5 }, { from: 10, to: 110 }), 10);
  assert.equal(timeOf(null, window), null);
});

test("keys move by a 120th of the window, ten of them with shift, and to its ends", () => {
  const after = (pointed, key, shiftKey = false) => afterKey(pointed, { key, shiftKey }, { from: 0, to: 120 }, 64);
  assert.equal(after(null, "ArrowLeft").tS, 119);
  assert.equal(after({ tS: 50, high: null }, "ArrowRight", true).tS, 60);
  assert.equal(after({ tS: 0.5, high: null }, "ArrowLeft").tS, 0);
  assert.deepEqual([after(null, "Home").tS, after(null, "End").tS, after({ tS: 1 }, "Escape"), after(null, "x")], [0, 120, null, undefined]);
  assert.equal(rowOf(after({ tS: 1, high: null }, "ArrowUp"), 64), 33);
  assert.equal(rowOf(after({ tS: 1, high: 0 }, "ArrowDown"), 64), 0);
  assert.equal(rowOf({ high: 1 }, 64), 63);
  assert.equal(rowOf({ high: null }, 64), null);
});

test("how long ago, in words", () => {
  assert.deepEqual([0, 1.25, 61.4].map(ago), ["now", "1.3 s before the newest", "61 s before the newest"]);
});

// -------------------------------------------------------------------------------------------------------------- words

const gauge = (name) => GAUGES.find((other) => other.name === name);
const at = (values) => (name) => values[name] ?? null;

test("large figures and what stands below them", () => {
  assert.deepEqual(readout(gauge("utilization"), at({ gpu_utilization_ratio: 0.984, gpu_memory_utilization_ratio: 0.4 })), { value: "98 %", details: "memory access 40 %" });
  assert.deepEqual(readout(gauge("power"), at({})), { value: "—", details: "" });
  assert.equal(readout(gauge("pcie"), at({ gpu_pcie_rx_bytes_per_s: 18.5e9, gpu_pcie_tx_bytes_per_s: 4e3 })).details, "to the card · from it 4 kB/s");
  assert.equal(readout(gauge("ram"), at({ host_ram_used_bytes: 5 * GIB, host_ram_total_bytes: 8 * GIB })).details, "of 8.0 GiB".replace("8.0", "8.00"));
  assert.deepEqual([40e6, 999.9e6, 1.5e9, 31.5e9, 999e3, 0].map(rate), ["40 MB/s", "1.00 GB/s", "1.50 GB/s", "31.5 GB/s", "1 MB/s", "0 kB/s"]);
});

test("throttle reasons have the names of the documentation, and idling is no fault", () => {
  assert.deepEqual(eventNames(0x1 | 0x4 | 0x40), ["gpu_idle", "power_cap", "hw_thermal"]);
  assert.deepEqual(eventNames(null), []);
  const details = (bits) => readout(gauge("clocks"), at({ gpu_sm_clock_hz: 2e9, gpu_clock_events: bits })).details;
  assert.equal(details(0x4 | 0x20), "held down: power_cap, sw_thermal");
  assert.equal(details(0x1), "");
});

test("limits are on the scale when they are known", () => {
  const facts = { temperature_slowdown_c: 90, temperature_shutdown_c: 95, sm_clock_max_hz: 2.6e9, pcie_generation_max: 4, pcie_width_max: 16 };
  const power = at({ gpu_power_limit_w: 200 });
  for (const name of ["temperature", "power", "clocks", "pcie"]) {
    const limits = gauge(name).limits(facts, power);
    assert.ok(limits.length && limits.every(({ value }) => value <= gauge(name).top(facts, 1, power)), name);
  }
  assert.equal(linkRate(facts), 16 * 1969e6);
  assert.equal(linkRate({}), null);
  for (const each of GAUGES) assert.ok(each.top({}, null, at({})) > (each.bottom ?? 0), `${each.name} without any facts`);
});

test("what is missing is named with the reason that is known best", () => {
  const readings = new Readings();
  const values = { gpu_used_bytes: 1, gpu_power_w: null, gpu_process_bytes: null, host_cpu_ratio: null };
  for (const t of [1, 2]) readings.take({ type: "Sample", t_s: t, values });
  const found = missing(readings, { notes: ["The package psutil is not installed, so CPU stays empty."], nvidia: true });
  assert.deepEqual(found.map(({ label }) => label), ["Power", "Memory by process", "CPU"]);
  assert.match(found[1].reason, /WDDM/);
  assert.match(found[2].reason, /not installed/);
  assert.deepEqual(missing(readings, { notes: ["This program computes on cpu: there is no NVIDIA card to read."], nvidia: false })[0], {
    label: "Readings of the card",
    reason: "This program computes on cpu: there is no NVIDIA card to read.",
  });
  const text = String(missingList([{ label: "<b>", reason: "<i>" }]));
  assert.match(text, /&lt;b&gt;.*&lt;i&gt;/s);
});

test("without a driver one reason stands for all of the card", () => {
  const readings = new Readings();
  const values = { allocated_bytes: 1, reserved_bytes: 2, gpu_used_bytes: null, gpu_power_w: null, gpu_temperature_c: null };
  for (const t of [1, 2]) readings.take({ type: "Sample", t_s: t, values });
  const found = missing(readings, { notes: ["The card has no readings: the package nvidia-ml-py is not installed."], nvidia: true });
  assert.equal(found.length, 1);
  assert.match(found[0].reason, /nvidia-ml-py/);
});

test("who holds the memory is told from the top down, with names that fit what is known", () => {
  const full = series([[1, [3 * GIB, GIB, 0.5 * GIB, 2 * GIB, 0.5 * GIB, 5 * GIB, 12 * GIB]]]);
  const { value, details, legend } = memoryHead(full, 0, CARD_LAYERS);
  assert.deepEqual([value, details], ["7.00 GiB", "of 12.0 GiB · 58 %"]);
  const names = (markup) => [...String(markup).matchAll(/<span>(.*?)<\/span>/g)].map(([, name]) => name);
  assert.deepEqual(names(legend), ["Free", "Driver and the rest", "Other processes", "This process beside torch", "Torch, cached", "Torch, in use"]);
  const merged = series([[1, [3 * GIB, GIB, null, null, GIB, 5 * GIB, 10 * GIB]]]);
  assert.deepEqual(names(memoryHead(merged, 0, CARD_LAYERS).legend), ["Free", "Others and driver", "Torch, cached", "Torch, in use"]);
  const alone = series([[1, [GIB, GIB, null, null, null, null, null]]]);
  assert.deepEqual([memoryHead(alone, 0, CARD_LAYERS).details, memoryHead(alone, -1, CARD_LAYERS).value], ["the total is not known", "—"]);
});

test("the map's head names the cell that is pointed at", () => {
  const column = { rowBytes: 2 ** 20, held: Uint8Array.of(255, 255), active: Uint8Array.of(255, 51), heldBytes: 2 * 2 ** 20, activeBytes: 1.2 * 2 ** 20 };
  const text = (row) => String(mapHead(column, 2 ** 20, row, 0.25).legend).replace(/\s+/g, " ");
  assert.match(text(1), /At 1.0 MiB, 1.0 MiB: <b>20 % in use<\/b>, 819 KiB cached/);
  assert.match(text(7), /Nothing of torch's here/);
  assert.doesNotMatch(text(null), /vp-cell/);
  assert.equal(mapHead(column, 2 ** 20, null, 0.25).details, "held · fragmentation 25 %");
});

test("limits that lie close together share a label", () => {
  const labels = (limits) => [...String(limitLabels(limits)).matchAll(/top:(.*?)px">(.*?)</g)].map(([, y, text]) => [Number(y), text]);
  assert.deepEqual(labels([[9, "held down"], [4, "off"], [40, "else"]]), [[4, "held down · off"], [40, "else"]]);
  assert.deepEqual(labels([]), []);
});

test("the axis counts back from now", () => {
  const text = (windowS) => [...String(axis(windowS)).matchAll(/>([^<]+)</g)].map(([, label]) => label);
  assert.deepEqual(text(30), ["−30 s", "−25 s", "−20 s", "−15 s", "−10 s", "−5 s", "now"]);
  assert.deepEqual(text(600), ["−10 min", "−8 min", "−6 min", "−4 min", "−2 min", "now"]);
  assert.equal((String(tracks(GAUGES, true)).match(/data-track=/g) ?? []).length, GAUGES.length + 2);
});
