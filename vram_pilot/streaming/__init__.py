"""Moves weights between host memory and the device: whole components, or a denoiser's units while it runs."""
