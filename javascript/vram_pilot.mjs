// The panel: the only script with side effects. The helpers are pure, and load when the tab is first seen.

/** Every file of the folder beside this one. */
const HELPERS = [
  "board", "chart", "columns", "compare", "connection", "format", "gauges", "history", "holders", "link", "live", "live_view", "marks",
  "markup", "moment", "now", "now_view", "page", "paint", "plots", "readings", "series", "sessions", "sessions_view", "timers", "trace",
  "tracks", "urls",
];
/** How often the bar on top is asked for anew: while a job runs, and otherwise. Whatever happens asks at once. */
const STATE_MS = { busy: 2000, calm: 15000 };
/** Between two drawings at least; what comes first is drawn at once. */
const DRAW_MS = 100;
/** As a page is turned round or laid out anew, it may be out of sight for so long. */
const LEAVE_MS = 200;
/** The card's limits are known soon after its first reading. */
const FACTS_MS = 1000;
/** The log says how long ago things were, in steps of so many seconds. */
const LOG_S = 5;

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

/** Tells, now and from now on, whether somebody can see the element. One that is gone for a moment only has not been gone. */
function watch(element, tell) {
  let near = false;
  let leaving = null;
  const now = () => tell(near && !document.hidden);
  new IntersectionObserver((entries) => {
    near = entries[entries.length - 1].isIntersecting;
    clearTimeout(leaving);
    if (near) now();
    else leaving = setTimeout(now, LEAVE_MS);
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

/** What the instruments' drawings need of the browser. */
function worldOf(element) {
  const motion = matchMedia("(prefers-reduced-motion: reduce)");
  return {
    ratio: () => devicePixelRatio,
    calm: () => motion.matches,
    style: () => getComputedStyle(element),
    canvas: () => document.createElement("canvas"),
  };
}

/** The whole tab. */
class Panel {
  #timers;
  #visible = false;
  #view = "live";
  #drawn = { steps: -Infinity, board: -Infinity };
  #logS = null;
  #facts = "unknown";
  #width = null;

  constructor(h, element) {
    this.#timers = new h.timers.Timers();
    const page = new h.page.Page(element);
    const server = new Server(h);
    const link = new h.link.Link({
      ask: (path, parameters) => server.ask(path, parameters),
      listen: (parameters) => new EventSource(server.url("events", parameters)),
      changed: (phase) => this.#linkChanged(phase),
      came: (what) => this.#came(what),
    });
    Object.assign(this, { h, page, server, link });
    this.bar = new h.now_view.NowView(page, server, () => this.refresh());
    this.live = new h.live_view.LiveView(page, link);
    this.board = new h.board.Board(page, link, worldOf(element), () => this.#drawSoon());
    this.sessions = new h.sessions_view.SessionsView(page, server);
    const tabs = page.all('[role="tab"]');
    for (const tab of tabs) {
      tab.addEventListener("click", () => this.#open(tab));
      tab.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (move) this.#open(tabs[(tabs.indexOf(tab) + move + tabs.length) % tabs.length]);
      });
    }
    const restyle = () => {
      this.board.restyle();
      this.#drawSoon();
    };
    new ResizeObserver(() => {
      if (element.clientWidth === this.#width) return; // heights follow from what is drawn
      this.#width = element.clientWidth;
      restyle();
    }).observe(element);
    for (const part of [document.documentElement, document.body]) {
      new MutationObserver(restyle).observe(part, { attributes: true, attributeFilter: ["class"] });
    }
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
      if (!this.#visible) return; // it was hidden meanwhile, and asks anew when it is shown
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
    this.board.told(state);
    if (Object.keys(state.telemetry?.facts ?? {}).length || !state.telemetry?.card) this.#facts = "known";
    this.link.wantMap(this.#view === "live");
    if (this.#view === "sessions" && !this.#timers.has("list")) this.#timers.start("list", 0, () => this.sessions.load());
    this.#drawSoon();
  }

  #linkChanged(phase) {
    this.page.text("link", this.h.now.link(phase));
    this.page.slot("link").dataset.link = phase;
  }

  #came({ news, readings, steps }) {
    if (news) this.#timers.start("state", 150, () => this.refresh());
    if (readings && this.#facts === "unknown") {
      this.#facts = "asked";
      this.#timers.start("facts", FACTS_MS, () => this.refresh());
    }
    if (steps || Math.floor(this.link.history.nowS / LOG_S) !== this.#logS) this.#drawStepsSoon();
    if (readings && !this.board.paused) this.#drawBoardSoon();
  }

  #drawSoon() {
    this.#drawStepsSoon();
    this.#drawBoardSoon();
  }

  #drawStepsSoon() {
    this.#soon("steps", DRAW_MS, () => {
      this.#logS = Math.floor(this.link.history.nowS / LOG_S);
      this.live.draw(this.board.paused);
    });
  }

  #drawBoardSoon() {
    this.#soon("board", this.board.restMs, () => this.board.draw());
  }

  /** Draws a part with the next frame, but not too often, and not while nobody sees it. */
  #soon(part, restMs, draw) {
    const seen = () => this.#visible && this.#view === "live";
    if (!seen() || this.#timers.has(part)) return;
    const rest = Math.max(this.#drawn[part] + restMs - performance.now(), 0);
    const frame = () => {
      if (!seen()) return;
      this.#drawn[part] = performance.now();
      draw();
    };
    this.#timers.start(part, rest, () => requestAnimationFrame(frame));
  }

  #open(tab) {
    this.#view = tab.id.replace("vp-tab-", "");
    for (const other of this.page.all('[role="tab"]')) {
      other.setAttribute("aria-selected", String(other === tab));
      other.tabIndex = other === tab ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = other !== tab;
    }
    tab.focus();
    this.link.wantMap(this.#view === "live");
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
