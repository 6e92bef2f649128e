import assert from "node:assert/strict";
import { test } from "node:test";

import { CARD_LAYERS, card, ram } from "../../javascript/vram_pilot/holders.mjs";
import { CAPACITY, Readings } from "../../javascript/vram_pilot/readings.mjs";
import { Series } from "../../javascript/vram_pilot/series.mjs";

const GIB = 2 ** 30;
const all = (series) => [...series.t.slice(series.begin, series.end)];

// ------------------------------------------------------------------------------------------------------------ series

test("a series keeps the newest readings, in order, whatever their number", () => {
  for (const capacity of [1, 5, 300, 1000]) {
    const series = new Series(capacity, { lanes: 2 });
    for (let t = 0; t < 5000; t += 1) series.push(t, [t * 2, null]);
    assert.deepEqual(all(series), Array.from({ length: capacity }, (_, index) => 5000 - capacity + index));
    assert.equal(series.at(4999), 9998);
    assert.equal(series.at(4999, 1), null);
    assert.ok(series.t.length <= Math.max(capacity * 2, 256), "and no more memory than that");
  }
});

test("a time that does not rise is passed over", () => {
  const series = new Series(10);
  for (const [t, value] of [[1, 1], [1, 2], [0.5, 3], [2, 4]]) series.push(t, [value]);
  assert.deepEqual([all(series), series.at(1)], [[1, 2], 1]);
});

test("a reading holds until the next one, and not for ever", () => {
  const series = new Series(10, { gapS: 2 });
  series.push(10, [1]);
  series.push(11, [2]);
  assert.deepEqual([9.9, 10, 10.9, 11, 13, 13.1].map((t) => series.at(t)), [null, 1, 1, 2, 2, null]);
  assert.equal(new Series(10).at(5), null);
});

test("a copy stays as it was", () => {
  const series = new Series(300);
  for (let t = 0; t < 1000; t += 1) series.push(t, [t]);
  const copy = series.clone();
  for (let t = 1000; t < 2000; t += 1) series.push(t, [t]);
  assert.deepEqual([copy.length, copy.newestS, copy.at(800)], [300, 999, 800]);
});

// ------------------------------------------------------------------------------------------------------ who holds it

const reading = (more = {}) => ({
  allocated_bytes: 3 * GIB, reserved_bytes: 4 * GIB, gpu_used_bytes: 7 * GIB, gpu_free_bytes: 4.5 * GIB,
  gpu_total_bytes: 12 * GIB, gpu_reserved_bytes: 0.5 * GIB, ...more,
});
const inGib = (found) => [...found.layers, found.free, found.total].map((value) => (value === null ? null : value / GIB));

test("all layers and what is free make up the card", () => {
  const found = card(reading({ gpu_process_bytes: 4.75 * GIB, gpu_other_processes_bytes: 2 * GIB }));
  assert.deepEqual(inGib(found), [3, 1, 0.75, 2, 0.75, 4.5, 12]);
  assert.equal(found.layers.length, CARD_LAYERS.length);
});

test("who holds what beside torch is read rarely, and holds until it is read again", () => {
  const first = card(reading({ gpu_process_bytes: 4.75 * GIB, gpu_other_processes_bytes: 2 * GIB }));
  const more = card(reading({ reserved_bytes: 5 * GIB, gpu_used_bytes: 8 * GIB }), first);
  assert.deepEqual(inGib(more), [3, 2, 0.75, 2, 0.75, 3.5, 12]);
  const told = card(reading({ gpu_process_bytes: null, gpu_other_processes_bytes: null }), more);
  assert.deepEqual(inGib(told), [3, 1, null, null, 3.5, 4.5, 12], "as on Windows");
});

test("when others have gone since, the sum is still what is used", () => {
  const first = card(reading({ gpu_process_bytes: 4.75 * GIB, gpu_other_processes_bytes: 2 * GIB }));
  const gone = card(reading({ gpu_used_bytes: 5 * GIB }), first);
  assert.deepEqual(inGib(gone), [3, 1, 0.75, 0.25, 0.5, 6.5, 12]);
});

test("an older driver counts its own share as used; without a driver there are torch's figures alone", () => {
  assert.deepEqual(inGib(card(reading({ gpu_reserved_bytes: null }))), [3, 1, null, null, 3, 5, 12]);
  assert.deepEqual(inGib(card({ allocated_bytes: GIB, reserved_bytes: 2 * GIB })), [1, 1, null, null, null, null, null]);
  assert.deepEqual(inGib(card({ allocated_bytes: null, reserved_bytes: null, gpu_used_bytes: GIB, gpu_total_bytes: 2 * GIB })), [null, null, null, null, 1, 1, 2]);
  assert.equal(card({ allocated_bytes: null, host_load: 1 }), null);
});

test("the machine's memory in layers", () => {
  const values = { host_ram_total_bytes: 32 * GIB, host_ram_available_bytes: 20 * GIB, process_rss_bytes: 5 * GIB };
  assert.deepEqual(inGib(ram(values)), [5, 7, 20, 32]);
  assert.deepEqual(inGib(ram({ ...values, process_rss_bytes: null })), [null, 12, 20, 32]);
  assert.equal(ram({ host_ram_total_bytes: null, host_ram_available_bytes: null }), null);
});

// ---------------------------------------------------------------------------------------------------------- readings

const sample = (t, values) => ({ type: "Sample", t_s: t, values });

test("readings are kept by metric, and what is not shown is not kept", () => {
  const readings = new Readings();
  readings.take(sample(1, { ...reading(), gpu_power_w: 100, host_load: 2, host_ram_total_bytes: 8, host_ram_available_bytes: 3 }));
  assert.deepEqual([readings.at("gpu_power_w", 1), readings.at("host_ram_used_bytes", 2), readings.newestS], [100, 5, 1]);
  assert.equal(readings.metrics.has("host_load"), false);
  assert.equal(readings.card.length, 1);
  readings.take({ type: "StepFinished", t_s: 9 });
  assert.equal(readings.newestS, 1);
});

test("absent is what was asked for more than once and never came", () => {
  const readings = new Readings();
  readings.take(sample(1, { gpu_pcie_rx_bytes_per_s: null, host_cpu_ratio: null }));
  assert.equal(readings.isAbsent("host_cpu_ratio"), false, "a rate needs two readings");
  readings.take(sample(2, { gpu_pcie_rx_bytes_per_s: null, host_cpu_ratio: 0.5 }));
  assert.deepEqual(["gpu_pcie_rx_bytes_per_s", "host_cpu_ratio", "gpu_power_w"].map((name) => readings.isAbsent(name)), [true, false, false]);
  readings.take(sample(3, { gpu_pcie_rx_bytes_per_s: 5 }));
  assert.equal(readings.isAbsent("gpu_pcie_rx_bytes_per_s"), false, "and it may come yet");
});

test("a day of readings takes no more memory than ten minutes", () => {
  const readings = new Readings();
  const column = { type: "MapColumn", row_bytes: 2 ** 20, layout: 0, held_bytes: 1, active_bytes: 1, held: "/w==", active: "/w==", note: null };
  for (let t = 0; t < 86_400; t += 2) {
    readings.take(sample(t, { ...reading(), gpu_power_w: 1, gpu_clock_events: 0, process_rss_bytes: 1 }));
    readings.take({ ...column, t_s: t });
  }
  for (const series of [readings.card, readings.metrics.get("gpu_power_w")]) {
    assert.equal(series.length, CAPACITY);
    assert.ok(series.t.length <= 2 * CAPACITY && series.lanes.every((lane) => lane.length <= 2 * CAPACITY));
  }
  assert.equal(readings.columns.entries.length, readings.columns.slots);
});

test("a copy for the pause shows what was, while the readings go on", () => {
  const readings = new Readings();
  readings.take(sample(1, { gpu_power_w: 1 }));
  const copy = readings.clone();
  for (let t = 2; t < 20_000; t += 1) readings.take(sample(t, { gpu_power_w: t }));
  assert.deepEqual([copy.at("gpu_power_w", 1), copy.newestS, readings.newestS], [1, 1, 19_999]);
  copy.take(sample(5, { gpu_power_w: 5 }));
  assert.equal(readings.at("gpu_power_w", 19_999), 19_999);
});
