from dataclasses import dataclass

unspecified = object()
loaded_vae_file = None


@dataclass
class VaeResolution:
    vae: str = None


def resolve_vae(checkpoint_file):
    return VaeResolution(None)


def reload_vae_weights(sd_model=None, vae_file=unspecified):
    global loaded_vae_file
    loaded_vae_file = resolve_vae("").vae if vae_file is unspecified else vae_file
