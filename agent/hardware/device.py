"""A GPU: the NVML calls that read its values, and its identity."""

import ctypes
import re
from collections.abc import Callable, Sequence
from typing import Any

from agent.hardware.nvml import MISSHAPEN, REASON_OF_CODE, Nvml, misshapen, number, unless_final
from agent.model import FINAL, PERMANENT, Absent, GpuIdentity, Reason, checked
from agent.ranges import FLAG, Range

ALL_LINKS = 0xFFFFFFFF  # Scope for the sum of an NVLink field over all links of a GPU
Scope = tuple[int, int]
"""An NVML field ID and its scope: a link, ALL_LINKS, or 0 for the whole GPU. The code uses numbers
instead of nvidia-ml-py's names, because its releases assigned the names of IDs 251-273 to other
numbers twice. README.md in this folder explains which IDs are not read."""

SINCE = {
    field: since
    for first, last, since in (
        (161, 163, (520,)),  # NVLink errors
        (197, 198, (555,)),  # PCIe bytes
        (202, 221, (560,)),  # NVLink 5
        (230, 230, (570,)),  # GPU recovery action
        (269, 271, (580, 82)),  # had other meanings in older drivers
    )
    for field in range(first, last + 1)
}
"""The first driver version that supports each field ID. All other IDs are supported since R450."""

VALUE_TYPES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Names of the members of the `nvmlValue_t` union, indexed by `nvmlValueType_t`."""

DOUBLE, UNSIGNED_LONG_LONG = 0, 3
_NAMES = "kepler maxwell pascal volta turing ampere ada hopper blackwell"
ARCHITECTURES = dict(enumerate(_NAMES.split(), 2))  # `nvmlDeviceGetArchitecture`

BY_INDEX, MIG_MODE = "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMigMode"
UUID = re.compile(r"(?!None$)[\w.:/-]{1,95}", re.ASCII)

LINK_STATES, MOST_LINKS = Range(0, 3), 36
"""LINK_STATES: valid link states. MOST_LINKS: upper bound for the number of links of a GPU."""


def text_of(structure: Any, name: str) -> str:
    """Return a string member of an NVML structure. Older versions of pynvml return bytes."""
    try:
        raw = getattr(structure, name)
    except UnicodeDecodeError as error:
        raw = error.object
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else str(raw)


class NvmlDevice:
    """A GPU in an initialized NVML library. Methods raise Absent if an NVML call fails."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.nvml = nvml
        self.handle = nvml.call(BY_INDEX, index)
        self.mig = False
        self.mig = self._mig_mode()
        self.identity = self._identity(index)
        self.labels = (str(index), self.identity.uuid)
        self.releases: set[Callable[[], None]] = set()
        """Functions to call when the device is closed."""
        self._links: tuple[int, ...] | None = None

    def get(self, call: str, *args: Any, **options: Any) -> Any:
        return self.ask(f"nvmlDeviceGet{call}", *args, **options)

    def number(self, call: str, *args: Any, part: str = "") -> float:
        """Return the value of an NVML getter. `part` selects a part of this value: an index, the
        name of a member, or `len` for the length of a list."""
        answer = self.get(call, *args)
        if part == "len":
            answer = len(answer)
        elif part:
            answer = answer[int(part)] if part.isdecimal() else getattr(answer, part)
        return number(answer, f"nvmlDeviceGet{call}")

    def ask(self, function: str, *args: Any, **options: Any) -> Any:
        try:
            return self.nvml.call(function, self.handle, *args, **options)
        except Absent as absent:
            raise self._in_mig(absent) from absent.__cause__  # an exception is not its own cause

    def memory(self, handle: Any) -> Any:
        """Return the memory info (bytes) of the handle, which belongs to this GPU or one of its MIG
        devices. Raise Absent if the call fails or the values are impossible."""
        call = "nvmlDeviceGetMemoryInfo"
        try:
            info = self.nvml.call(call, handle, version=self.nvml.library.nvmlMemory_v2)
        except Absent as absent:
            if absent.reason is not Reason.DRIVER:
                raise self._in_mig(absent) from absent.__cause__
            info = self.nvml.call(call, handle)
        if not info.total or info.used > info.total or info.free > info.total:
            why = f"{call}: {info.used} used and {info.free} free of {info.total}"
            raise Absent(Reason.IMPLAUSIBLE, why)
        return info

    def _racked(self) -> bool:
        """Return whether the GPU reports the serial number of a rack chassis (Blackwell)."""
        info = self.nvml.library.c_nvmlPlatformInfo_v2_t()
        self.get("PlatformInfo", ctypes.byref(info))
        serial = bytes(info)[20:36].partition(b"\0")[0]
        return any(b"0"[0] <= byte <= b"9"[0] for byte in serial)

    def fields(self, questions: Sequence[Scope]) -> list[float | Absent]:
        """Return the value of each field ID in `questions`, or Absent if it has no value. Raise
        Absent only if the GPU or the driver is gone, in which case all calls fail."""
        driver = self.nvml.driver
        known = [q for q in questions if driver >= SINCE.get(q[0], ())]
        values = dict(zip(known, self._answers(known), strict=True))
        too_old = Absent(Reason.DRIVER, "field not in this driver")
        return [values.get(question, too_old) for question in questions]

    def rates(self, fields: Sequence[int]) -> list[float]:
        """Return by how much per second 32-bit counters grow within a moment, by their field IDs.
        One call reads each of them twice, 0.15 ms apart on an H200. Raise Absent if it fails."""
        if self.nvml.driver < max(SINCE[field] for field in fields):
            raise Absent(Reason.DRIVER, "field not in this driver")
        try:
            answers = self.get("FieldValues", [field for field in fields for _ in range(2)])
            pairs = zip(answers[::2], answers[1::2], strict=True)
            return [self._rate(before, after) for before, after in pairs]
        except MISSHAPEN as error:
            raise misshapen("nvmlDeviceGetFieldValues", error) from error

    def _rate(self, before: Any, after: Any) -> float:
        values = []
        for answer in (before, after):
            value = self._decoded(answer)
            if isinstance(value, Absent):
                raise Absent(value.reason, str(value))  # no frame holds what it raises
            values.append(value)
        microseconds = float(after.timestamp - before.timestamp)
        if microseconds <= 0:
            raise Absent(Reason.NOT_ENOUGH, "both answers are of the same moment")
        return (values[1] - values[0]) % 2**32 / microseconds * 1e6

    def _answers(self, known: Sequence[Scope]) -> list[float | Absent]:
        if not known:
            return []
        try:
            answers = self.get("FieldValues", list(known))
            values = [self._decoded(answer) for answer in answers]
        except MISSHAPEN as error:
            return [misshapen("nvmlDeviceGetFieldValues", error)] * len(known)
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            return [absent] * len(known)
        missing = Absent(Reason.IMPLAUSIBLE, "nvmlDeviceGetFieldValues left this field out")
        return [*values, *[missing] * len(known)][: len(known)]

    def _decoded(self, entry: Any) -> float | Absent:
        field, kind = entry.fieldId, entry.valueType
        if entry.nvmlReturn:
            error = self.nvml.library.NVMLError(entry.nvmlReturn)
            detail = f"nvmlDeviceGetFieldValues: {error}"
            reason = REASON_OF_CODE.get(entry.nvmlReturn, Reason.FAILED)
            return self._in_mig(Absent(reason, detail))
        if kind == DOUBLE and 0 < entry.value.dVal < 1e-300:  # an integer with a wrong label
            kind = UNSIGNED_LONG_LONG
        if not kind < len(VALUE_TYPES):
            return Absent(Reason.IMPLAUSIBLE, f"field {field} has type {kind}")
        try:
            return number(getattr(entry.value, VALUE_TYPES[kind]), f"field {field}")
        except Absent as absent:
            return absent.without_traceback()

    def _in_mig(self, absent: Absent) -> Absent:
        """Return the exception to raise for a failed call. If the GPU is in MIG mode and the call
        is not supported or not permitted, the reason is MIG."""
        if self.mig and absent.reason in (Reason.UNSUPPORTED, Reason.DENIED):
            return Absent(Reason.MIG, str(absent))
        return absent

    def link_state(self, link: int) -> float:
        """Return the state of an NVLink: 0 is down, 1 is up, 2 is sleeping, and 3 is up with
        traffic disabled. Raise Absent if the driver reports no valid state."""
        return checked(self.get("NvLinkState", link), LINK_STATES, "nvmlDeviceGetNvLinkState")

    def links(self) -> tuple[int, ...]:
        """Return the numbers of the NVLinks that report a state, whether they are up or down. The
        result is cached until `ask_again` is called. Raise Absent if the GPU has no links, or if
        temporary errors prevent all links from reporting a state."""
        if self._links is None:
            found, passing = [], None
            for link in range(MOST_LINKS):
                try:
                    self.link_state(link)
                    found.append(link)
                except Absent as absent:
                    if absent.reason in FINAL:
                        raise
                    passing = passing if absent.reason in PERMANENT else absent
            if passing is not None and not found:
                raise passing.without_traceback()
            self._links = tuple(found)
        if not self._links:
            raise Absent(Reason.MISSING, "this GPU has no NVLink")
        return self._links

    def ask_again(self) -> None:
        self._links = None

    def close(self) -> None:
        while self.releases:
            self.releases.pop()()

    def mig_switched(self) -> bool:
        """Return whether MIG mode has been enabled or disabled since this object was created."""
        return self.mig != self._mig_mode()

    def _mig_mode(self) -> bool:
        try:
            return bool(checked(self.ask(MIG_MODE)[0], FLAG, MIG_MODE))
        except MISSHAPEN:
            return self.mig
        except Absent as absent:
            if absent.reason in FINAL:
                raise
            return self.mig and absent.reason is Reason.IMPLAUSIBLE  # keep the previous mode

    def _identity(self, index: int) -> GpuIdentity:
        nvml, uuid = self.nvml, str(self.get("UUID"))
        if not UUID.fullmatch(uuid):
            raise Absent(Reason.IMPLAUSIBLE, f"nvmlDeviceGetUUID says {uuid!r:.60}")
        known = nvml.text("nvmlDeviceGetArchitecture", self.handle)
        return GpuIdentity(
            index=index,
            uuid=uuid,
            model=nvml.text("nvmlDeviceGetName", self.handle),
            architecture=ARCHITECTURES.get(int(known), "") if known.isdecimal() else "",
            pci_bus_id=unless_final(lambda: text_of(self.get("PciInfo"), "busId"), ""),
            serial=nvml.text("nvmlDeviceGetSerial", self.handle),
            vbios_version=nvml.text("nvmlDeviceGetVbiosVersion", self.handle),
            racked=unless_final(self._racked, otherwise=False),
        )
