// The panel: the only script with side effects. The helpers are pure, and load when the tab is first seen.

/** Every file of the folder beside this one. */
const HELPERS = [
  "chart", "compare", "connection", "format", "history", "link", "live", "markup", "now", "sessions", "timers", "urls",
];
const PAGE = 25;
/** How often the bar on top is asked for anew: while a job runs, and otherwise. Whatever happens asks at once. */
const STATE_MS = { busy: 2000, calm: 15000 };
/** Between two drawings at least; what comes first is drawn at once. */
const DRAW_MS = 100;
const HEADERS = { "Content-Type": "application/json", "X-VRAM-Pilot": "panel" };

/** The tab's element, as soon as the page has it. */
function found() {
  return new Promise((resolve) => {
    const look = () => document.getElementById("vram-pilot");
    const observer = new MutationObserver(() => {
      if (!look()) return;
      observer.disconnect();
      resolve(look());
    });
    observer.observe(document.documentElement, { childList: true, subtree: true });
    if (look()) {
      observer.disconnect();
      resolve(look());
    }
  });
}

/** Tells, now and from now on, whether somebody can see the element. */
function watch(element, tell) {
  let near = false;
  const now = () => tell(near && !document.hidden);
  new IntersectionObserver((entries) => {
    near = entries[entries.length - 1].isIntersecting;
    now();
  }).observe(element);
  document.addEventListener("visibilitychange", now);
}

// The WebUI stamps only this file's address with its time. Asking for the others anew keeps an update from mixing versions.
async function load() {
  const urls = HELPERS.map((name) => new URL(`./vram_pilot/${name}.mjs`, import.meta.url).href);
  await Promise.allSettled(urls.map((url) => fetch(url, { cache: "no-cache" })));
  const modules = await Promise.all(urls.map((url) => import(url)));
  return Object.fromEntries(HELPERS.map((name, index) => [name, modules[index]]));
}

/** The server, under the page's own root. */
class Server {
  constructor(h) {
    this.h = h;
    this.root = h.urls.rootOf(import.meta.url, document.baseURI);
  }

  url(path, parameters) {
    return this.h.urls.route(this.root, path, parameters);
  }

  /** The answer's content. Throws an Error with a message for the reader. */
  async ask(path, parameters, options = {}) {
    let response;
    try {
      response = await fetch(this.url(path, parameters), { cache: "no-store", ...options });
    } catch {
      throw new Error("The server does not answer.");
    }
    const content = await response.json().catch(() => null);
    if (response.ok && content !== null) return content;
    if (response.status === 401) throw new Error("A login is needed: load this page again, and log in.");
    throw new Error(content?.message ?? `The server answered with ${response.status}.`);
  }
}

/** The tab's places, and what is written into them. */
class Page {
  constructor(element) {
    this.element = element;
    this.markup = new Map();
  }

  slot(name) {
    return this.element.querySelector(`[data-vp="${name}"]`);
  }

  all(selector) {
    return [...this.element.querySelectorAll(selector)];
  }

  text(name, text) {
    const slot = this.slot(name);
    if (slot.textContent !== text) slot.textContent = text;
  }

  show(name, shown) {
    this.slot(name).hidden = !shown;
  }

  /** Markup made by markup.mjs; what is there already is left alone, with its focus. */
  fill(name, markup) {
    const text = String(markup);
    if (this.markup.get(name) === text) return;
    this.markup.set(name, text);
    this.slot(name).innerHTML = text;
  }

  /** A sentence in a place that a screen reader reads out. */
  say(name, text, kind = "") {
    this.text(name, text);
    this.slot(name).dataset.kind = kind;
  }

  on(name, event, work) {
    this.slot(name).addEventListener(event, work);
  }
}

/** The bar on top: the mode in force, and the way to another one. */
class Bar {
  #edited = false;

  constructor(h, page, server, refresh) {
    Object.assign(this, { h, page, server, refresh });
    page.on("control", "submit", (event) => {
      event.preventDefault();
      this.apply();
    });
    page.on("control", "input", () => {
      this.#edited = true;
      this.#showFields();
    });
  }

  /** What the chosen mode takes beside itself, as its markup says. */
  takes() {
    return this.page.element.querySelector('[name="vp-mode"]:checked')?.dataset.takes.split(" ") ?? [];
  }

  #showFields() {
    const takes = this.takes();
    this.page.show("budget-row", takes.includes("budget"));
    this.page.show("accelerate-row", takes.includes("accelerate") && this.page.slot("accelerate-row").dataset.ways > 1);
  }

  chosen(name) {
    return this.page.element.querySelector(`[name="${name}"]:checked`)?.value;
  }

  draw(state) {
    const { page } = this;
    this.state = state;
    const bar = this.h.now.bar(state);
    page.text("mode", bar.mode);
    page.say("why", bar.why, bar.kind);
    page.text("meta", bar.meta);
    page.text("store-note", state.store_note ?? "");
    page.show("store-note", Boolean(state.store_note));
    page.fill("figures", this.h.now.figureList(bar.figures, bar.card));
    this.#drawControl(state);
  }

  #drawControl({ mode, remote_control: allowed }) {
    const { page } = this;
    page.show("scope", mode.in_job);
    page.show("locked", !allowed);
    const [job, standing] = page.all('[name="vp-scope"]');
    standing.disabled = !allowed;
    if (!allowed) job.checked = true;
    page.slot("apply").disabled = !allowed && !mode.in_job;
    if (!this.#edited) this.#preset(mode.in_job ? mode.requested : mode.standing);
    this.#showFields();
  }

  #preset(request) {
    for (const radio of this.page.all('[name="vp-mode"]')) radio.checked = radio.value === request.mode;
    this.page.slot("budget").value = request.budget_mib ?? "";
    this.page.slot("accelerate").value = request.accelerate;
  }

  async apply() {
    const { page } = this;
    const body = this.h.now.request({
      mode: this.chosen("vp-mode"),
      takes: this.takes(),
      budget: page.slot("budget").value,
      accelerate: page.slot("accelerate").value,
      scope: this.state.mode.in_job ? this.chosen("vp-scope") : "standing",
    });
    page.slot("apply").disabled = true;
    page.say("answer", "Applying …");
    try {
      const answer = await this.server.ask("mode", {}, { method: "POST", headers: HEADERS, body: JSON.stringify(body) });
      this.#edited = false;
      page.say("answer", this.h.now.answer(answer), "done");
    } catch (error) {
      page.say("answer", error.message, "refused");
    }
    await this.refresh();
  }
}

/** The Live view. */
class Live {
  #pointed = {};
  #plans = {};

  constructor(h, page, link) {
    Object.assign(this, { h, page, link });
    for (const name of ["latency", "memory"]) this.#listen(name);
  }

  draw() {
    const { h, page } = this;
    const { history } = this.link;
    const any = history.points.length > 0 || history.job !== null || history.log.length > 0;
    page.show("live-empty", !any);
    page.show("live", any);
    if (!any) return;
    this.#drawJob(h.live.job(history));
    this.#drawChart("latency", h.live.latency);
    this.#drawChart("memory", h.live.memory);
    page.fill("phases", h.live.phases(history));
    page.show("phases-empty", !history.job?.phases.length);
    page.fill("log", h.live.log(history));
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
    const drawn = make(this.link.history, Math.max(this.page.slot(name).clientWidth, 200));
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
    this.page.fill(`${name}-tip`, this.h.live.tooltip(point));
    tip.style.left = `${Math.max(0, Math.min(x + 10, plan.width - tip.offsetWidth))}px`;
  }

  #listen(name) {
    const plot = this.page.slot(name);
    const nothing = () => this.#point(name, null);
    plot.addEventListener("pointermove", (event) => {
      const { points } = this.link.history;
      const place = event.clientX - plot.getBoundingClientRect().left;
      if (this.#plans[name]) this.#point(name, points[this.h.chart.nearest(points, this.#plans[name], place)]?.n ?? null);
    });
    plot.addEventListener("pointerleave", nothing);
    plot.addEventListener("blur", nothing);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") nothing();
      if (!move) return;
      event.preventDefault();
      this.#point(name, this.h.chart.neighbour(this.link.history.points, this.#pointed[name] ?? null, move));
    });
  }
}

/** The Sessions view. */
class Sessions {
  #offset = 0;
  #asking = null;
  #chosen = [];
  #sessions = [];

  constructor(h, page, server) {
    Object.assign(this, { h, page, server, formats: [] });
    page.on("refresh", "click", () => this.load());
    page.on("newer", "click", () => this.load(this.#offset - PAGE));
    page.on("older", "click", () => this.load(this.#offset + PAGE));
    page.on("compare", "click", () => this.compare());
    page.on("sessions", "click", (event) => this.#clicked(event));
    page.on("compared", "click", (event) => event.target.closest("[data-act=close]") && page.show("compared", false));
  }

  async load(offset = this.#offset) {
    try {
      const answer = await this.server.ask("sessions", { limit: PAGE + 1, offset: Math.max(offset, 0) });
      this.#offset = answer.offset;
      this.#sessions = answer.sessions;
      this.draw();
    } catch (error) {
      this.page.say("chosen", error.message, "refused");
    }
  }

  draw() {
    const { page } = this;
    const shown = this.#sessions.slice(0, PAGE);
    page.show("sessions-empty", shown.length === 0 && this.#offset === 0);
    page.show("sessions-table", shown.length > 0);
    const links = (id, format, download) =>
      this.server.url(this.h.urls.sessionPath(id, "/report"), { format, download: download ? 1 : null });
    page.fill("sessions", this.h.sessions.rows(shown, { chosen: this.#chosen, asking: this.#asking, formats: this.formats, links }));
    page.show("pages", this.#offset > 0 || this.#sessions.length > PAGE);
    page.slot("newer").disabled = this.#offset === 0;
    page.slot("older").disabled = this.#sessions.length <= PAGE;
    page.text("page", shown.length ? `${this.#offset + 1} to ${this.#offset + shown.length}` : "");
    page.slot("compare").disabled = this.#chosen.length !== 2;
    page.say("chosen", this.h.sessions.hint(this.#chosen.length));
  }

  #clicked(event) {
    const act = event.target.closest("[data-act]")?.dataset.act;
    const id = event.target.closest("[data-session]")?.dataset.session;
    if (act === "choose") this.#chosen = this.h.sessions.choose(this.#chosen, id);
    else if (act === "ask") this.#asking = id;
    else if (act === "keep") this.#asking = null;
    else if (act === "delete") return this.#delete(id);
    else return undefined;
    this.draw();
    const next = { choose: "choose", ask: "keep", keep: "ask" }[act];
    this.page.all(`[data-session="${CSS.escape(id)}"] [data-act="${next}"]`)[0]?.focus();
    return undefined;
  }

  async #delete(id) {
    try {
      await this.server.ask(this.h.urls.sessionPath(id), {}, { method: "DELETE", headers: HEADERS });
      this.#chosen = this.#chosen.filter((other) => other !== id);
      this.#asking = null;
      await this.load();
      this.page.say("chosen", "The session is deleted.", "done");
      this.page.slot("refresh").focus();
    } catch (error) {
      this.page.say("chosen", error.message, "refused");
    }
  }

  async compare() {
    const [a, b] = this.#chosen;
    try {
      const answer = await this.server.ask("sessions/compare", { a, b });
      this.page.fill("compared", this.h.compare.table(answer));
      this.page.show("compared", true);
      this.page.slot("compared").focus();
    } catch (error) {
      this.page.say("chosen", error.message, "refused");
    }
  }
}

/** The whole tab. */
class Panel {
  #timers;
  #visible = false;
  #view = "live";
  #drawn = 0;

  constructor(h, element) {
    this.#timers = new h.timers.Timers();
    const page = new Page(element);
    const server = new Server(h);
    const link = new h.link.Link({
      ask: (path, parameters) => server.ask(path, parameters),
      listen: (parameters) => new EventSource(server.url("events", parameters)),
      changed: (phase) => this.#linkChanged(phase),
      came: (news) => this.#came(news),
    });
    const bar = new Bar(h, page, server, () => this.refresh());
    Object.assign(this, { h, page, server, link, bar, live: new Live(h, page, link), sessions: new Sessions(h, page, server) });
    const tabs = page.all('[role="tab"]');
    for (const tab of tabs) {
      tab.addEventListener("click", () => this.#open(tab));
      tab.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (move) this.#open(tabs[(tabs.indexOf(tab) + move + tabs.length) % tabs.length]);
      });
    }
    new ResizeObserver(() => this.#drawSoon()).observe(element);
  }

  async setVisible(visible) {
    if (visible === this.#visible) return;
    this.#visible = visible;
    if (!visible) {
      this.#timers.stop();
      this.link.hide();
      return;
    }
    await this.refresh();
  }

  /** Asks for the state, draws it, and asks again after a while; the first answer starts the stream. */
  async refresh() {
    const { page } = this;
    let state = null;
    try {
      state = await this.server.ask("state");
      this.#draw(state);
      page.say("alert", "");
    } catch (error) {
      page.say("alert", error.message);
    }
    page.show("alert", page.slot("alert").textContent !== "");
    if (!this.#visible) return;
    const busy = state === null || state.mode?.in_job;
    this.#timers.start("state", busy ? STATE_MS.busy : STATE_MS.calm, () => this.refresh());
    if (state === null || state.off) return;
    if (this.link.phase === "idle") this.link.show(state);
    else this.link.compare(state);
  }

  #draw(state) {
    const { page } = this;
    page.element.dataset.state = state.off ? "off" : "ready";
    page.show("loading", false);
    page.show("off", state.off);
    page.show("main", !state.off);
    if (state.off) return;
    this.sessions.formats = state.offers.reports;
    this.bar.draw(state);
    if (this.#view === "sessions" && !this.#timers.has("list")) this.#timers.start("list", 0, () => this.sessions.load());
    this.#drawSoon();
  }

  #linkChanged(phase) {
    this.page.text("link", this.h.now.link(phase));
    this.page.slot("link").dataset.link = phase;
  }

  #came(news) {
    if (news) this.#timers.start("state", 150, () => this.refresh());
    this.#drawSoon();
  }

  #drawSoon() {
    if (!this.#visible || this.#view !== "live" || this.#timers.has("draw")) return;
    const rest = Math.max(this.#drawn + DRAW_MS - performance.now(), 0);
    this.#timers.start("draw", rest, () => requestAnimationFrame(() => this.#drawLive()));
  }

  #drawLive() {
    this.#drawn = performance.now();
    if (this.#visible) this.live.draw();
  }

  #open(tab) {
    this.#view = tab.id.replace("vp-tab-", "");
    for (const other of this.page.all('[role="tab"]')) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
    }
    tab.focus();
    if (this.#view === "sessions") this.sessions.load();
    else this.#drawSoon();
  }
}

const element = await found();
let panel = null;
watch(element, async (visible) => {
  if (!panel && !visible) return;
  panel ??= load().then((h) => new Panel(h, element));
  (await panel).setVisible(visible);
});
