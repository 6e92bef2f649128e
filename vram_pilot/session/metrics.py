"""Every figure that a session holds: its unit, meaning and source. Feeds the exports and docs/metrics.md. Pure."""

from __future__ import annotations

from dataclasses import dataclass

#: Ending of a name to the unit that it stands for. The longest that fits wins.
UNITS = {
    "_gib_per_s": "GiB/s",
    "_bytes_per_s": "B/s",
    "_per_s": "1/s",
    "_bytes": "B",
    "_ratio": "1",
    "_s": "s",
    "_w": "W",
    "_j": "J",
    "_c": "°C",
    "_hz": "Hz",
    "_count": "1",
    "joules_per_image": "J",
    "step_p50_s": "s",
    "step_p95_s": "s",
}


@dataclass(frozen=True)
class Metric:
    """label: for people; better: "high", "low" or None when neither; source: where the figure comes from."""

    name: str
    label: str
    better: str | None
    source: str

    @property
    def unit(self) -> str:
        return unit_of(self.name)


def unit_of(name: str) -> str:
    """The unit that a metric's name ends in, '' when it ends in none."""
    return next((UNITS[end] for end in sorted(UNITS, key=len, reverse=True) if name.endswith(end)), "")


STEP_METRICS = (
    Metric("duration_s", "Duration of a step", "low", "device clock (CUDA events); the host's clock without CUDA"),
    Metric("allocated_bytes", "Allocated at the step's end", "low", "torch's allocator"),
    Metric("reserved_bytes", "Reserved at the step's end", "low", "torch's allocator"),
    Metric("streamed_bytes", "Weights copied to the device in the step", None, "the mode in force"),
)
SUMMARY_METRICS = (
    Metric("duration_s", "Duration of the job", "low", "from the job's start to its end, same clock as the steps"),
    Metric("step_count", "Steps", None, "step boundaries that the host reported"),
    Metric("image_count", "Images", None, "batch size × batch count, for a job that ended well"),
    Metric("steps_per_s", "Steps a second", "high", "measured steps ÷ the sum of their durations"),
    Metric("images_per_s", "Images a second", "high", "images ÷ the job's duration"),
    Metric("step_p50_s", "Median step", "low", "median of the step durations"),
    Metric("step_p95_s", "95th percentile step", "low", "of the step durations, interpolated"),
    Metric("peak_allocated_bytes", "Peak allocated", "low", "torch's allocator, its own peak counter"),
    Metric("peak_reserved_bytes", "Peak reserved", "low", "torch's allocator, its own peak counter"),
    Metric("peak_device_bytes", "Peak in use on the card", "low", "the driver, all processes together"),
    Metric("streamed_bytes", "Weights copied to the device", "low", "the mode in force, over all steps"),
    Metric("energy_j", "Energy", "low", "the driver's counter"),
    Metric("joules_per_image", "Energy an image", "low", "energy ÷ images"),
    Metric("copy_gib_per_s", "Copy rate", "high", "streamed bytes ÷ time of the copies"),
    Metric("overlap_ratio", "Copies hidden behind work", "high", "share of the copy time in which the denoiser ran too"),
    Metric("resident_ratio", "Denoiser kept on the card", None, "resident denoiser weights ÷ all of them"),
)
