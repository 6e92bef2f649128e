// Two sessions side by side, from GET sessions/compare's answer.

import { bytes, moment, rate, seconds } from "./format.mjs";
import { html } from "./markup.mjs";

/** A figure with its unit as people read it. */
export function figure(value, unit) {
  if (value === null || value === undefined) return "—";
  if (typeof value !== "number") return String(value);
  if (unit === "B") return bytes(value);
  if (unit === "s") return seconds(value);
  if (unit === "1/s") return rate(value, "/s");
  const short = Number.isInteger(value) ? String(value) : value.toPrecision(4);
  return unit === "" || unit === "1" ? short : `${short} ${unit}`;
}

/** "−38 %", "2.6 ×", "the same": how the second figure stands to the first. */
export function difference({ a, b, ratio }) {
  if (ratio === null || ratio === undefined) return "";
  if (a === b) return "the same";
  if (ratio >= 2) return `${ratio.toFixed(ratio < 10 ? 1 : 0)} ×`;
  const percent = (ratio - 1) * 100;
  const digits = Math.abs(percent) < 10 ? 1 : 0;
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(digits)} %`;
}

/** The table: what differs, then the figures. Facts that are the same in both make one sentence. */
export function table({ a, b, rows }) {
  const known = rows.filter((row) => row.a !== null || row.b !== null);
  const shared = known.filter((row) => row.unit === "" && row.a === row.b);
  return html`<div class="vp-tools"><h3>Comparison</h3>
      <button type="button" class="vp-button vp-quiet" data-act="close">Close</button></div>
    <p class="vp-quietly">${shared.length ? `The same in both: ${shared.map(fact).join(", ")}.` : ""}</p>
    <div class="vp-table"><table>
      <thead><tr><th scope="col">Figure</th><th scope="col">A · ${moment(a.started_at)}</th>
        <th scope="col">B · ${moment(b.started_at)}</th><th scope="col">B against A</th></tr></thead>
      <tbody>${known.filter((entry) => !shared.includes(entry)).map(row)}</tbody></table></div>`;
}

const fact = ({ label, a }) => `${label.toLowerCase()} ${a}`;

function row(entry) {
  const differs = entry.unit === "" && entry.a !== entry.b;
  return html`<tr class="${differs ? "vp-differs" : ""}"><th scope="row">${entry.label}</th>
    <td class="vp-number" data-label="A">${figure(entry.a, entry.unit)}${best(entry, "a")}</td>
    <td class="vp-number" data-label="B">${figure(entry.b, entry.unit)}${best(entry, "b")}</td>
    <td class="vp-number" data-label="B against A">${differs ? "differs" : difference(entry)}</td></tr>`;
}

const best = (entry, side) => (entry.better === side ? html` <span class="vp-best">better</span>` : "");
