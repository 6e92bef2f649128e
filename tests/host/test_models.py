"""The host changes weights: checkpoints, VAE, networks, embeddings, storage, attention. In every mode pictures stay right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.host.client import Client, Pictures
from tests.host.environment import Environment
from tests.host.modes import AS_LAUNCHED, MODES, ONCE, in_every_mode, unlike
from tests.host.test_switching import go_on_to, held


def of_checkpoint(name: str, **more: Any) -> dict[str, Any]:
    return {"override_settings": {"sd_model_checkpoint": name, **more}}


def choose_checkpoint(client: Client, name: str) -> None:
    client.post("/sdapi/v1/options", {"sd_model_checkpoint": name})


# ------------------------------------------------------------------------------------------------ checkpoints


def walk(client: Client, names: tuple[str, ...], mode: Any) -> list[Pictures]:
    """One job for each checkpoint, switched within the job."""
    return [client.txt2img(mode, **of_checkpoint(name)) for name in names]


def as_launched(launched: Any, names: tuple[str, ...]) -> list[Pictures]:
    return [launched(**of_checkpoint(name)) for name in names]


def test_checkpoints_within_jobs(plain: Client, launched: Any, env: Environment, record: Any) -> None:
    """Different configurations: the model object is another one each time. Families are told right."""
    names = (*env.names.sd1, env.names.sd2, env.names.sdxl, env.names.sd1[0])
    expected = as_launched(launched, names)
    assert len({made.pixels for made in expected}) == len(names) - 1
    for name, made in zip(names, expected):
        record(f"{name} as-launched", made)
    for label, mode in ONCE.items():
        for name, family, right in zip(names, ("sd1", "sd1", "sd2", "sdxl", "sd1"), expected):
            made = plain.txt2img(mode, **of_checkpoint(name))
            record(f"{name} {label}", made)
            assert made.pixels == right.pixels, f"{name} in {label}"
            session = plain.newest_session()
            assert session["mode"]["effective"]["mode"] == mode["mode"]
            assert (session["model"]["name"], session["model"]["family"]) == (name, family)


def test_checkpoints_of_one_configuration(plain: Client, launched: Any, env: Environment, record: Any) -> None:
    """The weights are loaded into the same object, under a standing mode."""
    names = (*env.names.same, *env.names.same)
    expected = as_launched(launched, names)
    unlike(expected[0], expected[1])
    for label, mode in ONCE.items():
        plain.mode(**mode, scope="standing")
        for name, made, right in zip(names, walk(plain, names, None), expected):
            record(f"{name} {label}", made)
            assert made.pixels == right.pixels, f"{name} in {label}"
            assert plain.state()["mode"]["effective"]["mode"] == mode["mode"]
    weights = plain.get("/vram-pilot-probe/checksum")
    plain.mode("as-launched", "standing")
    assert plain.get("/vram-pilot-probe/checksum") == weights


@pytest.mark.parametrize("label", list(ONCE))
def test_checkpoint_between_jobs(plain: Client, launched: Any, env: Environment, label: str, record: Any) -> None:
    """Chosen in the settings while a mode stands: it is entered again with the next job."""
    names = (env.names.sd1[0], env.names.same[0], env.names.same[1], env.names.sdxl, env.names.sd1[0])
    expected = as_launched(launched, names)
    plain.txt2img(AS_LAUNCHED)  # whatever a test before has left loaded, the settings' checkpoint is from here on
    plain.mode(**ONCE[label], scope="standing")
    for name, right in zip(names, expected):
        choose_checkpoint(plain, name)
        assert plain.state()["model"]["name"] == name
        made = plain.txt2img()
        record(name, made)
        assert made.pixels == right.pixels
        assert plain.newest_session()["mode"]["effective"]["mode"] == MODES[label]["mode"]


@pytest.mark.parametrize("keep_in_cpu", [True, False])
def test_several_checkpoints_in_memory(plain: Client, launched: Any, env: Environment, keep_in_cpu: bool, record: Any) -> None:
    """The WebUI exchanges whole model objects, and may not say a word to the one that goes."""
    names = (*env.names.sd1, env.names.sdxl)
    expected = as_launched(launched, names)
    try:
        plain.post("/sdapi/v1/options", {"sd_checkpoints_limit": 3, "sd_checkpoints_keep_in_cpu": keep_in_cpu})
        for mode in ("medvram", "lowvram"):
            plain.mode(mode, "standing")
            for name, right in zip(names * 2, expected * 2):
                made = plain.txt2img(**of_checkpoint(name))
                record(f"{mode} {name}", made)
                assert made.pixels == right.pixels, f"{name} in {mode}"
                assert plain.state()["mode"]["effective"]["mode"] == mode
        plain.mode("as-launched", "standing")
        assert [made.pixels for made in walk(plain, names, None)] == [made.pixels for made in expected]
    finally:
        plain.post("/sdapi/v1/options", {"sd_checkpoints_limit": 1, "sd_checkpoints_keep_in_cpu": True})


def test_unload_and_reload(plain: Client, launched: Any, record: Any) -> None:
    """B3: unloading the checkpoint under a mode, changing the mode while it is away, generating before and after reloading."""
    expected = launched()
    for mode in MODES.values():
        plain.mode(**mode, scope="standing")
        plain.txt2img()
        plain.post("/sdapi/v1/unload-checkpoint", {})
        for other in ("lowvram", "medvram"):
            assert plain.mode(other, "standing")["refusal"] is None
        assert plain.txt2img().pixels == expected.pixels
        plain.post("/sdapi/v1/reload-checkpoint", {})
        made = plain.txt2img()
        record(str(mode), made)
        assert made.pixels == expected.pixels
        assert plain.state()["mode"]["effective"]["mode"] == "medvram"


def test_unloading_waits_for_a_running_job(plain: Client, launched: Any) -> None:
    """Another thread's unload under a mode of ours: no weight is taken from under the sampler."""
    import threading

    expected = launched(steps=8)
    done = threading.Event()

    def unload() -> None:
        plain.post("/sdapi/v1/unload-checkpoint", {})
        done.set()

    with held(plain, 2, lambda: plain.txt2img("lowvram", steps=8)) as running:
        thread = threading.Thread(target=unload)
        thread.start()
        go_on_to(plain, 6)
        assert not done.is_set(), "the weights were moved while the job ran"
        go_on_to(plain, None)
        made = running.result()
        thread.join(30)
    assert done.is_set() and made.pixels == expected.pixels
    plain.post("/sdapi/v1/reload-checkpoint", {})
    assert plain.txt2img("lowvram", steps=8).pixels == expected.pixels


def test_refiner(plain: Client, env: Environment, record: Any) -> None:
    """Another model takes over in mid-job, in the mode that is in force; the next picture begins with the first model."""
    request = {
        **of_checkpoint(env.names.sdxl),
        "refiner_checkpoint": env.names.refiner,
        "refiner_switch_at": 0.5,
        "steps": 6,
        "n_iter": 2,
    }
    made = in_every_mode(plain, lambda mode: plain.txt2img(mode, **request), record, ONCE)
    unlike(made["as-launched"], plain.txt2img(AS_LAUNCHED, steps=6, n_iter=2, **of_checkpoint(env.names.sdxl)))
    steps = [(step["image"], step["index"], step["calls"]) for step in plain.newest_session()["steps"]]
    assert steps == [(image, index, 1) for image in range(2) for index in range(6)]


@pytest.mark.parametrize("upscaler", ["Latent", "Lanczos"])
def test_hires_with_another_checkpoint(plain: Client, env: Environment, upscaler: str, record: Any) -> None:
    request = {
        "enable_hr": True,
        "hr_scale": 1.5,
        "denoising_strength": 0.6,
        "hr_upscaler": upscaler,
        "hr_checkpoint_name": env.names.sd1[1],
        "hr_prompt": "a dog",
        "n_iter": 2,
    }
    made = in_every_mode(plain, lambda mode: plain.txt2img(mode, **request), record, ONCE)
    same = {key: value for key, value in request.items() if key != "hr_checkpoint_name"}
    unlike(made["as-launched"], plain.txt2img(AS_LAUNCHED, **same))


def test_a_mode_of_their_own_for_larger_models(plain: Client, launched: Any, env: Environment, record: Any) -> None:
    """B2: SD1.5 in full, SDXL in lowvram, by the settings alone."""
    names = (env.names.sd1[0], env.names.sdxl, env.names.sd1[0], env.names.sdxl)
    expected = as_launched(launched, names)
    plain.txt2img(AS_LAUNCHED)
    plain.mode("full", "standing")
    try:
        plain.post("/sdapi/v1/options", {"vram_pilot_large_model_mode": "lowvram"})
        for name, right, mode in zip(names, expected, ("full", "lowvram") * 2):
            choose_checkpoint(plain, name)
            made = plain.txt2img()
            record(f"{name} {mode}", made)
            assert made.pixels == right.pixels
            assert plain.newest_session()["mode"]["effective"]["mode"] == plain.state()["mode"]["effective"]["mode"] == mode
        assert "Mode for SDXL and SD3" in plain.mode("medvram", "standing")["refusal"]
        assert plain.txt2img("full").pixels == expected[-1].pixels
        assert plain.newest_session()["mode"]["effective"]["mode"] == "full"
    finally:
        plain.post("/sdapi/v1/options", {"vram_pilot_large_model_mode": "same"})


# ------------------------------------------------------------------------------------------------ VAE


def test_vae_within_jobs(plain: Client, launched: Any, env: Environment, record: Any) -> None:
    own = launched()
    for label, mode in MODES.items():
        plain.mode(**mode, scope="standing")
        made = plain.txt2img(override_settings={"sd_vae": env.names.vae})
        again = plain.txt2img()
        record(f"{label} other", made)
        assert again.pixels == own.pixels, f"the own VAE is not back after {label}"
        plain.mode("as-launched", "standing")
        right = plain.txt2img(override_settings={"sd_vae": env.names.vae})
        unlike(right, own)
        assert made.pixels == right.pixels, label


def test_vae_in_the_settings(plain: Client, launched: Any, env: Environment, record: Any) -> None:
    own = launched()
    plain.post("/sdapi/v1/options", {"sd_vae": env.names.vae})
    other = plain.txt2img(AS_LAUNCHED)
    unlike(own, other)
    for label, mode in MODES.items():
        plain.mode(**mode, scope="standing")
        for name, right in (("Automatic", own), (env.names.vae, other)):
            plain.post("/sdapi/v1/options", {"sd_vae": name})
            made = plain.txt2img()
            record(f"{label} {name}", made)
            assert made.pixels == right.pixels, f"{name} in {label}"


# ------------------------------------------------------------------------------------------------ networks and embeddings


def networks(env: Environment) -> tuple[str, ...]:
    a, b = env.names.lora
    cat = "a photo of a cat"
    return (
        f"{cat} <lora:{a}:1>",
        cat,
        f"{cat} <lora:{b}:0.7>",
        f"{cat} <lora:{a}:1> <lora:{b}:0.5>",
        f"{cat} <lora:{a}:1>",
        cat,
    )


@pytest.mark.parametrize("label", list(MODES))
def test_networks_by_turns(plain: Client, launched: Any, env: Environment, label: str, record: Any) -> None:
    """LoRA A, none, B, both, A, none: once with the mode carried by each job, once under the standing mode."""
    prompts = networks(env)
    expected = [launched(prompt=prompt) for prompt in prompts]
    assert len({made.pixels for made in expected}) == 4
    for prompt, right in zip(prompts, expected):
        made = plain.txt2img(MODES[label], prompt=prompt)
        record(prompt, made)
        assert made.pixels == right.pixels, f"by the job: {prompt}"
    plain.mode(**MODES[label], scope="standing")
    for prompt, right in zip(prompts, expected):
        assert plain.txt2img(prompt=prompt).pixels == right.pixels, f"standing: {prompt}"
    plain.mode("as-launched", "standing")
    for prompt, right in zip(prompts, expected):
        assert plain.txt2img(prompt=prompt).pixels == right.pixels, f"afterwards: {prompt}"


def test_a_network_is_changed_five_times_under_lowvram(plain: Client, env: Environment, record: Any) -> None:
    """B10: neither the picture nor what is kept in memory drifts."""
    a, b = env.names.lora
    plain.mode("lowvram", "standing", budget_mib=32)
    pictures: dict[str, set[Any]] = {a: set(), b: set()}
    kept = []
    for _turn in range(5):
        for name in (a, b):
            pictures[name].add(plain.txt2img(prompt=f"a cat <lora:{name}:0.8>").pixels)
        mode = plain.state()["mode"]
        kept.append((mode["resident_bytes"], mode["slot_bytes"], mode["pageable_bytes"], mode["pinned_bytes"]))
    assert all(len(found) == 1 for found in pictures.values())
    assert len(set(kept)) == 1, kept


def test_a_network_across_modes_in_mid_job(plain: Client, launched: Any, env: Environment, record: Any) -> None:
    """The weights that a network has changed go along from mode to mode."""
    prompt = f"a cat <lora:{env.names.lora[0]}:1>"
    expected = launched(prompt=prompt, steps=6)
    with held(plain, 1, lambda: plain.txt2img(prompt=prompt, steps=6)) as running:
        for step, mode in ((1, "lowvram"), (2, "medvram"), (3, "full"), (4, "lowvram"), (5, "as-launched")):
            plain.mode(mode)
            go_on_to(plain, step + 1 if step < 5 else None)
        made = running.result()
    record("switched", made)
    assert made.pixels == expected.pixels
    assert plain.txt2img("lowvram", steps=6).pixels == plain.txt2img(AS_LAUNCHED, steps=6).pixels


def test_networks_of_sdxl(plain: Client, env: Environment, record: Any) -> None:
    prompt = f"a cat <lora:{env.names.lora_sdxl}:1>"
    made = in_every_mode(plain, lambda mode: plain.txt2img(mode, prompt=prompt, **of_checkpoint(env.names.sdxl)), record)
    unlike(made["as-launched"], plain.txt2img(AS_LAUNCHED, prompt="a cat", **of_checkpoint(env.names.sdxl)))


def test_functional_networks(plain: Client, env: Environment, record: Any) -> None:
    prompt = f"a cat <lora:{env.names.lora[0]}:1>"
    try:
        plain.post("/sdapi/v1/options", {"lora_functional": True})
        in_every_mode(plain, lambda mode: plain.txt2img(mode, prompt=prompt), record)
    finally:
        plain.post("/sdapi/v1/options", {"lora_functional": False})


def test_textual_inversion(plain: Client, env: Environment, record: Any) -> None:
    prompt = f"a photo of {env.names.embedding}"
    made = in_every_mode(plain, lambda mode: plain.txt2img(mode, prompt=prompt), record)
    unlike(made["as-launched"], plain.txt2img(AS_LAUNCHED))
    assert "TI hashes" in made["lowvram"].texts[0] or "TI:" in made["lowvram"].texts[0], "the embedding was not used"


# ------------------------------------------------------------------------------------------------ how weights are kept and used


def test_float8_storage(plain: Client, env: Environment, record: Any) -> None:
    """The option reloads the model; the weights keep their type in every mode."""
    launched = plain.txt2img(AS_LAUNCHED)
    plain.mode("lowvram", "standing")
    try:
        plain.post("/sdapi/v1/options", {"fp8_storage": "Enable"})
        kept = {entry[4] for entry in plain.get("/vram-pilot-probe/model")["weights"].values()}
        assert "torch.float8_e4m3fn" in kept, kept
        made = in_every_mode(plain, lambda mode: plain.txt2img(mode), record)
        unlike(made["as-launched"], launched)
    finally:
        plain.post("/sdapi/v1/options", {"fp8_storage": "Disable"})
    assert plain.txt2img("lowvram").pixels == plain.txt2img(AS_LAUNCHED).pixels
    choose_checkpoint(plain, env.names.sd1[1])  # the WebUI itself gives the first picture again only after a whole load
    choose_checkpoint(plain, env.names.sd1[0])
    assert plain.txt2img("lowvram").pixels == launched.pixels


def test_attention_is_changed_under_a_mode(plain: Client, launched: Any, record: Any) -> None:
    """The WebUI takes its text encoder apart and puts it together again: the mode must be entered anew."""
    expected = launched()
    try:
        for mode in ("medvram", "lowvram", "full"):
            plain.mode(mode, "standing")
            plain.txt2img()
            plain.post("/sdapi/v1/options", {"cross_attention_optimization": "sub-quadratic"})
            other = plain.txt2img()
            assert plain.newest_session()["mode"]["effective"]["mode"] == mode
            plain.mode("as-launched", "standing")
            assert plain.txt2img().pixels == other.pixels
            plain.post("/sdapi/v1/options", {"cross_attention_optimization": "Automatic"})
            made = plain.txt2img(mode)
            record(mode, made)
            assert made.pixels == expected.pixels
            assert plain.state()["mode"]["refusal"] is None
    finally:
        plain.post("/sdapi/v1/options", {"cross_attention_optimization": "Automatic"})
