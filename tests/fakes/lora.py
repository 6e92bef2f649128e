"""A LoRA in the manner of the WebUI: written into the weights in place, lazily, inside the patched forward of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

Write = Callable[[nn.Module, torch.Tensor], None]


def copy_in_place(module: nn.Module, value: torch.Tensor) -> None:
    with torch.no_grad():
        module.weight.copy_(value)


def add_in_place(module: nn.Module, value: torch.Tensor) -> None:
    with torch.no_grad():
        module.weight.zero_()
        module.weight += value


def set_data(module: nn.Module, value: torch.Tensor) -> None:
    module.weight.data = value.clone()


def replace(module: nn.Module, value: torch.Tensor) -> None:
    module.weight = nn.Parameter(value.clone(), requires_grad=module.weight.requires_grad)


WAYS: dict[str, Write] = {"copy_": copy_in_place, "+=": add_in_place, ".data =": set_data, "a new Parameter": replace}


class Lora:
    """wanted: the networks that the next forward must find in the weights. Backups lie on the CPU, as attributes."""

    def __init__(self, layers: Iterable[nn.Module], write: Write = copy_in_place) -> None:
        self.wanted: tuple[str, ...] = ()
        self._layers = [layer for layer in layers if type(layer) in (nn.Linear, nn.Conv2d)]
        self._write = write
        self._original = {id(layer): layer.weight for layer in self._layers}
        for number, layer in enumerate(self._layers):
            layer.network_layer_name = number

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> Lora:
        for kind in (nn.Linear, nn.Conv2d):
            monkeypatch.setattr(kind, "forward", self._patched(kind.forward))
        return self

    def _patched(self, forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def with_networks(layer: nn.Module, *args: Any) -> torch.Tensor:
            if hasattr(layer, "network_layer_name"):
                self.apply(layer)
            return forward(layer, *args)

        return with_networks

    def apply(self, layer: nn.Module) -> None:
        if getattr(layer, "network_current_names", ()) == self.wanted:
            return
        if not hasattr(layer, "network_weights_backup"):
            layer.network_weights_backup = layer.weight.detach().to("cpu", copy=True)
        self._write(layer, layer.network_weights_backup.to(layer.weight.device))
        for name in self.wanted:
            self._write(layer, layer.weight.detach() + _change(name, layer))
        layer.network_current_names = self.wanted

    def remove(self) -> None:
        """Restores every layer and forgets that there were networks."""
        self.wanted = ()
        for layer in self._layers:
            self.apply(layer)
            if layer.weight is not self._original[id(layer)]:
                layer.weight = self._original[id(layer)]
            for name in ("network_layer_name", "network_current_names", "network_weights_backup"):
                vars(layer).pop(name, None)


def _change(name: str, layer: nn.Module) -> torch.Tensor:
    seed = sum(map(ord, name)) * 1000 + layer.network_layer_name
    random = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
    return (random * 0.02).to(layer.weight)
