"""What silences what: one message for one fault.

An alert that silences must be there before the other one is sent. So the rules hold in steps: what
is counted each second and lost data (0 to 2 min), links and what the driver requests (3 min),
lesser errors (5 min), what only waits for a reset (8 min and more).
tests/alerts/test_inhibitions.py holds them to it.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from agent.faults.model import SAME_GPU, SAME_NODE, Fault, HiddenBy

OUR_ALERTS = 'alertname=~"Dgx.+"'
OF_WORK = 'alertname=~"DgxGpu.+|DgxNvlink.+|DgxPcie.+|DgxJob.+"'

Rule = dict[str, list[str]]

OF_ALL = (
    # A node that does not answer: what was known of it is old. The watchdog has no instance.
    (
        HiddenBy("DgxAgentDown", SAME_NODE, ('sign="silence"',)),
        ('alertname!="DgxAgentDown"', OUR_ALERTS, 'severity!="none"'),
    ),
    # A GPU that is lost: what it suffered from in its last minutes matters no more.
    (
        HiddenBy("DgxGpuMissing", SAME_GPU, ('uuid!=""',)),
        ('alertname!="DgxGpuMissing"', OUR_ALERTS),
    ),
    # A driver that hangs: all that it reported is old. If an XID says why, that one is sent.
    (
        HiddenBy("DgxAgentBlind", SAME_NODE, ('sign=~"driver|sources"',)),
        (OF_WORK, 'severity!="critical"'),
    ),
)
"""Faults that hide whatever else there is; others are named by the fault that they hide."""


def inhibitions(faults: Sequence[Fault]) -> list[Rule]:
    return [
        *(_rule(by, list(hidden)) for by, hidden in OF_ALL),
        *(rule for name, same in _by_alert(faults) for rule in _of_alert(name, same)),
    ]


def _by_alert(faults: Sequence[Fault]) -> Iterator[tuple[str, list[Fault]]]:
    by_name = sorted(faults, key=lambda fault: fault.alert)
    for name, same in groupby(by_name, key=lambda fault: fault.alert):
        yield name, list(same)


def _of_alert(name: str, faults: Sequence[Fault]) -> Iterator[Rule]:
    for by in dict.fromkeys(by for fault in faults for by in fault.hidden_by):
        hidden = [fault for fault in faults if by in fault.hidden_by]
        signs = "|".join(fault.labels["sign"] for fault in hidden if len(hidden) < len(faults))
        only = [f'sign=~"{signs}"'] if signs else []
        yield _rule(by, [f'alertname="{name}"', *only, *by.only])


def _rule(by: HiddenBy, hidden: list[str]) -> dict[str, Any]:
    return {
        "source_matchers": [f'alertname="{by.alert}"', *by.having],
        "target_matchers": hidden,
        "equal": list(by.same),
    }
