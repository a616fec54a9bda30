"""The catalogue of XID errors: the codes and first actions that the owners rely on."""

import pytest

from agent.diagnosis.advice import XID_ADVICE
from agent.model import Severity
from agent.specs.xids import NVLINK5, XidAction, catalogue, critical, meaning, name, nvlink5_action

RESET = (46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158)
"""NVIDIA's catalogue, immediate action RESET_GPU; typed by hand."""

IGNORE = (14, 37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 160, 161)
RESTART = (
    *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85),
    *(86, 88, 89, *range(96, 106), *range(126, 136), 139),
)


def actions(codes: tuple[int, ...]) -> set[XidAction]:
    return {meaning(code).action for code in codes}


def test_codes_want_first_what_nvidia_says() -> None:
    assert actions(RESET) == {XidAction.RESET}
    assert set(RESET) <= set(critical())
    assert actions(IGNORE) == {XidAction.IGNORE}
    assert actions(RESTART) == {XidAction.RESTART_JOB}
    assert {meaning(c).severity for c in (*IGNORE, *RESTART)} == {Severity.INFO}
    assert {c: meaning(c).action for c in (48, 63, 74, 79, 92, 94, 151)} == {
        48: XidAction.MEMORY,
        63: XidAction.RESET_LATER,
        74: XidAction.LINKS,
        79: XidAction.REBOOT,
        92: XidAction.WATCH,
        94: XidAction.RESTART_THEN_RESET,
        151: XidAction.REBOOT,
    }


def test_every_code_is_there_once_and_explained() -> None:
    assert sorted(catalogue()) == list(range(1, 173))
    assert {m.action for m in catalogue().values()} == set(XidAction) == set(XID_ADVICE)
    assert all(m.source.startswith("[") for m in catalogue().values())


def test_a_code_that_is_not_there_is_somebodys_business() -> None:
    assert (meaning(999).severity, meaning(999).action) == (Severity.WARNING, XidAction.SERVICE)


def test_older_gpus_retire_pages() -> None:
    assert "page" in name(63, "pascal")
    assert "page" in name(63, "volta")
    assert "row" in name(63, "ampere")
    assert name(79, "volta") == name(79, "hopper")


@pytest.mark.parametrize(
    ("unit", "fatal", "first", "status", "action"),
    [
        ("SAW_MVB", False, 1, 0x8, XidAction.IGNORE),
        ("RLW_SRC_TRACK", True, 0, 0x10, XidAction.RESET),
        ("NETIR_LINK_EVT", True, 0x025001C6, 0, XidAction.RESET),  # 37: look at the far end too
        ("NETIR_LINK_EVT", True, 0x026001C6, 0, XidAction.IGNORE),  # 38
        ("NETIR_LINK_DOWN", True, 0x028001C6, 0, XidAction.IGNORE),  # 40: the host
        ("NETIR_BER_EVENT", False, 0, 1, XidAction.IGNORE),
        ("NETIR_MFDE_EVENT", True, 0, 1, XidAction.RESET),
        ("NETIR_MFDE_EVENT", True, 0, 3, XidAction.IGNORE),
        ("MSE_WATCHDOG", True, 0, 0, XidAction.RESET),
    ],
)
def test_nvlink_5_is_reported_by_unit(
    unit: str, fatal: bool, first: int, status: int, action: XidAction
) -> None:
    assert nvlink5_action(unit, fatal=fatal, first=first, status=status) is action
    assert {meaning(code).action for code in NVLINK5} == {XidAction.BY_UNIT, XidAction.RESET}
