"""The module pynvml as a fake. It holds names and codes of NVML; what they give comes from FakeCard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, DRIVER_NOT_LOADED, TIMEOUT = 3, 4, 6, 9, 10
LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 12, 13, 15, 999
UNINITIALIZED = 1
U32, U64, I64 = 1, 3, 4  # NVML's value types


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"NVML error {self.value}"


@dataclass
class Process:
    pid: int
    usedGpuMemory: int | None


@dataclass
class FakeSlice:
    uuid: str
    gpu_instance: int = 1
    compute_instance: int = 0
    total: int = 10 * 2**30
    used: int = 2**30


@dataclass
class FakeCard:
    """A card of 24 GiB under load. values: answers by function, of other cards; fields: value and type by number."""

    uuid: str | bytes = "GPU-11111111-2222-3333-4444-555555555555"
    bus: str | bytes = "00000000:01:00.0"
    name: str | bytes = "Fake 4090"
    total: int = 24 * 2**30
    used: int = 6 * 2**30
    reserved: int = 2**29
    lost: bool = False
    slices: list[FakeSlice | None] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    drawing: list[Process] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    sample_times_us: list[int] = field(default_factory=lambda: [1_000_000])
    values: dict[str, Any] = field(default_factory=dict)
    fields: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {
            82: (84, U32),
            186: (301_500, U32),
            74: (2_000_000_000, U64),
            76: (0, U64),
            269: (500_000_000, U64),
            270: (0, U64),
            271: (0, U64),
            197: (1_000, U64),
            198: (2_000, U64),
            138: (10, U64),
            139: (20, U64),
        }
    )


@dataclass(frozen=True)
class _Handle:
    card: FakeCard
    slice: FakeSlice | None = None

    def __hash__(self) -> int:
        return id(self.card)


class FakeNvml:
    """missing: functions that this binding lacks; absent: those that it has and the driver lacks; failing: code by function;
    failing_fields: code by number. calls: how often each function was called."""

    nvmlMemory_v2 = 0x02000028
    NVMLError = NVMLError

    def __init__(self, *cards: FakeCard, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.cards = list(cards)
        self.missing: set[str] = set()
        self.absent: set[str] = set()
        self.failing: dict[str, int] = {}
        self.failing_fields: dict[int, int] = {}
        self.second_memory = True
        self.calls: Counter[str] = Counter()
        self.users = 0
        self.event_sets = 0
        self.clock = clock

    @property
    def total_calls(self) -> int:
        return sum(self.calls.values())

    def load(self) -> Any:
        """What `import pynvml` gives."""
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _FUNCTIONS.get(name)
        if function is None or name in self.missing:
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls[name] += 1
            if name in self.failing:
                raise NVMLError(self.failing[name])
            if name in self.absent:
                raise NVMLError(FUNCTION_NOT_FOUND)
            if self.users == 0 and name != "nvmlInit":
                raise NVMLError(UNINITIALIZED)
            handle = args[0] if args and isinstance(args[0], _Handle) else None
            if handle is not None and handle.card.lost:
                raise NVMLError(GPU_IS_LOST)
            if handle is not None and name in handle.card.values:
                return handle.card.values[name]
            return function(self, *args, **kwargs)

        return call


def _init(nvml: FakeNvml) -> None:
    nvml.users += 1


def _shutdown(nvml: FakeNvml) -> None:
    nvml.users -= 1


def _by_index(nvml: FakeNvml, index: int) -> _Handle:
    card = nvml.cards[index]
    if card.lost:
        raise NVMLError(GPU_IS_LOST)
    return _Handle(card)


def _slice(nvml: FakeNvml, handle: _Handle, place: int) -> _Handle:
    found = handle.card.slices[place]
    if found is None:
        raise NVMLError(NOT_FOUND)
    return _Handle(handle.card, found)


def _whole_only(value: Callable[[FakeCard], Any]) -> Callable[..., Any]:
    """Slices do not answer this."""

    def read(nvml: FakeNvml, handle: _Handle, *args: Any) -> Any:
        if handle.slice is not None:
            raise NVMLError(NOT_SUPPORTED)
        return value(handle.card)

    return read


def _not_in_mig(value: Any) -> Callable[..., Any]:
    def read(nvml: FakeNvml, handle: _Handle, *args: Any) -> Any:
        if handle.slice is not None or handle.card.slices:
            raise NVMLError(NOT_SUPPORTED)
        return value

    return read


def _memory(nvml: FakeNvml, handle: _Handle, version: int | None = None) -> Any:
    if version and not nvml.second_memory:
        raise NVMLError(FUNCTION_NOT_FOUND)
    card, part = handle.card, handle.slice
    total, used, reserved = (card.total, card.used, card.reserved) if part is None else (part.total, part.used, 0)
    free = total - used - reserved
    if version:
        return SimpleNamespace(total=total, free=free, used=used, reserved=reserved)
    return SimpleNamespace(total=total, free=free, used=used + reserved)


def _uuid(nvml: FakeNvml, handle: _Handle) -> str | bytes:
    return handle.card.uuid if handle.slice is None else handle.slice.uuid


def _field_values(nvml: FakeNvml, handle: _Handle, ids: list[Any]) -> list[Any]:
    return [_field(nvml, handle.card, one[0] if isinstance(one, tuple) else one) for one in ids]


def _field(nvml: FakeNvml, card: FakeCard, number: int) -> Any:
    code = nvml.failing_fields.get(number, 0 if number in card.fields else NOT_SUPPORTED)
    value, kind = card.fields.get(number, (0, U64))
    answer = SimpleNamespace(uiVal=value, ullVal=value, sllVal=value, dVal=float(value), siVal=value, ulVal=value, usVal=value)
    return SimpleNamespace(fieldId=number, nvmlReturn=code, valueType=kind, timestamp=int(nvml.clock() * 1e6), value=answer)


def _samples(nvml: FakeNvml, handle: _Handle, kind: int, after: int) -> Any:
    newer = [time for time in handle.card.sample_times_us if time > after]
    if handle.card.slices:
        raise NVMLError(NOT_SUPPORTED)
    if not newer:
        raise NVMLError(NOT_FOUND)
    return 1, [SimpleNamespace(timeStamp=time) for time in newer]


def _event_set(nvml: FakeNvml) -> Any:
    nvml.event_sets += 1
    return SimpleNamespace(card=None)


def _register(nvml: FakeNvml, handle: _Handle, kinds: int, events: Any) -> None:
    events.card = handle.card


def _wait(nvml: FakeNvml, events: Any, timeout_ms: int) -> Any:
    assert timeout_ms == 0, "the poller must not wait in the driver"
    if not events.card.xids:
        raise NVMLError(TIMEOUT)
    return SimpleNamespace(eventType=8, eventData=events.card.xids.pop(0))


def _free_events(nvml: FakeNvml, events: Any) -> None:
    nvml.event_sets -= 1


_CLOCKS = {0: 2520, 1: 2505, 2: 10501, 3: 1965}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "nvmlInit": _init,
    "nvmlShutdown": _shutdown,
    "nvmlSystemGetDriverVersion": lambda nvml: "550.90.07",
    "nvmlSystemGetCudaDriverVersion_v2": lambda nvml: 12040,
    "nvmlDeviceGetCount": lambda nvml: len(nvml.cards),
    "nvmlDeviceGetHandleByIndex": _by_index,
    "nvmlDeviceGetIndex": lambda nvml, handle: nvml.cards.index(handle.card),
    "nvmlDeviceGetName": _whole_only(lambda card: card.name),
    "nvmlDeviceGetUUID": _uuid,
    "nvmlDeviceGetPciInfo": _whole_only(lambda card: SimpleNamespace(busId=card.bus)),
    "nvmlDeviceGetVbiosVersion": _whole_only(lambda card: "95.02.18.80.01"),
    "nvmlDeviceGetInforomImageVersion": _whole_only(lambda card: "G002.0000.00.03"),
    "nvmlDeviceGetCudaComputeCapability": _whole_only(lambda card: (8, 9)),
    "nvmlDeviceGetMigMode": _whole_only(lambda card: [1 if card.slices else 0, 0]),
    "nvmlDeviceGetMaxMigDeviceCount": _whole_only(lambda card: len(card.slices)),
    "nvmlDeviceGetMigDeviceHandleByIndex": _slice,
    "nvmlDeviceGetGpuInstanceId": lambda nvml, handle: handle.slice.gpu_instance,
    "nvmlDeviceGetComputeInstanceId": lambda nvml, handle: handle.slice.compute_instance,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetUtilizationRates": _not_in_mig(SimpleNamespace(gpu=97, memory=41)),
    "nvmlDeviceGetPowerUsage": _whole_only(lambda card: 288_250),
    "nvmlDeviceGetTemperature": _whole_only(lambda card: 66),
    "nvmlDeviceGetTemperatureV": _whole_only(lambda card: 66),
    "nvmlDeviceGetClockInfo": lambda nvml, handle, kind: _CLOCKS[kind],
    "nvmlDeviceGetMaxClockInfo": lambda nvml, handle, kind: _CLOCKS[kind] + 500,
    "nvmlDeviceGetApplicationsClock": lambda nvml, handle, kind: _CLOCKS[kind] - 100,
    "nvmlDeviceGetClock": lambda nvml, handle, kind, clock_id: _CLOCKS[kind] - 100,
    "nvmlDeviceGetCurrentClocksEventReasons": _whole_only(lambda card: 0x24),
    "nvmlDeviceGetCurrentClocksThrottleReasons": _whole_only(lambda card: 0x24),
    "nvmlDeviceGetSamples": _samples,
    "nvmlDeviceGetComputeRunningProcesses_v3": lambda nvml, handle: list(handle.card.processes),
    "nvmlDeviceGetComputeRunningProcesses_v2": lambda nvml, handle: list(handle.card.processes),
    "nvmlDeviceGetComputeRunningProcesses": lambda nvml, handle: list(handle.card.processes),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": lambda nvml, handle: list(handle.card.drawing),
    "nvmlDeviceGetGraphicsRunningProcesses_v2": lambda nvml, handle: list(handle.card.drawing),
    "nvmlDeviceGetGraphicsRunningProcesses": lambda nvml, handle: list(handle.card.drawing),
    "nvmlDeviceGetFieldValues": _field_values,
    "nvmlEventSetCreate": _event_set,
    "nvmlDeviceRegisterEvents": _register,
    "nvmlEventSetWait_v2": _wait,
    "nvmlEventSetWait": _wait,
    "nvmlEventSetFree": _free_events,
    "nvmlDeviceGetEnforcedPowerLimit": _whole_only(lambda card: 450_000),
    "nvmlDeviceGetTotalEnergyConsumption": _whole_only(lambda card: 123_456_789),
    "nvmlDeviceGetPerformanceState": _whole_only(lambda card: 2),
    "nvmlDeviceGetPowerState": _whole_only(lambda card: 2),
    "nvmlDeviceGetMarginTemperature": _whole_only(lambda card: 17),
    "nvmlDeviceGetFanSpeed": _whole_only(lambda card: 45),
    "nvmlDeviceGetEncoderUtilization": _not_in_mig([3, 167_000]),
    "nvmlDeviceGetDecoderUtilization": _not_in_mig([7, 167_000]),
    "nvmlDeviceGetCurrPcieLinkGeneration": _whole_only(lambda card: 4),
    "nvmlDeviceGetCurrPcieLinkWidth": _whole_only(lambda card: 16),
    "nvmlDeviceGetMaxPcieLinkGeneration": _whole_only(lambda card: 4),
    "nvmlDeviceGetMaxPcieLinkWidth": _whole_only(lambda card: 16),
    "nvmlDeviceGetPcieReplayCounter": _whole_only(lambda card: 5),
    "nvmlDeviceGetTotalEccErrors": lambda nvml, handle, kind, counter: (11, 1)[kind],
    "nvmlDeviceGetBAR1MemoryInfo": _whole_only(lambda card: SimpleNamespace(bar1Total=2**35, bar1Used=2**25)),
    "nvmlDeviceGetComputeMode": _whole_only(lambda card: 3),
    "nvmlDeviceGetPersistenceMode": _whole_only(lambda card: 1),
    "nvmlDeviceGetEccMode": _whole_only(lambda card: [1, 1]),
    "nvmlDeviceGetDriverModel": _whole_only(lambda card: [0, 0]),
    "nvmlDeviceGetDriverModel_v2": _whole_only(lambda card: [0, 0]),
    "nvmlDeviceGetPowerManagementLimit": _whole_only(lambda card: 460_000),
    "nvmlDeviceGetPowerManagementDefaultLimit": _whole_only(lambda card: 450_000),
    "nvmlDeviceGetPowerManagementLimitConstraints": _whole_only(lambda card: [150_000, 600_000]),
    "nvmlDeviceGetTemperatureThreshold": lambda nvml, handle, kind: (92, 90, 105, 83)[kind],
}
