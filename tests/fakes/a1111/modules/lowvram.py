from modules import devices

cpu = "cpu"
module_in_gpu = None


def send_everything_to_cpu():
    global module_in_gpu
    module_in_gpu = None


def setup_for_low_vram(sd_model, use_medvram):
    """Hooks without handles, and methods replaced on the VAE itself."""
    sd_model.lowvram = True

    def send_me_to_gpu(module, _):
        global module_in_gpu
        module_in_gpu = module
        module.to(devices.device)

    vae = sd_model.first_stage_model
    plain_encode, plain_decode = vae.encode, vae.decode

    def first_stage_model_encode_wrap(x):
        send_me_to_gpu(vae, None)
        return plain_encode(x)

    def first_stage_model_decode_wrap(z):
        send_me_to_gpu(vae, None)
        return plain_decode(z)

    sd_model.cond_stage_model.register_forward_pre_hook(send_me_to_gpu)
    vae.register_forward_pre_hook(send_me_to_gpu)
    vae.encode, vae.decode = first_stage_model_encode_wrap, first_stage_model_decode_wrap
    denoiser = sd_model.model if use_medvram else sd_model.model.diffusion_model
    for module in [denoiser] if use_medvram else list(denoiser.children()):
        module.register_forward_pre_hook(send_me_to_gpu)
