"""Real checkpoint files: the converted model computes what ldm's own modules compute, and what is no checkpoint is named."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.fakes.checkpoints import Original, original
from vram_pilot.errors import UsageError
from vram_pilot.hosts.standalone import checkpoint
from vram_pilot.hosts.standalone.architectures import SD15, SDXL
from vram_pilot.hosts.standalone.host import StandaloneHost
from vram_pilot.hosts.standalone.layout import recognise
from vram_pilot.hosts.standalone.request import ImageRequest

pytestmark = pytest.mark.slow  # many cases, each with a model of its own

FAMILIES = ("sd1", "sd2", "sdxl")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Original, Path]:
    written = original(request.param)
    return request.param, written, written.save(tmp_path_factory.mktemp("models") / f"my-{request.param}.safetensors")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_every_part_computes_what_the_original_computes(made: tuple[str, Original, Path]) -> None:
    family, before, path = made
    model = checkpoint.load(path, torch.float32)
    context = 192 if family == "sdxl" else 64
    latents, states, time = drawn(2, 4, 8, 8), drawn(2, 77, context), torch.tensor([500.0, 20.0])
    more: dict[str, Any] = {}
    vector = None
    if family == "sdxl":
        from diffusers.models.embeddings import get_timestep_embedding

        pooled, sizes = drawn(2, 128), torch.tensor([[64.0, 64.0, 0.0, 0.0, 64.0, 64.0]] * 2)
        embedded = get_timestep_embedding(sizes.flatten(), 256, flip_sin_to_cos=True, downscale_freq_shift=0).reshape(2, -1)
        vector = torch.cat([pooled, embedded], dim=1)
        more["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": sizes}
    expected = before.unet(latents, time, [states] * 2, y=vector)  # one for each transformer block of an attention
    found = model.unet(latents, time, encoder_hidden_states=states, **more).sample
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)

    image = before.decode(drawn(1, 4, 4, 4))
    assert image.std() > 0.1
    torch.testing.assert_close(model.vae.decode(drawn(1, 4, 4, 4)).sample, image, rtol=1e-3, atol=1e-4)

    tokens = torch.tensor([[49406, 320, 2368, *[49407] * 74]])
    for ours, theirs in zip(model.text_encoders, before.texts):
        expected_states = theirs(input_ids=tokens, output_hidden_states=True)
        found_states = ours(input_ids=tokens, output_hidden_states=True)
        if family == "sd2":  # the last layer is left out, the final norm is not
            wanted = theirs.text_model.final_layer_norm(expected_states.hidden_states[-2])
            torch.testing.assert_close(found_states.last_hidden_state, wanted)
        else:
            torch.testing.assert_close(found_states.hidden_states[-2], expected_states.hidden_states[-2])
        if hasattr(expected_states, "text_embeds"):
            torch.testing.assert_close(found_states.text_embeds, expected_states.text_embeds)


def test_an_image_comes_out_with_the_file_s_name_and_hash(made: tuple[str, Original, Path]) -> None:
    family, _, path = made
    host = StandaloneHost("cpu")
    notes = host.load(str(path))
    info = host.model()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:10]
    assert info is not None and (info.family, info.name, info.digest) == (family, f"my-{family}", digest)
    result = host.generate(ImageRequest("a cat", width=64, height=64, steps=2, seed=1))
    assert result.status == "ok", result.error
    assert f"Model hash: {digest}, Model: my-{family}" in result.infotexts[0]
    assert bool(notes) == (family == "sd2"), "only SD2 leaves the prediction open"


def test_an_empty_negative_prompt_is_zeros_for_sdxl_and_a_real_one_is_not(tmp_path: Path) -> None:
    host = StandaloneHost("cpu")
    host.load(str(original("sdxl").save(tmp_path / "xl.safetensors")))
    seen: list[torch.Tensor] = []
    unet = host.components()[2].module
    unet.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["encoder_hidden_states"].clone()), with_kwargs=True
    )
    for negative in ("", "fog"):
        assert host.generate(ImageRequest("a cat", negative, 64, 64, steps=1)).status == "ok"
    assert not seen[0][0].any() and seen[1][0].any()
    tokens = [[49406, 320, 2368, 49407, *[pad] * 73] for pad in (49407, 0)]
    states = [
        part.module(input_ids=torch.tensor([row]), output_hidden_states=True).hidden_states[-2]
        for part, row in zip(host.components(), tokens)
    ]
    assert torch.equal(seen[0][1], torch.cat(states, dim=-1)[0]), "the states before each encoder's last layer, side by side"


def shapes_of(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("metadata", "key", "expected"),
    [
        ({}, None, "v_prediction"),
        ({"modelspec.prediction_type": "epsilon"}, None, "epsilon"),
        ({"modelspec.prediction_type": "v"}, None, "v_prediction"),
        ({}, "v_pred", "v_prediction"),
    ],
)
def test_the_prediction_is_read_where_it_is_stated(metadata: dict[str, str], key: str | None, expected: str) -> None:
    shapes = shapes_of(original("sd2").tensors)
    if key is not None:
        shapes[key] = (0,)
    found = recognise(shapes, metadata)
    assert found.architecture.prediction == expected
    assert bool(found.notes) == (not metadata and key is None)


@pytest.mark.parametrize(("family", "expected"), [("sd1", SD15), ("sdxl", SDXL)])
def test_the_true_shapes_are_recognised_as_the_true_architecture(family: str, expected: Any) -> None:
    """The names come from the small checkpoint, the shapes from the built-in architecture."""
    shapes = _with_true_widths(family)
    found = recognise(shapes, {}).architecture
    assert found.family == expected.family and found.prediction == "epsilon"
    unset = {"use_linear_projection": False}
    assert {**unset, **found.unet} == {**unset, **expected.unet}
    assert found.vae == expected.vae
    assert found.text_encoders == expected.text_encoders


def _with_true_widths(family: str) -> dict[str, tuple[int, ...]]:
    unet, vae, inputs = "model.diffusion_model.", "first_stage_model.", "model.diffusion_model.input_blocks."
    widths, context, linear = ((320, 640, 1280, 1280), 768, False) if family == "sd1" else ((320, 640, 1280), 2048, True)
    depths = (1, 1, 1, 0) if family == "sd1" else (0, 2, 10)
    shapes: dict[str, tuple[int, ...]] = {inputs + "0.0.weight": (320, 4, 3, 3)}
    for level, (width, depth) in enumerate(zip(widths, depths)):
        for number in (3 * level + 1, 3 * level + 2):
            shapes[f"{inputs}{number}.0.out_layers.3.weight"] = (width, width, 3, 3)
            if depth:
                shapes[f"{inputs}{number}.1.proj_in.weight"] = (width, width) if linear else (width, width, 1, 1)
            for block in range(depth):
                shapes[f"{inputs}{number}.1.transformer_blocks.{block}.attn2.to_k.weight"] = (width, context)
        if level < len(widths) - 1:
            shapes[f"{inputs}{3 * level + 3}.0.op.weight"] = (width, width, 3, 3)
    for level, width in enumerate((128, 256, 512, 512)):
        shapes[f"{vae}encoder.down.{level}.block.0.conv1.weight"] = (width, width, 3, 3)
    shapes[vae + "post_quant_conv.weight"] = (4, 4, 1, 1)
    first = "cond_stage_model.transformer." if family == "sd1" else "conditioner.embedders.0.transformer."
    shapes[first + "text_model.embeddings.token_embedding.weight"] = (49408, 768)
    for layer in range(12):
        shapes[f"{first}text_model.encoder.layers.{layer}.mlp.fc1.weight"] = (3072, 768)
    if family == "sdxl":
        second = "conditioner.embedders.1.model."
        shapes[unet + "label_emb.0.0.weight"] = (1280, 2816)
        shapes[second + "token_embedding.weight"] = (49408, 1280)
        shapes[second + "text_projection"] = (1280, 1280)
        for layer in range(32):
            shapes[f"{second}transformer.resblocks.{layer}.mlp.c_fc.weight"] = (5120, 1280)
    return shapes


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".pth", ".bin", ".CKPT"])
def test_pickles_are_refused_without_being_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"cos\nsystem\n(S'echo'\ntR.")
    with pytest.raises(UsageError, match=r"run code.*Convert it to \.safetensors"):
        checkpoint.inspect(path)


def test_other_paths_are_refused_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    for path, said in (
        (tmp_path, "folder"),
        (tmp_path / "none.safetensors", "no such model or file"),
        (tmp_path / "model.gguf", "file type"),
    ):
        with pytest.raises(UsageError, match=said):
            checkpoint.inspect(path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.safetensors"
    save_file({"a": torch.zeros(1000)}, str(path))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"no whole \.safetensors.*cut\.safetensors.*again"):
        checkpoint.inspect(path)


def test_rubbish_and_an_absurd_header_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rubbish.safetensors"
    for content in (b"<html>404</html>" * 10, struct.pack("<Q", 2**62), struct.pack("<Q", 8) + b"not json"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="no whole"):
            checkpoint.inspect(path)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"lora_unet_down.lora_up.weight": torch.zeros(1)}, "a LoRA"),
        ({"encoder.down.0.block.0.conv1.weight": torch.zeros(1)}, "a VAE"),
        ({"down_blocks.0.resnets.0.conv1.weight": torch.zeros(1)}, "diffusers layout"),
        ({"double_blocks.0.img_attn.norm.scale": torch.zeros(1)}, "1 tensors"),
        ({"model.diffusion_model.joint_blocks.0.x": torch.zeros(1)}, "not a UNet"),
        ({}, "0 tensors"),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, tensors: dict[str, torch.Tensor], said: str) -> None:
    path = tmp_path / "foreign.safetensors"
    save_file(tensors, str(path))
    with pytest.raises(UsageError, match=said):
        checkpoint.inspect(path)


def _without(tensors: dict[str, torch.Tensor], *prefixes: str) -> dict[str, tuple[int, ...]]:
    return {key: shape for key, shape in shapes_of(tensors).items() if not key.startswith(prefixes)}


def test_what_a_checkpoint_lacks_or_is_instead_is_named() -> None:
    full = original("sd1").tensors
    xl = original("sdxl").tensors
    refiner = {
        key.replace("embedders.1.", "embedders.0."): shape for key, shape in _without(xl, "conditioner.embedders.0").items()
    }
    for shapes, said in (
        (_without(full, "first_stage_model."), "no VAE"),
        (_without(full, "cond_stage_model."), "no text encoder"),
        (refiner, "refiner"),
        ({**shapes_of(full), "edm_mean": (4,)}, "Playground"),
        (shapes_of(original("sd1", channels=9).tensors), "inpainting"),
        (_without(xl, "model.diffusion_model.label_emb"), "no model.diffusion_model.label_emb"),
    ):
        with pytest.raises(UsageError, match=said):
            recognise(shapes, {})


def test_a_missing_or_misshapen_weight_is_named_and_no_model_stays_loaded(tmp_path: Path) -> None:
    tensors = dict(original("sd1").tensors)
    del tensors["model.diffusion_model.out.2.weight"]
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(tmp_path / "lacking.safetensors"))
    host = StandaloneHost("cpu")
    with pytest.raises(UsageError, match=r"conv_out\.weight"):
        host.load(str(tmp_path / "lacking.safetensors"))
    assert host.model() is None
    tensors["model.diffusion_model.out.2.weight"] = torch.zeros(4, 7, 3, 3)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, str(tmp_path / "odd.safetensors"))
    with pytest.raises(UsageError, match="does not fit"):
        host.load(str(tmp_path / "odd.safetensors"))


def test_only_the_header_is_read_to_recognise_a_file(tmp_path: Path) -> None:
    """A sparse file of 2 GiB is told by its header at once, without its content in memory."""
    size = 2**31
    header = json.dumps({"x": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    path = tmp_path / "large.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    with pytest.raises(UsageError, match="1 tensors, first x"):
        checkpoint.inspect(path)
