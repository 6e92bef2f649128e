"""Torch's segments and blocks as one column of a picture, row by row. Pure.

The picture is the allocator's address space: its segments laid end to end, lowest address first. A segment keeps its place for
as long as it lives, so that what stays where it is on the card is a straight band. A new one takes the first gap that is wide
enough.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Segment = Mapping[str, Any]

#: Rows of a picture, and the bytes that one stands for at least.
ROWS = 512
SMALLEST_ROW_BYTES = 2**20
#: Gaps that a new segment is tried in. There are hardly ever more, and each try takes time.
_MOST_GAPS = 64
#: Everything is laid out anew when the picture would be this many times as high as what is held.
_MOST_HOLLOW = 2
_ALWAYS_ALLOWED_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Layout:
    """places: (offset, size) in bytes by a segment's address; row_bytes: what one row stands for, a power of two; number:
    another one when everything was laid out anew."""

    places: Mapping[int, tuple[int, int]]
    extent_bytes: int
    row_bytes: int
    number: int = 0


@dataclass(frozen=True)
class Column:
    """Bytes in each row, lowest first, as far as there are any: held by torch, and of these in use."""

    held: list[int]
    active: list[int]


def lay_out(segments: Sequence[Segment], before: Layout | None = None, rows: int = ROWS) -> Layout:
    """Where each of `segments` lies. before: the layout that this one follows."""
    wanted = {int(segment["address"]): int(segment["total_size"]) for segment in segments}
    if before is not None:
        if len(wanted) == len(before.places) and all(before.places.get(at, _NOWHERE)[1] == size for at, size in wanted.items()):
            return before
        places = _keep(wanted, before.places)
        extent = _extent(places)
        if extent <= _MOST_HOLLOW * sum(wanted.values()) + _ALWAYS_ALLOWED_BYTES:
            return Layout(places, extent, max(before.row_bytes, _row_bytes(extent, rows)), before.number)
    places = _end_to_end(wanted)
    extent = _extent(places)
    return Layout(places, extent, _row_bytes(extent, rows), 0 if before is None else before.number + 1)


def column(segments: Iterable[Segment], layout: Layout) -> Column:
    """What lies in each row. A block in use is one that is given out, or freed and still in use by a stream."""
    rows, row_bytes = -(-layout.extent_bytes // layout.row_bytes), layout.row_bytes
    held, active = [0] * rows, [0] * rows
    for segment in segments:
        offset, size = layout.places[segment["address"]]
        row, last = offset // row_bytes, (offset + size - 1) // row_bytes
        if row == last:
            held[row] += size
            active[row] += _in_use(segment)
        else:
            _spread(held, row_bytes, offset, offset + size)
            _add_blocks(active, row_bytes, offset, segment["blocks"])
    return Column(held, active)


def encode(bytes_in_rows: Iterable[int], row_bytes: int) -> str:
    """One byte a row in base64: 0 for nothing, 255 for a full row, 1 to 254 for anything between."""
    scale = 255 / row_bytes
    shares = (0 if not held else 255 if held >= row_bytes else min(max(round(held * scale), 1), 254) for held in bytes_in_rows)
    return b64encode(bytes(shares)).decode("ascii")


# ------------------------------------------------------------------------------------------------------------ the layout

_NOWHERE = (-1, -1)
_ENDLESS = 2**63


def _end_to_end(wanted: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    places, offset = {}, 0
    for address, size in sorted(wanted.items()):
        places[address] = (offset, size)
        offset += size
    return places


def _keep(wanted: Mapping[int, int], before: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
    """Every segment that was there keeps its place, as one that has grown does where there is room behind it."""
    places = {at: (before[at][0], size) for at, size in wanted.items() if before.get(at, _NOWHERE)[1] == size}
    gaps = _gaps(places)
    for address, size in sorted(wanted.items()):
        if address not in places:
            places[address] = (_take(gaps, size, before.get(address, _NOWHERE)[0]), size)
    return places


def _gaps(places: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """[start, end] of each stretch that nobody lies in, the endless one behind all others last."""
    gaps, at = [], 0
    for offset, size in sorted(places.values()):
        if offset > at:
            gaps.append([at, offset])
        at = offset + size
    return [*gaps, [at, _ENDLESS]]


def _take(gaps: list[list[int]], size: int, home: int) -> int:
    """Takes `size` bytes out of a gap: from `home` on where that is free, else the first that is wide enough."""
    for index, (start, end) in enumerate(gaps):
        if start <= home and home + size <= end:
            gaps[index : index + 1] = [gap for gap in ([start, home], [home + size, end]) if gap[0] < gap[1]]
            return home
        if start > home:
            break
    gap = next((gap for gap in gaps[:_MOST_GAPS] if gap[1] - gap[0] >= size), gaps[-1])
    start, gap[0] = gap[0], gap[0] + size
    return start


def _extent(places: Mapping[int, tuple[int, int]]) -> int:
    return max((offset + size for offset, size in places.values()), default=0)


def _row_bytes(extent: int, rows: int) -> int:
    needed = max(-(-extent // rows), SMALLEST_ROW_BYTES)
    return 1 << (needed - 1).bit_length()


# -------------------------------------------------------------------------------------------------------------- the rows


def _in_use(segment: Segment) -> int:
    """Bytes of the segment's blocks in use, by torch's own sum where it gives one."""
    if "active_size" in segment:
        return int(segment["active_size"])
    return sum([block["size"] for block in segment["blocks"] if block["state"] != "inactive"])


def _spread(rows: list[int], row_bytes: int, start: int, end: int) -> None:
    """Adds the bytes from `start` to `end` to the rows that they lie in."""
    first, last = start // row_bytes, (end - 1) // row_bytes
    if first == last:
        rows[first] += end - start
        return
    rows[first] += (first + 1) * row_bytes - start
    rows[last] += end - last * row_bytes
    for row in range(first + 1, last):
        rows[row] += row_bytes


def _add_blocks(rows: list[int], row_bytes: int, offset: int, blocks: Iterable[Mapping[str, Any]]) -> None:
    """The blocks of a segment follow each other without a gap. There may be 20,000: this is the loop that costs."""
    at, row = offset, offset // row_bytes
    edge = (row + 1) * row_bytes
    for block in blocks:
        end = at + block["size"]
        if block["state"] != "inactive":
            if end <= edge:
                rows[row] += end - at
            else:
                _spread(rows, row_bytes, at, end)
        if end >= edge:
            row = end // row_bytes
            edge = (row + 1) * row_bytes
        at = end
