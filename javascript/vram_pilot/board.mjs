// The instruments on the page: tracks upon one axis of time, a window of it, a pause, and a line that reads all of them at one moment.

import { GAUGES, EVENT_KINDS, missing, readout } from "./gauges.mjs";
import { afterKey, ago, rowOf, shareOf, timeOf } from "./moment.mjs";
import { MapPicture, palette } from "./paint.mjs";
import * as plots from "./plots.mjs";
import { axis, eventKeys, layersOf, limitLabels, mapHead, memoryHead, missingList, tracks } from "./tracks.mjs";

/** Between two drawings: as long as a pixel takes, within these bounds; the last one where less motion is asked for. */
const DRAW_MS = { least: 200, most: 400, calm: 1000 };
/** Between two changes of what a screen reader is told of a plot, in seconds. */
const LABEL_S = 5;

export class Board {
  #frozen = null; // {readings, history} as they were when it was paused
  #state = { facts: {}, notes: [], cuda: true, nvidia: true, device: "" };
  #built = null; // which tracks are there
  #parts = new Map();
  #sizes = new Map();
  #restyled = true; // colours may be others
  #colours = null;
  #picture = null;
  #window = null;
  #rows = 1; // of the map's picture, that are shown
  #pointed = null; // see moment.mjs
  #labelledS = -Infinity;

  /** page: page.mjs's; link: link.mjs's; world: {ratio(), calm(), style(), canvas()}; redraw(): a drawing is wanted. */
  constructor(page, link, world, redraw) {
    Object.assign(this, { page, link, world, redraw, windowS: 120 });
    page.on("pause", "click", () => this.#pause(!this.paused));
    page.on("windows", "change", (event) => {
      this.windowS = Number(event.target.value);
      redraw();
    });
    this.#listen(page.slot("tracks"));
  }

  get paused() {
    return this.#frozen !== null;
  }

  get readings() {
    return this.#frozen?.readings ?? this.link.readings;
  }

  /** Milliseconds between drawings. */
  get restMs() {
    if (this.world.calm()) return DRAW_MS.calm;
    return Math.min(Math.max((this.windowS * 1000) / 800, DRAW_MS.least), DRAW_MS.most);
  }

  /** state: GET state's answer. */
  told({ host, telemetry }) {
    const { facts = {}, notes = [], card = false } = telemetry ?? {};
    const device = String(host.device);
    this.#state = { facts, notes, nvidia: card, cuda: device.startsWith("cuda"), device };
  }

  /** Sizes and colours may have changed. */
  restyle() {
    this.#sizes.clear();
    this.#restyled = true;
  }

  draw() {
    const { readings, page } = this;
    this.#build();
    this.#note("memory", readings.newestS === null ? "Drawn with the first reading." : this.#whyNoCard());
    this.#note("map", this.#whyNoMap());
    if (readings.newestS === null || !this.#measure()) return;
    this.#window = { from: readings.newestS - this.windowS, to: readings.newestS };
    const beside = plots.memory(this.#sheet("memory"), this.#series(), layersOf(this.#state.cuda));
    set(this.#parts.get("memory").top, beside.top);
    this.#drawMap();
    for (const gauge of this.#gauges()) this.#drawGauge(gauge);
    this.#read();
    const absent = missing(readings, this.#state);
    page.fill("missing", missingList(absent));
    page.show("missing", absent.length > 0);
    if (Math.abs(readings.newestS - this.#labelledS) >= LABEL_S) this.#label();
  }

  // ---------------------------------------------------------------------------------------------------------- what is there

  /** Without a card the RAM has the large track. */
  #gauges() {
    const { cuda, nvidia } = this.#state;
    const fits = (gauge) => (gauge.gpu ? nvidia : gauge.name !== "ram" || cuda);
    return GAUGES.filter((gauge) => fits(gauge) && !this.readings.isAbsent(gauge.metric));
  }

  #series() {
    return this.#state.cuda ? this.readings.card : this.readings.ram;
  }

  #build() {
    const gauges = this.#gauges();
    const wanted = [this.#state.cuda, this.windowS, ...gauges.map(({ name }) => name)].join();
    if (wanted === this.#built) return;
    this.#built = wanted;
    this.page.fill("tracks", tracks(gauges, this.#state.cuda));
    this.page.fill("axis", axis(this.windowS));
    this.#parts.clear();
    for (const track of this.page.all("[data-track]")) {
      const parts = { track, canvas: track.querySelector("canvas") };
      for (const part of track.querySelectorAll("[data-part]")) parts[part.dataset.part] = part;
      this.#parts.set(track.dataset.track, parts);
    }
    this.#sizes.clear();
    this.#labelledS = -Infinity;
  }

  /** Another object only when they are others: the map is painted anew then. */
  #takeColours() {
    this.#restyled = false;
    const found = palette(this.world.style(), this.world.canvas().getContext("2d"));
    if (JSON.stringify(found) !== JSON.stringify(this.#colours)) this.#colours = found;
  }

  /** Sizes are read all at once, before anything is written. False while the page is just being laid out. */
  #measure() {
    if (this.#restyled) this.#takeColours();
    if (this.#sizes.size) return true;
    const ratio = this.world.ratio();
    const found = [...this.#parts].map(([name, { plot }]) => [name, { width: plot.clientWidth, height: plot.clientHeight, ratio }]);
    if (found.some(([, { width }]) => width === 0)) return false;
    this.#sizes = new Map(found);
    return true;
  }

  #note(name, text) {
    const { note, track } = this.#parts.get(name);
    set(note, text ?? "");
    note.hidden = !text;
    track.dataset.noted = Boolean(text);
  }

  #whyNoCard() {
    const { cuda, device, notes } = this.#state;
    if (!cuda) return `No NVIDIA card: this program computes on ${device}. This is the machine's own memory.`;
    return this.readings.card.length ? "" : (notes[0] ?? "Torch has not used the card yet.");
  }

  #whyNoMap() {
    const { cuda, device } = this.#state;
    if (!cuda) return `Empty, as torch holds no memory of a card: this program computes on ${device}.`;
    const { columns } = this.readings;
    return columns.note ?? (columns.newest < 0 ? "Drawn with the first look at torch's blocks." : "");
  }

  // --------------------------------------------------------------------------------------------------------------- drawing

  #sheet(name) {
    const { moments } = (this.#frozen ?? this.link).history;
    return plots.sheet(this.#parts.get(name).canvas, this.#sizes.get(name), this.#window, moments, this.#colours);
  }

  #drawMap() {
    const { columns } = this.readings;
    if (columns.newest < 0) return;
    if (this.#picture?.columns !== columns) this.#picture = new MapPicture(columns, this.world.canvas());
    const { top, rows } = plots.map(this.#sheet("map"), this.#picture);
    this.#rows = rows;
    set(this.#parts.get("map").top, top);
  }

  #drawGauge(gauge) {
    const parts = this.#parts.get(gauge.name);
    const { top, limits, events } = plots.gauge(this.#sheet(gauge.name), gauge, this.readings, this.#state.facts);
    set(parts.top, top);
    put(parts.limits, limitLabels(limits));
    if (events) put(parts.legend, eventKeys([...events].reverse(), EVENT_KINDS));
  }

  // --------------------------------------------------------------------------------------------------- reading at one moment

  /** Writes the figures of all heads, and places the line. */
  #read() {
    const { readings } = this;
    const moment = timeOf(this.#pointed, this.#window);
    const t = moment ?? readings.newestS;
    this.#cross(moment);
    const series = this.#series();
    this.#head("memory", memoryHead(series, series.place(t), layersOf(this.#state.cuda)));
    const { columns } = readings;
    const row = rowOf(this.#pointed, this.#rows);
    this.#head("map", mapHead(columns.at(t), columns.rowBytes, row, readings.at("fragmentation_ratio", t)));
    for (const gauge of this.#gauges()) this.#head(gauge.name, readout(gauge, (name) => readings.at(name, t)));
    this.page.text("moment", moment === null ? (this.paused ? "Paused" : "") : ago(readings.newestS - moment));
  }

  #head(name, { value, details, legend }) {
    const parts = this.#parts.get(name);
    set(parts.value, value);
    set(parts.details, details);
    if (legend) put(parts.legend, legend);
  }

  #cross(moment) {
    const left = moment === null ? null : `${shareOf(moment, this.#window) * 100}%`;
    for (const { cross } of this.#parts.values()) {
      cross.hidden = left === null;
      if (left !== null) cross.style.left = left;
    }
    const { row } = this.#parts.get("map");
    const high = this.#pointed?.high ?? null;
    row.hidden = high === null;
    if (high !== null) row.style.bottom = `${high * 100}%`;
  }

  #point(pointed) {
    if (pointed === null && this.#pointed === null) return;
    this.#pointed = pointed;
    if (this.#window) this.#read();
  }

  #listen(place) {
    const nothing = () => this.#point(null);
    place.addEventListener("pointermove", (event) => {
      const plot = event.target.closest("[data-part=plot]");
      if (plot) this.#point(this.#under(event, plot));
      else nothing();
    });
    place.addEventListener("pointerleave", nothing);
    place.addEventListener("blur", nothing);
    place.addEventListener("keydown", (event) => {
      const next = this.#window && event.target === place ? afterKey(this.#pointed, event, this.#window, this.#rows) : undefined;
      if (next === undefined) return;
      event.preventDefault();
      this.#point(next);
      this.page.text("told", next === null ? "" : this.#sentence());
    });
  }

  #under(event, plot) {
    const box = plot.getBoundingClientRect();
    const within = (value) => Math.min(Math.max(value, 0), 1);
    const high = plot === this.#parts.get("map").plot ? within((box.bottom - event.clientY) / box.height) : null;
    return { share: within((event.clientX - box.left) / box.width), high };
  }

  /** All figures at the moment that is looked at, for who does not see them. */
  #sentence() {
    const words = [...this.#parts.values()].map((parts) => `${titleOf(parts)} ${figuresOf(parts)}`);
    return `${ago(this.readings.newestS - timeOf(this.#pointed, this.#window))}: ${words.join("; ")}`;
  }

  #label() {
    this.#labelledS = this.readings.newestS;
    for (const parts of this.#parts.values()) {
      parts.canvas.setAttribute("aria-label", `${titleOf(parts)}, the last ${this.windowS} seconds. Now ${figuresOf(parts)}`);
    }
  }

  #pause(paused) {
    this.#frozen = paused ? { readings: this.link.readings.clone(), history: this.link.history } : null;
    this.page.slot("pause").setAttribute("aria-pressed", String(paused));
    this.page.text("pause", paused ? "Resume" : "Pause");
    this.redraw();
  }
}

const titleOf = ({ track }) => track.querySelector("h4").textContent;
const figuresOf = ({ value, details, legend }) =>
  [value, details, legend].map((part) => part?.textContent.replace(/\s+/g, " ").trim()).filter(Boolean).join(" ");

function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const written = new WeakMap();

/** Markup into an element, unless it is there already. */
function put(element, markup) {
  const text = String(markup);
  if (written.get(element) === text) return;
  written.set(element, text);
  element.innerHTML = text;
}
