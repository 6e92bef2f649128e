// The tab's element, seen by its places.

/** The tab's places, and what is written into them. */
export class Page {
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
