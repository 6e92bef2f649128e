"""What may run inside a captured forward.

A graph repeats kernels, not Python. So a forward is captured only when every function and hook below the denoiser's root is
known to do the same at each call with equal inputs and equal state, where the state that it reads is part of the graph's key.
Anything else, such as another extension's wrapper, runs eagerly, and the reason names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

#: Packages whose own module classes are plain functions of inputs and weights.
PACKAGES = ("torch.nn.modules.", "ldm.modules.", "sgm.modules.", "diffusers.models.", "vram_pilot.")

#: (module, start of the qualified name) of functions that hosts put in place of a forward. Next to each: the state it reads.
FUNCTIONS = (
    ("modules.sd_hijack_optimizations", ""),  # attention: the function itself is part of the key
    ("modules.sd_hijack_checkpoint", ""),  # no state
    ("modules.sd_hijack_unet", ""),  # precision flags, in the key as autocast and dtypes
    ("modules.sd_hijack_utils", "CondFunc"),  # the same
    ("modules.sd_unet", "create_unet_forward"),  # another SD Unet: an obstacle to every mode of ours
    ("networks", "network_"),  # the loaded networks and their weights, in the key by the host's state
    ("modules.sd_models", ""),
)

#: Modules that draw random numbers or keep running figures while in training.
_TRAINED = (nn.Dropout, nn.Dropout2d, nn.BatchNorm2d)


def is_known(function: Any) -> bool:
    """Whether a forward or a hook is on the list."""
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    if any(module.startswith(package) or module + "." == package for package in PACKAGES):
        return True
    return any(module == known and name.startswith(start) for known, start in FUNCTIONS)


def name_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _forward(cls: type) -> Any:
    return getattr(cls, "forward", None)


class Structure:
    """The denoiser's modules as they were when last looked at. `stranger` looks again only when something may have changed."""

    def __init__(self, root: nn.Module) -> None:
        self.root = root
        self._modules: list[nn.Module] = []
        self._forwards: dict[type, Any] = {}
        self._identity: tuple[tuple[type, int], ...] = ()
        self._handle_id = -1
        self._stranger: str | None = None

    def stranger(self) -> str | None:
        """What is not on the list, None when all is. Costs about 0.1 ms for a UNet when nothing has changed."""
        if self._changed():
            self._look()
        return self._stranger

    def patched(self) -> tuple[tuple[type, int], ...]:
        """The classes and the identities of their forwards as last looked at: another attention function is another graph."""
        return self._identity

    def _changed(self) -> bool:
        if torch.utils.hooks.RemovableHandle.next_id != self._handle_id:  # counts every hook that is set on any module
            return True
        if any(_forward(cls) is not forward for cls, forward in self._forwards.items()):
            return True
        return any("forward" in vars(module) for module in self._modules)

    def _look(self) -> None:
        self._modules = [module for module in self.root.modules() if module is not self.root]
        self._forwards = {type(module): _forward(type(module)) for module in self._modules}
        self._identity = tuple((cls, id(forward)) for cls, forward in self._forwards.items())
        self._handle_id = torch.utils.hooks.RemovableHandle.next_id
        self._stranger = next(self._strangers(), None)

    def _strangers(self) -> Iterator[str]:
        for forward in self._forwards.values():
            if not is_known(forward):
                yield f"{name_of(forward)} is not known to be repeatable"
        for module in self._modules:
            if "forward" in vars(module):
                yield f"the forward of a {type(module).__name__} has been replaced by {name_of(vars(module)['forward'])}"
            for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
                if not is_known(hook):
                    yield f"the hook {name_of(hook)} is not known to be repeatable"
            processor = getattr(module, "processor", None)
            if processor is not None and not is_known(type(processor).__call__):
                yield f"the attention processor {type(processor).__name__} is not known to be repeatable"
            if module.training and isinstance(module, _TRAINED):
                yield "the denoiser is in training mode"
        for hooks in (nn.modules.module._global_forward_pre_hooks, nn.modules.module._global_forward_hooks):
            for hook in hooks.values():
                yield f"the global hook {name_of(hook)} is not known to be repeatable"
