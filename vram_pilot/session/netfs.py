"""Whether a folder lies on a network file system, where SQLite's write-ahead log must not be used. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_NETWORK_TYPES = re.compile(
    r"nfs\d*|cifs|smb\w*|9p|afs|afpfs|webdav|davfs\d*|drvfs|ncpfs|ceph|glusterfs|lustre|gpfs|beegfs|virtiofs|vboxsf|prl_fs"
    r"|fuse\.(sshfs|rclone|s3fs|glusterfs|ceph|vmhgfs-fuse|cifs|davfs\w*|juicefs|gcsfuse|grpcfuse)"
)


def is_network_folder(folder: Path, platform: str = sys.platform) -> bool:
    """False where it cannot be told: local disks are the rule."""
    path = Path(os.path.realpath(folder))
    if platform == "win32":
        return _is_network_windows(path)
    mounts = _linux_mounts() if platform.startswith("linux") else _bsd_mounts()
    return bool(_NETWORK_TYPES.fullmatch(file_system(path, mounts) or ""))


def file_system(path: Path, mounts: list[tuple[str, str]]) -> str | None:
    """The type of the file system that `path` lies on. mounts: (folder, type), later ones lie over earlier ones."""
    found: tuple[int, str] | None = None
    for folder, kind in mounts:
        inside = path == Path(folder) or Path(folder) in path.parents
        if inside and (found is None or len(Path(folder).parts) >= found[0]):
            found = (len(Path(folder).parts), kind)
    return None if found is None else found[1]


def parse_mountinfo(text: str) -> list[tuple[str, str]]:
    """Linux's /proc/self/mountinfo: field 5 is the folder, with octal escapes; the type follows the lone dash."""
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) >= 5 and kind:
            mounts.append((re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]), kind[0]))
    return mounts


def parse_mount(text: str) -> list[tuple[str, str]]:
    """What macOS's and the BSDs' `mount` prints: "what on /folder (type, flags)"."""
    return [(found[1], found[2]) for found in re.finditer(r"^.+? on (/.*) \((\w+)", text, re.MULTILINE)]


def _linux_mounts() -> list[tuple[str, str]]:
    try:
        return parse_mountinfo(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []


def _bsd_mounts() -> list[tuple[str, str]]:
    try:
        return parse_mount(subprocess.run(["mount"], capture_output=True, text=True, timeout=5).stdout)
    except (OSError, subprocess.SubprocessError):
        return []


def _is_network_windows(path: Path) -> bool:
    if path.drive.startswith("\\\\"):
        return True
    import ctypes

    kind = ctypes.windll.kernel32.GetDriveTypeW(path.drive + "\\")  # type: ignore[attr-defined,unused-ignore]
    return bool(kind == 4)  # DRIVE_REMOTE
