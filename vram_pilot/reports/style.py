"""The report's looks: one style sheet for light, dark, narrow and paper. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from vram_pilot.reports.palette import DARK, LIGHT, SERIES

#: What paper has other than a light screen.
_PAPER = {**LIGHT, "page": "#ffffff", "ink": "#000000", "soft": "#444444", "faint": "#dddddd", "line": "#bbbbbb"}


def _variables(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def _series(name: str) -> str:
    filled = ", ".join(f".drawing {kind}.{name}" for kind in (".area", ".dot", "rect"))
    return f".drawing .line.{name} {{ stroke: var(--{name}); }} {filled} {{ fill: var(--{name}); }}"


_BASE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 32px 24px 48px; }
header { margin-bottom: 20px; }
.brand { color: var(--soft); font-size: 13px; letter-spacing: .02em; margin: 0 0 4px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 8px; font-weight: 650; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 12px; font-weight: 650; }
.meta { color: var(--soft); margin: 0; font-size: 14px; }
.status { display: inline-block; padding: 1px 9px; border-radius: 999px; border: 1px solid currentColor; font-weight: 600;
  font-size: 13px; margin-right: 8px; }
.status.ok { color: var(--good); } .status.interrupted, .status.running, .status.aborted { color: var(--warn); }
.status.oom, .status.error { color: var(--bad); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px; margin: 0 0 16px; }
.words p { margin: 0 0 4px; } .words p:first-child { font-size: 17px; font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 1px; background: var(--line); border: 1px solid var(--line);
  border-radius: 10px; margin: 0 0 16px; overflow: hidden; }
.figures div { background: var(--card); padding: 14px 20px; flex: 1 1 auto; }
.figures.many div { flex-basis: 22%; }
.figures dt { color: var(--soft); font-size: 13px; } .figures dd { margin: 0; font-size: 21px; font-weight: 650;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
ul.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 8px; padding: 0; list-style: none; color: var(--soft);
  font-size: 13px; }
ul.legend li { display: flex; align-items: center; gap: 6px; } ul.legend .live-only { display: none; }
.key { width: 12px; height: 12px; flex: none; } .key.long { width: 18px; } td .key { margin-right: 8px; vertical-align: -1px; }
.note { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
.chart { display: block; width: 100%; height: auto; } .chart.narrow { display: none; }
.plot + .note { margin-top: 4px; } .live { height: 300px; } .still { display: block; }
.live .modebar-container { top: -34px !important; } .live .modebar { background: none !important; }
@media screen { .drawn > .still { display: none; } .drawn ul.legend .live-only { display: flex; } }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 0 16px; }
.pair section { min-width: 0; } .pair .live { height: 220px; }
svg.bar { display: block; width: 100%; height: 26px; border-radius: 5px; margin-bottom: 12px; }
.drawing .grid { stroke: var(--faint); } .drawing .axis { stroke: var(--line); }
.drawing .tick, .drawing .small { fill: var(--soft); font-size: 12px; } .drawing .small { font-size: 11px; }
.drawing .line { fill: none; stroke-width: 2; stroke-linejoin: round; } .drawing .area { opacity: .13; stroke: none; }
.drawing .line.limit { stroke-dasharray: 6 4; stroke-width: 1.5; } .drawing .line.reserved { stroke-dasharray: 5 4; }
.drawing .stack.area { opacity: 1; } .drawing .stack.line { stroke: var(--card); stroke-width: .5; }
.drawing .area, .drawing .dot { stroke: none; } .drawing .touch { fill: transparent; }
.drawing .middle { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 4; }
.drawing .band { fill: var(--soft); opacity: .1; }
.drawing .mark { stroke: var(--warn); stroke-dasharray: 3 3; } .drawing .tag { fill: var(--warn); }
.drawing .tagtext { fill: var(--card); font-size: 11px; font-weight: 600; }
.scroll { overflow-x: auto; } .scroll td { white-space: nowrap; } .scroll td.long { white-space: normal; min-width: 14em; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
tr:last-child > th, tr:last-child > td { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; border-bottom-color: var(--line); white-space: nowrap; }
tbody th { font-weight: 500; color: var(--soft); white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0; padding-left: 14px; }
.n + * { padding-left: 14px; }
.pairs { display: grid; grid-template-columns: 1fr 1fr; gap: 0 32px; } .pairs td { overflow-wrap: anywhere; }
h3 { font-size: 13px; color: var(--soft); font-weight: 600; margin: 8px 0 4px; }
ul.notes { margin: 0; padding-left: 18px; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media (max-width: 640px) {
  main { padding: 20px 12px 32px; } h1 { font-size: 21px; } section { padding: 14px; }
  .figures div, .figures.many div { flex-basis: 45%; padding: 10px 14px; } .figures dd { font-size: 18px; }
  .chart.wide { display: none; } .chart.narrow { display: block; } .pairs { grid-template-columns: 1fr; }
  .pairs th { width: 45%; }
  .live { height: 250px; margin: 0 -6px; } }
"""
_PRINT = """
  body { font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; } section { break-inside: avoid; padding: 12px 14px; }
  .scroll { overflow: visible; } .scroll td { white-space: normal; } .live { display: none; }
  .pair { grid-template-columns: 1fr 1fr; }
"""
CSS = (
    f"\n:root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}"
    + _BASE
    + "\n".join(_series(name) for name in SERIES)
    + f"\n@media print {{ :root {{ color-scheme: light; {_variables(_PAPER)} }}{_PRINT}}}\n"
)
