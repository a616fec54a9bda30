"""Odd answers: a simulated driver that answers, now and then, what cannot be."""

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pynvml

from agent.hardware.buffers import SAMPLE
from agent.simulator import SimulatedSystem
from agent.simulator.driver import HANDLES as FIRST_HANDLE
from agent.simulator.driver import address_of

ONES, LONG_ONES = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
KINDS: dict[str, tuple[Any, ...]] = {
    "ones": (ONES, LONG_ONES),
    "huge": (644_245_923, 82_505, 1 << 62),
    "negative": (-1, -128_000),
    "nan": (math.nan, math.inf),
    "word": ("[N/A]", None),
    "text": (b"\xff\xfe\x80",),
}
"""Answers of the fault `implausible-KIND`; 82505 % and 644245923 degrees were seen (L40S)."""

EVERYTHING = "everything"
KINDS[EVERYTHING] = tuple(value for values in KINDS.values() for value in values)
HANDLES = frozenset({"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMigDeviceHandleByIndex"})
IDENTITY = frozenset({"nvmlDeviceGetUUID"})
"""Calls that identify a GPU: an odd answer to one of these alone may make a GPU unknown."""

DOUBLE, TYPES = 0, 8


@dataclass(slots=True)
class OddAnswers:
    """Odd answers: which values, of which GPU, and how often, as a share of a function's seconds.
    The next answer after an odd one is right: what stays is no mistake that anybody could see."""

    values: tuple[Any, ...]
    gpu: int = 0
    share: float = 0.15
    _odd: dict[str, int] = field(default_factory=dict)  # when each question was last answered so

    def value(self, function: str, given: Sequence[Any], second: int) -> Any | None:
        """Return the odd answer of the function in this second; KeyError if it answers as usual."""
        place = crc32(f"{function}@{second}".encode())
        plain = [one for one in given if isinstance(one, int | str | list | tuple)]
        question = f"{function}{plain}"
        if self._odd.get(question, second) != second:  # the answer before was one
            del self._odd[question]
            raise KeyError(function)
        if function in HANDLES | IDENTITY or place % 1000 >= 1000 * self.share:
            raise KeyError(function)
        self._odd[question] = second
        return self.values[place // 1000 % len(self.values)]


def spoilt(answer: Any, odd: Any, arguments: Sequence[Any] = ()) -> Any:
    """The answer with this value in place of each number or text in it."""
    targets = [getattr(argument, "_obj", argument) for argument in arguments]
    filled = [target for target in targets if isinstance(target, ctypes.Structure)]
    for target in filled:  # the driver wrote into these, and answers a code
        _fill(target, odd)
    if filled or isinstance(answer, bool | None):
        return answer
    if isinstance(answer, list | tuple):
        return type(answer)(spoilt(part, odd) for part in answer)
    if isinstance(answer, str):
        return odd.decode() if isinstance(odd, bytes) else answer
    if isinstance(answer, int | float):
        return 0 if isinstance(odd, bytes) else odd
    for entry in answer if isinstance(answer, ctypes.Array) else (answer,):
        _fill(entry, odd)
    return answer


def _fill(target: Any, odd: Any) -> None:
    if isinstance(target, pynvml.c_nvmlGpmMetricsGet_t):
        for slot in target.metrics[: target.numMetrics]:
            slot.value = float(odd) if isinstance(odd, int | float) else slot.value
    elif isinstance(target, pynvml.c_nvmlFieldValue_t):
        _fill_field(target, odd)
    elif isinstance(target, pynvml.c_nvmlSample_t):
        at, value = SAMPLE.unpack(target)
        SAMPLE.pack_into(target, 0, at, odd & ONES if isinstance(odd, int) else value)
    elif isinstance(target, ctypes.Structure):
        for name, of, *_ in target._fields_:
            number = name != "version" and isinstance(odd, int) and of in _WHOLE
            if number or (name == "busId" and isinstance(odd, bytes)):
                setattr(target, name, odd)
    elif hasattr(target, "pid"):
        target.usedGpuMemory = odd if isinstance(odd, int | None) else target.usedGpuMemory
        target.pid = ONES if odd == ONES else target.pid


def _fill_field(entry: Any, odd: Any) -> None:
    if entry.nvmlReturn:
        return
    if isinstance(odd, int):
        entry.value.ullVal = odd & LONG_ONES
    elif isinstance(odd, float):
        entry.valueType, entry.value.dVal = DOUBLE, odd
    else:
        entry.valueType = TYPES


_WHOLE: tuple[Callable[..., Any], ...] = (
    *(ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong, ctypes.c_longlong, ctypes.c_ulong),
)


def strike(machine: SimulatedSystem, odd: OddAnswers | None) -> None:
    """Let the library of a machine answer so from now on; None ends it."""
    library = machine.nvml
    vars(library).pop("_ask", None)
    right_answer = library._ask

    def ask(name: str, *args: Any) -> Any:
        right = right_answer(name, *args)
        place, rest = divmod(address_of(args[0]) - FIRST_HANDLE if args else 1, 16)
        of_gpu = not rest and 0 <= place < len(machine.gpus)
        if name == "nvmlGpmMetricsGet":
            sample = library.samples[address_of(args[0].sample1)]
            of_gpu, place = True, sample.of[0] if sample else -1
        if odd is None or (place != odd.gpu if of_gpu else not isinstance(right, int | str)):
            return right
        given = args[1:] if of_gpu else ()
        try:
            value = odd.value(name, given, int(machine.now))
        except KeyError:
            return right
        return spoilt(right, value, given)

    if odd is not None:
        vars(library)["_ask"] = ask
