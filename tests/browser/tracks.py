"""What the tests ask of the instruments' tracks: their figures, and the pixels that were drawn."""

from __future__ import annotations

import re
from typing import Any

from tests.browser.panel import Watched

#: Counts drawings on canvases. To be run before the page's own scripts.
COUNT_PAINTING = """
window.__painted = 0;
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...place) { window.__painted += 1; return clear.apply(this, place); };
"""
#: Adds up the milliseconds of every frame in which a canvas was drawn on (gradio has frames of its own), and of all that the
#: stream brings. To be run behind COUNT_PAINTING.
COUNT_COST = """
window.__cost = { frames: 0, count: 0, events: 0 };
const frame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (work) => frame((at) => {
  const [start, before] = [performance.now(), window.__painted];
  work(at);
  if (window.__painted === before) return;
  window.__cost.frames += performance.now() - start;
  window.__cost.count += 1;
});
const listen = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, work, ...more) {
  return listen.call(this, name, (event) => {
    const start = performance.now();
    work(event);
    window.__cost.events += performance.now() - start;
  }, ...more);
};
"""
#: Counts columns of the map that are painted. To be run before the page's own scripts.
COUNT_COLUMNS = """
window.__columns = 0;
const put = CanvasRenderingContext2D.prototype.putImageData;
CanvasRenderingContext2D.prototype.putImageData = function (...all) { window.__columns += 1; return put.apply(this, all); };
"""
#: When each text was first shown, in milliseconds of the clock on the wall.
CLOCK_FIGURE = """(track) => {
  window.__shown = {};
  const value = () => document.querySelector(`[data-track="${track}"] [data-part="value"]`)?.textContent;
  const look = () => (window.__shown[value()] ??= Date.now());
  const tracks = document.querySelector('[data-vp="tracks"]');
  new MutationObserver(look).observe(tracks, { childList: true, subtree: true, characterData: true });
}"""
_PIXEL = """(canvas, [x, y]) => {
  const [wide, high] = [canvas.width, canvas.height];
  const at = [Math.min(Math.floor(x * wide), wide - 1), Math.min(Math.floor(y * high), high - 1)];
  return [...canvas.getContext("2d").getImageData(...at, 1, 1).data];
}"""
_COLOUR = """(name) => {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = getComputedStyle(document.getElementById("vram-pilot")).getPropertyValue(`--vp-${name}`).trim();
  context.fillRect(0, 0, 1, 1);
  return [...context.getImageData(0, 0, 1, 1).data];
}"""


class Tracks:
    """The instruments of one page. newest_s: the time at the plots' right edge; window_s: that of the left one before it."""

    def __init__(self, seen: Watched, newest_s: float = 0.0, window_s: float = 120.0) -> None:
        self.seen, self.newest_s, self.window_s = seen, newest_s, window_s

    def part(self, track: str, part: str) -> Any:
        return self.seen.page.locator(f'[data-track="{track}"] [data-part="{part}"]')

    def figure(self, track: str) -> str:
        return str(self.part(track, "value").text_content())

    def keys(self, track: str) -> dict[str, str]:
        """The legend: name to size."""
        found = self.part(track, "legend").locator("li:not(.vp-cell)")
        pairs = [(row.locator("span").inner_text(), row.locator("b")) for row in found.all()]
        return {name: size.inner_text() if size.count() else "" for name, size in pairs}

    def choose(self, window_s: int) -> None:
        self.seen.page.locator(f'[name="vp-window"][value="{window_s}"]').locator("xpath=..").click()
        self.window_s = window_s

    def share(self, t_s: float) -> float:
        return 1 - (self.newest_s - t_s) / self.window_s

    def pixel(self, track: str, t_s: float, height: float) -> list[int]:
        """The colour at a time and a height, from 0 at the bottom to 1 at the top: red, green, blue, alpha."""
        canvas = self.seen.page.locator(f'[data-track="{track}"] canvas')
        return list(canvas.evaluate(_PIXEL, [self.share(t_s), 1 - height]))

    def is_near(self, track: str, t_s: float, height: float, colour: str) -> bool:
        """Whether a line of that colour passes there: its pixels may be mixed with what is below."""
        wanted = self.colour(colour)[:3]
        drawn = (self.pixel(track, t_s, height + off / 100) for off in range(-4, 5))
        return any(one[3] > 120 and all(abs(a - b) < 40 for a, b in zip(one, wanted)) for one in drawn)

    def colour(self, name: str) -> list[int]:
        return list(self.seen.page.evaluate(_COLOUR, name))

    def point(self, track: str, t_s: float, height: float = 0.5) -> None:
        """Moves the pointer there."""
        plot = self.part(track, "plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        self.seen.page.mouse.move(box["x"] + self.share(t_s) * box["width"], box["y"] + (1 - height) * box["height"])

    def scale_bytes(self, track: str) -> float:
        """The upper end of a scale of bytes."""
        number, unit = re.fullmatch(r"([\d.]+) (MiB|GiB)", str(self.part(track, "top").text_content())).groups()  # type: ignore[union-attr]
        return float(number) * (2**20 if unit == "MiB" else 2**30)
