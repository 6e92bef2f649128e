"""Tests inside a real WebUI. `environment.py` says what must be there; `python3 tasks.py test-host` runs them."""
