// The moment that is looked at: by the pointer, which stays where it is while time goes on, or by the keys, which stay at a time.
//
// {share} of the window's width, or {tS}; and {high}, the share of the map's height from below, null for none. null: the newest.

/** The time that is looked at within the window, null for the newest. */
export function timeOf(pointed, { from, to }) {
  if (pointed === null) return null;
  if ("share" in pointed) return from + pointed.share * (to - from);
  return Math.min(Math.max(pointed.tS, from), to);
}

/** Where on the window's width that is. */
export const shareOf = (tS, { from, to }) => (tS - from) / (to - from);

/** The map's row that is looked at, null for none. */
export function rowOf(pointed, rows) {
  const high = pointed?.high ?? null;
  return high === null ? null : Math.min(Math.floor(high * rows), rows - 1);
}

/** What is looked at after a key; undefined when the key is none of ours. */
export function afterKey(pointed, { key, shiftKey }, { from, to }, rows) {
  const tS = timeOf(pointed, { from, to }) ?? to;
  const high = pointed?.high ?? null;
  const step = ((shiftKey ? 10 : 1) * (to - from)) / 120;
  const up = (by) => Math.min(Math.max((high ?? 0.5) + by / rows, 0), 1 - 1e-9);
  const next = {
    ArrowLeft: () => ({ tS: Math.max(tS - step, from), high }),
    ArrowRight: () => ({ tS: Math.min(tS + step, to), high }),
    ArrowUp: () => ({ tS, high: up(1) }),
    ArrowDown: () => ({ tS, high: up(-1) }),
    Home: () => ({ tS: from, high }),
    End: () => ({ tS: to, high }),
    Escape: () => null,
  }[key];
  return next?.();
}

/** "12.3 s before the newest". */
export function ago(seconds) {
  return seconds < 0.05 ? "now" : `${seconds.toFixed(seconds < 60 ? 1 : 0)} s before the newest`;
}
