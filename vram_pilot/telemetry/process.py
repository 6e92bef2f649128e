"""This process and its machine: CPU, RAM, swap, disk. Through psutil, which is loaded at the first need."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from vram_pilot.telemetry.backoff import Backoff

_Values = dict[str, float | None]


def _load() -> Any:
    return importlib.import_module("psutil")


class ProcessSampler:
    """Each reading fails alone. load: gives psutil; faults: (those that read from a disk, all) page faults so far."""

    name = "process"

    def __init__(
        self,
        period_s: float,
        *,
        load: Callable[[], Any] = _load,
        faults: Callable[[Any], tuple[int | None, int | None]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.period_s = period_s
        self.note: str | None = None
        self._load, self._faults, self._monotonic = load, faults or page_faults, monotonic
        self._loading = Backoff()
        self._psutil: Any = None
        self._process: Any = None
        self._own: tuple[float, float] | None = None  # (monotonic, CPU seconds of this process) at the reading before
        self._all: tuple[float, float] | None = None  # (all, idle) CPU seconds of the machine at the reading before

    def sample(self) -> _Values:
        values: _Values = dict.fromkeys(NAMES)
        if self._open():
            for read in (self._cpu, self._memory, self._host_cpu, self._host_memory, self._swap, self._page_faults, self._disk):
                try:
                    values.update(read())
                except Exception:  # psutil's own errors and what platforms lack: this reading only
                    continue
        values["host_load"] = _load_average()
        return values

    def close(self) -> None:
        self._process = self._own = self._all = None

    def _open(self) -> bool:
        if self._process is not None:
            return True
        if not self._loading.ready(self._monotonic()):
            return False
        try:
            self._psutil = self._load()
            self._process = self._psutil.Process()
        except Exception as error:  # absent or broken
            found = "is not installed" if isinstance(error, ImportError) else f"does not work ({type(error).__name__})"
            self.note = f"The package psutil {found}, so CPU, RAM and disk stay empty."
            self._loading.failed(self._monotonic(), unsupported=True)
            return False
        self.note = None
        self._loading.worked()
        return True

    def _cpu(self) -> _Values:
        """1 is one core. The first reading has nothing to be compared with."""
        times = self._process.cpu_times()
        before, self._own = self._own, (self._monotonic(), times.user + times.system)
        if before is None or self._own[0] <= before[0]:
            return {}
        return {"process_cpu_ratio": max(self._own[1] - before[1], 0.0) / (self._own[0] - before[0])}

    def _host_cpu(self) -> _Values:
        """1 is all cores together."""
        times = self._psutil.cpu_times()
        total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)  # counted in user and nice
        before, self._all = self._all, (total, times.idle + getattr(times, "iowait", 0.0))
        if before is None or total <= before[0]:
            return {}
        idle = (self._all[1] - before[1]) / (total - before[0])
        return {"host_cpu_ratio": min(max(1 - idle, 0.0), 1.0)}

    def _memory(self) -> _Values:
        return {"process_rss_bytes": self._process.memory_info().rss}

    def _host_memory(self) -> _Values:
        memory = self._psutil.virtual_memory()
        return {"host_ram_total_bytes": memory.total, "host_ram_available_bytes": memory.available}

    def _swap(self) -> _Values:
        swap = self._psutil.swap_memory()
        return {"host_swap_total_bytes": swap.total, "host_swap_used_bytes": swap.used}

    def _page_faults(self) -> _Values:
        major, every = self._faults(self._process)
        return {"process_major_fault_count": major, "process_page_fault_count": every}

    def _disk(self) -> _Values:
        return {"process_disk_read_bytes": self._process.io_counters().read_bytes}


#: Every metric of ProcessSampler.
NAMES = (
    "process_cpu_ratio",
    "process_rss_bytes",
    "process_major_fault_count",
    "process_page_fault_count",
    "process_disk_read_bytes",
    "host_cpu_ratio",
    "host_load",
    "host_ram_total_bytes",
    "host_ram_available_bytes",
    "host_swap_total_bytes",
    "host_swap_used_bytes",
)


def page_faults(process: Any) -> tuple[int | None, int | None]:
    """(those that read from a disk, all) of this process so far. Windows counts them together."""
    if sys.platform == "win32":
        return None, int(process.memory_info().num_page_faults)
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_majflt, usage.ru_majflt + usage.ru_minflt


def _load_average() -> float | None:
    """Work that waits for a core, averaged over a minute. Windows keeps none."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None
