"""One module a command of `python -m vram_pilot`; it is imported only when it runs."""
