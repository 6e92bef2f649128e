"""A driver's library for tests: cards with what they say, and what goes wrong, by scenario."""

from tests.fakes.nvml.module import FakeCard, FakeNvml, FakeSlice, NVMLError, Process

__all__ = ["FakeCard", "FakeNvml", "FakeSlice", "NVMLError", "Process"]
