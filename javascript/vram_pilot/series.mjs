// Readings over time in bounded memory: the newest `capacity` of them, each with one or more values.

const FIRST_ROOM = 256;

export class Series {
  /** gapS: readings farther apart than this do not belong together. lanes: values of each reading. */
  constructor(capacity, { lanes = 1, gapS = Infinity } = {}) {
    this.capacity = capacity;
    this.gapS = gapS;
    this.begin = 0;
    this.end = 0;
    this.t = new Float64Array(FIRST_ROOM);
    this.lanes = Array.from({ length: lanes }, () => new Float64Array(FIRST_ROOM));
  }

  get length() {
    return this.end - this.begin;
  }

  get newestS() {
    return this.length ? this.t[this.end - 1] : null;
  }

  /** values: one for each lane, null for what is missing. A time that does not rise is passed over. */
  push(t, values) {
    if (this.length && t <= this.t[this.end - 1]) return;
    if (this.end === this.t.length) this.#makeRoom();
    this.t[this.end] = t;
    for (let lane = 0; lane < this.lanes.length; lane += 1) {
      const value = values[lane];
      this.lanes[lane][this.end] = value === null || value === undefined ? NaN : value;
    }
    this.end += 1;
    this.begin = Math.max(this.begin, this.end - this.capacity);
  }

  /** The place of the first reading at or after `t`; `end` when there is none. */
  from(t) {
    let low = this.begin;
    let high = this.end;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.t[middle] < t) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** What was read at `t`, or last before it; null when that is too long ago, or is missing. */
  at(t, lane = 0) {
    const place = this.place(t);
    const value = place < 0 ? NaN : this.lanes[lane][place];
    return Number.isNaN(value) ? null : value;
  }

  /** The place of the reading that holds at `t`, -1 when there is none. */
  place(t) {
    let place = this.from(t);
    if (place === this.end || this.t[place] > t) place -= 1;
    return place >= this.begin && t - this.t[place] <= this.gapS ? place : -1;
  }

  clone() {
    const copy = new Series(this.capacity, { lanes: 0, gapS: this.gapS });
    return Object.assign(copy, {
      end: this.length,
      t: this.t.slice(this.begin, this.end),
      lanes: this.lanes.map((lane) => lane.slice(this.begin, this.end)),
    });
  }

  /** Grows up to twice the capacity; from then on what is old is left behind. */
  #makeRoom() {
    const room = Math.max(Math.min(this.t.length * 2, this.capacity * 2), FIRST_ROOM);
    const moved = (values) => {
      const target = room > values.length ? new Float64Array(room) : values;
      target.set(values.subarray(this.begin, this.end));
      return target;
    };
    this.t = moved(this.t);
    this.lanes = this.lanes.map(moved);
    this.end -= this.begin;
    this.begin = 0;
  }
}
