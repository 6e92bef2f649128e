"""What of the WebUI moves, rebuilds or exchanges the model, and who waits for whom."""

from __future__ import annotations

import inspect
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.hosts.jobs_world import World, model, world

__all__ = ["world"]  # the fixture


@pytest.mark.parametrize("name", ["send_model_to_cpu", "send_model_to_device", "send_model_to_trash"])
def test_moves_of_the_whole_model(world: World, name: str) -> None:
    for moved in (world.webui.sd_models.model_data.sd_model, model(), None):
        world.heard.events.clear()
        getattr(world.webui.sd_models, name)(moved)
        assert world.short() == ["changing", "changed"]


def test_what_rebuilds_or_trains_the_model(world: World) -> None:
    world.webui.sd_hijack.model_hijack.redo_hijack(None)
    world.webui.script_callbacks.model_loaded_callback(None)
    from modules.hypernetworks import hypernetwork
    from modules.textual_inversion import textual_inversion

    for train in (textual_inversion.train_embedding, hypernetwork.train_hypernetwork):
        train(*[None] * len(inspect.signature(train).parameters))
    assert world.short() == ["changing", "changed"] * 4


def test_training_by_the_api_is_told_of_after_a_reload_too(world: World) -> None:
    """Its module binds the functions by name when it is first imported: to ours."""
    from modules.hypernetworks.hypernetwork import train_hypernetwork
    from modules.textual_inversion.textual_inversion import train_embedding

    api = SimpleNamespace(train_embedding=train_embedding, train_hypernetwork=train_hypernetwork)
    sys.modules["modules.api.api"] = api  # type: ignore[assignment]

    def told() -> list[Any]:
        world.heard.events.clear()
        for train in (api.train_embedding, api.train_hypernetwork):
            train(*[None] * len(inspect.signature(train).parameters))
        return world.short()

    for _number in range(3):
        assert told() == ["changing", "changed"] * 2
        world.stop()
        assert not told()
        world.stop = world.jobs.start(world.heard)


def test_a_change_that_fails_is_over_too(world: World) -> None:
    world.stop()
    world.webui.sd_models.send_model_to_device = fails_with_argument
    world.jobs.start(world.heard)
    with pytest.raises(ValueError, match="no room"):
        world.webui.sd_models.send_model_to_device(model())
    assert world.short() == ["changing", "changed"]


def fails_with_argument(m: Any) -> None:
    raise ValueError("no room")


def test_a_vae_that_stays_is_no_change(world: World) -> None:
    vae = world.webui.sd_vae
    vae.reload_vae_weights()
    vae.reload_vae_weights(world.webui.sd_models.model_data.sd_model)
    vae.reload_vae_weights(vae_file=None)
    assert not world.heard.events
    vae.reload_vae_weights(vae_file="other")
    assert world.short() == ["changing", "changed"] and vae.loaded_vae_file == "other"
    vae.reload_vae_weights(sd_model=world.webui.sd_models.model_data.sd_model)
    assert len(world.heard.events) == 4 and vae.loaded_vae_file is None


def test_a_vae_without_a_model(world: World) -> None:
    """The WebUI would load one: nothing of ours stands in its way."""
    world.webui.sd_models.model_data.sd_model = None
    world.webui.sd_vae.reload_vae_weights()
    assert world.short() == ["changing", "changed"]


def test_another_unet_comes_and_goes(world: World) -> None:
    unet = world.webui.sd_unet
    unet.options["theirs"] = object()
    for option in (None, "theirs", "theirs", None, None):
        unet.apply_unet(option)
    assert world.short() == ["changing", "changed"] * 2


def test_another_thread_waits_for_the_job_before_it_moves_weights_of_ours(world: World) -> None:
    world.ours = True
    queue = world.webui.call_queue.queue_lock
    moved, order = threading.Event(), []

    def unload() -> None:
        world.webui.sd_models.send_model_to_cpu(None)
        order.append("moved")
        moved.set()

    thread = threading.Thread(target=unload)

    def begin(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 0, 0):
            thread.start()
            assert not moved.wait(0.2)
        if event[0] == "end":
            order.append("end")

    world.heard._on = begin
    with queue:
        world.run(steps=2, course="rcrc")
    thread.join(5)
    assert order == ["end", "moved"]


def test_a_thread_that_has_the_queue_waits_for_a_job_beside_the_queue(world: World) -> None:
    """A script may generate without the queue; who holds it, a change of the checkpoint, must not wait for itself."""
    world.ours = True
    queue, order = world.webui.call_queue.queue_lock, []
    waiting = threading.Event()

    def reload() -> None:
        with queue:
            waiting.set()
            world.webui.sd_models.send_model_to_cpu(None)
            order.append("moved")

    thread = threading.Thread(target=reload, daemon=True)

    def begin(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 0, 0):
            thread.start()
            assert waiting.wait(5)
            thread.join(0.1)
            assert not order
        if event[0] == "end":
            order.append("end")

    world.heard._on = begin
    world.run(steps=2, course="rcrc")
    thread.join(5)
    assert order == ["end", "moved"]


def test_another_thread_waits_for_nothing_when_nothing_is_ours(world: World) -> None:
    def unload(event: tuple[Any, ...]) -> None:
        if event[:4] == ("step", "base", 0, 0):
            thread = threading.Thread(target=world.webui.sd_models.send_model_to_cpu, args=(None,))
            thread.start()
            thread.join(5)
            assert not thread.is_alive()

    world.heard._on = unload
    with world.webui.call_queue.queue_lock:
        world.run()
    assert "changing" in world.short()


def test_a_preview_that_fails_costs_the_preview(world: World) -> None:
    world.stop()

    def store_latent(decoded: Any) -> None:
        raise TypeError("Got unsupported ScalarType BFloat16")

    world.webui.sd_samplers_common.store_latent = store_latent
    world.jobs.start(world.heard)
    with pytest.raises(TypeError):
        world.webui.sd_samplers_common.store_latent(None)
    world.ours = True
    assert world.webui.sd_samplers_common.store_latent(None) is None
