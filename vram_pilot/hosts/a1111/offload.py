"""The WebUI's own medvram and lowvram, disarmed and armed again.

`modules.lowvram` drops the handles of the hooks it sets and has no way back, so the hooks are found by their qualified name,
kept with their places, and put back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn

_NATIVE = "setup_for_low_vram."


def _is_native(function: Any) -> bool:
    return getattr(function, "__module__", None) == "modules.lowvram" and getattr(function, "__qualname__", "").startswith(
        _NATIVE
    )


@dataclass
class _Taken:
    """What was found at one model. hooks: each module's pre-hooks, native and others, in their order."""

    model: Any
    hooks: list[tuple[nn.Module, list[tuple[int, Any]]]] = field(default_factory=list)
    methods: dict[str, Any] = field(default_factory=dict)
    lowvram: bool = False
    parallel: bool = True


class NativeOffload:
    """One WebUI's offload. lowvram, shared: its modules of these names. On the sampling thread or under the queue."""

    def __init__(self, lowvram: Any, shared: Any) -> None:
        self._lowvram = lowvram
        self._shared = shared
        self._taken: _Taken | None = None

    def is_taken(self) -> bool:
        """Whether a mode of ours has disarmed the WebUI's offload, or would have if there were one. Any thread."""
        return self._taken is not None

    @staticmethod
    def obstacle(model: Any) -> str | None:
        """Why the WebUI's own offload cannot be disarmed, None when it can or when there is none."""
        if not getattr(model, "lowvram", False) or not any(True for _ in _native_hooks(model)):
            return None
        vae = model.first_stage_model
        covered = [name for name in ("encode", "decode") if name in vars(vae) and not _is_native(vars(vae)[name])]
        if covered:
            return f"another extension has wrapped the VAE's {covered[0]} over the WebUI's own medvram or lowvram"
        return None

    def take_over(self, model: Any, serial_previews: bool) -> None:
        """Takes the native hooks away from `model` and tells the WebUI whether components move. Idempotent."""
        if self._taken is not None and self._taken.model is not model:
            self.give_back()
        if self._taken is None:
            self._lowvram.send_everything_to_cpu()
            taken = _Taken(
                model, lowvram=bool(getattr(model, "lowvram", False)), parallel=self._shared.parallel_processing_allowed
            )
            for module in _native_hooks(model):
                hooks = module._forward_pre_hooks
                taken.hooks.append((module, list(hooks.items())))
                for key in [key for key, hook in hooks.items() if _is_native(hook)]:
                    del hooks[key]
            methods = vars(model.first_stage_model)
            for name in [name for name in ("encode", "decode") if _is_native(methods.get(name))]:
                taken.methods[name] = methods.pop(name)
            self._taken = taken
        # The WebUI asks `lowvram` before it moves a whole model by itself, and decodes previews in another thread unless
        # parallel processing is forbidden.
        model.lowvram = serial_previews
        self._shared.parallel_processing_allowed = not serial_previews

    def give_back(self) -> None:
        """Everything as it was found: hooks in their places, methods, flags."""
        taken, self._taken = self._taken, None
        if taken is None:
            return
        for module, before in taken.hooks:
            hooks = module._forward_pre_hooks
            present = dict(hooks.items())
            native = {key for key, hook in before if _is_native(hook)}
            merged = [(key, hook) for key, hook in before if key in native or key in present]
            known = {key for key, _ in merged}
            merged += [(key, hook) for key, hook in present.items() if key not in known]
            hooks.clear()  # the same dictionary: handles of other hooks refer to it
            hooks.update(merged)
        for name, method in taken.methods.items():
            setattr(taken.model.first_stage_model, name, method)
        taken.model.lowvram = taken.lowvram
        self._shared.parallel_processing_allowed = taken.parallel


def _native_hooks(model: Any) -> Iterator[nn.Module]:
    """The modules that carry a native hook."""
    for module in model.modules():
        if any(_is_native(hook) for hook in module._forward_pre_hooks.values()):
            yield module
