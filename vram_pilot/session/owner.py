"""Whether the process that records a session still lives. Standard library only.

A process id alone does not tell: ids are used again, and a restart of the machine begins anew. So its start time and the
machine's boot go with it, and the machine itself, since a folder may be shared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """machine: a digest that tells machines and containers apart; boot, started: opaque, None where the system has no such
    thing to tell."""

    machine: str
    boot: str | None
    pid: int
    started: str | None


class Processes:
    """The processes of this machine. `proc`: where Linux shows them."""

    def __init__(self, proc: Path = Path("/proc"), platform: str = sys.platform) -> None:
        self._proc = proc
        self._platform = platform
        self._this: Owner | None = None

    def this(self) -> Owner:
        """The process that asks."""
        if self._this is None or self._this.pid != os.getpid():
            pid = os.getpid()
            self._this = Owner(self._machine(), self._boot(), pid, self._started(pid))
        return self._this

    def is_dead(self, owner: Owner) -> bool | None:
        """True or False when it can be told, None for a process of another machine."""
        this = self.this()
        if owner.machine != this.machine:
            return None
        if owner.boot != this.boot:
            return True
        started = self._started(owner.pid)
        return started is None if owner.started is None else started != owner.started

    def _machine(self) -> str:
        """Containers of one machine share its boot but not its process ids."""
        namespace = ""
        with contextlib.suppress(OSError):
            namespace = os.readlink(self._proc / "self" / "ns" / "pid")
        return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:16]

    def _boot(self) -> str | None:
        with contextlib.suppress(OSError):
            return (self._proc / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
        return None  # a process's absolute start time tells boots apart on the other systems

    def _started(self, pid: int) -> str | None:
        """When the process began, None when there is none."""
        if self._platform == "win32":
            return _started_windows(pid)
        if self._platform.startswith("linux"):
            return self._started_linux(pid)
        return _started_ps(pid)

    def _started_linux(self, pid: int) -> str | None:
        """Field 22 of stat, in ticks since the boot. The command's name before it may hold anything, brackets too."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if len(fields) < 20 or fields[0] in "ZX" else fields[19]


def _started_ps(pid: int) -> str | None:
    """macOS and the BSDs: the start as ps prints it."""
    try:
        command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=5, env={**os.environ, "LC_ALL": "C"}).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    state, _, started = shown.strip().partition(" ")
    return started.strip() or None if not state.startswith("Z") else None


def _started_windows(pid: int) -> str | None:
    """The creation time in 100 ns since 1601. A process that has ended but is still referred to has an exit time."""
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(0x1000, False, pid)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return None
    times = [ctypes.c_ulonglong() for _ in range(4)]
    ok = kernel.GetProcessTimes(ctypes.c_void_p(handle), *(ctypes.byref(time) for time in times))
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(ctypes.c_void_p(handle), ctypes.byref(code))
    kernel.CloseHandle(ctypes.c_void_p(handle))
    return str(times[0].value) if ok and code.value == 259 else None  # STILL_ACTIVE
