"""`python -m vram_pilot …`"""

from __future__ import annotations

import sys

from vram_pilot.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
