"""The modes. `registry.MODES` lists them; each is entered and left as one unit."""
