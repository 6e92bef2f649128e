// The map of torch's memory: columns of address rows over time. Bounded; cells as bytes, their colours as RGBA.

/** Rows of a column at most, and the time that one column of the picture stands for: the server sends no more than four a second. */
export const ROWS = 512;
export const SLOT_S = 0.25;
/** Columns come more rarely where they are dear; one holds for so long at most. */
const HOLD_SLOTS = 20;

/** The bytes of base64 text. */
export function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

/** Shares of rows that are `factor` times as high. */
export function coarser(shares, factor) {
  if (factor === 1) return shares;
  const rows = new Uint8Array(Math.ceil(shares.length / factor));
  for (let row = 0; row < rows.length; row += 1) {
    let sum = 0;
    for (let at = row * factor; at < Math.min((row + 1) * factor, shares.length); at += 1) sum += shares[at];
    rows[row] = sum === 0 ? 0 : Math.max(Math.round(sum / factor), 1);
  }
  return rows;
}

/** The newest columns by their slot of time. */
export class Columns {
  constructor(slots = 2640) {
    this.slots = slots;
    this.clear();
  }

  clear() {
    this.entries = new Array(this.slots).fill(null);
    this.newest = -1; // the slot
    this.note = null;
    this.rowBytes = 0; // of the picture: the largest among its columns
    this.version = 0; // another one when all of the picture has to be painted anew
  }

  clone() {
    return Object.assign(new Columns(0), this, { entries: [...this.entries] });
  }

  /** One MapColumn. */
  take(record) {
    this.note = record.note ?? null;
    if (this.note !== null) return;
    const slot = Math.floor(record.t_s / SLOT_S);
    if (slot < this.newest) return;
    const column = {
      tS: record.t_s,
      rowBytes: record.row_bytes,
      layout: record.layout,
      heldBytes: record.held_bytes,
      activeBytes: record.active_bytes,
      held: bytesOf(record.held),
      active: bytesOf(record.active),
    };
    this.#fill(slot);
    this.#put(slot, column);
    this.newest = slot;
    this.#rescale();
  }

  /** The column that holds at slot `slot`, null when there is none. */
  get(slot) {
    const entry = slot < 0 ? null : this.entries[slot % this.slots];
    return entry !== null && entry.slot === slot ? entry.column : null;
  }

  /** The column that holds at a time: the newest one holds on for a moment. */
  at(t) {
    const slot = Math.floor(t / SLOT_S);
    return slot > this.newest && slot - this.newest <= HOLD_SLOTS ? this.get(this.newest) : this.get(slot);
  }

  /** Rows of the picture that any column from slot `from` on reaches up to. */
  height(from) {
    let rows = 0;
    for (let slot = Math.max(from, this.newest - this.slots + 1, 0); slot <= this.newest; slot += 1) {
      const column = this.get(slot);
      if (column) rows = Math.max(rows, Math.ceil((column.held.length * column.rowBytes) / this.rowBytes));
    }
    return rows;
  }

  #put(slot, column) {
    this.entries[slot % this.slots] = { slot, column };
  }

  /** The column before holds until the next one, unless that took too long. */
  #fill(slot) {
    const before = this.get(this.newest);
    if (before === null || slot - this.newest > HOLD_SLOTS) return;
    for (let between = this.newest + 1; between < slot; between += 1) this.#put(between, before);
  }

  /** Rows of the picture are as high as the highest among its columns. */
  #rescale() {
    let largest = 0;
    for (const entry of this.entries) {
      if (entry !== null && entry.slot > this.newest - this.slots) largest = Math.max(largest, entry.column.rowBytes);
    }
    if (largest === this.rowBytes) return;
    this.rowBytes = largest;
    this.version += 1;
  }
}

/**
 * One column of pixels, the lowest address at the bottom: `colours.active` for what is in use, `colours.cached` for what is held
 * and free, mixed by their shares; transparent where torch holds nothing. colours: [r, g, b] each.
 */
export function pixels(column, rowBytes, colours, target = new Uint8ClampedArray(ROWS * 4)) {
  target.fill(0);
  if (column === null) return target;
  const factor = rowBytes / column.rowBytes;
  const [held, active] = [coarser(column.held, factor), coarser(column.active, factor)];
  for (let row = 0; row < Math.min(held.length, ROWS); row += 1) {
    if (held[row] === 0) continue;
    const share = Math.min((active[row] ?? 0) / held[row], 1);
    const at = (ROWS - 1 - row) * 4;
    for (let channel = 0; channel < 3; channel += 1) {
      target[at + channel] = colours.cached[channel] + (colours.active[channel] - colours.cached[channel]) * share;
    }
    target[at + 3] = held[row];
  }
  return target;
}

/** {start, size, held, active}: bytes of the row of the picture at `row`; null outside of what is held. */
export function cell(column, rowBytes, row) {
  const factor = rowBytes / column.rowBytes;
  const [held, active] = [coarser(column.held, factor), coarser(column.active, factor)];
  if (!(row >= 0 && row < held.length)) return null;
  const share = (bytes) => (bytes[row] ?? 0) / 255;
  return { start: row * rowBytes, size: rowBytes, held: share(held) * rowBytes, active: share(active) * rowBytes };
}
