"""The one schema of everything a user can set. It feeds the UI, the API, the infotext, the docs and their tests. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vram_pilot.errors import RefusedError, UsageError

#: Every mode there is or will be, in the order of falling memory.
MODES = ("as-launched", "full", "medvram", "lowvram", "tensorrt", "auto")
#: The modes that this version carries out. Nothing else is offered anywhere.
BUILT_MODES = ("as-launched", "full", "medvram", "lowvram")
ACCELERATES = ("off", "graph", "compile")
BUILT_ACCELERATES = ("off", "graph")
#: Modes whose way to execute the denoiser is not ours to choose.
NOT_ACCELERATED = ("as-launched", "tensorrt")
SCOPES = ("job", "standing")
#: The largest budget that is taken for a number of MiB rather than for a slip (1 TiB).
MAX_BUDGET_MIB = 2**20


@dataclass(frozen=True)
class ModeRequest:
    """What a user asks for. budget_mib: denoiser weights that may stay resident in lowvram; 0 = all streamed, None = the
    program's choice."""

    mode: str = "as-launched"
    budget_mib: int | None = None
    accelerate: str = "off"

    def to_json(self) -> dict[str, object]:
        return {"mode": self.mode, "budget_mib": self.budget_mib, "accelerate": self.accelerate}

    def infotext(self) -> str:
        """As written into an image: "lowvram" or "lowvram, budget 512 MiB"."""
        text = self.mode if self.budget_mib is None or self.mode != "lowvram" else f"{self.mode}, budget {self.budget_mib} MiB"
        return text if self.accelerate == "off" else f"{text}, {self.accelerate}"


@dataclass(frozen=True)
class Setting:
    """One thing that can be set. kind: "choice", "int", "float" or "bool"; nullable: None is allowed."""

    key: str
    label: str
    help: str
    kind: str
    default: Any
    choices: tuple[str, ...] = ()
    built: tuple[str, ...] = ()  # those of the choices that this version carries out; () means all
    minimum: float | None = None
    maximum: float | None = None
    nullable: bool = False
    infotext: str | None = None

    def parse(self, raw: object) -> Any:
        """`raw` as this setting's type.

        Raises UsageError that names the setting, what was found and what is allowed.
        """
        if raw is None or (self.nullable and isinstance(raw, str) and raw.strip().lower() in ("", "auto", "none")):
            if self.nullable:
                return None
            raise UsageError(f"{self.key} needs a value", found=raw, do=self._allowed())
        if self.kind == "choice":
            if isinstance(raw, str) and raw.strip().lower() in self.choices:
                return raw.strip().lower()
        elif self.kind == "bool":
            if isinstance(raw, bool):
                return raw
            if isinstance(raw, str) and raw.strip().lower() in ("true", "false"):
                return raw.strip().lower() == "true"
        else:
            number = _number(raw, whole=self.kind == "int")
            if (
                number is not None
                and (self.minimum is None or number >= self.minimum)
                and (self.maximum is None or number <= self.maximum)
            ):
                return number
        raise UsageError(f"{self.key} has a value that is not allowed", found=raw, do=self._allowed())

    def _allowed(self) -> str:
        if self.kind == "choice":
            text = "Use one of: " + ", ".join(self.built or self.choices)
        elif self.kind == "bool":
            text = "Use true or false"
        else:
            what = "a whole number" if self.kind == "int" else "a number"
            low = "" if self.minimum is None else f" from {self.minimum}"
            high = "" if self.maximum is None else f" to {self.maximum}"
            text = f"Use {what}{low}{high}"
        return text + (", or leave it empty for the program's choice." if self.nullable else ".")


MODE = Setting(
    "mode",
    "Mode",
    "Where the weights live while an image is made. as-launched touches nothing.",
    "choice",
    "as-launched",
    choices=MODES,
    built=BUILT_MODES,
    infotext="VRAM mode",
)
BUDGET = Setting(
    "budget_mib",
    "Budget (MiB)",
    "lowvram only: how much of the denoiser may stay on the card. 0 streams all of it; empty lets the program choose.",
    "int",
    None,
    minimum=0,
    maximum=MAX_BUDGET_MIB,
    nullable=True,
)
ACCELERATE = Setting(
    "accelerate",
    "Accelerate",
    "How the denoiser is executed, beside the mode. graph launches a whole step at once (CUDA only): the same image, sooner.",
    "choice",
    "off",
    choices=ACCELERATES,
    built=BUILT_ACCELERATES,
)
LARGE_MODE = Setting(
    "large_model_mode",
    "Mode for SDXL and SD3",
    "The standing mode for these larger models, where it is to be another one than for the rest: full for SD1.5 and lowvram "
    "for SDXL, say. What a job asks for itself goes first.",
    "choice",
    "same",
    choices=("same", *BUILT_MODES),
)
PINNED_SHARE = Setting(
    "pinned_share",
    "Share of RAM for pinned weights",
    "Pinned host memory copies several times faster, but the system cannot swap it out. Above this share of the RAM, "
    "ordinary memory is used instead, and the panel says so.",
    "float",
    0.5,
    minimum=0.0,
    maximum=0.9,
)
RECORD = Setting(
    "record_sessions",
    "Record sessions",
    "Keep a record of every generation: steps, phases, memory and modes. Never the prompt or the image.",
    "bool",
    True,
)
KEEP_SESSIONS = Setting(
    "keep_sessions",
    "Sessions to keep",
    "The oldest sessions beyond this number are deleted.",
    "int",
    500,
    minimum=1,
    maximum=1_000_000,
)
KEEP_DAYS = Setting(
    "keep_days",
    "Days to keep sessions",
    "Sessions older than this are deleted; 0 keeps them whatever their age.",
    "int",
    0,
    minimum=0,
    maximum=36_500,
)
KEEP_MIB = Setting(
    "keep_mib",
    "Room for sessions (MiB)",
    "The oldest sessions beyond this size together are deleted; 0 is no limit.",
    "int",
    1024,
    minimum=0,
    maximum=10_000_000,
)
KEEP_SNAPSHOTS = Setting(
    "keep_snapshots",
    "Keep allocator snapshots",
    "For finding out what fills the card (CUDA only): what torch's allocator did in a job is recorded and kept with its "
    "session, for PyTorch's memory_viz. Costs some microseconds an allocation and up to a second after each job; the newest "
    "five are kept.",
    "bool",
    False,
)
READINGS_MS = Setting(
    "readings_ms",
    "Readings every (ms)",
    "How often the card's instruments are read while a job runs or somebody watches.",
    "int",
    250,
    minimum=100,
    maximum=250,
)
WRITE_INFOTEXT = Setting(
    "write_infotext",
    "Write the mode into the image's parameters",
    "Adds the field 'VRAM mode' to the generation parameters when a mode other than as-launched was in force.",
    "bool",
    True,
)

#: Families of models that LARGE_MODE is for.
LARGE_FAMILIES = ("sdxl", "ssd", "sd3")
#: What a job, a request or the accordion may carry.
REQUEST_SETTINGS = (MODE, BUDGET, ACCELERATE)
#: What the settings page shows besides.
MACHINE_SETTINGS = (
    LARGE_MODE,
    PINNED_SHARE,
    RECORD,
    KEEP_SESSIONS,
    KEEP_DAYS,
    KEEP_MIB,
    KEEP_SNAPSHOTS,
    READINGS_MS,
    WRITE_INFOTEXT,
)


def parse_mode_request(raw: object, base: ModeRequest | None = None) -> ModeRequest:
    """A request from a mapping {"mode", "budget_mib", "accelerate"}; what is left out is taken from `base`.

    Raises UsageError for anything malformed, RefusedError for a mode or way that this version does not have yet.
    """
    if not isinstance(raw, Mapping):
        raise UsageError("A mode request must be an object", found=raw, do='Send for example {"mode": "lowvram"}.')
    known = {setting.key for setting in REQUEST_SETTINGS}
    unknown = sorted(str(key) for key in raw if key not in known)
    if unknown:
        raise UsageError(
            "A mode request has an unknown field", found=unknown[0], do="Use only: " + ", ".join(sorted(known)) + "."
        )
    values = {setting.key: setting.parse(raw[setting.key]) for setting in REQUEST_SETTINGS if setting.key in raw}
    start = base or ModeRequest()
    if "mode" in values and "budget_mib" not in values and values["mode"] != start.mode:
        values["budget_mib"] = None
    if ACCELERATE.key not in values and values.get("mode") in NOT_ACCELERATED:
        values[ACCELERATE.key] = "off"
    request = replace(start, **values)
    check_built(request)
    return request


def modes_by_family(large_mode: str) -> dict[str, ModeRequest]:
    """Standing modes of families that have one of their own. large_mode: LARGE_MODE's value."""
    return {} if large_mode == LARGE_MODE.default else dict.fromkeys(LARGE_FAMILIES, ModeRequest(large_mode))


def parse_infotext(text: str) -> ModeRequest:
    """What `ModeRequest.infotext` wrote; of several modes in one job ("full > lowvram") the last.

    Raises UsageError or RefusedError, so that a pasted parameter can never bring a value that could not be typed.
    """
    last = text.rsplit(">", 1)[-1].strip()
    mode, _, rest = last.partition(",")
    asked: dict[str, object] = {MODE.key: mode}
    for part in (part.strip() for part in rest.split(",") if part.strip()):
        if part in ACCELERATES:
            asked[ACCELERATE.key] = part
        elif part.startswith("budget "):
            asked[BUDGET.key] = part.removeprefix("budget ").removesuffix("MiB").strip()
        else:
            raise UsageError("The field 'VRAM mode' cannot be read", found=text)
    return parse_mode_request(asked)


def check_built(request: ModeRequest) -> None:
    """Raises RefusedError when the request names what this version cannot carry out."""
    if request.mode not in BUILT_MODES:
        raise RefusedError(
            "This mode is not in this version yet", found=request.mode, do="Use one of: " + ", ".join(BUILT_MODES) + "."
        )
    if request.accelerate not in BUILT_ACCELERATES:
        raise RefusedError(
            "This way to accelerate is not in this version yet",
            found=request.accelerate,
            do="Use one of: " + ", ".join(BUILT_ACCELERATES) + ".",
        )
    if request.accelerate != "off" and request.mode in NOT_ACCELERATED:
        raise UsageError(
            "To accelerate goes with full, medvram and lowvram only",
            found=f"mode {request.mode}, accelerate {request.accelerate}",
            do="Choose one of these modes, or accelerate off.",
        )
    if request.budget_mib is not None and request.mode != "lowvram":
        raise UsageError(
            "A budget goes with lowvram only",
            found=f"mode {request.mode}, budget {request.budget_mib} MiB",
            do="Leave budget_mib out, or ask for lowvram.",
        )


def _number(raw: object, *, whole: bool) -> int | float | None:
    """`raw` as a finite number, None when it is not one. True and False are no numbers here."""
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    if number != number or number in (float("inf"), float("-inf")):
        return None
    if not whole:
        return number
    return int(number) if number == int(number) else None
