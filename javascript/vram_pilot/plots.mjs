// One drawing of each kind of track. Each answers what is to be written beside it.

import { ROWS, SLOT_S } from "./columns.mjs";
import { bytes } from "./format.mjs";
import { CLOCK_EVENTS, EVENT_KINDS } from "./gauges.mjs";
import * as paint from "./paint.mjs";
import * as trace from "./trace.mjs";
import { WINDOWS } from "./tracks.mjs";

/** Rows of the map are shown in steps of this many, so that its scale does not change all the time. */
const ROW_STEP = 32;

/** A canvas that is ready, with all that a drawing needs to know of it. window: {from, to} in seconds. */
export function sheet(canvas, size, window, moments, colours) {
  const windowS = window.to - window.from;
  const step = WINDOWS[Math.round(windowS)];
  const context = paint.prepared(canvas, size);
  const xs = Array.from({ length: Math.round(windowS / step) }, (_, index) => ((index * step) / windowS) * size.width);
  paint.grid(context, size, xs, colours);
  return { context, size, window, colours, marks: trace.marksIn(moments, window, size.width) };
}

/** Who holds the memory. Answers {top}: the scale's upper end in words. */
export function memory({ context, size, window, colours, marks }, series, layers) {
  const steps = trace.steps(series, window, size.width, layers.length);
  const total = trace.highest(series, window, layers.length + 1);
  const sum = (place) => layers.reduce((all, _, lane) => all + (series.lanes[lane][place] || 0), 0);
  const top = total ?? trace.roundUp(steps.reduce((most, { place }) => Math.max(most, sum(place)), 1), 2);
  const y = (value) => 1 + (size.height - 2) * (1 - value / top);
  paint.stack(context, series, steps, layers.map(({ name }) => name), y, size, colours);
  if (total !== null) paint.limit(context, size, 0, colours.limit);
  paint.marks(context, marks, size, colours, true);
  return { top: bytes(top) };
}

/** The map. Answers {top, rows}: rows of the picture that are shown. */
export function map({ context, size, window, colours, marks }, picture) {
  const { columns } = picture;
  const highest = Math.max(columns.height(Math.floor(window.from / SLOT_S)), 1);
  const rows = Math.min(Math.ceil(highest / ROW_STEP) * ROW_STEP, ROWS);
  picture.draw(context, size, window, rows, colours);
  paint.marks(context, marks, size, colours, false);
  return { top: bytes(rows * columns.rowBytes), rows };
}

/** One gauge. Answers {top, limits, events}: limits as [y, label], events: names of what held clocks down within the window. */
export function gauge({ context, size, window, colours, marks }, definition, readings, facts) {
  const { metric, second } = definition;
  const series = [metric, ...(second?.line ? [second.metric] : [])].map((name) => readings.metrics.get(name));
  const at = (name) => readings.at(name, window.to);
  const most = series.map((one) => trace.highest(one, window)).filter((value) => value !== null);
  const bottom = definition.bottom ?? 0;
  const top = definition.top(facts, most.length ? Math.max(...most) : null, at);
  const y = (value) => 2 + (size.height - 4) * (1 - (Math.max(value, bottom) - bottom) / (top - bottom));
  const limits = (definition.limits?.(facts, at) ?? []).filter(({ value }) => value > 0 && value <= top);
  paint.marks(context, marks, size, colours, false);
  for (const { value } of limits) paint.limit(context, size, y(value), colours.limit);
  const lines = series.map((one) => trace.line(one, window, size.width));
  if (lines[1]) paint.line(context, lines[1], y, { colour: colours["gauge-second"], dash: [4, 3], width: 1.25 });
  paint.line(context, lines[0], y, { colour: colours.gauge, fill: true, height: size.height });
  const events = definition.events ? held({ context, size, window, colours }, readings.metrics.get(definition.events)) : null;
  return { top: limits.length ? "" : definition.words(top), limits: limits.map(({ value, label }) => [y(value), label]), events };
}

function held({ context, size, window, colours }, series) {
  const found = trace.spans(series, window, size.width, CLOCK_EVENTS);
  const names = Object.keys(CLOCK_EVENTS).filter((name) => found.some((span) => span.name === name));
  paint.lanes(context, found, names, EVENT_KINDS, size, colours);
  return names;
}
