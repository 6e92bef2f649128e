"""What may run inside a captured forward.

A graph repeats kernels, not Python. So a call is captured only when every Python function that it runs is known to do the same
at each call with equal inputs and equal state, where the state that it reads is part of the graph's key or watched. Anything
else, such as another extension's wrapper, runs eagerly, and the reason names it.
"""

from __future__ import annotations

#: Packages whose functions are plain functions of inputs, weights, module attributes and torch's switches.
PACKAGES = (
    *("torch", "einops", "ldm.modules", "ldm.util", "sgm.modules", "sgm.util", "xformers"),
    *("diffusers.models", "diffusers.utils", "diffusers.configuration_utils", "modules.models.sd3"),
    *("vram_pilot.graphs", "vram_pilot.streaming"),
    *("abc", "collections", "contextlib", "copy", "dataclasses", "enum", "functools", "importlib", "inspect", "operator"),
    *("packaging", "re", "types", "typing", "warnings", "weakref", "_weakrefset"),
)
#: Parts of them that draw random numbers, compile, or compute weights anew from others.
EXCEPT = (
    *("torch._dynamo", "torch._inductor", "torch.cuda.random", "torch.distributions", "torch.fx", "torch.jit"),
    *("torch.nn.utils", "torch.profiler", "torch.random", "torch.utils.checkpoint"),
)
#: Module -> the names of functions that a WebUI runs there, () for all. Next to each: the state that they read.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "_collections_abc": ("get", "__contains__"),  # of os.environ, which torch asks how to look for cards
    "os": ("getenv", "__getitem__", "encode", "decode", "check_str"),  # the same
    "modules.devices": ("without_autocast", "cond_cast_unet", "cond_cast_float"),  # precision, in the host's state
    "modules.hypernetworks.hypernetwork": ("apply_hypernetworks", "attention_CrossAttention_forward"),  # with none loaded
    "modules.options": ("__getattr__",),  # options, in the host's state
    "modules.sd_hijack_optimizations": (),  # options and free memory: what the capture chose is right for every replay
    "modules.sd_hijack_unet": (),  # precision
    "modules.sd_hijack_utils": ("__call__",),  # what they wrap is seen by itself
    "modules.sd_unet": ("UNetModel_forward",),  # another SD Unet, in the host's state
    "modules.sub_quadratic_attention": (),  # options and free memory
    "networks": (  # loaded networks, in the host's state; on each layer the name of what lies in its weights, which is watched
        *("network_Linear_forward", "network_Conv2d_forward", "network_GroupNorm_forward", "network_LayerNorm_forward"),
        *("network_MultiheadAttention_forward", "network_apply_weights"),
    ),
}


def is_known(module: str, name: str) -> bool:
    """Whether a function is on the list. module: its `__name__`; name: of its code, so "<lambda>" for one of those."""
    if module in FUNCTIONS:
        names = FUNCTIONS[module]
        return not names or name in names or name.startswith("<")
    return _is_in(module, PACKAGES) and not _is_in(module, EXCEPT)


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)
