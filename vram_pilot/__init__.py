"""VRAM Pilot: the fastest memory mode that fits, chosen at run time, and the proof on the screen.

Importing this package starts nothing: no thread, no CUDA context, no NVML, no hook, no output.
"""

__version__ = "0.1.0"
