// The instruments: what each shows, in which words, on which scale, and why something of it is missing.

import { bytes } from "./format.mjs";

const known = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (value) => `${(value * 100).toFixed(0)} %`;
const degrees = (value) => `${value.toFixed(0)} °C`;
const watts = (value) => `${value.toFixed(0)} W`;
const megahertz = (value) => `${(value / 1e6).toFixed(0)} MHz`;

/** "12.3 GB/s": links are sold in powers of ten. */
export function rate(value) {
  if (value >= 9.995e8) return `${(value / 1e9).toFixed(value < 9.995e9 ? 2 : 1)} GB/s`;
  return value >= 9.5e5 ? `${(value / 1e6).toFixed(0)} MB/s` : `${(value / 1e3).toFixed(0)} kB/s`;
}

/** Why clocks are below their maximum, by the bits of gpu_clock_events, named as in docs/metrics.md. gpu_idle is no fault. */
export const CLOCK_EVENTS = {
  gpu_idle: 0x1,
  clocks_setting: 0x2,
  power_cap: 0x4,
  hw_slowdown: 0x8,
  sync_boost: 0x10,
  sw_thermal: 0x20,
  hw_thermal: 0x40,
  hw_power_brake: 0x80,
  display_clocks: 0x100,
};
/** What colour a reason has: heat, power, or somebody's setting. */
export const EVENT_KINDS = {
  gpu_idle: "idle",
  clocks_setting: "setting",
  power_cap: "power",
  hw_slowdown: "heat",
  sync_boost: "setting",
  sw_thermal: "heat",
  hw_thermal: "heat",
  hw_power_brake: "power",
  display_clocks: "setting",
};

/** Bytes a second of one PCIe lane, each way, by the link's generation. */
const LANE = { 1: 250e6, 2: 500e6, 3: 984.6e6, 4: 1969e6, 5: 3938e6, 6: 7563e6, 7: 15126e6 };
export function linkRate({ pcie_generation_max: generation, pcie_width_max: width }) {
  return known(LANE[generation]) && width > 0 ? LANE[generation] * width : null;
}

/**
 * name, title; metric: the main line and the large figure, in words by `words`; second: a further line, or (line false) figures only.
 * top(facts, highest, at): the scale's upper end; bottom: its lower one; limits(facts, at): [{value, label}] lines across the plot.
 * at(metric): the reading at the moment that is looked at. gpu: of the card.
 */
export const GAUGES = [
  {
    name: "utilization",
    title: "GPU utilisation",
    metric: "gpu_utilization_ratio",
    words: percent,
    second: { metric: "gpu_memory_utilization_ratio", label: "memory access", words: percent, line: true },
    top: () => 1,
    gpu: true,
  },
  {
    name: "temperature",
    title: "Temperature",
    metric: "gpu_temperature_c",
    words: degrees,
    second: { metric: "gpu_memory_temperature_c", label: "memory", words: degrees, line: true },
    bottom: 20,
    top: (facts, most) => Math.max(facts.temperature_shutdown_c ?? 0, facts.temperature_slowdown_c ?? 0, most ?? 0, 80) + 5,
    limits: (facts) => [
      { value: facts.temperature_slowdown_c, label: `held down from ${facts.temperature_slowdown_c} °C` },
      { value: facts.temperature_shutdown_c, label: `off at ${facts.temperature_shutdown_c} °C` },
    ],
    gpu: true,
  },
  {
    name: "power",
    title: "Power",
    metric: "gpu_power_w",
    words: watts,
    top: (facts, most, at) => roundUpTo(Math.max(at("gpu_power_limit_w") ?? 0, most ?? 0, 10) * 1.08, 10),
    limits: (facts, at) => [{ value: at("gpu_power_limit_w"), label: `limit ${(at("gpu_power_limit_w") ?? 0).toFixed(0)} W` }],
    gpu: true,
  },
  {
    name: "clocks",
    title: "Clocks",
    metric: "gpu_sm_clock_hz",
    words: megahertz,
    second: { metric: "gpu_memory_clock_hz", label: "memory", words: megahertz },
    top: (facts, most) => roundUpTo(Math.max(facts.sm_clock_max_hz ?? 0, most ?? 0, 1e8) * 1.08, 1e8),
    limits: (facts) => [{ value: facts.sm_clock_max_hz, label: `highest ${(facts.sm_clock_max_hz / 1e6).toFixed(0)} MHz` }],
    events: "gpu_clock_events",
    gpu: true,
  },
  {
    name: "pcie",
    title: "PCIe",
    metric: "gpu_pcie_rx_bytes_per_s",
    label: "to the card",
    words: rate,
    second: { metric: "gpu_pcie_tx_bytes_per_s", label: "from it", words: rate, line: true },
    top: (facts, most) => (linkRate(facts) ?? Math.max(most ?? 0, 1e6)) * 1.08,
    limits: (facts) => [
      {
        value: linkRate(facts),
        label: `link ${rate(linkRate(facts) ?? 0)}, generation ${facts.pcie_generation_max} × ${facts.pcie_width_max}`,
      },
    ],
    gpu: true,
  },
  {
    name: "cpu",
    title: "CPU",
    metric: "host_cpu_ratio",
    words: percent,
    second: { metric: "process_cpu_ratio", label: "this process, cores", words: (value) => value.toFixed(1) },
    top: () => 1,
  },
  {
    name: "ram",
    title: "RAM",
    metric: "host_ram_used_bytes",
    words: bytes,
    second: { metric: "process_rss_bytes", label: "this process", words: bytes, line: true },
    top: (facts, most, at) => at("host_ram_total_bytes") ?? most ?? 1,
    total: "host_ram_total_bytes",
  },
];

const roundUpTo = (value, unit) => Math.ceil(value / unit) * unit;

/** What may be missing, in the reader's words, and why it is where it is. */
const ABSENT = [
  ["gpu_utilization_ratio", "GPU utilisation", "A card in MIG mode does not tell it."],
  ["gpu_temperature_c", "Temperature", "The card's driver does not tell it."],
  ["gpu_memory_temperature_c", "Memory temperature", "Most consumer cards have no sensor for it."],
  ["gpu_power_w", "Power", "This card has no sensor for it."],
  ["gpu_sm_clock_hz", "Clocks", "The card's driver does not tell them."],
  ["gpu_clock_events", "Throttle reasons", "Virtual cards do not tell them."],
  ["gpu_pcie_rx_bytes_per_s", "PCIe traffic", "Its byte counters need driver 550 or later, and are not there in WSL."],
  ["gpu_process_bytes", "Memory by process", "Windows' display driver (WDDM), WSL and containers do not tell processes apart."],
  ["host_cpu_ratio", "CPU", "The package psutil gives no reading here."],
  ["host_ram_used_bytes", "RAM", "The package psutil gives no reading here."],
];

/** [{label, reason}]: what the instruments do not give. notes: GET state's, which know better why all of a kind is missing. */
export function missing(readings, { notes, nvidia }) {
  const wholeCard = !nvidia || readings.isAbsent("gpu_used_bytes");
  const found = ABSENT.filter(([metric]) => !(wholeCard && metric.startsWith("gpu_")) && readings.isAbsent(metric));
  const entries = found.map(([, label, reason]) => ({ label, reason: (/psutil/.test(reason) && notes.find((note) => /psutil/.test(note))) || reason }));
  if (!wholeCard) return entries;
  const reason = notes.find((note) => /card|driver|nvidia/i.test(note)) ?? "There is no NVIDIA card.";
  return [{ label: "Readings of the card", reason }, ...entries];
}

/** {value, details}: the large figure of a gauge and what stands below it, at the moment that `at` looks at. */
export function readout(gauge, at) {
  const main = at(gauge.metric);
  const { second } = gauge;
  const other = second ? at(second.metric) : null;
  const total = gauge.total ? at(gauge.total) : null;
  const events = gauge.events ? eventNames(at(gauge.events)).filter((name) => name !== "gpu_idle") : [];
  const details = [
    gauge.label && main !== null ? gauge.label : null,
    total === null ? null : `of ${gauge.words(total)}`,
    other === null ? null : `${second.label} ${second.words(other)}`,
    events.length ? `held down: ${events.join(", ")}` : null,
  ];
  return { value: main === null ? "—" : gauge.words(main), details: details.filter(Boolean).join(" · ") };
}

/** The names of the reasons in a reading of gpu_clock_events; none for null. */
export function eventNames(bits) {
  return bits === null ? [] : Object.keys(CLOCK_EVENTS).filter((name) => bits & CLOCK_EVENTS[name]);
}
