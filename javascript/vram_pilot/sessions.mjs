// The Sessions view: the list, and two of them side by side.

import { bytes, moment, rate, seconds } from "./format.mjs";
import { html } from "./markup.mjs";

const STATUS = {
  running: "running",
  ok: "done",
  interrupted: "interrupted",
  oom: "out of memory",
  error: "failed",
  aborted: "aborted",
};

/** links: (id, format, download) → address; formats: those that this version writes. */
export function rows(sessions, { chosen, asking, formats, links }) {
  return html`${sessions.map((session) =>
    session.id === asking ? question(session) : row(session, chosen.includes(session.id), formats, links),
  )}`;
}

function row(session, isChosen, formats, links) {
  const { id } = session;
  const mode = session.mode ?? "—";
  const title = `${mode} session of ${moment(session.started_at)}`;
  return html`<tr data-session="${id}">
    <td class="vp-pick"><input type="checkbox" data-act="choose" aria-label="Compare: ${title}" ${isChosen ? html`checked` : ""}></td>
    <td data-label="Started">${moment(session.started_at)}</td>
    <td data-label="Status"><span class="vp-status vp-status-${session.status}">${STATUS[session.status] ?? session.status}</span></td>
    <td data-label="Mode"><b>${mode}</b></td>
    <td data-label="Model">${session.model ?? "—"}</td>
    <td data-label="Job">${jobText(session)}</td>
    <td data-label="Speed" class="vp-number">${rate(session.steps_per_s)}${stepText(session.step_p50_s)}</td>
    <td data-label="Peak" class="vp-number">${bytes(session.peak_allocated_bytes)}</td>
    <td class="vp-actions">${formats.includes("html") &&
      html`<a class="vp-link" href="${links(id, "html", false)}" target="_blank" rel="noopener">Open<span class="vp-hidden"> the report: ${title}</span></a>`}
      ${formats.map(
        (format) => html`<a class="vp-link vp-quiet" href="${links(id, format, true)}" download>${format.toUpperCase()}<span class="vp-hidden"> export: ${title}</span></a>`,
      )}
      <button type="button" class="vp-button vp-quiet" data-act="ask" ${session.status === "running" ? html`disabled` : ""}>Delete<span
        class="vp-hidden">: ${title}</span></button></td>
  </tr>`;
}

const stepText = (middle) => (middle === null || middle === undefined ? "" : html`<small>${seconds(middle)} a step</small>`);

function jobText(session) {
  const size = session.width && session.height ? `${session.width}×${session.height}` : null;
  const images = session.image_count ?? (session.batch_size ?? 1) * (session.n_iter ?? 1);
  const parts = [size, session.steps ? `${session.steps} steps` : null, images > 1 ? `${images} images` : null];
  return parts.filter(Boolean).join(", ") || "—";
}

function question(session) {
  return html`<tr data-session="${session.id}" class="vp-asking"><td colspan="9">
    <span>Delete the session of ${moment(session.started_at)} for good? Its report goes with it.</span>
    <button type="button" class="vp-button" data-act="keep">Keep it</button>
    <button type="button" class="vp-button vp-danger" data-act="delete">Delete it</button></td></tr>`;
}

/** The ids chosen after one was clicked: two at most, the older choice gives way. */
export function choose(chosen, id) {
  return chosen.includes(id) ? chosen.filter((other) => other !== id) : [...chosen, id].slice(-2);
}

export function hint(chosen) {
  if (chosen === 2) return "Two sessions chosen.";
  return chosen === 1 ? "Choose one more session to compare." : "Choose two sessions to compare them.";
}
