// The markup of the instruments: one track each, all upon one axis of time; and what stands in their heads.

import { cell } from "./columns.mjs";
import { bytes } from "./format.mjs";
import { CARD_LAYERS, RAM_LAYERS } from "./holders.mjs";
import { html } from "./markup.mjs";

/** Windows of time to choose from, in seconds, with the distance of their grid's lines. */
export const WINDOWS = { 30: 5, 120: 20, 600: 120 };

/** Pixels that a label of a line takes. */
const LABEL_HEIGHT = 16;

export const layersOf = (hasCard) => (hasCard ? CARD_LAYERS : RAM_LAYERS);

/** All tracks. gauges: those of gauges.mjs that are shown; hasCard: whether the memory is a card's. */
export function tracks(gauges, hasCard) {
  return html`${track("memory", hasCard ? "VRAM in use" : "RAM in use", html`<ul class="vp-keys" data-part="legend"></ul>`)}
    ${track("map", "Torch memory map", html`<ul class="vp-keys" data-part="legend"></ul>`)}
    ${gauges.map((gauge) => track(gauge.name, gauge.title, gauge.events ? html`<ul class="vp-keys" data-part="legend"></ul>` : ""))}`;
}

function track(name, title, more) {
  return html`<div class="vp-track" data-track="${name}">
    <div class="vp-track-head"><h4>${title}</h4><p class="vp-large" data-part="value">—</p>
      <p class="vp-small" data-part="details"></p>${more}</div>
    <div class="vp-track-plot" data-part="plot"><canvas role="img" aria-label="${title}"></canvas>
      <span class="vp-scale" data-part="top"></span><span data-part="limits"></span>
      <i class="vp-line-v" data-part="cross" hidden></i><i class="vp-line-h" data-part="row" hidden></i>
      <p class="vp-track-note" data-part="note" hidden></p></div>
  </div>`;
}

/** The axis: seconds before the newest reading. */
export function axis(windowS) {
  const step = WINDOWS[windowS];
  const places = Array.from({ length: windowS / step + 1 }, (_, index) => index * step);
  const label = (ago) => (ago === 0 ? "now" : windowS > 120 ? `−${ago / 60} min` : `−${ago} s`);
  return html`${places.map((at) => html`<span style="left:${((at / windowS) * 100).toFixed(3)}%">${label(windowS - at)}</span>`)}`;
}

/** {value, details, legend} of who holds the memory at a place of its series (readings.mjs). */
export function memoryHead(series, place, layers) {
  if (place < 0) return { value: "—", details: "", legend: html`` };
  const lane = (index) => (Number.isNaN(series.lanes[index][place]) ? null : series.lanes[index][place]);
  const held = layers.map((layer, index) => ({ ...layer, size: lane(index) }));
  const [free, total] = [lane(layers.length), lane(layers.length + 1)];
  const used = held.reduce((sum, { size }) => sum + (size ?? 0), 0);
  const apart = held.some(({ name, size }) => name === "others" && size !== null);
  const rows = held.filter(({ size }) => size !== null).map(({ name, label, merged, size }) => ({
    name,
    label: apart ? label : (merged ?? label),
    size: bytes(size),
  }));
  if (free !== null) rows.push({ name: "free", label: "Free", size: bytes(free) });
  const share = total === null ? "the total is not known" : `of ${bytes(total)} · ${((used / total) * 100).toFixed(0)} %`;
  return { value: bytes(used), details: share, legend: html`${rows.reverse().map(key)}` };
}

const key = ({ name, label, size }) => html`<li><i class="vp-key-${name}"></i><span>${label}</span> <b>${size}</b></li>`;

/** {value, details, legend} of the map at a column. row: of the picture, that is pointed at; null for none. */
export function mapHead(column, rowBytes, row, fragmentation) {
  if (column === null) return { value: "—", details: "", legend: html`` };
  const free = column.heldBytes - column.activeBytes;
  const rows = [
    { name: "cached", label: "Cached", size: bytes(free) },
    { name: "allocated", label: "In use", size: bytes(column.activeBytes) },
  ];
  const details = fragmentation === null ? "held" : `held · fragmentation ${(fragmentation * 100).toFixed(0)} %`;
  return { value: bytes(column.heldBytes), details, legend: html`${rows.map(key)}${pointed(column, rowBytes, row)}` };
}

function pointed(column, rowBytes, row) {
  const found = row === null ? null : cell(column, rowBytes, row);
  if (row === null) return "";
  if (found === null || found.held === 0) return html`<li class="vp-cell">Nothing of torch's here</li>`;
  return html`<li class="vp-cell">At ${bytes(found.start)}, ${bytes(found.size)}: <b>${((found.active / found.size) * 100).toFixed(0)} % in
    use</b>, ${bytes(found.held - found.active)} cached</li>`;
}

/** The reasons for held-down clocks that the window shows, as keys of their lanes. */
export function eventKeys(names, kinds) {
  return html`${names.map((name) => html`<li><i class="vp-event-${kinds[name]}"></i><span>${name}</span></li>`)}`;
}

/** Labels of the lines across a plot, at their heights: [[y, text]]. Those that would lie upon each other share one. */
export function limitLabels(limits) {
  const shown = [];
  for (const [y, text] of [...limits].sort(([one], [other]) => one - other)) {
    const last = shown[shown.length - 1];
    if (last && y - last.y < LABEL_HEIGHT) last.texts.unshift(text);
    else shown.push({ y, texts: [text] });
  }
  return html`${shown.map(({ y, texts }) => html`<span class="vp-limit" style="top:${y.toFixed(1)}px">${texts.join(" · ")}</span>`)}`;
}

/** What is not there, with the reason for who asks. */
export function missingList(entries) {
  if (!entries.length) return html``;
  return html`Not given here: ${entries.map(
    ({ label, reason }) => html`<button type="button" class="vp-missing" aria-label="${label}: ${reason}">${label}<span class="vp-reason"
      aria-hidden="true">${reason}</span></button> `,
  )}`;
}
