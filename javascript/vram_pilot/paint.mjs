// Painting on canvases: what trace.mjs placed, in the colours of the style sheet. Places are in CSS pixels.

import { ROWS, SLOT_S, pixels } from "./columns.mjs";

/** Names of the style sheet's colours that are painted with. */
const COLOURS = [
  "ground", "muted", "edge", "control-edge", "warn", "bad", "allocated", "cached", "process", "others", "driver", "gauge", "gauge-second",
  "limit", "event-idle", "event-setting", "event-power", "event-heat",
];

/** {name: colour} for fillStyle, and {rgb: {name: [r, g, b]}}. style: the computed style of the panel. */
export function palette(style, context) {
  const found = { rgb: {}, font: `11px ${style.fontFamily}` };
  for (const name of COLOURS) {
    context.fillStyle = "#000000";
    context.fillStyle = style.getPropertyValue(`--vp-${name}`).trim();
    found[name] = context.fillStyle;
    found.rgb[name] = [1, 3, 5].map((at) => parseInt(context.fillStyle.slice(at, at + 2), 16));
  }
  return found;
}

/** Gives the canvas the size of its place, and its context in CSS pixels, cleared. */
export function prepared(canvas, { width, height, ratio }) {
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

export function grid(context, { width, height }, xs, colours) {
  context.fillStyle = colours.edge;
  for (const x of xs) context.fillRect(Math.round(x), 0, 1, height);
  context.fillRect(0, height - 1, width, 1);
}

/** A line, and with `fill` what lies below it. y(value): its height on the plot. */
export function line(context, points, y, { colour, width = 1.5, dash = [], fill = false, height = 0 }) {
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.setLineDash(dash);
  for (const run of runs(points)) {
    context.beginPath();
    for (const { x, value } of run) context.lineTo(x, y(value));
    if (run.length === 1) context.lineTo(run[0].x + 1, y(run[0].value));
    context.stroke();
    if (!fill) continue;
    context.lineTo(run[run.length - 1].x, height);
    context.lineTo(run[0].x, height);
    context.globalAlpha = 0.14;
    context.fill();
    context.globalAlpha = 1;
  }
  context.setLineDash([]);
}

/** Stretches without a missing value. */
function runs(points) {
  const found = [];
  let open = null;
  for (const point of points) {
    if (point.value === null) open = null;
    else if (open) open.push(point);
    else found.push((open = [point]));
  }
  return found;
}

/** Layers upon each other, from the bottom. steps: of trace.mjs; names: of the layers' colours, as their lanes. */
export function stack(context, series, steps, names, y, { ratio }, colours) {
  const snap = (value) => Math.round(value * ratio) / ratio;
  names.forEach((name, lane) => {
    context.fillStyle = colours[name];
    let open = null;
    const close = () => {
      if (open && open.low > open.high) context.fillRect(open.x, open.high, open.end - open.x, open.low - open.high);
    };
    for (const { x, end, place } of steps) {
      let below = 0;
      for (let under = 0; under < lane; under += 1) below += series.lanes[under][place] || 0;
      const next = { x: snap(x), end: snap(end), low: snap(y(below)), high: snap(y(below + (series.lanes[lane][place] || 0))) };
      if (open && open.end === next.x && open.low === next.low && open.high === next.high) open.end = next.end;
      else {
        close();
        open = next;
      }
    }
    close();
  });
}

export function limit(context, { width }, y, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.setLineDash([4, 4]);
  context.beginPath();
  context.moveTo(0, Math.round(y) + 0.5);
  context.lineTo(width, Math.round(y) + 0.5);
  context.stroke();
  context.setLineDash([]);
}

/** Spans as lanes at the bottom, one for each name, and as a tint above. names: those that have a lane, from the bottom. */
export function lanes(context, spans, names, kinds, { height }, colours) {
  for (const { name, x, end } of spans) {
    const width = Math.max(end - x, 1);
    context.fillStyle = colours[`event-${kinds[name]}`];
    context.fillRect(x, height - 1 - (names.indexOf(name) + 1) * 5, width, 4);
    if (kinds[name] === "idle") continue;
    context.globalAlpha = 0.12;
    context.fillRect(x, 0, width, height);
    context.globalAlpha = 1;
  }
}

const MARKS = { job: "control-edge", end: "control-edge", pass: "muted", mode: "warn", failed: "bad" };

/** Lines where the mode, the pass or the job changed; `named`: with their names, where there is room in one of two rows. */
export function marks(context, found, { width, height }, colours, named) {
  for (const { kind, x } of found) {
    const solid = kind === "job";
    context.fillStyle = colours[MARKS[kind]];
    for (let y = 0; y < height; y += 6) context.fillRect(Math.round(x), y, 1, solid ? 6 : 3);
  }
  if (named) names(context, found.filter(({ kind }) => kind !== "end"), width, colours);
}

/** What the scale's own label takes of the right edge. */
const SCALE_WIDTH = 64;

function names(context, found, width, colours) {
  const free = [0, 0]; // up to where each row is taken
  context.font = colours.font;
  context.textBaseline = "top";
  for (const { kind, label, x } of found) {
    const wide = context.measureText(label).width + 8;
    const left = Math.min(x + 3, width - SCALE_WIDTH - wide);
    const row = free.findIndex((taken) => left >= taken);
    if (row < 0) continue;
    context.fillStyle = colours.ground;
    context.globalAlpha = 0.85;
    context.fillRect(left, row * 16 + 2, wide, 14);
    context.globalAlpha = 1;
    context.fillStyle = colours[kind === "job" ? "muted" : MARKS[kind]];
    context.fillText(label, left + 4, row * 16 + 4);
    free[row] = left + wide + 4;
  }
}

/** The map's picture: each column is painted once, into a canvas that goes round, and moved from there. */
export class MapPicture {
  #painted = -1;
  #version = null;
  #colours = null;
  #pixels = new Uint8ClampedArray(ROWS * 4);

  /** canvas: an empty one. */
  constructor(columns, canvas) {
    this.columns = columns;
    this.canvas = Object.assign(canvas, { width: columns.slots, height: ROWS });
  }

  /** columnsPainted: how many columns this and the calls before painted. */
  columnsPainted = 0;

  /** window: {from, to}; rows: of the picture that are shown. */
  draw(context, { width, height }, window, rows, colours) {
    this.#update(colours);
    const { columns } = this;
    if (columns.newest < 0 || rows < 1) return;
    const first = Math.max(Math.floor(window.from / SLOT_S), columns.newest - columns.slots + 1);
    const last = Math.min(columns.newest, Math.floor(window.to / SLOT_S));
    const x = (slot) => ((slot * SLOT_S - window.from) / (window.to - window.from)) * width;
    context.imageSmoothingEnabled = x(1) - x(0) < 1;
    const blit = (slot, count, end) => {
      const at = slot % columns.slots;
      context.drawImage(this.canvas, at, ROWS - rows, count, rows, x(slot), 0, end - x(slot), height);
    };
    for (let slot = first; slot <= last; ) {
      const count = Math.min(last - slot + 1, columns.slots - (slot % columns.slots));
      blit(slot, count, x(slot + count));
      slot += count;
    }
    if (last === columns.newest && columns.at(window.to) && x(last + 1) < width) blit(last, 1, width);
  }

  /** Paints what has come since, all of it when colours or the scale are others. */
  #update(colours) {
    const { columns } = this;
    const anew = this.#version !== columns.version || this.#colours !== colours;
    const oldest = columns.newest - columns.slots + 1;
    const from = Math.max(anew ? oldest : this.#painted, oldest, 0);
    for (let slot = from; slot <= columns.newest; slot += 1) this.#paint(slot, colours);
    [this.#painted, this.#version, this.#colours] = [columns.newest, columns.version, colours];
  }

  #paint(slot, colours) {
    const column = this.columns.get(slot);
    pixels(column, this.columns.rowBytes, { active: colours.rgb.allocated, cached: colours.rgb.cached }, this.#pixels);
    const image = new ImageData(this.#pixels, 1, ROWS);
    this.canvas.getContext("2d").putImageData(image, slot % this.columns.slots, 0);
    this.columnsPainted += 1;
  }
}
