class SdUnetOption:
    label = None


options = {}
current_unet = None
current_unet_option = None


def get_unet_option(option=None):
    return options.get(option)


def apply_unet(option=None):
    global current_unet, current_unet_option
    current_unet_option = get_unet_option(option)
    current_unet = None if current_unet_option is None else object()
