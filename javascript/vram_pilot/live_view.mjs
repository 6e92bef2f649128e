// The Live view, on the page: the job's line, the charts by step, the phases, the log.

import { nearest, neighbour } from "./chart.mjs";
import * as words from "./live.mjs";

/** The Live view. */
export class LiveView {
  #pointed = {};
  #plans = {};

  constructor(page, link) {
    Object.assign(this, { page, link });
    for (const name of ["latency", "memory"]) this.#listen(name);
  }

  /** paused: the charts stay as they are. */
  draw(paused = false) {
    const { page } = this;
    const { history } = this.link;
    const any = history.points.length > 0 || history.job !== null || history.log.length > 0;
    page.show("live-empty", !any);
    page.show("live", any);
    page.show("live-more", any);
    if (!any) return;
    this.#drawJob(words.job(history));
    if (!paused) {
      this.#drawChart("latency", words.latency);
      this.#drawChart("memory", words.memory);
    }
    page.fill("phases", words.phases(history));
    page.show("phases-empty", !history.job?.phases.length);
    page.fill("log", words.log(history));
    page.show("log-empty", history.log.length === 0);
  }

  #drawJob(job) {
    const { page } = this;
    page.show("job", job !== null);
    if (!job) return;
    page.slot("job").dataset.status = job.status;
    page.text("job-title", job.title);
    page.text("job-detail", job.detail);
    const progress = page.slot("progress");
    progress.hidden = job.status !== "running" || !job.total;
    progress.max = job.total || 1;
    progress.value = Math.min(job.done, progress.max);
  }

  #drawChart(name, make) {
    const width = this.page.slot(name).clientWidth;
    if (width === 0) return; // the page is just being laid out
    const drawn = make(this.link.history, Math.max(width, 200));
    this.#plans[name] = drawn.plan;
    this.page.fill(name, drawn.svg);
    this.page.text(`${name}-figures`, drawn.figures);
    this.page.text(`${name}-unit`, drawn.unit);
    this.#point(name, this.#pointed[name] ?? null);
  }

  /** The crosshair and the figures of step `n`; none for null. */
  #point(name, n) {
    this.#pointed[name] = n;
    const plan = this.#plans[name];
    const tip = this.page.slot(`${name}-tip`);
    const cross = this.page.slot(name).querySelector("[data-vp-cross]");
    const point = this.link.history.points.find((other) => other.n === n);
    tip.hidden = !point || !cross;
    cross?.setAttribute("visibility", point ? "visible" : "hidden");
    if (!point || !cross) return;
    const x = plan.x(n);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    this.page.fill(`${name}-tip`, words.tooltip(point));
    tip.style.left = `${Math.max(0, Math.min(x + 10, plan.width - tip.offsetWidth))}px`;
  }

  #listen(name) {
    const plot = this.page.slot(name);
    const nothing = () => this.#point(name, null);
    plot.addEventListener("pointermove", (event) => {
      const { points } = this.link.history;
      const place = event.clientX - plot.getBoundingClientRect().left;
      if (this.#plans[name]) this.#point(name, points[nearest(points, this.#plans[name], place)]?.n ?? null);
    });
    plot.addEventListener("pointerleave", nothing);
    plot.addEventListener("blur", nothing);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") nothing();
      if (!move) return;
      event.preventDefault();
      this.#point(name, neighbour(this.link.history.points, this.#pointed[name] ?? null, move));
    });
  }
}
