// From readings to places on a plot: lines, stacks and spans over a window of time, thinned to what a pixel can show.

import { apart } from "./marks.mjs";

/** [{x, value}] of one lane, x in pixels from the left edge of the window; value is null where a line breaks. */
export function line(series, window, width, lane = 0) {
  const points = [];
  const values = series.lanes[lane];
  const scale = width / (window.to - window.from);
  let place = Math.max(series.from(window.from) - 1, series.begin);
  let before = null;
  while (place < series.end && series.t[place] <= window.to) {
    const x = (series.t[place] - window.from) * scale;
    const pixel = Math.floor(x);
    if (before !== null && series.t[place] - before > series.gapS) points.push({ x, value: null });
    let [low, high] = [place, place];
    let next = place + 1;
    while (next < series.end && series.t[next] <= window.to && Math.floor((series.t[next] - window.from) * scale) === pixel) {
      if (values[next] < values[low]) low = next;
      if (values[next] > values[high]) high = next;
      next += 1;
    }
    for (const at of low === high ? [low] : [Math.min(low, high), Math.max(low, high)]) {
      points.push({ x: (series.t[at] - window.from) * scale, value: Number.isNaN(values[at]) ? null : values[at] });
    }
    before = series.t[next - 1];
    place = next;
  }
  return points;
}

/**
 * [{x, end, place}]: steps of a stack, each from its reading to the next one or, behind the newest, to the window's end. Of readings
 * in one pixel the highest stands for all. count: lanes that are layers.
 */
export function steps(series, window, width, count) {
  const found = [];
  const scale = width / (window.to - window.from);
  const height = (place) => {
    let sum = 0;
    for (let lane = 0; lane < count; lane += 1) sum += series.lanes[lane][place] || 0;
    return sum;
  };
  let place = Math.max(series.from(window.from) - 1, series.begin);
  while (place < series.end && series.t[place] <= window.to) {
    const x = (series.t[place] - window.from) * scale;
    const pixel = Math.floor(x);
    let tallest = place;
    let next = place + 1;
    while (next < series.end && Math.floor((series.t[next] - window.from) * scale) === pixel && series.t[next] <= window.to) {
      if (height(next) > height(tallest)) tallest = next;
      next += 1;
    }
    const until = next < series.end ? series.t[next] : window.to;
    const held = until - series.t[next - 1] > series.gapS ? series.t[next - 1] + series.gapS : until;
    const end = (Math.min(held, window.to) - window.from) * scale;
    if (end > 0) found.push({ x: Math.max(x, 0), end, place: tallest });
    place = next;
  }
  return found;
}

/** [{name, x, end}]: when each reason held clocks down. bits: {name: bit}. */
export function spans(series, window, width, bits) {
  const found = [];
  const scale = width / (window.to - window.from);
  for (const [name, bit] of Object.entries(bits)) {
    let open = null;
    let place = Math.max(series.from(window.from) - 1, series.begin);
    for (; place < series.end && series.t[place] <= window.to; place += 1) {
      const on = (series.lanes[0][place] & bit) !== 0; // NaN has no bits
      const until = Math.min(place + 1 < series.end ? series.t[place + 1] : window.to, series.t[place] + series.gapS, window.to);
      const [x, end] = [series.t[place], until].map((t) => Math.max((t - window.from) * scale, 0));
      if (on && open !== null && x - open.end < 0.5) open.end = end;
      else if (on) found.push((open = { name, x, end }));
    }
  }
  return found.filter((span) => span.end > 0);
}

/** The highest value within the window, null of none. */
export function highest(series, window, lane = 0) {
  let most = null;
  for (let place = Math.max(series.from(window.from) - 1, series.begin); place < series.end && series.t[place] <= window.to; place += 1) {
    const value = series.lanes[lane][place];
    if (!Number.isNaN(value) && (most === null || value > most)) most = value;
  }
  return most;
}

/** The smallest round number at or above `value`: 1, 1.5, 2, 3, 4, 5, 6 or 8 times a power of ten; of two for bytes. */
export function roundUp(value, base = 10) {
  if (!(value > 0)) return 1;
  const power = base ** Math.floor(Math.log(value) / Math.log(base) + 1e-9);
  const factors = base === 10 ? [1, 1.5, 2, 3, 4, 5, 6, 8, 10] : [1, 1.25, 1.5, 1.75, 2];
  return factors.find((factor) => factor * power >= value * (1 - 1e-9)) * power;
}

/** Marks within the window with their place: [{kind, label, x}]. */
export function marksIn(moments, window, width) {
  const scale = width / (window.to - window.from);
  const within = moments.filter(({ tS }) => tS >= window.from && tS <= window.to);
  return apart(within.map((moment) => ({ ...moment, x: (moment.tS - window.from) * scale })));
}
