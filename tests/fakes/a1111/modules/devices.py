import torch

device = torch.device("cpu")
dtype = dtype_unet = dtype_inference = torch.float32
unet_needs_upcast = force_fp16 = fp8 = False


def torch_gc():
    pass
