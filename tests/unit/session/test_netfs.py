"""Network file systems, from recorded mount tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from vram_pilot.session.netfs import file_system, is_network_folder, parse_mount, parse_mountinfo

LINUX = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw,nosuid shared:3 - proc proc rw
60 22 0:45 / /mnt/nas rw,relatime shared:30 - nfs4 nas:/export rw,vers=4.2
61 22 0:46 / /mnt/with\\040space rw - cifs //nas/share rw
62 60 254:1 / /mnt/nas/local rw - xfs /dev/vdb rw
63 22 0:47 / /mnt/remote rw - fuse.sshfs u@h:/ rw
64 22 0:48 / /mnt/c rw - 9p drvfs rw
65 22 0:49 / /mnt/usb rw - fuseblk /dev/sdb1 rw
"""
MACOS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled)
//bob@nas._smb._tcp.local/media on /Volumes/media (smbfs, nodev, nosuid, mounted by bob)
nas:/export on /Volumes/ex port (nfs)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/x", "ext4"),
        ("/mnt/nas/vram-pilot", "nfs4"),
        ("/mnt/nasty", "ext4"),
        ("/mnt/nas/local/x", "xfs"),
        ("/mnt/with space/x", "cifs"),
        ("/mnt/remote", "fuse.sshfs"),
        ("/mnt/c/Users", "9p"),
        ("/mnt/usb", "fuseblk"),
    ],
)
def test_linux(path: str, kind: str) -> None:
    assert file_system(Path(path), parse_mountinfo(LINUX)) == kind


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/Users/bob", "apfs"), ("/Volumes/media/x", "smbfs"), ("/Volumes/ex port/x", "nfs"), ("/System/Volumes/Data/x", "apfs")],
)
def test_macos(path: str, kind: str) -> None:
    assert file_system(Path(path), parse_mount(MACOS)) == kind


@pytest.mark.parametrize(
    ("kind", "network"),
    [("nfs", True), ("nfs4", True), ("cifs", True), ("smbfs", True), ("9p", True), ("fuse.sshfs", True), ("ceph", True)]
    + [(kind, False) for kind in ("ext4", "xfs", "btrfs", "apfs", "tmpfs", "overlay", "fuseblk", "zfs")],
)
def test_kinds(kind: str, network: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vram_pilot.session.netfs._linux_mounts", lambda: [("/", kind)])
    assert is_network_folder(tmp_path, "linux") is network


def test_nothing_known_is_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("vram_pilot.session.netfs._linux_mounts", list)
    assert is_network_folder(tmp_path, "linux") is False
    assert parse_mountinfo("rubbish\n\n - \n") == []


def test_this_disk_is_local(tmp_path: Path) -> None:
    assert is_network_folder(tmp_path) is False
