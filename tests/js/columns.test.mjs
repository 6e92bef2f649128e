import assert from "node:assert/strict";
import { test } from "node:test";

import { Columns, ROWS, SLOT_S, bytesOf, cell, coarser, pixels } from "../../javascript/vram_pilot/columns.mjs";

const MIB = 2 ** 20;
const text = (shares) => Buffer.from(shares).toString("base64");
const record = (tS, held, active, more = {}) => ({
  type: "MapColumn", t_s: tS, row_bytes: MIB, layout: 0, held_bytes: 0, active_bytes: 0, held: text(held), active: text(active), note: null, ...more,
});
const colours = { active: [10, 20, 30], cached: [110, 120, 130] };
const rgba = (image, row) => [...image.slice((ROWS - 1 - row) * 4, (ROWS - row) * 4)];

test("cells come over the wire as they were sent", () => {
  const shares = Uint8Array.from({ length: 256 }, (_, value) => value);
  assert.deepEqual(bytesOf(text(shares)), shares);
  assert.deepEqual(bytesOf(""), new Uint8Array(0));
});

test("a cell's colour tells what is in use, cached and not held, and shares are in between", () => {
  const columns = new Columns();
  columns.take(record(1, [255, 255, 255, 128], [255, 0, 51, 128]));
  const image = pixels(columns.at(1), MIB, colours);
  assert.deepEqual([0, 1, 2, 3, 4].map((row) => rgba(image, row)), [
    [10, 20, 30, 255],
    [110, 120, 130, 255],
    [90, 100, 110, 255],
    [10, 20, 30, 128],
    [0, 0, 0, 0],
  ]);
  assert.ok(pixels(null, MIB, colours, image).every((value) => value === 0), "and an empty column wipes what was there");
});

test("rows that are coarser keep the sum, and nothing that is there vanishes", () => {
  assert.deepEqual([...coarser(Uint8Array.of(255, 255, 0, 100, 1), 2)], [255, 50, 1]);
  assert.deepEqual([...coarser(Uint8Array.of(1, 0, 0, 0), 4)], [1]);
});

test("a column holds until the next one, and not for ever", () => {
  const columns = new Columns();
  columns.take(record(10, [1], [1]));
  columns.take(record(12, [2], [2]));
  columns.take(record(60, [3], [3]));
  const at = (t) => columns.at(t)?.held[0] ?? null;
  assert.deepEqual([9.9, 10, 11.9, 12.1, 30, 60, 64, 80].map(at), [null, 1, 1, 2, null, 3, 3, null]);
});

test("the picture's rows are as high as the highest among its columns, until that has gone", () => {
  const columns = new Columns(40);
  columns.take(record(0, [255, 255], [255, 0]));
  const before = columns.version;
  columns.take(record(1, [255], [255], { row_bytes: 4 * MIB }));
  assert.deepEqual([columns.rowBytes, columns.version], [4 * MIB, before + 1], "all of it is painted anew");
  assert.equal(columns.height(0), 1);
  assert.deepEqual(rgba(pixels(columns.get(0), columns.rowBytes, colours), 0)[3], 128);
  for (let t = 2; t < 14; t += 0.25) columns.take(record(t, [255, 255, 255], [0, 0, 0]));
  assert.deepEqual([columns.rowBytes, columns.height(0)], [MIB, 3]);
});

test("what stands in one slot twice is the later one, and what is late is passed over", () => {
  const columns = new Columns();
  columns.take(record(5.0, [1], [0]));
  columns.take(record(5.1, [2], [0]));
  columns.take(record(4.0, [9], [0]));
  assert.equal(columns.at(5).held[0], 2);
  assert.equal(columns.newest, 5 / SLOT_S);
});

test("a note is shown until columns come", () => {
  const columns = new Columns();
  columns.take({ type: "MapColumn", t_s: 1, row_bytes: 0, held: "", active: "", note: "none" });
  assert.deepEqual([columns.note, columns.newest], ["none", -1]);
  columns.take(record(2, [1], [1]));
  assert.equal(columns.note, null);
});

test("a cell says its place and its bytes", () => {
  const columns = new Columns();
  columns.take(record(1, [255, 255, 51], [255, 51, 0]));
  assert.deepEqual(cell(columns.at(1), MIB, 1), { start: MIB, size: MIB, held: MIB, active: MIB / 5 });
  assert.equal(cell(columns.at(1), MIB, 3), null);
  assert.equal(cell(columns.at(1), MIB, -1), null);
});

test("memory is bounded however long it goes on", () => {
  const columns = new Columns(100);
  for (let t = 0; t < 1000; t += 0.25) columns.take(record(t, [1], [1]));
  assert.equal(columns.entries.length, 100);
  assert.equal(columns.at(900), null);
  assert.equal(columns.get(-5), null);
});
