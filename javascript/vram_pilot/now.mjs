// The bar on top: the mode in force and why, in words, from GET state's answer.

import { bytes, joules, mode, rate } from "./format.mjs";
import { html } from "./markup.mjs";

/** {mode, why, meta, figures, kind}: what the bar says. kind: "calm", "waiting" or "refused". */
export function bar(state) {
  const { mode: control } = state;
  return {
    mode: mode(control.effective),
    ...why(state),
    meta: [modelText(state.model), hostText(state.host), deviceText(state.host)].filter(Boolean).join(" · "),
    notes: control.notes ?? [],
    figures: figures(state),
    card: hasCard(state.host),
  };
}

function why({ mode: control, model }) {
  if (model === null) {
    return { kind: "waiting", why: "No model is loaded. The standing mode is applied when one is." };
  }
  if (control.refusal) return { kind: "refused", why: control.refusal };
  if (!same(control.effective, control.requested)) {
    const when = control.in_job ? "at the running job's next step" : "with the next job";
    return { kind: "waiting", why: `${mode(control.requested)} is applied ${when}.` };
  }
  if (control.in_job && !same(control.requested, control.standing)) {
    return { kind: "calm", why: `Asked for by the running job. After it: ${mode(control.standing)}.` };
  }
  if (!same(control.effective, control.standing)) {
    return { kind: "waiting", why: `Left by the last job. With the next one: ${mode(control.standing)}.` };
  }
  return { kind: "calm", why: control.effective.mode === "as-launched" ? "Nothing is touched: the host's own way." : "The standing mode." };
}

export const same = (one, other) =>
  one.mode === other.mode && (one.budget_mib ?? null) === (other.budget_mib ?? null) && one.accelerate === other.accelerate;

const modelText = (model) => (model ? `${model.name} (${model.family})` : null);
const hostText = (host) => `${host.name} ${host.version}`.trim();
const deviceText = (host) => (hasCard(host) ? host.device : `no NVIDIA card (${host.device})`);

/** Whether the host computes on a card that torch calls "cuda". */
export function hasCard(host) {
  return String(host.device).startsWith("cuda");
}

/** [{name, value}]: memory in figures; what is not measured is left out. */
export function figures(state) {
  const { mode: control } = state;
  const memory = state.memory ?? {};
  const job = state.job ?? {};
  const of = (text) => (job.running ? text : `${text}, last job`);
  const rows = [
    [of("Speed"), job.steps_per_s, rate],
    [of("Energy"), job.energy_j, joules],
    ["Allocated by torch", memory.allocated_bytes],
    ["Reserved by torch", memory.reserved_bytes],
    ["Denoiser on the card", control.resident_bytes],
    ["Slots for streaming", control.slot_bytes || null],
    ["CUDA graphs", control.graph_bytes || null],
    ["Calls by graph", control.graph_replays || null, String],
    ["Streamed so far", control.streamed_bytes || null],
    ["Pinned host copies", control.pinned_bytes || null],
    ["Pageable host copies", control.pageable_bytes || null],
  ];
  const known = rows.filter(([, value]) => value !== null && value !== undefined);
  return known.map(([name, value, words = bytes]) => ({ name, value: words(value) }));
}

/** rows: of `figures`; card: whether there is one to measure. */
export function figureList(rows, card) {
  if (!rows.length) return html`<p>${card ? "Memory is shown as soon as a step has ended." : "No card, so no card memory."}</p>`;
  return html`<dl class="vp-figures">${rows.map(({ name, value }) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** What the mode in force has to say of itself: a graph that is not used, pageable copies. */
export function noteList(notes) {
  return html`${notes.map((note) => html`<li>${note}</li>`)}`;
}

/** The body of POST mode, from what the form holds. takes: what the mode has beside itself. */
export function request({ mode: wanted, takes, budget, accelerate, scope }) {
  const body = { mode: wanted, scope };
  if (takes.includes("budget")) body.budget_mib = budget.trim() === "" ? null : Number(budget);
  if (takes.includes("accelerate")) body.accelerate = accelerate;
  return body;
}

const APPLIES = { now: "In force.", next_step: "Applied at the running job's next step.", next_job: "Applied with the next job." };

/** What became of a request, in a sentence. */
export function answer({ applies, refusal }) {
  return refusal ?? APPLIES[applies] ?? "";
}

const LINK = {
  idle: "Not watching",
  connecting: "Connecting …",
  streaming: "Live",
  polling: "Live, by polling",
  waiting: "Not connected, trying again",
};

/** The connection's phase (connection.mjs) in words. */
export function link(phase) {
  return LINK[phase];
}
