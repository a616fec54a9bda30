"""The meaning of XID errors: the name of each code, its severity, and the action to take.

`codes.toml` contains the meanings and their sources. NVLink 5 errors have the XIDs 144 to 150.
Their action also depends on the unit, the severity, and two words in the kernel log line.
"""

from collections.abc import Mapping
from functools import cache

from msgspec import Struct, convert

from agent.metrics import beside
from agent.model import Severity


class XidMeaning(Struct, frozen=True, kw_only=True):
    """The meaning of an XID code. `generations` is, for example, `all`, `from ampere`, or `until
    volta`. `older` is the name on GPUs up to Volta, or empty if it is the same."""

    code: int
    name: str
    severity: Severity
    action: str  # key of `first_step` in `codes.toml`
    generations: str
    older: str = ""
    source: str


RESET, IGNORE = "reset", "ignore"
"""The two actions for NVLink 5 errors."""

OLDER = frozenset({"kepler", "maxwell", "pascal", "volta"})
"""GPU architectures that retire memory pages. Newer architectures remap rows."""

NVLINK5 = range(144, 151)  # NVLink 5 codes


_TABLE = beside(__file__, "codes")


@cache
def first_steps(table: str = "first_step") -> Mapping[str, str]:
    """Return the advice for each action, or the texts in another table of codes.toml."""
    return convert(_TABLE[table], dict[str, str])


@cache
def catalogue() -> Mapping[int, XidMeaning]:
    """Return the meaning of every known XID code."""
    return {
        code: convert({**row, "code": code}, XidMeaning)
        for row in _TABLE["xid"]
        for code in row["codes"]
    }


def meaning(code: int) -> XidMeaning:
    """Return the meaning of an XID code, or a generic meaning if it is unknown."""
    return catalogue().get(code) or XidMeaning(
        code=code,
        name="a code that this table does not have",
        severity=Severity.WARNING,
        action="service",
        generations="all",
        source="none",
    )


def name(code: int, architecture: str = "") -> str:
    found = meaning(code)
    return found.older if found.older and architecture in OLDER else found.name


@cache
def critical() -> tuple[int, ...]:
    """Return the XID codes that require immediate action, in ascending order."""
    return tuple(sorted(c for c, m in catalogue().items() if m.severity is Severity.CRITICAL))


def nvlink5_action(unit: str, *, fatal: bool, first: int = 0, status: int = 0) -> str:
    """Return the action for an NVLink 5 XID with this unit, severity, first word, and status word.

    A nonfatal error requires no action itself. If it does, the driver also reports XID 154 with
    this action. A fatal error requires a reset, unless the remote end of the link caused the error.
    """
    if not fatal or (unit == "NETIR_MFDE_EVENT" and status == 3):  # a status of no significance
        return IGNORE
    # Subcodes of a link-down event with which the remote end or the host has reported the error,
    # according to [C] in codes.toml
    if unit in ("NETIR_LINK_EVT", "NETIR_LINK_DOWN") and (first >> 20 & 0x3F) in (38, 40):
        return IGNORE
    return RESET
