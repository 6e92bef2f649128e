"""Runs the denoiser as a captured CUDA graph: the same kernels, launched all at once."""
