// Who holds the memory, layer by layer from the bottom, by one record's readings.

const number = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** Layers of the card's memory; what is left above them is free. */
export const CARD_LAYERS = [
  { name: "allocated", label: "Torch, in use" },
  { name: "cached", label: "Torch, cached" },
  { name: "process", label: "This process beside torch" },
  { name: "others", label: "Other processes" },
  { name: "driver", label: "Driver and the rest", merged: "Others and driver" },
];

/** Layers of the machine's memory, where there is no card to show. */
export const RAM_LAYERS = [
  { name: "process", label: "This process" },
  { name: "others", label: "Everything else" },
];

/**
 * {layers, free, total, outside} of the card, null when nothing of it was read. layers: bytes as in CARD_LAYERS, null for what is
 * not told apart. before: the answer for the record before: who holds what outside torch is read rarely, and holds until it is.
 */
export function card(values, before = null) {
  const [used, allocated, reserved] = ["gpu_used_bytes", "allocated_bytes", "reserved_bytes"].map((name) => number(values[name]));
  if (used === null && allocated === null) return null;
  const cached = allocated === null || reserved === null ? null : Math.max(reserved - allocated, 0);
  const outside = "gpu_process_bytes" in values ? outsideOf(values, reserved) : (before?.outside ?? null);
  if (used === null) return { layers: [allocated, cached, null, null, null], free: null, total: null, outside };
  const own = number(values.gpu_reserved_bytes) ?? 0;
  const rest = Math.max(used - (reserved ?? 0), 0);
  const process = outside && Math.min(outside.process, rest);
  const others = outside && Math.min(outside.others, rest - process);
  const layers = [allocated, cached, process, others, rest - (process ?? 0) - (others ?? 0) + own];
  const total = number(values.gpu_total_bytes);
  return { layers, free: total === null ? null : Math.max(total - used - own, 0), total, outside };
}

/** What this process holds beside torch, and what all others hold; null where the driver does not tell processes apart. */
function outsideOf(values, reserved) {
  const [process, others] = [number(values.gpu_process_bytes), number(values.gpu_other_processes_bytes)];
  return process === null || others === null ? null : { process: Math.max(process - (reserved ?? 0), 0), others };
}

/** The same of the machine's memory; null when it was not read. */
export function ram(values) {
  const [total, free, own] = ["host_ram_total_bytes", "host_ram_available_bytes", "process_rss_bytes"].map((name) => number(values[name]));
  if (total === null || free === null) return null;
  const used = Math.max(total - free, 0);
  const process = own === null ? null : Math.min(own, used);
  return { layers: [process, used - (process ?? 0)], free, total };
}
