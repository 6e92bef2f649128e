"""What other parts of the WebUI, and other extensions, do to the denoiser while a mode of ours is in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.client import Client, Pictures
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, MODES, in_every_mode, unlike
from tests.host.test_switching import ROUND, go_on_to, held
from tests.host.webui import WebUI

PROBE = "/vram-pilot-probe"


@pytest.fixture(scope="module")
def client(webui: Callable[..., WebUI], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp("hypernetworks")
    with webui("extensions", "--hypernetwork-dir", str(folder)) as running:
        yield running.client


def in_every_mode_and_across(client: Client, make: Callable[[Any], Pictures], record: Any, steps: int) -> Pictures:
    """In each mode, and in a job of so many rounds of calls that goes through all of them."""
    made = in_every_mode(client, make, record)["as-launched"]
    with held(client, 0, lambda: make(None)) as running:
        for step, mode in enumerate(ROUND[1:steps], start=1):
            go_on_to(client, step)
            client.mode(mode)
        go_on_to(client, None)
        across = running.result()
    record("across modes", across)
    assert across.pixels == made.pixels
    return made


def test_a_forward_that_never_calls_the_original(client: Client, record: Any) -> None:
    """B6: in the manner of ControlNet. Put there before a mode or under it, it counts, and it is gone when it is taken away."""
    plain = client.txt2img(AS_LAUNCHED)
    client.post(f"{PROBE}/steer", {"on": True})
    try:
        steered = in_every_mode_and_across(client, lambda mode: client.txt2img(mode, steps=8), record, 8)
        steered_short = client.txt2img(AS_LAUNCHED)
        unlike(steered_short, plain)
        unlike(steered, client.txt2img(AS_LAUNCHED, steps=9))
    finally:
        client.post(f"{PROBE}/steer", {"on": False})
    for mode in MODES.values():
        client.mode(**mode, scope="standing")
        assert client.txt2img().pixels == plain.pixels
        client.post(f"{PROBE}/steer", {"on": True})
        assert client.txt2img().pixels == steered_short.pixels
        client.mode("as-launched", "standing")
        assert client.txt2img().pixels == steered_short.pixels
        client.post(f"{PROBE}/steer", {"on": False})
        assert client.txt2img().pixels == plain.pixels


def test_hypernetworks(client: Client, record: Any) -> None:
    made = {
        "name": "hyper",
        "enable_sizes": [768, 320, 640, 1280],
        "layer_structure": [1, 2, 1],
        "weight_init": "XavierNormal",
        "overwrite_old": False,
    }
    client.post("/sdapi/v1/create/hypernetwork", made)
    prompt = "a cat <hypernet:hyper:1>"
    steered = in_every_mode_and_across(client, lambda mode: client.txt2img(mode, prompt=prompt, steps=6), record, 6)
    unlike(steered, client.txt2img(AS_LAUNCHED, prompt="a cat", steps=6))
    assert client.txt2img("lowvram", prompt="a cat").pixels == client.txt2img(AS_LAUNCHED, prompt="a cat").pixels


def test_a_network_s_strength_is_changed_in_mid_job(client: Client, env: Environment, record: Any) -> None:
    """Its weights are written anew, in place, by the forwards of the next step."""
    prompt = f"a cat <lora:{env.names.lora[0]}:1>"

    def make(mode: Any) -> Pictures:
        client.post(f"{PROBE}/strength", {"at": 3, "value": 0.25})
        return client.txt2img(mode, prompt=prompt, steps=6)

    changed = in_every_mode(client, make, record)["as-launched"]
    unlike(changed, client.txt2img(AS_LAUNCHED, prompt=prompt, steps=6))
    assert client.txt2img("lowvram", prompt=prompt).pixels == client.txt2img(AS_LAUNCHED, prompt=prompt).pixels


def test_hires_with_networks_of_its_own(client: Client, env: Environment, record: Any) -> None:
    """The WebUI encodes the second pass's prompts at another time where components move."""
    one, two = env.names.lora
    request = {"enable_hr": True, "hr_scale": 1.5, "denoising_strength": 0.6, "hr_upscaler": "Latent", "n_iter": 2}
    prompts = {"prompt": f"a cat <lora:{one}:1>", "hr_prompt": f"a dog <lora:{two}:0.5>", "hr_negative_prompt": "ugly"}
    made = in_every_mode_and_across(client, lambda mode: client.txt2img(mode, **request, **prompts), record, 12)
    unlike(made, client.txt2img(AS_LAUNCHED, **request, prompt=prompts["prompt"]))


@pytest.mark.parametrize("model", ["inpaint", "sd2", "sdxl"])
def test_other_models_from_words_and_from_a_picture(client: Client, env: Environment, model: str, record: Any) -> None:
    chosen = {"override_settings": {"sd_model_checkpoint": getattr(env.names, model)}}
    made = in_every_mode(
        client, lambda mode: client.txt2img(mode, **chosen), lambda name, found: record(f"words {name}", found)
    )
    picture = made["as-launched"].encoded[0]
    in_every_mode(
        client, lambda mode: client.img2img(picture, mode, **chosen), lambda name, found: record(f"picture {name}", found)
    )


def test_the_file_is_the_same_when_the_mode_is_not_written_into_it(client: Client, record: Any) -> None:
    """Same seed, same bytes."""
    client.post("/sdapi/v1/options", {"vram_pilot_write_infotext": False})
    try:
        made = {name: client.txt2img(mode) for name, mode in {"as-launched": AS_LAUNCHED, **MODES}.items()}
    finally:
        client.post("/sdapi/v1/options", {"vram_pilot_write_infotext": True})
    for name, found in made.items():
        record(name, found)
    assert len({found.files for found in made.values()}) == 1
