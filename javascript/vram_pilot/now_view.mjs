// The bar on top, on the page.

import * as now from "./now.mjs";
import { HEADERS } from "./urls.mjs";

/** The bar on top: the mode in force, and the way to another one. */
export class NowView {
  #edited = false;

  /** refresh(): asks for the state anew. */
  constructor(page, server, refresh) {
    Object.assign(this, { page, server, refresh });
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
    const bar = now.bar(state);
    page.text("mode", bar.mode);
    page.say("why", bar.why, bar.kind);
    page.text("meta", bar.meta);
    page.fill("notes", now.noteList(bar.notes));
    page.show("notes", bar.notes.length > 0);
    page.text("store-note", state.store_note ?? "");
    page.show("store-note", Boolean(state.store_note));
    page.fill("figures", now.figureList(bar.figures, bar.card));
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
    const body = now.request({
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
      page.say("answer", now.answer(answer), "done");
    } catch (error) {
      page.say("answer", error.message, "refused");
    }
    await this.refresh();
  }
}
