"""Advice fits the finding, and harms no one."""

import re

import pytest

from agent.diagnosis.advice import ADVICE, BY_FACT, SUMMARIES, advice
from agent.diagnosis.facts import FactKind
from agent.model import PAIRS, Cause, Fact, SignalQuality, State, Verdict


def test_every_pair_has_a_summary_and_every_loss_an_advice() -> None:
    assert set(SUMMARIES) == set(PAIRS)
    assert set(PAIRS) - set(ADVICE) == {p for p in PAIRS if p[0] in ("idle", "busy")}


HARM = re.compile(
    r"(?<!do not )\b(end|kill|stop|terminate|restart|reset|reboot|cancel|abort)\b(?! of)",
    re.IGNORECASE,
)


@pytest.mark.parametrize("text", [*ADVICE.values(), *BY_FACT.values()])
def test_no_advice_harms(text: str) -> None:
    """A GPU that looks idle may be a server; one that looks stuck may write a checkpoint."""
    assert not HARM.search(text)
    assert text.endswith(".")


@pytest.mark.parametrize("kind", BY_FACT)
def test_the_first_fact_decides_the_advice(kind: FactKind) -> None:
    pair = State.STARVED, Cause.DISK
    first, second = Fact(kind), Fact(FactKind.BLOCKED)
    found = [
        advice(Verdict(*pair, SignalQuality.GPM, {pair: 1.0}, evidence=facts))
        for facts in ((first, second), (second, first))
    ]
    assert found == [BY_FACT[kind], ADVICE[pair]]


def test_where_the_process_is_hidden_the_agent_must_see_it_first() -> None:
    hidden = Fact(FactKind.PROCESSES_HIDDEN, names=("hidepid",))
    shown = {
        cause: advice(
            Verdict(
                State.STARVED,
                cause,
                SignalQuality.GPM,
                {},
                evidence=(Fact(FactKind.UNEXPLAINED),),
                doubts=(hidden,),
            )
        )
        for cause in (Cause.UNKNOWN, Cause.PCIE)
    }
    assert shown[Cause.UNKNOWN] == BY_FACT[FactKind.PROCESSES_HIDDEN]
    assert shown[Cause.PCIE] == ADVICE[State.STARVED, Cause.PCIE]


def test_a_checkpoint_is_left_to_finish() -> None:
    for kind in (FactKind.DISK_WRITES, FactKind.JOB_WRITES):
        assert "do not end one that is being written" in BY_FACT[kind]
