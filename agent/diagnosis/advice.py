"""Advice for the owner of a job about each verdict, from `advice.toml`.

The advice never suggests ending, stopping, or restarting a process, because a GPU that seems idle
may be running a server or a checkpoint.
"""

from collections.abc import Iterable
from typing import Any

from agent.diagnosis.facts import FactKind, Found
from agent.jobs.job import Saving
from agent.metrics import beside
from agent.model import Cause, Fact, Pair, Severity, State, Verdict

_TABLE: dict[str, Any] = beside(__file__)


def _by_pair(name: str) -> dict[Pair, str]:
    return {
        (State(state), Cause(cause)): text
        for state, causes in _TABLE[name].items()
        for cause, text in causes.items()
    }


SUMMARIES = _by_pair("summary")
ALERTS: dict[State, tuple[str, Severity]] = {
    State(state): (alert["name"], Severity(alert["severity"]))
    for state, alert in _TABLE["alert"].items()
}


def hang_advice(pid: str = "") -> str:
    """Return the advice to run `py-spy` on a process of a hung job before the job ends."""
    one = f"Run `py-spy dump --pid {pid}`"
    each = "`nvidia-smi` lists the processes on these GPUs: run `py-spy dump --pid PID` on each"
    return str(_TABLE["text"]["find_rank"]).format(run=one if pid else each, pid=pid or "PID")


def peer_advice(who: str = "the GPU that it waits for (`dgx-telemetry once` names it)") -> str:
    """Return the advice to examine `who`, the GPU that other GPUs wait for."""
    return str(_TABLE["text"]["balance"]).format(who=who)


def saving_advice(saving: Saving) -> str:
    """Return the first step to gain a saving, for the GPU that the others wait for if known."""
    if saving.late and not saving.due_to:
        return peer_advice(f"GPU {saving.late.index}")
    step = TEXTS[saving.advice] if saving.advice else ADVICE.get(saving.due_to or saving.pair, "")
    return OF_PEER.format(saving.late.index, step) if saving.late else step


def severity(pair: Pair) -> Severity | None:
    """Return the severity of a state and cause, or None if the state is healthy."""
    if pair == (State.STARVED, Cause.UNKNOWN):
        return Severity.INFO  # a notebook, or a server without requests, also waits
    return ALERTS[pair[0]][1] if pair[0] in ALERTS else None


TEXTS: dict[str, str] = {**_TABLE["text"], "find_rank": hang_advice(), "balance": peer_advice()}
"""The texts of the first steps against losses of GPU time, by name of the step."""

OF_PEER = "For GPU {}: {}"
"""The first step of GPUs that wait: that of the GPU with this index."""

OF_PAIR = _by_pair("step")
"""The name of the first step for each state and cause. Healthy states have none."""

ADVICE: dict[Pair, str] = {pair: TEXTS[one] for pair, one in OF_PAIR.items()}
BY_FACT: dict[FactKind, str] = {FactKind(k): step for k, step in _TABLE["step_by_fact"].items()}
"""First steps that replace those in OF_PAIR if a verdict has a fact of the given kind."""


def advised(pair: Pair, found: Found, doubts: Iterable[Fact] = ()) -> str | None:
    """Return the name of the first step for an unhealthy state with the facts `found`."""
    if pair not in OF_PAIR:
        return None
    kinds = [fact.kind for fact in (*doubts, *found[:1])]
    return next((one for kind, one in BY_FACT.items() if kind in kinds), OF_PAIR[pair])


def advice(verdict: Verdict, pair: Pair | None = None) -> str:
    """Return the first step to reduce a GPU's loss, or an empty string for a healthy state. `pair`
    is the state and cause of the loss, by default those of the verdict."""
    pair = pair or verdict.pair
    if pair == (State.STARVED, Cause.PEER) and verdict.waits_for is not None:
        return peer_advice(f"GPU {verdict.waits_for.index}")
    found = verdict.advice.get(pair) or OF_PAIR.get(pair)
    return TEXTS[found] if found else ""
