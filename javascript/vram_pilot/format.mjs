// Sizes, times and words as people read them. Missing is "—".

const MISSING = "—";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function bytes(value) {
  if (!isNumber(value)) return MISSING;
  let size = value;
  for (const unit of ["B", "KiB", "MiB"]) {
    if (Math.abs(size) < 1000) return `${size.toFixed(unit === "MiB" && Math.abs(size) < 10 ? 1 : 0)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(Math.abs(size) < 10 ? 2 : 1)} GiB`;
}

export function seconds(value) {
  if (!isNumber(value)) return MISSING;
  if (Math.abs(value) < 1) return `${(value * 1000).toFixed(Math.abs(value) < 0.1 ? 1 : 0)} ms`;
  if (Math.abs(value) < 60) return `${value.toFixed(2)} s`;
  const whole = Math.round(value);
  const minutes = Math.floor(whole / 60);
  return minutes < 60 ? `${minutes} min ${whole % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function rate(value, unit = "it/s") {
  if (!isNumber(value)) return MISSING;
  return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
}

export function joules(value) {
  if (!isNumber(value)) return MISSING;
  return value < 9999.5 ? `${value.toFixed(value < 10 ? 1 : 0)} J` : `${(value / 1000).toFixed(1)} kJ`;
}

export function count(value, one, many = `${one}s`) {
  return `${value} ${value === 1 ? one : many}`;
}

/** A UTC time as the reader's own date and time; the text itself when it is none. */
export function moment(text, locale = undefined, timeZone = undefined) {
  if (!text) return MISSING;
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return String(text);
  return date.toLocaleString(locale, { dateStyle: "medium", timeStyle: "medium", timeZone });
}

/** "lowvram, 512 MiB": a mode as GET state and the sessions give it, as an object or as text. */
export function mode(value) {
  if (!value) return MISSING;
  if (typeof value === "string") return value;
  const parts = [value.mode ?? MISSING];
  if (isNumber(value.budget_mib)) parts.push(`${value.budget_mib} MiB`);
  if (value.accelerate && value.accelerate !== "off") parts.push(value.accelerate);
  return parts.join(", ");
}

/** The middle one of some numbers, null of none. */
export function median(values) {
  return quantile(values, 0.5);
}

/** The value below which `share` of the numbers lie, interpolated; null of none. */
export function quantile(values, share) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const at = (sorted.length - 1) * share;
  const low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}
