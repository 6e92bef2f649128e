"""A report that is open in a browser, and what the tests measure of it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

Color = tuple[int, int, int]


class Visit:
    """The open page, with everything that it asked for and complained of."""

    def __init__(self, page: Page, place: Path | str) -> None:
        self.page = page
        self.address = place if isinstance(place, str) else place.as_uri()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(self.address)
        page.wait_for_load_state("networkidle")

    def color(self, selector: str, name: str) -> Color:
        return self.rgb(
            self.page.evaluate(
                "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]", [selector, name]
            )
        )

    @staticmethod
    def rgb(shown: str) -> Color:
        red, green, blue = shown[shown.index("(") + 1 : shown.index(")")].split(",")[:3]
        return int(red), int(green), int(blue)


def contrast(one: Color, other: Color) -> float:
    """WCAG's ratio of two colours, 1 to 21."""

    def luminance(color: Color) -> float:
        parts = [part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in color]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
