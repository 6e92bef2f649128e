"""AUTOMATIC1111's WebUI (1.10): its callbacks, its model, its own medvram and lowvram."""
