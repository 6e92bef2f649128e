"""The instruments in a real browser: what is drawn is what was sent, when it was sent, and only while somebody looks."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.panel import HIDE_PAGE, HIDEABLE, SESSION, SHOW_PAGE, Watched, drop, watched
from tests.browser.tracks import CLOCK_FIGURE, COUNT_COLUMNS, COUNT_COST, COUNT_PAINTING, Tracks
from tests.fakes import instruments
from tests.fakes.instruments import GIB, ROW_BYTES, still
from tests.fakes.panel_app import MIB, FakeApp
from vram_pilot.settings import ModeRequest

#: The promise to who watches, and the share of a core that drawing may take.
SOON_S, MOST_SHARE = 0.5, 0.05


@pytest.fixture
def tracks(seen: Watched) -> Tracks:
    seen.open_tab()
    return Tracks(seen)


def send(tracks: Tracks, count: int = 30, every_s: float = 1.0, **values: float | None) -> list[float]:
    """Readings that do not move, up to now; their times."""
    now = time.monotonic()
    times = [now - (count - 1 - number) * every_s for number in range(count)]
    for t_s in times:
        tracks.seen.app.sample(t_s, **still(**values))
    tracks.newest_s = now
    return times


# ------------------------------------------------------------------------------------------------- what was sent, in time


def test_readings_are_shown_within_half_a_second(tracks: Tracks) -> None:
    seen = tracks.seen
    seen.app.sample(**still(gpu_utilization_ratio=0.99))
    seen.wait_for(lambda: tracks.figure("utilization") == "99 %")
    seen.page.evaluate(CLOCK_FIGURE, "utilization")
    sent = []
    for number in range(10):
        sent.append(time.time())
        seen.app.sample(**still(gpu_utilization_ratio=number / 100))
        seen.page.wait_for_timeout(300)
    shown = seen.page.evaluate("window.__shown")
    delays = sorted(shown[f"{number} %"] / 1000 - at for number, at in enumerate(sent) if f"{number} %" in shown)
    assert len(delays) >= 9 and delays[8] < SOON_S, "one may be held up by a busy machine, no more"


def test_who_holds_the_memory_is_drawn_as_it_was_sent(tracks: Tracks) -> None:
    """2 GiB in use, 1 cached, 0.5 beside torch, 2 of others, 0.5 of the driver, of 12."""
    memory = {
        "allocated_bytes": 2 * GIB,
        "reserved_bytes": 3 * GIB,
        "gpu_used_bytes": 5.75 * GIB,
        "gpu_reserved_bytes": 0.25 * GIB,
    }
    times = send(tracks, gpu_process_bytes=3.5 * GIB, gpu_other_processes_bytes=2 * GIB, gpu_free_bytes=6 * GIB, **memory)
    tracks.seen.wait_for(lambda: tracks.figure("memory") == "6.00 GiB")
    names = ["Free", "Driver and the rest", "Other processes", "This process beside torch", "Torch, cached", "Torch, in use"]
    assert list(tracks.keys("memory").items()) == list(
        zip(names, ["6.00 GiB", "512 MiB", "2.00 GiB", "512 MiB", "1.00 GiB", "2.00 GiB"], strict=True)
    )
    assert tracks.scale_bytes("memory") == 12 * GIB
    middles = {"allocated": 1, "cached": 2.5, "process": 3.25, "others": 4.5, "driver": 5.75}
    for name, middle in middles.items():
        assert tracks.pixel("memory", times[12] + 0.4, middle / 12) == tracks.colour(name), name
    assert tracks.pixel("memory", times[12] + 0.4, 9 / 12)[3] == 0, "free is empty"
    assert tracks.pixel("memory", times[0] - 5.4, 1 / 12)[3] == 0, "nothing was read before"


def test_the_map_is_drawn_cell_by_cell_as_it_was_sent(tracks: Tracks) -> None:
    """Rows of 16 MiB, in bands of eight: in use, cached, in use, not held, cached; later the lowest two change places."""
    bands = [(255, 255), (255, 0), (255, 255), (0, 0), (255, 0)]
    swapped = [bands[1], bands[0], *bands[2:]]
    now = time.monotonic()
    for number in range(160):
        held, active = ([cell[part] for cell in (bands if number < 80 else swapped) for _ in range(8)] for part in (0, 1))
        tracks.seen.app.column(held, active, now - (159 - number) * 0.25, ROW_BYTES)
    tracks.seen.app.sample(now, **still())
    tracks.newest_s = now
    tracks.seen.wait_for(lambda: tracks.figure("map") == "512 MiB")
    rows = tracks.scale_bytes("map") / ROW_BYTES
    in_use, cached = tracks.colour("allocated"), tracks.colour("cached")
    for t_s, order in ((now - 30.1, bands), (now - 5.1, swapped)):
        for number, band in enumerate(order):
            wanted = {(255, 255): in_use, (255, 0): cached}.get(band)
            for row in (number * 8 + 1, number * 8 + 6):
                drawn = tracks.pixel("map", t_s, (row + 0.5) / rows)
                assert drawn == wanted if wanted else drawn[3] == 0, (t_s, row)
    assert tracks.pixel("map", now - 45, 0.1)[3] == 0, "nothing was looked at before"
    tracks.point("map", now - 30, 12.5 / rows)
    expect(tracks.part("map", "legend")).to_contain_text("At 192 MiB, 16 MiB: 0 % in use, 16 MiB cached")


def test_the_map_is_scrolled_and_its_past_is_not_painted_again(browser: Browser, app: FakeApp) -> None:
    with watched(browser, app, init=COUNT_COLUMNS) as seen:
        seen.open_tab()
        tracks = Tracks(seen)
        instruments.scene(app, 60)
        seen.wait_for(lambda: tracks.figure("map").endswith("GiB"))
        seen.page.evaluate("window.__columns = 0")
        for number in range(8):
            app.column([255] * (10 + number), [255], None, ROW_BYTES)
            app.sample(**still())
            seen.wait_for(lambda number=number: tracks.figure("map") == f"{(10 + number) * 16} MiB")
        painted = seen.page.evaluate("window.__columns")
        assert 8 <= painted <= 40, "one for each, the newest perhaps again"


def test_a_gauge_is_drawn_at_its_height(tracks: Tracks) -> None:
    times = send(tracks, gpu_utilization_ratio=0.5, gpu_memory_utilization_ratio=0.2)
    tracks.seen.wait_for(lambda: tracks.figure("utilization") == "50 %")
    assert tracks.is_near("utilization", times[9] + 0.5, 0.5, "gauge")
    assert tracks.pixel("utilization", times[9] + 0.5, 0.75)[3] == 0
    assert 0 < tracks.pixel("utilization", times[9] + 0.5, 0.35)[3] < 100, "a tint below the line"


def test_held_down_clocks_are_spans_with_their_names(tracks: Tracks) -> None:
    now = time.monotonic()
    for number in range(60):
        tracks.seen.app.sample(now - 59 + number, **still(gpu_clock_events=0x40 if 20 <= number < 40 else 0x1))
    tracks.newest_s = now
    tracks.seen.wait_for(lambda: set(tracks.keys("clocks")) == {"hw_thermal", "gpu_idle"})
    in_heat, idle = tracks.colour("event-heat"), tracks.colour("event-idle")
    lane = 5 / 76
    drawn = tracks.pixel("clocks", now - 29.5, 1.6 * lane)
    assert all(abs(one - other) < 3 for one, other in zip(drawn, in_heat)), "a tint lies upon it"
    assert tracks.pixel("clocks", now - 50, 0.6 * lane) == idle
    tracks.point("clocks", now - 30)
    expect(tracks.part("clocks", "details")).to_contain_text("held down: hw_thermal")
    tracks.point("clocks", now - 50)
    expect(tracks.part("clocks", "details")).not_to_contain_text("held down")


def test_marks_stand_where_the_mode_changed(tracks: Tracks) -> None:
    send(tracks, 10)
    tracks.seen.app.controller.request(ModeRequest("full"))
    changed = time.monotonic()
    tracks.seen.page.wait_for_timeout(1200)
    tracks.newest_s = time.monotonic()
    tracks.seen.app.sample(tracks.newest_s, **still(gpu_utilization_ratio=0.01))
    tracks.seen.wait_for(lambda: tracks.figure("utilization") == "1 %")
    tracks.choose(30)
    tracks.seen.page.wait_for_timeout(400)
    around = [tracks.pixel("power", changed + off / 100, 0.97) for off in range(-12, 13, 2)]
    assert tracks.colour("warn") in around


# ------------------------------------------------------------------------------------------------------- drops and hiding


def test_after_a_drop_every_reading_is_there_once(tracks: Tracks) -> None:
    seen, now = tracks.seen, time.monotonic()
    tracks.choose(30)
    times = [now - 19 + number for number in range(20)]
    for number in range(10):
        seen.app.sample(times[number], **still(gpu_utilization_ratio=number / 100))
    seen.wait_for(lambda: tracks.figure("utilization") == "9 %")
    before = len([url for url in seen.ours() if "/events" in url])
    drop(seen)
    for number in range(10, 20):
        seen.app.sample(times[number], **still(gpu_utilization_ratio=number / 100))
    seen.wait_for(lambda: tracks.figure("utilization") == "19 %")
    again = [url for url in seen.ours() if "/events" in url][before:]
    assert again and all("since=10&" in url and "map=1" in url for url in again)
    tracks.newest_s = times[-1]
    read = []
    for number in range(20):
        tracks.point("utilization", times[number] + (0.5 if number < 19 else 0))
        read.append(tracks.figure("utilization"))
    assert read == [f"{number} %" for number in range(20)]
    seen.complaints[:] = [text for text in seen.complaints if "ERR_" not in text]  # the browser's own line of the drop


@pytest.mark.parametrize("how", ["another tab", "a hidden page"])
def test_hidden_nothing_is_asked_or_painted_and_shown_nothing_is_missing(browser: Browser, app: FakeApp, how: str) -> None:
    with watched(browser, app, init=HIDEABLE + COUNT_PAINTING) as seen:
        seen.open_tab()
        tracks = Tracks(seen)
        send(tracks, 5, gpu_utilization_ratio=0.01)
        seen.wait_for(lambda: tracks.figure("utilization") == "1 %")
        assert app.map_watchers == 1
        seen.host_tab("txt2img") if how == "another tab" else seen.page.evaluate(HIDE_PAGE)
        seen.wait_for(lambda: seen.served.panel.hub.streams == 0)
        assert app.map_watchers == 0, "nor is the map drawn for nobody"
        asked, painted = len(seen.ours()), seen.page.evaluate("window.__painted")
        send(tracks, 3, 0.2, gpu_utilization_ratio=0.02)
        seen.page.wait_for_timeout(2500)
        assert (len(seen.ours()), seen.page.evaluate("window.__painted")) == (asked, painted)
        seen.host_tab("VRAM Pilot") if how == "another tab" else seen.page.evaluate(SHOW_PAGE)
        seen.wait_for(lambda: tracks.figure("utilization") == "2 %")
        seen.wait_for(lambda: app.map_watchers == 1)


def test_in_the_sessions_view_the_map_is_not_drawn(tracks: Tracks) -> None:
    seen = tracks.seen
    assert seen.app.map_watchers == 1
    seen.view("sessions")
    seen.wait_for(lambda: seen.app.map_watchers == 0)
    expect(seen.slot("link")).to_have_attribute("data-link", "streaming")
    seen.view("live")
    seen.wait_for(lambda: seen.app.map_watchers == 1)


# ------------------------------------------------------------------------------------------------------------------- cost


def test_drawing_ten_readings_a_second_is_cheap(browser: Browser, app: FakeApp) -> None:
    """Measured around the frames and around what the stream brings; printed, as the limit leaves room for slow machines."""
    with watched(browser, app, init=COUNT_PAINTING + COUNT_COST) as seen:
        seen.page.set_viewport_size({"width": 1280, "height": 2000})
        instruments.scene(app)
        seen.open_tab()
        for window_s in (30, 120, 600):
            Tracks(seen).choose(window_s)
            seen.page.wait_for_timeout(700)
            seen.page.evaluate("window.__cost = { frames: 0, count: 0, events: 0 }")
            start = time.monotonic()
            for number in range(40):
                at = 0.3 + number / 1000
                app.sample(**instruments.fast(at), **(instruments.slow(at) if number % 20 == 0 else {}))
                if number % 5 in (0, 2):
                    app.column(*instruments.column(at), None, ROW_BYTES)
                seen.page.wait_for_timeout(max(start + (number + 1) / 10 - time.monotonic(), 0) * 1000)
            spent = time.monotonic() - start
            cost = seen.page.evaluate("window.__cost")
            share = (cost["frames"] + cost["events"]) / 1000 / spent
            rates = f"{cost['count'] / spent:.1f} frames/s at {40 / spent:.1f} readings/s"
            print(f"window {window_s} s: {share:.2%} of a core, {rates}")
            assert cost["count"] > 5
            assert share < MOST_SHARE


def test_with_less_motion_asked_for_it_is_drawn_once_a_second(browser: Browser, app: FakeApp) -> None:
    with watched(browser, app, init=COUNT_PAINTING + COUNT_COST) as seen:
        seen.page.emulate_media(reduced_motion="reduce")
        seen.open_tab()
        app.sample(**still())
        seen.wait_for(lambda: Tracks(seen).figure("utilization") != "—")
        seen.page.evaluate("window.__cost.count = 0")
        for _ in range(30):
            app.sample(**still())
            seen.page.wait_for_timeout(100)
        assert 2 <= seen.page.evaluate("window.__cost.count") <= 4


def test_a_long_session_leaves_a_bounded_page(tracks: Tracks) -> None:
    seen, now = tracks.seen, time.monotonic()
    for number in range(9_000):
        seen.app.sample(now - 9_000 + number, **still(gpu_utilization_ratio=(number % 100) / 100))
        if number % 3 == 0:
            seen.app.column([255] * 300, [128] * 200, now - 9_000 + number, ROW_BYTES)
    seen.app.sample(now, **still(gpu_utilization_ratio=0.77))
    seen.wait_for(lambda: tracks.figure("utilization") == "77 %", 40)
    assert seen.page.locator("#vram-pilot *").count() < 1000
    heap = "performance.memory.usedJSHeapSize"
    assert seen.page.evaluate(heap) < 120 * MIB


# ------------------------------------------------------------------------------------------------------------------ hands


def test_pausing_holds_the_picture_and_going_on_misses_nothing(tracks: Tracks) -> None:
    seen = tracks.seen
    send(tracks, 20, gpu_utilization_ratio=0.5)
    seen.app.start_job(SESSION)
    seen.app.step(SESSION, 0)
    seen.wait_for(lambda: tracks.figure("utilization") == "50 %" and seen.dots() == 1)
    seen.slot("pause").click()
    expect(seen.slot("pause")).to_have_attribute("aria-pressed", "true")
    expect(seen.slot("moment")).to_have_text("Paused")
    meanwhile = time.monotonic()
    seen.app.sample(meanwhile, **still(gpu_utilization_ratio=0.9))
    seen.app.step(SESSION, 1)
    expect(seen.slot("job-detail")).to_contain_text("step 2 of 20")
    seen.page.wait_for_timeout(1200)
    assert tracks.figure("utilization") == "50 %" and seen.dots() == 1
    tracks.newest_s = time.monotonic()
    seen.app.sample(tracks.newest_s, **still(gpu_utilization_ratio=0.7))
    seen.slot("pause").click()
    seen.wait_for(lambda: tracks.figure("utilization") == "70 %" and seen.dots() == 2)
    tracks.point("utilization", meanwhile + 0.6)
    assert tracks.figure("utilization") == "90 %", "what came meanwhile is there"


def test_the_window_is_the_same_for_all(tracks: Tracks) -> None:
    send(tracks, 100, gpu_utilization_ratio=0.5)
    axis = tracks.seen.slot("axis")
    for window_s, first in ((30, "−30 s"), (600, "−10 min"), (120, "−120 s")):
        tracks.choose(window_s)
        expect(axis.locator("span").first).to_have_text(first)
        tracks.seen.page.wait_for_timeout(500)
        for track, height in (("memory", 1 / 12), ("utilization", 0.3), ("power", 0.3)):
            assert tracks.pixel(track, tracks.newest_s - 20.3, height)[3] > 0, track
            assert (tracks.pixel(track, tracks.newest_s - 110.3, height)[3] > 0) is False or window_s == 30


def test_one_line_reads_all_at_one_moment_by_the_keyboard_too(tracks: Tracks) -> None:
    seen, now = tracks.seen, time.monotonic()
    for number in range(120):
        seen.app.sample(now - 119 + number, **still(gpu_utilization_ratio=number / 200, gpu_power_w=float(number)))
    seen.app.column([255] * 64, [255] * 32, now - 30, ROW_BYTES)
    seen.app.column([255] * 64, [255] * 32, now, ROW_BYTES)
    seen.wait_for(lambda: tracks.figure("power") == "119 W")
    seen.slot("tracks").focus()
    for _ in range(10):
        seen.page.keyboard.press("ArrowLeft")
    assert (tracks.figure("power"), tracks.figure("utilization")) == ("109 W", "55 %")
    expect(seen.slot("moment")).to_have_text("10.0 s before the newest")
    expect(seen.slot("told")).to_contain_text("Power 109 W")
    expect(tracks.part("power", "cross")).to_be_visible()
    seen.page.keyboard.press("End")
    seen.page.keyboard.press("ArrowDown")
    expect(tracks.part("map", "legend")).to_contain_text("100 % in use")
    seen.page.keyboard.press("ArrowUp")
    seen.page.keyboard.press("ArrowUp")
    expect(tracks.part("map", "legend")).to_contain_text("0 % in use")
    seen.page.keyboard.press("Escape")
    expect(tracks.part("power", "cross")).to_be_hidden()
    assert tracks.figure("power") == "119 W"


# ------------------------------------------------------------------------------------------------------- what is not there


def test_what_a_card_does_not_give_is_hidden_and_says_why(tracks: Tracks) -> None:
    seen = tracks.seen
    absent = dict.fromkeys(
        ("gpu_power_w", "gpu_pcie_rx_bytes_per_s", "gpu_pcie_tx_bytes_per_s", "gpu_process_bytes", "gpu_other_processes_bytes")
    )
    send(tracks, 5, **absent)
    expect(tracks.part("power", "plot")).to_have_count(0)
    expect(tracks.part("pcie", "plot")).to_have_count(0)
    assert "Others and driver" in tracks.keys("memory") and "Other processes" not in tracks.keys("memory")
    for name, reason in (("PCIe traffic", "driver 550"), ("Memory by process", "WDDM"), ("Power", "no sensor")):
        button = seen.slot("missing").get_by_role("button", name=name)
        expect(button.locator(".vp-reason")).to_be_hidden()
        button.hover()
        expect(button.locator(".vp-reason")).to_contain_text(reason)
    seen.page.mouse.move(0, 0)
    seen.slot("tracks").focus()
    seen.page.keyboard.press("Tab")
    expect(seen.slot("missing").locator(".vp-reason").first).to_be_visible()
    send(tracks, 3, 0.1)
    expect(tracks.part("power", "plot")).to_be_visible()


def test_without_a_card_it_says_so_and_shows_cpu_and_ram(browser: Browser, app: FakeApp) -> None:
    app.host.device_name = "cpu"
    app.notes = ["This program computes on cpu: there is no NVIDIA card to read."]
    with watched(browser, app) as seen:
        seen.open_tab()
        now = time.monotonic()
        for number in range(10):
            ram = {"host_ram_total_bytes": 32 * GIB, "host_ram_available_bytes": 20 * GIB, "process_rss_bytes": 5 * GIB}
            app.sample(
                now - 18 + 2 * number,
                allocated_bytes=None,
                reserved_bytes=None,
                host_cpu_ratio=0.4,
                process_cpu_ratio=1.5,
                **ram,
            )
        tracks = Tracks(seen, now)
        seen.wait_for(lambda: tracks.figure("memory") == "12.0 GiB")
        expect(tracks.part("memory", "note")).to_contain_text("No NVIDIA card: this program computes on cpu")
        expect(tracks.part("map", "note")).to_contain_text("computes on cpu")
        assert tracks.keys("memory") == {"Free": "20.0 GiB", "Everything else": "7.00 GiB", "This process": "5.00 GiB"}
        assert tracks.figure("cpu") == "40 %"
        assert tracks.pixel("memory", now - 5, 2.5 / 32) == tracks.colour("process")
        for gone in ("utilization", "power", "ram"):
            expect(tracks.part(gone, "plot")).to_have_count(0)
        expect(seen.slot("missing").locator("button")).to_contain_text("Readings of the card")
        expect(seen.slot("live-empty")).to_contain_text("No generation yet")


def test_e13_an_allocator_without_a_list_says_why_the_map_is_empty(tracks: Tracks) -> None:
    tracks.seen.app.column(
        [], [], note="The allocator cudaMallocAsync keeps no list of its blocks, so there is no map of them."
    )
    expect(tracks.part("map", "note")).to_contain_text("cudaMallocAsync keeps no list")
    tracks.seen.app.column([255] * 64, [255] * 64)
    expect(tracks.part("map", "note")).to_be_hidden()
