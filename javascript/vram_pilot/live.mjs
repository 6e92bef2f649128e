// The Live view: the job's line, the two charts, the phases, the log.

import { chart, layout } from "./chart.mjs";
import { bytes, count, median, quantile, rate, seconds } from "./format.mjs";
import { html } from "./markup.mjs";

const STATUS = { running: "Running", ok: "Done", interrupted: "Interrupted", oom: "Out of memory", error: "Failed" };
const CHART_HEIGHT = 190;
const GIB = 2 ** 30;
const MIB = 2 ** 20;

/** {title, detail, done, total}: the running or the last job in words; null when none is known. */
export function job(history) {
  const { job: current } = history;
  if (!current) return null;
  const own = durations(history, current.id);
  const last = current.status === "running" ? own.slice(-10) : own;
  const middle = median(last);
  const { width, height, sampler } = current.request;
  const parts = [
    current.status === "running" && current.total ? `step ${Math.min(current.steps, current.total)} of ${current.total}` : count(current.steps, "step"),
    current.pass === "base" ? null : `${current.pass} pass`,
    width && height ? `${width}×${height}` : null,
    sampler || null,
    middle === null ? null : `${seconds(middle)} a step (${rate(1 / middle)})`,
    current.endS === null ? null : `${seconds(current.endS - current.startS)} in all`,
  ];
  return {
    title: STATUS[current.status] ?? current.status,
    status: current.status,
    detail: parts.filter(Boolean).join(" · "),
    done: current.steps,
    total: current.total,
  };
}

const durations = (history, id) =>
  history.points.filter((point) => point.session === id && point.durationS !== null).map((point) => point.durationS);

/** In the place of a chart that has nothing to show. */
const nothing = (reason) => ({ plan: null, figures: "", unit: "", svg: html`<p class="vp-nothing">${reason}</p>` });
const FIRST = "Drawn as soon as the first step has ended.";

/** {plan, svg, figures, unit}: the time of each step; plan is null when there is nothing to draw. */
export function latency(history, width) {
  if (!history.points.length) return nothing(FIRST);
  const values = history.points.map((point) => point.durationS).filter((value) => value !== null && value !== undefined);
  if (!values.length) return nothing("The steps' times were not measured.");
  const slow = Math.max(...values) >= 2;
  const plan = layout({
    points: history.points,
    series: [{ key: "durationS", name: "latency" }],
    width,
    height: CHART_HEIGHT,
    scale: slow ? 1 : 1000,
  });
  const figures = `median ${seconds(median(values))} · 95 % under ${seconds(quantile(values, 0.95))} · slowest ${seconds(Math.max(...values))}`;
  const description = `Time of each of the last ${count(history.points.length, "step")}: ${figures}.`;
  return { plan, figures, unit: slow ? "s" : "ms", svg: chart(plan, history.marks, description) };
}

/** {plan, svg, figures, unit}: what torch held at the end of each step. */
export function memory(history, width) {
  if (!history.points.length) return nothing(FIRST);
  const highest = peak(history, "reserved") ?? peak(history, "allocated");
  if (highest === null) return nothing("Not measured: the host does not compute on an NVIDIA card.");
  const large = highest >= GIB;
  const plan = layout({
    points: history.points,
    series: [
      { key: "reserved", name: "reserved" },
      { key: "allocated", name: "allocated" },
    ],
    width,
    height: CHART_HEIGHT,
    scale: 1 / (large ? GIB : MIB),
  });
  const held = ["allocated", "reserved"].map((key) => `${key} ${bytes(peak(history, key))}`).join(", ");
  const figures = `highest at a step's end: ${held}`;
  const description = `Memory by step, ${figures}.`;
  return { plan, figures, unit: large ? "GiB" : "MiB", svg: chart(plan, history.marks, description) };
}

function peak(history, key) {
  const values = history.points.map((point) => point[key]).filter((value) => value !== null && value !== undefined);
  return values.length ? Math.max(...values) : null;
}

/** What stands beside the pointer: the step's number in its pass and its figures. */
export function tooltip(point) {
  return html`<b>Step ${point.index + 1}${point.pass === "base" ? "" : `, ${point.pass} pass`}</b>
    <span>${seconds(point.durationS)}</span>
    <span>allocated ${bytes(point.allocated)}</span>
    <span>reserved ${bytes(point.reserved)}</span>
    ${point.streamed ? html`<span>streamed ${bytes(point.streamed)}</span>` : ""}`;
}

/** Where the job's time went, as one bar and a list; nothing before the first phase ended. */
export function phases(history) {
  const known = history.job?.phases ?? [];
  const total = known.reduce((sum, phase) => sum + phase.durationS, 0);
  if (!(total > 0)) return html``;
  const share = (phase) => (phase.durationS / total) * 100;
  return html`<div class="vp-bar" aria-hidden="true">${known.map(
      (phase) => html`<span class="vp-phase-${phase.name}" style="width:${share(phase).toFixed(2)}%"></span>`,
    )}</div>
    <ul class="vp-legend">${known.map(
      (phase) => html`<li><i class="vp-phase-${phase.name}"></i>${phase.name} <b>${seconds(phase.durationS)}</b>
        <small>${share(phase) < 1 ? "under 1" : share(phase).toFixed(0)} %</small></li>`,
    )}</ul>`;
}

const LOG_WORDS = { mode: "Mode", failed: "Failed", note: "Note", lost: "Missed" };

/** The newest first. */
export function log(history) {
  return html`${[...history.log].reverse().map(
    (entry) => html`<li class="vp-log-${entry.kind}"><b>${LOG_WORDS[entry.kind]}</b><span>${entry.text}</span>
      <time>${ago(history.nowS - entry.tS)}</time></li>`,
  )}`;
}

/** Whole steps of time, so that a list that is drawn again does not flicker. */
export function ago(ageS) {
  if (!(ageS >= 5)) return "just now";
  if (ageS < 60) return `${Math.floor(ageS / 5) * 5} s before`;
  return ageS < 3600 ? `${Math.floor(ageS / 60)} min before` : `${Math.floor(ageS / 3600)} h before`;
}
