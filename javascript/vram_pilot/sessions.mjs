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

/** The formats in the order of GET state, with what each is for. */
const FORMATS = {
  html: ["HTML", "a page to read, print and pass on; one file that needs no network"],
  json: ["JSON", "the whole session, for programs"],
  csv: ["CSV", "one figure a line, for spreadsheets"],
  trace: ["Trace", "for Perfetto or chrome://tracing"],
  memory_viz: ["Memory snapshot", "of torch's allocator, for PyTorch's memory_viz"],
  parquet: ["Parquet", "columns, for data frames"],
  markdown: ["Markdown", "text, for issues and notes"],
};

/** links: (id, format, download) → address; formats: those of any session; open: {id, what: "delete" or "export"} or null. */
export function rows(sessions, { chosen, open, formats, links }) {
  return html`${sessions.map((session) => {
    const what = session.id === open?.id ? open.what : null;
    if (what === "delete") return question(session);
    const shown = row(session, chosen.includes(session.id), what === "export", formats, links);
    return what === "export" ? html`${shown}${exports(session, formats, links)}` : shown;
  })}`;
}

const titleOf = (session) => `${session.mode ?? "—"} session of ${moment(session.started_at)}`;

/** What a session can be exported as; the allocator's snapshot is there only if it was kept. */
function exports(session, formats, links) {
  const offered = session.snapshot && !formats.includes("memory_viz") ? [...formats, "memory_viz"] : formats;
  return html`<tr data-session="${session.id}" class="vp-exports"><td colspan="9"><ul aria-label="Export the ${titleOf(session)}">${offered.map(
    (format) => {
      const [name, use] = FORMATS[format] ?? [format, ""];
      return html`<li><a class="vp-link" href="${links(session.id, format, true)}" download>${name}</a> <span>${use}</span></li>`;
    },
  )}</ul></td></tr>`;
}

function row(session, isChosen, isExporting, formats, links) {
  const { id } = session;
  const mode = session.mode ?? "—";
  const title = titleOf(session);
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
      <button type="button" class="vp-button vp-quiet" data-act="export" aria-expanded="${String(isExporting)}">Export<span
        class="vp-hidden">: ${title}</span></button>
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
