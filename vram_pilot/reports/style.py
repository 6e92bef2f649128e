"""The report's looks: one style sheet for light, dark, narrow and paper. Pure."""

CSS = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #16202c; --soft: #5a6776; --faint: #e3e7ec; --line: #d4dae1;
  --one: #2463c7; --two: #b4610f; --mark: #7a3fa8; --ok: #1b7a43; --warn: #9a5b00; --bad: #b3261e;
  --p-load: #8a94a1; --p-encode: #2c8c86; --p-denoise: #2463c7; --p-decode: #b4610f; --p-other: #c3cad3; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2028; --ink: #e7ecf2; --soft: #9dabba; --faint: #262e38; --line: #36414d;
  --one: #7aaeff; --two: #f2a65a; --mark: #cf9df2; --ok: #63c78d; --warn: #e6b15c; --bad: #ff8a80;
  --p-load: #7d8997; --p-encode: #4fb8b0; --p-denoise: #6b9fee; --p-decode: #d99450; --p-other: #4a5664; } }
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
.status.ok { color: var(--ok); } .status.interrupted, .status.running, .status.aborted { color: var(--warn); }
.status.oom, .status.error { color: var(--bad); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 18px 20px; margin: 0 0 16px; }
.words p { margin: 0 0 4px; } .words p:first-child { font-size: 17px; font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 1px; background: var(--line); border: 1px solid var(--line);
  border-radius: 10px; margin: 0 0 16px; overflow: hidden; }
.figures div { background: var(--card); padding: 14px 20px; flex: 1 1 auto; }
.figures.many div { flex-basis: 22%; }
.figures dt { color: var(--soft); font-size: 13px; } .figures dd { margin: 0; font-size: 21px; font-weight: 650;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 8px; padding: 0; list-style: none; color: var(--soft);
  font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 6px; }
.key { width: 12px; height: 12px; flex: none; } td .key { margin-right: 8px; vertical-align: -1px; }
.note { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
.chart { display: block; width: 100%; height: auto; } .chart.narrow { display: none; }
.bar { display: block; width: 100%; height: 26px; border-radius: 5px; margin-bottom: 12px; }
.grid { stroke: var(--faint); } .axis { stroke: var(--line); }
.tick, .small { fill: var(--soft); font-size: 12px; } .small { font-size: 11px; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .area { opacity: .12; stroke: none; }
.one { stroke: var(--one); } .area.one, .dot.one, rect.one { fill: var(--one); }
.two { stroke: var(--two); } .area.two, .dot.two, rect.two { fill: var(--two); }
.area, .dot { stroke: none; } .touch { fill: transparent; }
.middle { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 4 4; }
.band { fill: var(--soft); opacity: .08; }
.mark { stroke: var(--mark); stroke-dasharray: 3 3; } .tag { fill: var(--mark); }
.tagtext { fill: var(--card); font-size: 11px; font-weight: 600; }
.p-load { fill: var(--p-load); } .p-encode { fill: var(--p-encode); } .p-denoise { fill: var(--p-denoise); }
.p-decode { fill: var(--p-decode); } .p-other { fill: var(--p-other); }
.scroll { overflow-x: auto; } .scroll td { white-space: nowrap; } .scroll td.long { white-space: normal; min-width: 14em; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--faint); vertical-align: top; }
tr:last-child > th, tr:last-child > td { border-bottom: 0; }
thead th { color: var(--soft); font-weight: 600; font-size: 13px; border-bottom-color: var(--line); white-space: nowrap; }
tbody th { font-weight: 500; color: var(--soft); white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0; padding-left: 14px; }
.pairs { display: grid; grid-template-columns: 1fr 1fr; gap: 0 32px; } .pairs td { overflow-wrap: anywhere; }
h3 { font-size: 13px; color: var(--soft); font-weight: 600; margin: 8px 0 4px; }
ul.notes { margin: 0; padding-left: 18px; }
footer { color: var(--soft); font-size: 13px; margin-top: 20px; }
@media (max-width: 640px) {
  main { padding: 20px 12px 32px; } h1 { font-size: 21px; } section { padding: 14px; }
  .figures div, .figures.many div { flex-basis: 45%; padding: 10px 14px; } .figures dd { font-size: 18px; }
  .chart.wide { display: none; } .chart.narrow { display: block; } .pairs { grid-template-columns: 1fr; } }
@media print {
  :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #000; --soft: #444; --faint: #ddd; --line: #bbb;
    --one: #2463c7; --two: #b4610f; --mark: #7a3fa8; --ok: #1b7a43; --warn: #9a5b00; --bad: #b3261e;
    --p-load: #8a94a1; --p-encode: #2c8c86; --p-denoise: #2463c7; --p-decode: #b4610f; --p-other: #c3cad3; }
  body { font-size: 12px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main { max-width: none; padding: 0; } section { break-inside: avoid; } .scroll { overflow: visible; } }
"""
