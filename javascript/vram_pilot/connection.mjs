// The connection to the event stream as a state machine: what happened goes in, what is to be done comes out.
//
//   idle ──show──▶ connecting ──hello──▶ streaming ──failed──▶ waiting ──retry──▶ connecting
//                      │ silence, failed       │ stuck            ▲
//                      ▼                       ▼                  │ pollFailed
//                   polling ◀──────────────────┴──────────────────┘
//   hide: idle from anywhere; nothing is asked of the server there.
//   again: what is asked for is another; the stream begins anew where it was.

export const SILENCE_MS = 3000;
export const POLL_MS = 1000;
export const STREAM_AGAIN_MS = 60000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 15000;

export const idle = { phase: "idle", failures: 0 };

/** How long to wait after so many failures in a row. spread: 0 to 1, so that many pages do not come back at once. */
export function backoff(failures, spread = 0) {
  const wait = Math.min(FIRST_WAIT_MS * 2 ** Math.max(failures - 1, 0), LONGEST_WAIT_MS);
  return Math.round(wait * (1 + 0.3 * spread));
}

const connect = (failures) => ({
  state: { phase: "connecting", failures },
  commands: [{ do: "open" }, { do: "timer", event: "silence", ms: SILENCE_MS }],
});
const again = (failures) => {
  const { state, commands } = connect(failures);
  return { state, commands: [{ do: "close" }, ...commands] };
};
const poll = (failures) => ({
  state: { phase: "polling", failures },
  commands: [{ do: "close" }, { do: "poll" }, { do: "timer", event: "streamAgain", ms: STREAM_AGAIN_MS }],
});
const wait = (failures, spread) => {
  const ms = backoff(failures, spread);
  return {
    state: { phase: "waiting", failures, ms },
    commands: [{ do: "close" }, { do: "timer", event: "retry", ms }],
  };
};
const stay = (state) => ({ state, commands: [] });

const TRANSITIONS = {
  idle: { show: (state) => connect(0) },
  connecting: {
    hello: () => ({ state: { phase: "streaming", failures: 0 }, commands: [{ do: "cancel", event: "silence" }] }),
    silence: (state) => poll(state.failures),
    failed: (state) => poll(state.failures),
    again: (state) => again(state.failures),
  },
  streaming: {
    again: () => again(0),
    failed: (state, event) => wait(1, event.spread),
    stuck: () => poll(0),
  },
  polling: {
    polled: (state, event) => ({
      state: { phase: "polling", failures: 0 },
      commands: [{ do: "timer", event: "pollAgain", ms: event.more ? 0 : POLL_MS }],
    }),
    pollAgain: (state) => ({ state, commands: [{ do: "poll" }] }),
    pollFailed: (state, event) => wait(state.failures + 1, event.spread),
    streamAgain: (state) => connect(state.failures),
  },
  waiting: {
    retry: (state) => connect(state.failures),
    now: (state) => connect(state.failures),
  },
};

/** {state, commands}. event: {type, …}. Timers of a phase end with it; an event that a phase does not know changes nothing. */
export function next(state, event) {
  if (event.type === "hide") {
    return state.phase === "idle" ? stay(state) : { state: idle, commands: [{ do: "cancelAll" }, { do: "close" }] };
  }
  const step = TRANSITIONS[state.phase][event.type];
  if (!step) return stay(state);
  const answer = step(state, event);
  const left = answer.state.phase !== state.phase;
  return left ? { ...answer, commands: [{ do: "cancelAll" }, ...answer.commands] } : answer;
}
