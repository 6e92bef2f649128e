class CFGDenoiserParams:
    def __init__(self, x, image_cond, sigma, sampling_step, total_sampling_steps, text_cond, text_uncond, denoiser=None):
        self.denoiser = denoiser


registered = {}


def _adder(event):
    def on(callback, *, name=None):
        registered.setdefault(event, []).append(callback)

    return on


on_app_started = _adder("app_started")
on_before_ui = _adder("before_ui")
on_cfg_denoiser = _adder("cfg_denoiser")
on_model_loaded = _adder("model_loaded")
on_script_unloaded = _adder("script_unloaded")
on_ui_settings = _adder("ui_settings")
on_ui_tabs = _adder("ui_tabs")


def remove_callbacks_for_function(callback_func):
    for callbacks in registered.values():
        callbacks[:] = [callback for callback in callbacks if callback != callback_func]


def clear_callbacks():
    registered.clear()


def cfg_denoiser_callback(params):
    for callback in registered.get("cfg_denoiser", []):
        callback(params)


def model_loaded_callback(sd_model):
    for callback in registered.get("model_loaded", []):
        callback(sd_model)
