// The event stream: kept up by the state machine of connection.mjs, remembered by history.mjs and readings.mjs. What it needs of
// the world is handed in.

import { SILENCE_MS, idle, next } from "./connection.mjs";
import { advanced, empty, greeted, missed, taken } from "./history.mjs";
import { Readings } from "./readings.mjs";
import { Timers } from "./timers.mjs";

/** Records asked for by a page that begins; more, but not more than that, when the newest job began before them. */
export const BACKLOG = 2000;
export const MOST_BACKLOG = 6000;
/** What the bar on top depends on, and what the instruments show; the rest is of steps and their job. */
const NEWS = new Set(["JobStarted", "JobFinished", "ModeChanged", "Note"]);
const READINGS = new Set(["Sample", "MapColumn"]);

export class Link {
  #timers;
  #source = null;
  #state = idle;
  #start = {};
  #map = false;
  #world;

  /**
   * ask(path, parameters): a promise of the answer's content. listen(parameters): an EventSource. changed(phase): the connection
   * is another. came({news, readings, steps}): records were taken; what of the page depends on them.
   */
  constructor({ clock, ...world }) {
    this.#timers = new Timers(clock);
    this.#world = world;
    this.history = empty();
    this.readings = new Readings();
  }

  get phase() {
    return this.#state.phase;
  }

  /** state: GET state's answer, which says where a page that begins starts. */
  show(state) {
    const { cursor, job } = state;
    const since = Math.max(Math.min(cursor - BACKLOG, job?.cursor ?? cursor), cursor - MOST_BACKLOG, 0);
    this.#start = { since, stream: state.stream };
    this.#happened({ type: "show" });
  }

  /** Whether the columns of the map are asked for. */
  wantMap(wanted) {
    if (wanted === this.#map) return;
    this.#map = wanted;
    this.#happened({ type: "again" });
  }

  hide() {
    this.#happened({ type: "hide" });
  }

  /** The server's cursor, seen by another way: a stream that brings nothing though it moved is held back somewhere. */
  compare({ stream, cursor }) {
    if (this.phase !== "streaming" || stream !== this.history.stream || cursor <= this.history.cursor) return;
    if (this.#timers.has("stuck")) return;
    this.#timers.start("stuck", SILENCE_MS, () => {
      if (this.history.cursor < cursor) this.#happened({ type: "stuck" });
    });
  }

  #happened(event) {
    const before = this.phase;
    const { state, commands } = next(this.#state, { spread: Math.random(), ...event });
    this.#state = state;
    for (const command of commands) this.#carryOut(command);
    if (state.phase !== before) this.#world.changed(state.phase);
  }

  #carryOut(command) {
    if (command.do === "open") this.#open();
    else if (command.do === "close") this.#close();
    else if (command.do === "poll") this.#poll();
    else if (command.do === "timer") this.#timers.start(command.event, command.ms, () => this.#happened({ type: command.event }));
    else if (command.do === "cancel") this.#timers.stop(command.event);
    else if (command.do === "cancelAll") this.#timers.stop();
  }

  #where() {
    const { stream, cursor } = this.history;
    const place = cursor === null ? this.#start : { since: cursor, stream };
    return this.#map ? { ...place, map: 1 } : place;
  }

  #greeted(hello) {
    const before = this.history.stream;
    this.history = greeted(this.history, hello);
    if (hello.reset || (before !== null && before !== this.history.stream)) this.readings.clear();
  }

  #open() {
    const source = this.#world.listen(this.#where());
    this.#source = source;
    const on = (name, take) => source.addEventListener(name, (event) => this.#source === source && take(event));
    on("hello", ({ data }) => {
      this.#greeted(JSON.parse(data));
      this.#happened({ type: "hello" });
    });
    on("lost", ({ data }) => this.#take([], JSON.parse(data).count));
    on("record", ({ data, lastEventId }) => this.#take([{ cursor: Number(lastEventId), ...JSON.parse(data) }]));
    on("end", () => this.#happened({ type: "failed" }));
    on("error", () => this.#happened({ type: "failed" }));
  }

  #close() {
    this.#source?.close();
    this.#source = null;
  }

  async #poll() {
    try {
      const answer = await this.#world.ask("events", { ...this.#where(), poll: 1 });
      if (this.phase !== "polling") return;
      this.#greeted({ ...answer, cursor: answer.since });
      this.#take(answer.records, answer.lost);
      this.history = advanced(this.history, answer.cursor);
      this.#happened({ type: "polled", more: answer.more });
    } catch {
      this.#happened({ type: "pollFailed" });
    }
  }

  #take(records, lost = 0) {
    this.history = missed(this.history, lost);
    for (const { cursor, ...record } of records) {
      const before = this.history;
      this.history = taken(before, cursor, record);
      if (this.history !== before) this.readings.take(record);
    }
    const has = (kinds) => records.some(({ type }) => kinds.has(type));
    const readings = has(READINGS);
    if (records.length || lost) {
      this.#world.came({ news: has(NEWS), readings, steps: !readings || records.some(({ type }) => !READINGS.has(type)) });
    }
  }
}
