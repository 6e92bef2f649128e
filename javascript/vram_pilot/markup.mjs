// Text into HTML. Everything that is put into a template is escaped, unless it is itself made by one.

const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

class Markup {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

function rendered(value) {
  if (value === null || value === undefined || value === false) return "";
  if (value instanceof Markup) return value.text;
  if (Array.isArray(value)) return value.map(rendered).join("");
  return String(value).replace(/[&<>"']/g, (character) => ESCAPES[character]);
}

/** html`<b>${text}</b>`: markup; nothing for null, undefined and false; arrays are joined. */
export function html(strings, ...values) {
  return new Markup(strings.reduce((text, part, index) => text + rendered(values[index - 1]) + part));
}
