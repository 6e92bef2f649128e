// What the page remembers of the event stream: a bounded picture of the newest steps, and a cursor that allows no gap and no double.

export const MAX_POINTS = 400;
export const MAX_LOG = 60;
export const MAX_MOMENTS = 200;

/** marks: what changed, by the step that it stands before; moments: the same, by time. */
export function empty() {
  const lists = { points: [], marks: [], moments: [], log: [] };
  return { stream: null, cursor: null, fresh: true, lost: 0, nowS: 0, count: 0, ...lists, job: null };
}

/** A connection begins. One to another stream (the server was started anew) forgets what the first one told. */
export function greeted(history, hello) {
  const start = hello.reset || (history.stream !== null && history.stream !== hello.stream) ? empty() : history;
  const cursor = start.cursor === null ? hello.cursor : start.cursor;
  return { ...start, stream: hello.stream, cursor, nowS: hello.now_s };
}

/** Records that the server no longer had. They are told once, and are no gap. A page that begins has missed nothing. */
export function missed(history, count) {
  if (!count) return history;
  const cursor = history.cursor + count;
  if (history.fresh) return { ...history, cursor };
  return logged({ ...history, cursor, lost: history.lost + count }, {
    kind: "lost",
    text: `${count} older ${count === 1 ? "record was" : "records were"} no longer there`,
  });
}

/** One record, with the cursor behind it. A record that was taken before changes nothing. Cursors that are left out are of
 * records that were not asked for; those that were lost are told by `missed`. */
export function taken(history, cursor, record) {
  if (history.cursor !== null && cursor <= history.cursor) return history;
  const take = TAKERS[record.type];
  return { ...(take ? take(history, record) : history), cursor, fresh: false, nowS: Math.max(history.nowS, record.t_s ?? 0) };
}

/** An answer reached up to `cursor`, also where its last records were not for this page. */
export function advanced(history, cursor) {
  return cursor > (history.cursor ?? -1) ? { ...history, cursor } : history;
}

const TAKERS = {
  JobStarted(history, record) {
    return marked({ ...history, job: begun(record) }, { kind: "job", label: "job" }, record.t_s);
  },

  StepFinished(history, record) {
    const point = {
      n: history.count,
      session: record.session_id,
      index: record.index,
      pass: record.pass_name,
      durationS: record.duration_s,
      allocated: record.allocated_bytes,
      reserved: record.reserved_bytes,
      streamed: record.streamed_bytes,
    };
    const before = history.points[history.points.length - 1];
    const changed = before && before.session === point.session && before.pass !== point.pass;
    const start = changed ? marked(history, { kind: "pass", label: point.pass }, record.start_s) : history;
    const known = own(start.job, record) ? start.job : begun(record);
    const job = { ...known, steps: known.steps + 1, pass: point.pass };
    const points = [...start.points, point].slice(-MAX_POINTS);
    const first = points[0].n;
    return { ...start, job, points, count: start.count + 1, marks: start.marks.filter((mark) => mark.n >= first) };
  },

  PhaseFinished(history, record) {
    if (!own(history.job, record)) return history;
    const phase = { name: record.name, startS: record.start_s, durationS: record.duration_s };
    return { ...history, job: { ...history.job, phases: merged(history.job.phases, phase) } };
  },

  ModeChanged(history, record) {
    const text = record.failed
      ? `${record.to_mode} could not be entered; ${record.from_mode} stays in force`
      : `${record.from_mode} → ${record.to_mode} (${record.reason})`;
    const mark = { kind: record.failed ? "failed" : "mode", label: record.to_mode };
    return logged(marked(history, mark, record.t_s), { kind: mark.kind, tS: record.t_s, text });
  },

  Note(history, record) {
    return logged(history, { kind: "note", tS: record.t_s, text: record.text });
  },

  JobFinished(history, record) {
    if (!own(history.job, record)) return history;
    const job = { ...history.job, status: record.status, error: record.error ?? null, endS: record.t_s };
    const next = noted({ ...history, job }, { kind: "end", label: "end", tS: record.t_s });
    return record.error ? logged(next, { kind: "failed", tS: record.t_s, text: record.error }) : next;
  },
};

/** Steps that a job will take, null when its request does not say. */
export function totalSteps(request) {
  if (!Number.isFinite(request.steps)) return null;
  const hires = request.hires ? request.hires.steps || request.steps : 0;
  return (request.steps + hires) * (request.n_iter ?? 1);
}

/** A job of which this is the first that is heard, be it its start or, for a page that came late, a step of it. */
function begun(record) {
  const request = record.request ?? {};
  const known = { id: record.session_id, startedAt: record.started_at ?? null, startS: record.start_s ?? record.t_s };
  return { ...known, status: "running", endS: null, request, steps: 0, total: totalSteps(request), pass: "base", phases: [], error: null };
}

const own = (job, record) => job !== null && job.id === record.session_id;

function marked(history, mark, tS) {
  return noted({ ...history, marks: [...history.marks, { ...mark, n: history.count }].slice(-MAX_POINTS) }, { ...mark, tS });
}

function noted(history, moment) {
  return { ...history, moments: [...history.moments, moment].slice(-MAX_MOMENTS) };
}

function logged(history, entry) {
  return { ...history, log: [...history.log, { tS: history.nowS, ...entry }].slice(-MAX_LOG) };
}

/** Phases by name, in the order of their first time, with their durations added up. */
function merged(phases, phase) {
  const known = phases.findIndex((other) => other.name === phase.name);
  if (known < 0) return [...phases, phase];
  return phases.map((other, index) =>
    index === known ? { ...other, durationS: other.durationS + phase.durationS } : other,
  );
}
