"""Advice fits the finding, and harms no one."""

import re

import pytest

from agent.diagnosis.advice import ADVICE, BY_FACT, SUMMARIES, TEXTS, advice, advised
from agent.diagnosis.advice_seconds import AdviceSeconds, most_fitting
from agent.diagnosis.division import TimeSplit
from agent.diagnosis.facts import FactKind
from agent.diagnosis.tick_context import GpuHistory
from agent.model import BUSY, PAIRS, Cause, Fact, Pair, State
from exporters.documents import jobs_document
from tests.support.evidence import evidence
from tests.support.machines import simulated

DISK: Pair = (State.STARVED, Cause.DISK)


def test_every_pair_has_a_summary_and_every_loss_an_advice() -> None:
    assert set(SUMMARIES) == set(PAIRS)
    assert set(PAIRS) - set(ADVICE) == {p for p in PAIRS if p[0] in ("idle", "busy")}


HARM = re.compile(
    r"(?<!do not )\b(end|kill|stop|terminate|restart|reset|reboot|cancel|abort)\b(?! of)",
    re.IGNORECASE,
)


@pytest.mark.parametrize("text", TEXTS.values())
def test_no_advice_harms(text: str) -> None:
    """A GPU that looks idle may be a server; one that looks stuck may write a checkpoint."""
    assert not HARM.search(text)
    assert text.endswith(".")


@pytest.mark.parametrize("kind", BY_FACT)
def test_the_first_fact_decides_the_advice(kind: FactKind) -> None:
    first, second = Fact(kind), Fact(FactKind.BLOCKED)
    assert advised(DISK, (first, second)) is BY_FACT[kind]
    assert advised(DISK, (second, first)) == "read_or_write"


def test_where_the_process_is_hidden_the_agent_must_see_it_first() -> None:
    hidden, unknown = (
        Fact(FactKind.PROCESSES_HIDDEN, names=("hidepid",)),
        (State.STARVED, Cause.UNKNOWN),
    )
    assert advised(unknown, (Fact(FactKind.UNEXPLAINED),), (hidden,)) == "show_processes"
    assert advised(unknown, (Fact(FactKind.UNEXPLAINED),)) == "profile"


def test_a_checkpoint_is_left_to_finish() -> None:
    assert "Do not end the job while it writes one" in TEXTS["checkpoint"]


def split(kind: FactKind, share: float = 1.0) -> TimeSplit:
    return TimeSplit({DISK: share, BUSY: 1.0 - share}, {DISK: (Fact(kind),)})


def test_the_advice_is_that_which_fitted_most_of_the_lost_time() -> None:
    seconds, e = AdviceSeconds(), evidence({})
    for second in range(60):
        reads = second % 3 == 2  # half as long as it writes
        seconds.take(e, split(FactKind.JOB_READS if reads else FactKind.JOB_WRITES), 1.0)
        assert most_fitting([seconds]) == {DISK: "checkpoint"}
    for _ in range(600):
        seconds.take(e, split(FactKind.JOB_READS, 0.2), 1.0)
    assert most_fitting([seconds]) == {DISK: "read_faster"}, "what is older counts less"


def test_other_processes_have_an_advice_of_their_own() -> None:
    seconds = AdviceSeconds()
    for came, kind in ((1.0, FactKind.JOB_WRITES), (50.0, FactKind.JOB_READS)):
        seconds.take(evidence({}, history=GpuHistory(came=came)), split(kind), 1.0)
    assert most_fitting([seconds]) == {DISK: "read_faster"}


@pytest.mark.parametrize("system", ["gtx-1080", "dgx-h100"])
def test_a_job_that_writes_checkpoints_is_never_told_to_read_less(system: str) -> None:
    bench, shown = simulated(f"{system}:checkpoint", gpus=1), set()
    for _ in range(120):
        verdicts = bench.run(1).latest.verdicts.values()
        shown |= {advice(one, DISK) for one in verdicts if one.shares.get(DISK)}
    assert shown == {TEXTS["checkpoint"]}
    (job,) = jobs_document(bench.jobs)["running"]
    assert [s["advice"] for s in job["savings"] if s["cause"] == "starved/disk"] == [*shown]
