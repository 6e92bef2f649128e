// Which of many marks are drawn.

/** Lines closer than this cannot be told apart, in pixels. */
const GAP = 4;
/** What matters more, first. */
const KINDS = ["failed", "mode", "pass", "job"];

const rank = ({ kind }) => (KINDS.includes(kind) ? KINDS.indexOf(kind) : KINDS.length);

/** Marks with an `x`, in their order, without those too close to one that matters more, or as much and came before. */
export function apart(marks) {
  const kept = [];
  for (const mark of [...marks].sort((one, other) => rank(one) - rank(other))) {
    if (kept.every(({ x }) => Math.abs(x - mark.x) >= GAP)) kept.push(mark);
  }
  return marks.filter((mark) => kept.includes(mark));
}
