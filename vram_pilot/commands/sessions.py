"""`python -m vram_pilot sessions`: list, show, export, compare and delete what was recorded."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vram_pilot.errors import StoreError, UsageError
from vram_pilot.paths import default_state_dir
from vram_pilot.reports import words
from vram_pilot.reports.base import FORMATS, file_name, write_report
from vram_pilot.reports.compare import compare
from vram_pilot.reports.files import write_whole
from vram_pilot.session.store import Retention, SessionStore
from vram_pilot.settings import KEEP_SESSIONS
from vram_pilot.units import format_bytes, format_seconds

#: No count of sessions, days or MiB is higher; SQLite could not hold much higher ones.
_MOST = 10**9
_SHOWN = {"B": format_bytes, "s": format_seconds}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The words after `sessions`."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--data-dir", type=Path, metavar="DIR", help="the state folder; by default this user's own")
    shared.add_argument(
        "--json", nargs="?", const="-", metavar="F", help="JSON instead of a table, to the file F; to standard output without F"
    )
    what = parser.add_subparsers(dest="what", required=True, metavar="list|show|export|compare|prune|delete")

    listing = what.add_parser("list", parents=[shared], help="the newest sessions")
    listing.add_argument("--limit", type=_count, default=50, metavar="N", help="how many; 50 unless given")
    listing.add_argument("--offset", type=_count, default=0, metavar="N", help="skip the newest N")
    listing.set_defaults(run=_list)

    show = what.add_parser("show", parents=[shared], help="one session in words")
    show.add_argument("id")
    show.set_defaults(run=_show)

    export = what.add_parser("export", parents=[shared], help="write a report of one session")
    export.add_argument("id")
    export.add_argument("--format", default="html", metavar="F", help=f"one of {', '.join(FORMATS)}; html unless given")
    export.add_argument(
        "--out", metavar="P", help="the file to write, or a folder for it; - for standard output; by default a file here"
    )
    export.set_defaults(run=_export)

    comparing = what.add_parser("compare", parents=[shared], help="two sessions side by side")
    comparing.add_argument("a")
    comparing.add_argument("b")
    comparing.set_defaults(run=_compare)

    prune = what.add_parser("prune", parents=[shared], help="delete the oldest sessions beyond what is kept")
    prune.add_argument("--keep", type=_positive, default=KEEP_SESSIONS.default, metavar="N", help="how many stay")
    prune.add_argument("--max-age-days", type=_positive, metavar="N", help="delete what is older, too")
    prune.add_argument("--max-mib", type=_positive, metavar="N", help="delete what goes beyond this size, too")
    prune.set_defaults(run=_prune)

    delete = what.add_parser("delete", parents=[shared], help="delete one session")
    delete.add_argument("id")
    delete.set_defaults(run=_delete)


def execute(args: argparse.Namespace) -> int:
    """Does what was asked for and answers 0. Raises VramPilotError; what else is to be said goes to standard error."""
    folder = args.data_dir or default_state_dir()
    if folder.exists() and not folder.is_dir():
        raise UsageError("The data folder is a file", found=str(folder), do="Name the folder that the sessions are in.")
    store = SessionStore(folder)
    try:
        run: Callable[[SessionStore, argparse.Namespace], None] = args.run
        run(store, args)
        return 0
    finally:
        store.close()
        if store.status_note is not None and not isinstance(sys.exc_info()[1], StoreError):
            print(f"note: {store.status_note}", file=sys.stderr)


def _list(store: SessionStore, args: argparse.Namespace) -> None:
    found = store.list(args.limit, args.offset)
    if not _json(args, found):
        head = ("ID", "STARTED (UTC)", "STATUS", "MODEL", "SIZE", "MODE", "STEPS/S", "PEAK")
        print(_table(head, [_line(row) for row in found]) if found else "No session is recorded here.")


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    size = f"{row['width']}x{row['height']}" if row["width"] and row["height"] else "—"
    speed = "—" if row["steps_per_s"] is None else words.number(row["steps_per_s"])
    started = str(row["started_at"])[:19].replace("T", " ")
    peak = format_bytes(row["peak_allocated_bytes"])
    return row["id"], started, row["status"], row["model"] or "—", size, row["mode"] or "—", speed, peak


def _show(store: SessionStore, args: argparse.Namespace) -> None:
    session = store.get(args.id)
    if _json(args, session):
        return
    print(f"{words.title(session)}\n{session['id']}, {words.STATUS_WORDS.get(session['status'], session['status'])}\n")
    print("\n".join(words.sentences(session)))
    for note in session["notes"]:
        print(f"Note: {note['text']}")


def _export(store: SessionStore, args: argparse.Namespace) -> None:
    session = store.get(args.id)
    if args.out == "-":
        _export_to_standard_output(store, session, args)
        return
    path = Path(args.out or ".")
    path = path / file_name(session["id"], args.format) if path.is_dir() else path
    write_report(session, args.format, path, store.snapshots)
    if not _json(args, {"id": session["id"], "format": args.format, "out": str(path)}):
        print(f"Wrote {path}")


def _export_to_standard_output(store: SessionStore, session: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json == "-":
        raise UsageError("--out - and --json - both write to standard output", do="Leave one of them out.")
    with tempfile.TemporaryDirectory(prefix="vram-pilot-") as folder:
        path = Path(folder, "report")
        write_report(session, args.format, path, store.snapshots)
        sys.stdout.buffer.write(path.read_bytes())
        sys.stdout.flush()


def _compare(store: SessionStore, args: argparse.Namespace) -> None:
    result = compare(store.get(args.a), store.get(args.b))
    if _json(args, result):
        return
    rows = [
        (row["label"], _value(row["a"], row["unit"]), _value(row["b"], row["unit"]), _change(row["ratio"]))
        for row in result["rows"]
        if row["a"] is not None or row["b"] is not None
    ]
    print(_table(("", result["a"]["id"], result["b"]["id"], "CHANGE"), rows))


def _prune(store: SessionStore, args: argparse.Namespace) -> None:
    age_s = None if args.max_age_days is None else args.max_age_days * 86_400.0
    size_bytes = None if args.max_mib is None else args.max_mib * 2**20
    store.set_retention(Retention(args.keep, age_s, size_bytes))
    deleted = store.prune()
    if not _json(args, {"deleted": deleted}):
        print(f"Deleted {deleted} session{'' if deleted == 1 else 's'}.")


def _delete(store: SessionStore, args: argparse.Namespace) -> None:
    store.delete(args.id)
    if not _json(args, {"deleted": args.id}):
        print(f"Deleted {args.id}.")


def _json(args: argparse.Namespace, value: object) -> bool:
    """Writes `value` where --json says; False when it was not given."""
    if args.json is None:
        return False
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    else:
        write_whole(Path(args.json), text.encode())
    return True


def _value(value: object, unit: str) -> str:
    if value is None:
        return "—"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _SHOWN[unit](value) if unit in _SHOWN else words.number(value) if unit else f"{value:g}"
    return str(value)


def _change(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio - 1:+.1%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in (head, *rows))


def _count(text: str) -> int:
    return _whole(text, 0)


def _positive(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, low: int) -> int:
    try:
        number = int(text[:40])
    except ValueError:
        number = low - 1
    if not low <= number <= _MOST:
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}; use a whole number from {low} to {_MOST}")
    return number
