"""The WebUI's way in. It runs this file again at every Reload UI; the package stays loaded."""

from vram_pilot.hosts import detect

if detect.detect() in detect.SUPPORTED:
    from vram_pilot.hosts.a1111 import entry
    from vram_pilot.hosts.a1111.script import VramPilotScript  # noqa: F401  every Script class in sight is registered

    entry.load()
else:
    print(f"VRAM Pilot: this version has no adapter for this host ({detect.detect()}), so it does nothing here.")
