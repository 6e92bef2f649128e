"""VRAM Pilot's modes on a diffusers pipeline of your own (SD1, SD2, SDXL; txt2img, img2img, inpainting):

    from vram_pilot.hosts.diffusers import attach

    with attach(pipe, mode="lowvram", budget_mib=512) as pilot:
        image = pipe("a red house").images[0]
        pilot.request("medvram")
        image = pipe("a blue house").images[0]

Afterwards the pipeline is as it was: classes, hooks, attributes, devices and dtypes.

Limits. While attached, the pipeline, its models and its scheduler have classes of their own, derived from theirs and of the
same name: `isinstance` holds, `type(x) is …` does not, and they cannot be pickled (`save_pretrained` works). Moving the
pipeline (`to`, `enable_model_cpu_offload` and the like) is refused. Compiled models, accelerate's and diffusers' own
offloading, and `device_map` are refused by name.
"""

from __future__ import annotations

from vram_pilot.hosts.diffusers.attachment import Attachment, attach

__all__ = ["Attachment", "attach"]
