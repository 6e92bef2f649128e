"""Every kind of job, made as launched and in every mode by `alwayson_scripts`: the pictures are equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.host.client import Client, Pictures
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, MODES, ONCE, in_every_mode, unlike

LONG = "a photo of a cat, " * 30


@dataclass(frozen=True)
class Kind:
    """request: what it asks for besides the usual; pictures: how many come back; steps, calls: of the session, None where the
    sampler decides; plain: whether it is to differ from a plain request."""

    request: dict[str, Any] = field(default_factory=dict)
    pictures: int = 1
    steps: int | None = 4
    calls: int | None = 4


HIRES = {"enable_hr": True, "hr_scale": 1.5, "denoising_strength": 0.6, "hr_second_pass_steps": 3}
KINDS: dict[str, Kind] = {
    "batches": Kind({"n_iter": 3, "batch_size": 2}, pictures=6, steps=12, calls=12),
    "hires-latent": Kind({**HIRES, "hr_upscaler": "Latent"}, steps=7, calls=7),
    "hires-pixels": Kind({**HIRES, "hr_upscaler": "Lanczos"}, steps=7, calls=7),
    "clip-skip": Kind({"override_settings": {"CLIP_stop_at_last_layers": 2}}),
    "token-merging": Kind({"override_settings": {"token_merging_ratio": 0.5}}),
    "separate-cfg": Kind({"override_settings": {"batch_cond_uncond": False}}, calls=8),
    "long-prompt": Kind({"prompt": LONG}, calls=8),
    "long-prompt-padded": Kind({"prompt": LONG, "override_settings": {"pad_cond_uncond": True}}),
    "two-prompts": Kind({"prompt": "a cat AND a dog :0.7", "negative_prompt": "ugly"}),
    "emphasis-and-editing": Kind({"prompt": "a (red:1.3) [cat:dog:0.5]"}),
    "tiling": Kind({"tiling": True}),
    "subseed": Kind({"subseed": 5, "subseed_strength": 0.4}),
    "wide": Kind({"width": 128, "height": 64}),
}
SAMPLERS: dict[str, Kind] = {
    "Euler a": Kind(),
    "DPM++ 2M": Kind({"scheduler": "karras"}),
    "DPM++ SDE": Kind(calls=7),
    "Heun": Kind(calls=7),
    "DPM2": Kind(calls=7),
    "DPM fast": Kind(steps=None),
    "Restart": Kind({"steps": 22}, steps=None, calls=None),
    "DDIM": Kind(steps=3, calls=3),
    "PLMS": Kind(steps=3, calls=4),
    "UniPC": Kind(),
    "LCM": Kind(),
}


def made_right(client: Client, kind: Kind, name: str, record: Any, modes: dict[str, Any] = MODES) -> dict[str, Pictures]:
    """In every mode, with the number of pictures, steps and calls that is due."""
    request = {**kind.request}

    def make(mode: Any) -> Pictures:
        made = client.txt2img(mode, **request)
        assert len(made.pixels) >= kind.pictures
        check_session(client.newest_session(), kind)
        return made

    return in_every_mode(client, make, lambda mode, found: record(f"{name} {mode}", found), modes)


def check_session(session: dict[str, Any], kind: Kind) -> None:
    steps = session["steps"]
    assert session["status"] == "ok" and session["summary"]["image_count"] == kind.pictures
    if kind.steps is not None:
        assert len(steps) == kind.steps, [(step["pass"], step["image"], step["index"], step["calls"]) for step in steps]
    if kind.calls is not None:
        assert sum(step["calls"] for step in steps) == kind.calls, [step["calls"] for step in steps]
    assert all(step["calls"] > 0 and step["duration_s"] > 0 for step in steps)
    for phase in ("encode", "denoise", "decode"):
        assert any(entry["name"] == phase for entry in session["phases"]), f"no phase {phase}"


@pytest.mark.parametrize("name", list(KINDS))
def test_kind_of_job(plain: Client, launched: Any, name: str, record: Any) -> None:
    made = made_right(plain, KINDS[name], name, record)
    unlike(made["as-launched"], launched())


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_sampler(plain: Client, name: str, record: Any) -> None:
    kind = SAMPLERS[name]
    made_right(plain, Kind({"sampler_name": name, **kind.request}, 1, kind.steps, kind.calls), name, record, ONCE)


def test_steps_are_numbered_as_the_webui_counts_them(plain: Client) -> None:
    """Pass, picture and index of each step; the calls of a second-order sampler belong to one step, its last step has one."""
    plain.txt2img("lowvram", sampler_name="Heun", n_iter=2, steps=3)
    steps = plain.newest_session()["steps"]
    assert [(step["image"], step["index"], step["calls"]) for step in steps] == [
        *[(0, 0, 2), (0, 1, 2), (0, 2, 1)],
        *[(1, 0, 2), (1, 1, 2), (1, 2, 1)],
    ]
    plain.txt2img("medvram", **HIRES, hr_upscaler="Lanczos", steps=2)
    session = plain.newest_session()
    assert [(step["pass"], step["index"]) for step in session["steps"]] == [
        *[("base", 0), ("base", 1)],
        *[("hires", 0), ("hires", 1), ("hires", 2)],
    ]
    names = [phase["name"] for phase in session["phases"] if phase["name"] != "other"]
    assert names == ["load", "encode", "denoise", "decode", "denoise", "decode"]


# ------------------------------------------------------------------------------------------------ from a picture


@pytest.fixture
def picture(plain: Client) -> str:
    return plain.txt2img(AS_LAUNCHED, seed=7, width=96, height=64).encoded[0]


def mask(width: int = 96, height: int = 64) -> str:
    import base64
    import io

    from PIL import Image

    image = Image.new("L", (width, height), 0)
    image.paste(255, (width // 4, height // 4, width * 3 // 4, height * 3 // 4))
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def test_img2img(plain: Client, picture: str, record: Any) -> None:
    def make(mode: Any) -> Pictures:
        return plain.img2img(picture, mode, width=96, height=64, steps=6)

    made = in_every_mode(plain, make, record)
    unlike(made["as-launched"], plain.img2img(picture, AS_LAUNCHED, width=96, height=64, steps=6, seed=2))
    steps = plain.newest_session()["steps"]
    assert [step["index"] for step in steps] == list(range(4)), "0.6 of 6 steps, rounded up"


@pytest.mark.parametrize("checkpoint", ["normal", "inpaint"])
def test_inpainting(plain: Client, env: Environment, picture: str, checkpoint: str, record: Any) -> None:
    name = env.names.inpaint if checkpoint == "inpaint" else env.names.sd1[0]

    def make(mode: Any) -> Pictures:
        return plain.img2img(
            picture, mode, width=96, height=64, mask=mask(), inpainting_fill=1, override_settings={"sd_model_checkpoint": name}
        )

    made = in_every_mode(plain, make, record)
    assert made["as-launched"].pixels != plain.img2img(picture, AS_LAUNCHED, width=96, height=64).pixels


# ------------------------------------------------------------------------------------------------ previews


@pytest.mark.parametrize("kind", ["Approx cheap", "Full"])
def test_live_previews(plain: Client, kind: str, record: Any) -> None:
    """A page that polls gets previews while components move, and the picture is the same."""
    import threading

    settings = {
        "show_progress_every_n_steps": 1,
        "show_progress_type": kind,
        "live_previews_enable": True,
        "live_preview_allow_lowvram_full": True,
    }

    def make(mode: Any) -> Pictures:
        task = f"task({abs(hash((kind, str(mode))))})"
        seen: list[str] = []
        done = threading.Event()

        def watch() -> None:
            last = -1
            while not done.is_set():
                found = plain.post("/internal/progress", {"id_task": task, "id_live_preview": last, "live_preview": True})
                if found.get("live_preview"):
                    seen.append(found["live_preview"])
                    last = found["id_live_preview"]
                done.wait(0.02)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            made = plain.txt2img(mode, steps=12, width=96, height=96, force_task_id=task, override_settings=settings)
        finally:
            done.set()
            watcher.join()
        assert seen, "no preview came"
        assert plain.newest_session()["status"] == "ok"
        return made

    made = in_every_mode(plain, make, record, {name: MODES[name] for name in ("medvram", "lowvram")})
    without = plain.txt2img(AS_LAUNCHED, steps=12, width=96, height=96, override_settings={"live_previews_enable": False})
    assert made["as-launched"].pixels == without.pixels
