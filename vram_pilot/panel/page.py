"""The tab's static markup. The script fills the places named by `data-vp`; until it runs, the page says that it loads."""

from __future__ import annotations

from html import escape

from vram_pilot.panel.fields import takes_accelerate, takes_budget
from vram_pilot.settings import ACCELERATE, BUDGET, BUILT_ACCELERATES, BUILT_MODES, MAX_BUDGET_MIB, MODE

#: What each mode does, in the words of somebody who chooses one.
MODE_HELP = {
    "as-launched": "The host's own way; nothing is touched.",
    "full": "Everything stays on the card: the fastest, if it fits.",
    "medvram": "One part of the model on the card at a time.",
    "lowvram": "The denoiser is streamed through the card.",
    "tensorrt": "The denoiser runs as a TensorRT engine.",
    "auto": "The fastest mode that fits is chosen for you.",
}
#: Stretches of time that the instruments can show, in seconds, and the one that they begin with.
WINDOWS = {30: "30 s", 120: "2 min", 600: "10 min"}
WINDOW_S = 120


def tab_html() -> str:
    """The whole tab, the same for every visitor."""
    return f"""<div id="vram-pilot" data-state="loading">
<p class="vp-alert" role="alert" data-vp="alert" hidden></p>
<p class="vp-empty" data-vp="loading">Loading …</p>
<div data-vp="off" class="vp-empty" hidden><b>VRAM Pilot is off.</b>
 It was started with <code>--vram-pilot-off</code>, and touches nothing. Start the host without it to use the panel.</div>
<div data-vp="main" hidden>
{_now()}
{_views()}
{_live()}
{_sessions()}
</div>
</div>"""


def _now() -> str:
    return f"""<section class="vp-now" aria-labelledby="vp-now-title">
<div class="vp-force">
 <h2 id="vp-now-title">Mode in force</h2>
 <p class="vp-mode" data-vp="mode">—</p>
 <p class="vp-why" data-vp="why" role="status"></p>
 <p class="vp-meta" data-vp="meta"></p>
 <ul class="vp-note vp-notes" data-vp="notes" aria-label="Notes on the mode" hidden></ul>
 <p class="vp-note" data-vp="store-note" hidden></p>
</div>
<form class="vp-control" data-vp="control" aria-label="Change the mode">
 <fieldset class="vp-modes"><legend>Change to</legend>{"".join(map(_mode_choice, BUILT_MODES))}</fieldset>
 <div class="vp-row" data-vp="budget-row" hidden>
  <label for="vp-budget">{escape(BUDGET.label)}</label>
  <input id="vp-budget" data-vp="budget" type="number" inputmode="numeric" min="0" max="{MAX_BUDGET_MIB}" step="1"
   placeholder="automatic" aria-describedby="vp-budget-help">
  <small id="vp-budget-help">Weights of the denoiser that stay on the card. 0 streams all of them.</small>
 </div>
{_accelerate()}
 <fieldset class="vp-scope" data-vp="scope" hidden><legend>For</legend>
  <label><input type="radio" name="vp-scope" value="job" checked> this job only</label>
  <label><input type="radio" name="vp-scope" value="standing"> this job and all later ones</label>
 </fieldset>
 <div class="vp-row">
  <button type="submit" class="vp-button vp-primary" data-vp="apply">Apply</button>
  <span class="vp-answer" data-vp="answer" role="status"></span>
 </div>
 <p class="vp-note" data-vp="locked" hidden>The standing mode holds for everybody who uses this server, so it cannot be
 changed from here. Start the host with <code>--vram-pilot-allow-remote-control</code> to allow it, or choose the mode of
 your own job in the accordion.</p>
</form>
<div class="vp-memory" data-vp="figures" role="group" aria-label="Memory"></div>
</section>"""


def _accelerate() -> str:
    """The ways to execute the denoiser; never shown while there is only one."""
    options = "".join(f'<option value="{escape(way)}">{escape(way)}</option>' for way in BUILT_ACCELERATES)
    return f""" <div class="vp-row" data-vp="accelerate-row" data-ways="{len(BUILT_ACCELERATES)}" hidden>
  <label for="vp-accelerate">{escape(ACCELERATE.label)}</label>
  <select id="vp-accelerate" data-vp="accelerate" aria-describedby="vp-accelerate-help">{options}</select>
  <small id="vp-accelerate-help">{escape(ACCELERATE.help)}</small>
 </div>"""


def _mode_choice(mode: str) -> str:
    takes = [name for name, taken in (("budget", takes_budget(mode)), ("accelerate", takes_accelerate(mode))) if taken]
    return (
        f'<label class="vp-choice"><input type="radio" name="vp-mode" value="{escape(mode)}" data-takes="{" ".join(takes)}">'
        f"<b>{escape(mode)}</b><small>{escape(MODE_HELP.get(mode, MODE.help))}</small></label>"
    )


def _views() -> str:
    return """<div class="vp-views"><div role="tablist" aria-label="Views">
 <button type="button" role="tab" id="vp-tab-live" aria-controls="vp-live" aria-selected="true">Live</button>
 <button type="button" role="tab" id="vp-tab-sessions" aria-controls="vp-sessions" aria-selected="false"
  tabindex="-1">Sessions</button>
</div><p class="vp-link-state" data-vp="link" data-link="idle" role="status">Connecting …</p></div>"""


def _live() -> str:
    return f"""<section id="vp-live" role="tabpanel" aria-labelledby="vp-tab-live" tabindex="-1">
<p class="vp-empty" data-vp="live-empty"><b>No generation yet.</b> Start one, and its steps appear here as they are made.</p>
<div data-vp="live" hidden>
<div class="vp-job" data-vp="job" hidden><p><b data-vp="job-title"></b> <span data-vp="job-detail"></span></p>
 <progress data-vp="progress" max="1" value="0" aria-label="Steps of the job"></progress></div>
<div class="vp-charts">
{_chart("latency", "Time of each step", "")}
{_chart("memory", "Memory at each step's end", _LEGEND)}
</div></div>
{_instruments()}
<div class="vp-charts" data-vp="live-more" hidden>
<section class="vp-card" aria-labelledby="vp-phases-title"><h3 id="vp-phases-title">Where the time went</h3>
 <div data-vp="phases"></div><p class="vp-quietly" data-vp="phases-empty">Shown as soon as a phase has ended.</p></section>
<section class="vp-card" aria-labelledby="vp-log-title"><h3 id="vp-log-title">What happened</h3>
 <ol class="vp-log" data-vp="log" tabindex="0" aria-labelledby="vp-log-title"></ol>
 <p class="vp-quietly" data-vp="log-empty">Mode changes and notes are listed here.</p></section>
</div>
</section>"""


def _instruments() -> str:
    """One axis of time for all of them. The script makes the tracks, as it knows what there is to show."""
    choices = "".join(
        f'<label><input type="radio" name="vp-window" value="{seconds}"{" checked" if seconds == WINDOW_S else ""}>'
        f"<span>{text}</span></label>"
        for seconds, text in WINDOWS.items()
    )
    return f"""<section class="vp-card vp-instruments" aria-labelledby="vp-instruments-title">
<div class="vp-tools"><h3 id="vp-instruments-title">Instruments</h3>
 <span class="vp-quietly" data-vp="moment"></span>
 <fieldset class="vp-windows" data-vp="windows"><legend class="vp-hidden">Shown time</legend>{choices}</fieldset>
 <button type="button" class="vp-button" data-vp="pause" aria-pressed="false">Pause</button></div>
<div class="vp-tracks" data-vp="tracks" tabindex="0" role="group"
 aria-label="Instruments over time: left and right arrow keys read single moments, up and down rows of the memory map"
></div>
<div class="vp-axis" data-vp="axis" aria-hidden="true"></div>
<p class="vp-quietly vp-missing-line" data-vp="missing" hidden></p>
<p class="vp-hidden" data-vp="told" role="status"></p>
</section>"""


_LEGEND = """<span class="vp-key"><i class="vp-key-allocated"></i>allocated</span>
<span class="vp-key"><i class="vp-key-reserved"></i>reserved</span>"""


def _chart(name: str, title: str, legend: str) -> str:
    return f"""<figure class="vp-card vp-chart" data-vp-chart="{name}">
<figcaption><h3>{title} <small data-vp="{name}-unit"></small></h3>{legend}
 <span class="vp-quietly" data-vp="{name}-figures"></span></figcaption>
<div class="vp-plot" data-vp="{name}" tabindex="0" role="group"
 aria-label="{title}: read single steps with the left and right arrow keys"></div>
<div class="vp-tip" data-vp="{name}-tip" role="status" hidden></div>
</figure>"""


def _sessions() -> str:
    names = ("Started", "Status", "Mode", "Model", "Job", "Speed", "Peak", "Report")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"""<section id="vp-sessions" role="tabpanel" aria-labelledby="vp-tab-sessions" tabindex="-1" hidden>
<div class="vp-tools">
 <button type="button" class="vp-button" data-vp="compare" disabled>Compare two</button>
 <span class="vp-quietly" data-vp="chosen" role="status">Choose two sessions to compare them.</span>
 <button type="button" class="vp-button vp-quiet" data-vp="refresh">Refresh</button>
</div>
<p class="vp-empty" data-vp="sessions-empty" hidden><b>No session is kept yet.</b> Every generation leaves one here.</p>
<div class="vp-table" data-vp="sessions-table" hidden><table>
 <thead><tr><th scope="col"><span class="vp-hidden">Compare</span></th>{heads}</tr></thead>
 <tbody data-vp="sessions"></tbody></table></div>
<div class="vp-tools vp-pages" data-vp="pages" hidden>
 <button type="button" class="vp-button vp-quiet" data-vp="newer">Newer</button>
 <span class="vp-quietly" data-vp="page" role="status"></span>
 <button type="button" class="vp-button vp-quiet" data-vp="older">Older</button>
</div>
<section class="vp-card vp-compared" data-vp="compared" tabindex="-1" aria-label="Comparison" hidden></section>
</section>"""
