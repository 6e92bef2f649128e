"""The standalone host: generates on plain `diffusers`, with random or real weights, and never asks a network for anything."""
