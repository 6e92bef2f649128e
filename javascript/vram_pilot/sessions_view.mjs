// The Sessions view, on the page.

import { table } from "./compare.mjs";
import * as words from "./sessions.mjs";
import { HEADERS, sessionPath } from "./urls.mjs";

const PAGE = 25;

/** The Sessions view. */
export class SessionsView {
  #offset = 0;
  #open = null; // {id, what}: the question or the menu that is open
  #chosen = [];
  #sessions = [];

  constructor(page, server) {
    Object.assign(this, { page, server, formats: [] });
    page.on("refresh", "click", () => this.load());
    page.on("newer", "click", () => this.load(this.#offset - PAGE));
    page.on("older", "click", () => this.load(this.#offset + PAGE));
    page.on("compare", "click", () => this.compare());
    page.on("sessions", "click", (event) => this.#clicked(event));
    page.on("sessions", "keydown", (event) => this.#pressed(event));
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
      this.server.url(sessionPath(id, "/report"), { format, download: download ? 1 : null });
    page.fill("sessions", words.rows(shown, { chosen: this.#chosen, open: this.#open, formats: this.formats, links }));
    page.show("pages", this.#offset > 0 || this.#sessions.length > PAGE);
    page.slot("newer").disabled = this.#offset === 0;
    page.slot("older").disabled = this.#sessions.length <= PAGE;
    page.text("page", shown.length ? `${this.#offset + 1} to ${this.#offset + shown.length}` : "");
    page.slot("compare").disabled = this.#chosen.length !== 2;
    page.say("chosen", words.hint(this.#chosen.length));
  }

  #clicked(event) {
    const act = event.target.closest("[data-act]")?.dataset.act;
    const id = event.target.closest("[data-session]")?.dataset.session;
    const isOpen = this.#open?.id === id && this.#open.what === "export";
    if (act === "choose") this.#chosen = words.choose(this.#chosen, id);
    else if (act === "ask") this.#open = { id, what: "delete" };
    else if (act === "export") this.#open = isOpen ? null : { id, what: "export" };
    else if (act === "keep") this.#open = null;
    else if (act === "delete") return this.#delete(id);
    else return undefined;
    this.draw();
    this.#focus(id, { choose: "choose", ask: "keep", keep: "ask", export: "export" }[act]);
    return undefined;
  }

  #focus(id, act) {
    this.page.all(`[data-session="${CSS.escape(id)}"] [data-act="${act}"]`)[0]?.focus();
  }

  /** Escape closes what is open. */
  #pressed(event) {
    if (event.key !== "Escape" || this.#open === null) return;
    const { id, what } = this.#open;
    this.#open = null;
    this.draw();
    this.#focus(id, what === "export" ? "export" : "ask");
  }

  async #delete(id) {
    try {
      await this.server.ask(sessionPath(id), {}, { method: "DELETE", headers: HEADERS });
      this.#chosen = this.#chosen.filter((other) => other !== id);
      this.#open = null;
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
      this.page.fill("compared", table(answer));
      this.page.show("compared", true);
      this.page.slot("compared").focus();
    } catch (error) {
      this.page.say("chosen", error.message, "refused");
    }
  }
}
