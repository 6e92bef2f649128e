"""Adapters: one file for each program that generates. Only these files know a host's own modules."""
