// Line charts as SVG text. Geometry only: colours and fonts are the style sheet's.

import { apart } from "./marks.mjs";
import { html } from "./markup.mjs";

const LEFT = 52;
const RIGHT = 12;
const TOP = 22;
const BOTTOM = 24;
/** Fewer points than this are drawn as dots too. */
const DOTS = 60;
const LABEL_WIDTH = 7;

/** At most `wanted` + 1 round numbers from 0 to at least `maximum`. */
export function ticks(maximum, wanted = 4) {
  if (!(maximum > 0)) return [0, 1];
  const rough = maximum / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)) * power;
  const count = Math.ceil(maximum / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

/** Whole numbers for a horizontal axis from `first` to `last`, at most `wanted` of them. */
export function wholeTicks(first, last, wanted) {
  const step = Math.max(1, ticks(Math.max(last - first, 1), Math.max(wanted, 1))[1]);
  const whole = Math.ceil(step);
  const begin = Math.ceil(first / whole) * whole;
  return Array.from({ length: Math.max(0, Math.floor((last - begin) / whole) + 1) }, (_, index) => begin + index * whole);
}

/** The path through the points that have a value; it breaks where one is missing. */
export function linePath(points) {
  let pen = "M";
  let path = "";
  for (const { x, y } of points) {
    if (y === null || y === undefined) pen = "M";
    else {
      path += `${pen}${round(x)} ${round(y)}`;
      pen = "L";
    }
  }
  return path;
}

const round = (value) => Math.round(value * 10) / 10;

/**
 * Where everything lies. points: [{n, …}] in rising n; series: [{key, name}], each a property of the points, in `scale`-fold units.
 * Answers {width, height, xs, ys, x(n), y(value), lines: [{name, path, dots}]}.
 */
export function layout({ points, series, width, height, scale = 1 }) {
  const first = points.length ? points[0].n : 0;
  const last = points.length ? points[points.length - 1].n : 1;
  const highest = Math.max(0, ...points.flatMap((point) => series.map(({ key }) => point[key] ?? 0)));
  const ys = ticks(highest * scale);
  const inner = { width: Math.max(width - LEFT - RIGHT, 1), height: Math.max(height - TOP - BOTTOM, 1) };
  const x = (n) => LEFT + (last === first ? inner.width / 2 : ((n - first) / (last - first)) * inner.width);
  const y = (value) => TOP + inner.height * (1 - value / ys[ys.length - 1]);
  const lines = series.map(({ key, name }) => {
    const places = points.map((point) => ({ x: x(point.n), y: point[key] == null ? null : y(point[key] * scale) }));
    return { name, path: linePath(places), dots: places.length <= DOTS ? places.filter((place) => place.y !== null) : [] };
  });
  return { width, height, first, last, xs: wholeTicks(first, last, Math.floor(inner.width / 70)), ys, x, y, lines };
}

/** The index of the point nearest to a horizontal place, -1 when there is none. */
export function nearest(points, plan, place) {
  let best = -1;
  for (let index = 0; index < points.length; index += 1) {
    if (best < 0 || Math.abs(plan.x(points[index].n) - place) < Math.abs(plan.x(points[best].n) - place)) best = index;
  }
  return best;
}

/** The n of the point before (-1) or after (1) step `n`; of the newest point when `n` is null. */
export function neighbour(points, n, move) {
  const at = points.findIndex((point) => point.n === n);
  const to = at < 0 ? points.length - 1 : Math.min(Math.max(at + move, 0), points.length - 1);
  return points[to]?.n ?? null;
}

/** Marks with a place, those whose label would run into the one before without it. */
export function placed(marks, plan) {
  let free = -Infinity;
  const within = marks.filter((mark) => mark.n >= plan.first && mark.n <= plan.last + 1);
  return apart(within.map((mark) => ({ ...mark, x: Math.min(plan.x(mark.n), plan.width - RIGHT) })))
    .map((mark) => {
      const { x } = mark;
      const wide = mark.label.length * LABEL_WIDTH;
      const start = Math.max(LEFT, Math.min(x + 3, plan.width - RIGHT - wide));
      const shown = mark.kind !== "job" && start >= free;
      if (shown) free = start + wide + 6;
      return { ...mark, labelX: start, label: shown ? mark.label : null };
    });
}

/** The chart. description: what it shows in a sentence, for those who do not see it. */
export function chart(plan, marks, description) {
  const bottom = plan.height - BOTTOM;
  return html`<svg class="vp-svg" width="${plan.width}" height="${plan.height}" role="img" aria-label="${description}">
    ${plan.ys.map(
      (value) => html`<line class="vp-grid" x1="${LEFT}" x2="${plan.width - RIGHT}" y1="${round(plan.y(value))}" y2="${round(plan.y(value))}"/>
        <text class="vp-axis" text-anchor="end" x="${LEFT - 8}" y="${round(plan.y(value)) + 4}">${value}</text>`,
    )}
    ${plan.xs.map((n) => html`<text class="vp-axis" text-anchor="middle" x="${round(plan.x(n))}" y="${plan.height - 6}">${n + 1}</text>`)}
    ${placed(marks, plan).map(
      (mark) => html`<g class="vp-mark vp-mark-${mark.kind}"><line x1="${round(mark.x)}" x2="${round(mark.x)}" y1="${TOP - 6}" y2="${bottom}"/>
        ${mark.label && html`<text x="${round(mark.labelX)}" y="${TOP - 9}">${mark.label}</text>`}</g>`,
    )}
    ${plan.lines.map(
      (line) => html`<path class="vp-line vp-line-${line.name}" d="${line.path}"/>
        ${line.dots.map((dot) => html`<circle class="vp-dot vp-line-${line.name}" cx="${round(dot.x)}" cy="${round(dot.y)}" r="2"/>`)}`,
    )}
    <line class="vp-cross" data-vp-cross y1="${TOP - 6}" y2="${bottom}" x1="0" x2="0" visibility="hidden"/>
  </svg>`;
}
