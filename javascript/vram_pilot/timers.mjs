// Named timers: a name has one at most.

export class Timers {
  #running = new Map();
  #clock;

  /** clock: {setTimeout, clearTimeout}, the world's own when left out. */
  constructor(clock = { setTimeout: (...args) => setTimeout(...args), clearTimeout: (id) => clearTimeout(id) }) {
    this.#clock = clock;
  }

  has(name) {
    return this.#running.has(name);
  }

  start(name, ms, work) {
    this.stop(name);
    const fire = () => {
      this.#running.delete(name);
      work();
    };
    this.#running.set(name, this.#clock.setTimeout(fire, ms));
  }

  stop(...names) {
    for (const name of names.length ? names : [...this.#running.keys()]) {
      this.#clock.clearTimeout(this.#running.get(name));
      this.#running.delete(name);
    }
  }
}
