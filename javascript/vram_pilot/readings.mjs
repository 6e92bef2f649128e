// What the instruments said, in bounded memory: each metric over time, who held the memory, and the map's columns.

import { Columns } from "./columns.mjs";
import { CARD_LAYERS, RAM_LAYERS, card, ram } from "./holders.mjs";
import { Series } from "./series.mjs";

/** Ten minutes at ten readings a second, and a little more. */
export const CAPACITY = 6600;
/** Readings farther apart do not belong together: of the tier that is read several times a second, and of the other. */
const GAP_S = { fast: 2, slow: 6 };

/** Metrics that are kept, by their tier. */
const TIERS = {
  fast: ["gpu_utilization_ratio", "gpu_memory_utilization_ratio", "gpu_temperature_c", "gpu_power_w", "gpu_sm_clock_hz", "gpu_clock_events"],
  slow: [
    "gpu_memory_temperature_c", "gpu_memory_clock_hz", "gpu_power_limit_w", "gpu_fan_ratio", "gpu_pcie_rx_bytes_per_s",
    "gpu_pcie_tx_bytes_per_s", "gpu_process_bytes", "host_cpu_ratio", "process_cpu_ratio", "host_ram_used_bytes",
    "host_ram_total_bytes", "process_rss_bytes", "host_swap_used_bytes", "fragmentation_ratio",
  ],
};

export class Readings {
  constructor(capacity = CAPACITY) {
    this.capacity = capacity;
    this.clear();
  }

  clear() {
    this.metrics = new Map();
    for (const [tier, names] of Object.entries(TIERS)) {
      for (const name of names) this.metrics.set(name, new Series(this.capacity, { gapS: GAP_S[tier] }));
    }
    this.card = new Series(this.capacity, { lanes: CARD_LAYERS.length + 2, gapS: GAP_S.fast });
    this.ram = new Series(this.capacity, { lanes: RAM_LAYERS.length + 2, gapS: GAP_S.slow });
    this.columns = new Columns();
    this.newestS = null;
    this.heard = new Set(); // metrics that were read at least once
    this.asked = new Map(); // how often a record named a metric
    this.holders = null;
  }

  clone() {
    const copy = Object.assign(new Readings(1), this);
    const metrics = new Map([...this.metrics].map(([name, series]) => [name, series.clone()]));
    return Object.assign(copy, { metrics, card: this.card.clone(), ram: this.ram.clone(), columns: this.columns.clone() });
  }

  /** One record of the stream. */
  take(record) {
    if (record.type === "MapColumn") this.columns.take(record);
    else if (record.type === "Sample") this.#take(record.t_s, withDerived(record.values));
    else return;
    this.newestS = Math.max(this.newestS ?? record.t_s, record.t_s);
  }

  /** What a metric was at a time, null when that is not known. */
  at(name, t) {
    return this.metrics.get(name).at(t);
  }

  /** Whether the instruments never gave a metric. Rates need two readings, so one does not tell. */
  isAbsent(name) {
    return this.asked.get(name) > 1 && !this.heard.has(name);
  }

  #take(t, values) {
    for (const [name, value] of Object.entries(values)) {
      this.asked.set(name, (this.asked.get(name) ?? 0) + 1);
      if (value !== null) this.heard.add(name);
      this.metrics.get(name)?.push(t, [value]);
    }
    const held = card(values, this.holders);
    if (held) this.holders = held;
    pushLayers(this.card, t, held);
    pushLayers(this.ram, t, ram(values));
  }
}

function pushLayers(series, t, held) {
  if (held) series.push(t, [...held.layers, held.free, held.total]);
}

function withDerived(values) {
  const [total, free] = [values.host_ram_total_bytes, values.host_ram_available_bytes];
  if (total === undefined || free === undefined) return values;
  return { ...values, host_ram_used_bytes: total === null || free === null ? null : total - free };
}
