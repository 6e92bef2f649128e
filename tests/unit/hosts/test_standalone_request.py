from __future__ import annotations

import pytest

from vram_pilot.errors import UsageError
from vram_pilot.hosts.standalone.request import SAMPLERS, ImageRequest, infotext, parse_sampler, parse_size


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("width", 0, "width"),
        ("height", 100, "96 or 104"),
        ("width", 100_000, "8192"),
        ("width", 64.0, "width"),
        ("steps", 0, "number of steps is"),
        ("steps", 501, "500"),
        ("batch_size", 65, "batch size"),
        ("n_iter", 0, "batch count"),
        ("seed", -1, "seed"),
        ("seed", 2**32, "4294967295"),
        ("cfg_scale", 0.5, "cfg scale"),
        ("cfg_scale", float("nan"), "cfg scale"),
        ("cfg_scale", "7", "cfg scale"),
        ("sampler", "Magic", "Euler a"),
        ("hires_scale", 1.0, "above 1"),
        ("hires_scale", 5, "up to 4"),
        ("hires_scale", True, "above 1"),
        ("prompt", "a \udcff cat", "prompt"),
        ("prompt", 7, "prompt"),
        ("negative_prompt", "\ud800", "negative prompt"),
    ],
)
def test_a_bad_field_is_named_with_what_is_allowed(field: str, value: object, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        ImageRequest(**{field: value})  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert repr(value) in str(caught.value)


def test_a_hires_target_beyond_the_limit_is_refused_with_its_size() -> None:
    with pytest.raises(UsageError, match="16384x16384"):
        ImageRequest(width=8192, height=8192, hires_scale=2)


@pytest.mark.parametrize(("text", "size"), [("512x768", (512, 768)), (" 64 X 64 ", (64, 64)), ("8×16", (8, 16))])
def test_sizes_are_read(text: str, size: tuple[int, int]) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "512", "512x", "x512", "-64x64", "6.4x64", "64x64x64", "1e3x64", "64,64", "9999999x64"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="512x768"):
        parse_size(text)


def test_samplers_are_known_by_any_capitalisation() -> None:
    assert [parse_sampler(name.upper()) for name in SAMPLERS] == list(SAMPLERS)
    with pytest.raises(UsageError, match=r"DPM\+\+ 2M"):
        parse_sampler("Euler b")


def test_hires_size_and_steps_follow_from_the_base_pass() -> None:
    request = ImageRequest(width=72, height=64, steps=10, hires_scale=1.5)
    assert request.pass_size("base") == (72, 64)
    assert request.pass_size("hires") == (104, 96)
    assert request.hires_steps() == 7
    assert ImageRequest(steps=1, hires_scale=2, hires_strength=0.1).hires_steps() == 1


def test_the_job_has_no_prompt_and_no_seed() -> None:
    job = ImageRequest(prompt="secret", negative_prompt="hidden", seed=4711, hires_scale=2).to_job()
    assert set(job) == {"width", "height", "batch_size", "n_iter", "steps", "sampler", "cfg_scale", "hires"}
    assert job["hires"] == {"width": 1024, "height": 1024, "steps": 14, "scale": 2}
    assert not any(word in repr(job) for word in ("secret", "hidden", "4711"))


def test_seeds_count_up_and_stay_in_range() -> None:
    assert ImageRequest(seed=2**32 - 1).seed_of(1) == 0


def test_infotext_reads_like_a_webui_s() -> None:
    request = ImageRequest("a cat", "dog", 64, 72, 4, "Euler", 7.5, seed=3, hires_scale=2)
    text = infotext(request, 1, "tiny", "0123456789", {"VRAM mode": "lowvram, budget 512 MiB"})
    assert text == (
        "a cat\nNegative prompt: dog\nSteps: 4, Sampler: Euler, CFG scale: 7.5, Seed: 4, Size: 64x72, Model hash: 0123456789, "
        'Model: tiny, Denoising strength: 0.7, Hires upscale: 2, Hires upscaler: Latent, VRAM mode: "lowvram, budget 512 MiB"'
    )
