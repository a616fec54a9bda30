"""Shares and steps of labelled loads on H200s and H100s against what the loads' own clocks showed.

Most tapes are of loads that timed themselves, recorded before threads were read:
they hold the CPU time of whole processes, and schedstat of the threads that were followed then.
`two-h100-threads`, `two-h100-servers` and `two-h200-traced-*` are of `tests.hardware.traced.trial`
and hold all threads, at the moments at which they were listed then.
`python -m tests.hardware.share_replay tests/tapes/shares/NAME` prints each load. Every load whose
shares are right must stay within the bound of its signals; every other one stands in `KNOWN_WRONG`
with the reason and its largest error, and leaves that table when it becomes right. What NCCL
answered is on no tape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from tests.hardware.share_comparison import WITHIN, Judged
from tests.hardware.share_replay import replayed
from tests.support.nightly import NIGHTLY, shortly
from tests.support.repository import TAPES

SHARES = TAPES / "shares"
CPU, HOST_THREAD = "starved/cpu", "starved/host_thread"

MEANS: dict[str, str] = {
    "main-process": CPU,
    "rollouts": CPU,
    "scoring": CPU,
    "python-augmenting": CPU,
    "off-policy": CPU,
    "host-optimiser": CPU,
    "jax-augmenting": CPU,
}
"""Loads whose label was given when `cpu` meant something else: what the launching thread prepares
itself is `host_thread` now. The tapes keep the label; its time counts as `host_thread` here."""

LINKS = "links show traffic, and not how much of it stands alone: without GPM none of it"
SHARDED = "collectives of ranks that launch kernel by kernel spin for milliseconds"
BOTH = "workers fetch and decode in turns, and its clock puts all of the wait down to one of them"
NO_THREADS = "the tape holds no thread that did it, or not what the job received"
LAUNCHES = "what launching or a copy takes counts as active, or as work by its own clock"
COPIES = (
    "PCIe alone does not distinguish copies beside work from work: without GPM they count as active"
)


EDGES = "12 s hold few requests, and the agent's seconds begin and end a second later"
TOO_NEW = "it is judged before a server can be known to be one"
EVEN = "at full load the activity of a server is too even to be that of requests"
SMALL = "its requests are too small to show as activity"
NOTEBOOK = "a notebook that waits for its user looks like a server that waits for a request"
SAMPLED = "uninterruptible sleep is sampled once a second, and ends on a core"
TURNS = "threads of one interpreter take turns with the main one"
LEADS = "how far one rank is ahead shows in power and DRAM activity in part"


class Wrong(NamedTuple):
    """A load whose shares are not right, why, and by how much at most."""

    why: str
    most: float


KNOWN_WRONG: dict[tuple[str, str], dict[str, Wrong]] = {
    ("one-h200-fifth", "gpm"): {
        "video-frames": Wrong(LAUNCHES, 0.12),
    },
    ("one-h200-fifth", "nvml"): {
        "swapped-caches": Wrong(COPIES, 0.38),
        "video-frames": Wrong(LAUNCHES, 0.12),
    },
    ("one-h200-first", "gpm"): {
        "files-mapped": Wrong(BOTH, 0.10),
        "http-objects": Wrong(BOTH, 0.10),
        "little": Wrong(LAUNCHES, 0.08),
        "network": Wrong(BOTH, 0.10),
        "threads": Wrong(LAUNCHES, 0.10),
    },
    ("one-h200-first", "nvml"): {},
    ("one-h200-fourth", "gpm"): {
        "burgers-equation": Wrong(LAUNCHES, 0.12),
        "from-database": Wrong(BOTH, 0.08),
        "ranged-downloads": Wrong(BOTH, 0.08),
        "remote-lookups": Wrong(NO_THREADS, 0.32),
    },
    ("one-h200-fourth", "nvml"): {
        "remote-lookups": Wrong(NO_THREADS, 0.32),
        "streamed-layers": Wrong(COPIES, 0.52),
    },
    ("one-h200-launching", "gpm"): {
        "integrator": Wrong(LAUNCHES, 0.10),
        "message-passing": Wrong(NO_THREADS, 0.24),
        "small-images": Wrong(LAUNCHES, 0.10),
        "unrolled-cell": Wrong(LAUNCHES, 0.12),
    },
    ("one-h200-launching", "nvml"): {
        "message-passing": Wrong(NO_THREADS, 0.24),
    },
    ("two-h100", "gpm"): {
        "all-to-all": Wrong(LINKS, 0.06),
        "checkpoint": Wrong(NO_THREADS, 0.20),
        "compile": Wrong(NO_THREADS, 1.02),
        "disk-mapped": Wrong(BOTH, 0.08),
        "exposed-10-200ms": Wrong(LINKS, 0.08),
        "exposed-25-20ms": Wrong(LINKS, 0.08),
        "gpt-accumulating": Wrong(SHARDED, 0.12),
        "little": Wrong(LAUNCHES, 0.08),
        "network": Wrong(BOTH, 0.08),
        "threads": Wrong(LAUNCHES, 0.08),
    },
    ("two-h100", "nvml"): {
        "all-to-all": Wrong(LINKS, 0.40),
        "checkpoint": Wrong(NO_THREADS, 0.20),
        "compile": Wrong(NO_THREADS, 1.00),
        "exposed-25-20ms": Wrong(LINKS, 0.32),
        "late-20-sleeping": Wrong(LINKS, 0.16),
    },
    ("two-h100-rest", "gpm"): {
        "exposed-25-2000ms": Wrong(LINKS, 0.12),
        "sharded": Wrong(SHARDED, 0.34),
    },
    ("two-h100-rest", "nvml"): {
        "exposed-25-2000ms": Wrong(LINKS, 0.12),
        "exposed-50-20ms": Wrong(LINKS, 0.52),
        "sharded": Wrong(SHARDED, 0.34),
    },
    ("two-h200", "gpm"): {
        "checkpoint": Wrong(NO_THREADS, 0.18),
        "exposed-10-200ms": Wrong(LINKS, 0.08),
        "exposed-25-20ms": Wrong(LINKS, 0.06),
        "files-mapped": Wrong(BOTH, 0.10),
        "http-objects": Wrong(BOTH, 0.12),
        "main-process": Wrong(LAUNCHES, 0.08),
        "network": Wrong(BOTH, 0.10),
        "parameter-server": Wrong(LINKS, 0.22),
        "sharded": Wrong(SHARDED, 0.14),
    },
    ("two-h200", "nvml"): {
        "all-to-all": Wrong(LINKS, 0.40),
        "checkpoint": Wrong(NO_THREADS, 0.18),
        "exposed-25-20ms": Wrong(LINKS, 0.32),
        "exposed-50-20ms": Wrong(LINKS, 0.56),
        "http-objects": Wrong(BOTH, 0.12),
        "parameter-server": Wrong(LINKS, 0.22),
        "sharded": Wrong(SHARDED, 0.16),
    },
    ("two-h200-blind", "gpm"): {
        "dense-embeddings": Wrong(LINKS, 0.10),
        "direct-threads": Wrong(BOTH, 0.14),
        "host-optimiser": Wrong(NO_THREADS, 0.14),
        "offloaded-activations": Wrong(COPIES, 0.08),
        "saves-often": Wrong(NO_THREADS, 0.20),
        "sequence-halves": Wrong(LINKS, 0.08),
        "tensor-parallel": Wrong(LINKS, 0.08),
        "uneven-experts": Wrong(LINKS, 0.08),
    },
    ("two-h200-blind", "nvml"): {
        "batches-of-20-and-23": Wrong(LINKS, 0.14),
        "direct-threads": Wrong(BOTH, 0.14),
        "host-optimiser": Wrong(NO_THREADS, 0.12),
        "offloaded-activations": Wrong(COPIES, 0.44),
        "saves-often": Wrong(NO_THREADS, 0.24),
        "scoring": Wrong(LINKS, 0.14),
        "tensor-parallel": Wrong(LINKS, 0.22),
        "uneven-experts": Wrong(LINKS, 0.50),
    },
    ("two-h200-third", "gpm"): {
        "compiled-lengths": Wrong(NO_THREADS, 0.78),
        "jittery-feeder": Wrong(BOTH, 0.08),
        "saves-every-24": Wrong(BOTH, 0.06),
        "scattered-gathered": Wrong(LINKS, 0.12),
        "small-files": Wrong(BOTH, 0.12),
        "uneven-stages": Wrong(SHARDED, 0.08),
    },
    ("two-h200-third", "nvml"): {
        "compiled-lengths": Wrong(NO_THREADS, 0.78),
        "fed-by-a-command": Wrong(LINKS, 0.14),
        "ring-attention": Wrong(LINKS, 0.16),
        "saves-every-24": Wrong(BOTH, 0.14),
        "scattered-gathered": Wrong(LINKS, 0.14),
        "small-files": Wrong(BOTH, 0.12),
        "uneven-stages": Wrong(SHARDED, 0.42),
    },
    ("two-h100-threads", "gpm"): {
        "chat_server": Wrong(TOO_NEW, 0.70),
        "third_checkpoints": Wrong(NO_THREADS, 0.16),
        "third_embedding_server": Wrong(EVEN, 0.10),
        "third_train_and_evaluate": Wrong(LAUNCHES, 0.08),
    },
    ("two-h100-threads", "nvml"): {
        "chat_server": Wrong(TOO_NEW, 0.64),
        "tensor_parallel": Wrong(LINKS, 0.16),
        "third_checkpoints": Wrong(NO_THREADS, 0.16),
        "third_k_means": Wrong(COPIES, 0.64),
    },
    ("two-h100-servers", "gpm"): {
        "server_graph_100": Wrong(EVEN, 0.10),
        "server_graph_20": Wrong(EDGES, 0.12),
        "server_graph_40": Wrong(EDGES, 0.10),
    },
    ("two-h100-servers", "nvml"): {},
    ("two-h200-traced-first", "gpm"): {
        "first_checkpoint_fsync": Wrong(SAMPLED, 0.10),
        "first_main_reads_disk": Wrong(SAMPLED, 0.22),
        "first_offload_adam": Wrong(COPIES, 0.08),
        "first_recommender_threads": Wrong(TURNS, 0.10),
        "second_ddp_lstm_cells": Wrong(SHARDED, 0.20),
        "second_ddp_scores_on_first": Wrong(LEADS, 0.12),
    },
    ("two-h200-traced-first", "nvml"): {
        "first_checkpoint_fsync": Wrong(SAMPLED, 0.12),
        "first_main_reads_disk": Wrong(SAMPLED, 0.28),
        "second_ddp_lstm_cells": Wrong(SHARDED, 0.22),
        "second_ddp_scores_on_first": Wrong(LEADS, 0.12),
        "second_sharded_optimizer": Wrong(LINKS, 0.28),
    },
    ("two-h200-traced-second", "gpm"): {
        "first_serve_half_graph": Wrong(EVEN, 0.20),
        "longer_rows_ddp": Wrong(LEADS, 0.08),
        "pipeline_1f1b": Wrong(LEADS, 0.12),
        "rank0_evaluates": Wrong(LEADS, 0.12),
        "second_checkpoint_on_first": Wrong(SAMPLED, 0.12),
        "second_experts": Wrong(SHARDED, 0.08),
        "second_polling_server": Wrong(SMALL, 1.04),
        "small_cnn_ddp": Wrong(SHARDED, 0.08),
    },
    ("two-h200-traced-second", "nvml"): {
        "first_serve_half_graph": Wrong(EVEN, 0.20),
        "longer_rows_ddp": Wrong(LEADS, 0.12),
        "pipeline_1f1b": Wrong(LEADS, 0.20),
        "second_experts": Wrong(SHARDED, 0.18),
        "second_polling_server": Wrong(SMALL, 1.04),
        "third_flax_mixer": Wrong(LAUNCHES, 0.12),
    },
    ("two-h200-traced-servers", "gpm"): {},
    ("two-h200-traced-servers", "nvml"): {},
    ("two-h200-traced-third", "gpm"): {
        "first_notebook": Wrong(NOTEBOOK, 0.84),
        "fsdp_checkpointed": Wrong(SHARDED, 0.10),
        "second_tensor_parallel_server": Wrong(SHARDED, 0.14),
    },
    ("two-h200-traced-third", "nvml"): {
        "first_notebook": Wrong(NOTEBOOK, 0.84),
        "fsdp_checkpointed": Wrong(SHARDED, 0.12),
        "second_tensor_parallel_server": Wrong(SHARDED, 0.16),
    },
}

MOST_WRONG_STEPS = {
    "one-h200-fifth": {"evaluation-harness"},
    "two-h200": {"checkpoint"},  # a mean between two checkpoints
    "two-h200-third": {"unpacked-by-command"},  # copies make a step longer
    "two-h100": {"overlapped"},  # four steps of it
    "two-h100-rest": {"graph-network"},
}
"""Loads whose step is off by more than 1 %."""

RIGHT_STEPS = {
    "one-h200-fifth": 2,
    "one-h200-first": 2,
    "one-h200-fourth": 2,
    "one-h200-launching": 0,
    "two-h100": 11,
    "two-h100-rest": 1,
    "two-h200": 11,
    "two-h200-blind": 7,
    "two-h200-third": 6,
}
"""GPUs whose step is within 1 %."""

FALSE_STEPS = {
    *("streamed-records", "checkpoint-rounds", "trajectory-writing", "starved-rank"),
    *("decoder-commands", "spectra-threads"),
}
"""Loads without regular steps of which some are shown: two connections bring two batches a period;
rounds with a checkpoint or a file each are nearly as long for a while; commands and threads that
prepare a batch each take nearly as long for some seconds."""

RIGHT_CAUSE = {"gpm": 0.92, "nvml": 0.42}
"""Least part of what each load within its bounds loses that has its true cause. Without GPM small
losses of a load that mostly communicates have others."""

SHORT = [("two-h200", "gpm"), ("one-h200-launching", "gpm")]
LONG = [pytest.param(*case, marks=pytest.mark.nightly) for case in KNOWN_WRONG if case not in SHORT]


@cache
def all_of(tape: str, signals: str) -> Sequence[Judged]:
    """Each load of a tape by the agent of now."""
    return tuple(replayed(SHARES / tape, signals))


def as_now(found: Judged) -> Judged:
    """With its label in the words of now."""
    true, old = dict(found.span.shares), MEANS.get(found.span.load)
    if old in true:
        true[HOST_THREAD] = true.get(HOST_THREAD, 0.0) + true.pop(old)
    return replace(found, span=replace(found.span, shares=true))


def largest_errors(found: list[Judged]) -> Mapping[str, float]:
    """Of each load the error of the GPU that is off most, if that is out of bounds."""
    errors: dict[str, float] = {}
    for one in found:
        if not one.is_within:
            errors[one.span.load] = max(one.error, errors.get(one.span.load, 0.0))
    return errors


@pytest.mark.parametrize(("tape", "signals"), [*SHORT, *LONG])
def test_shares_are_right_but_for_what_is_known_to_be_wrong(tape: str, signals: str) -> None:
    found = [as_now(one) for one in all_of(tape, signals)]
    errors, known = largest_errors(found), KNOWN_WRONG[tape, signals]
    lines = "\n".join(str(one) for one in found if not one.is_within)
    assert sorted(errors) == sorted(known), lines
    assert all(error <= known[load].most for load, error in errors.items()), lines
    assert all(wrong.most > WITHIN[signals] for wrong in known.values())
    causes = {
        str(one): one.right_cause for one in found if one.is_within and one.right_cause is not None
    }
    assert {text for text, part in causes.items() if part < RIGHT_CAUSE[signals]} == set()
    hung = {one.span.load for one in found if one.shares.get("hung", 0.0) > 0.0}
    assert hung == {one.span.load for one in found if one.span.shares.get("hung", 0.0) > 0.0}


@pytest.mark.parametrize("tape", shortly(RIGHT_STEPS, ("two-h200",)))
def test_steps_are_right_but_for_what_is_known_to_be_wrong(tape: str) -> None:
    found = all_of(tape, "gpm")
    steps = [(one.span.load, one.step_error) for one in found if one.step_error is not None]
    assert sum(abs(error) <= 0.01 for _, error in steps) == RIGHT_STEPS[tape]
    assert {load for load, error in steps if abs(error) > 0.01} == MOST_WRONG_STEPS.get(tape, set())
    assert {one.span.load for one in found if one.steps and one.span.step is None} <= FALSE_STEPS


def test_a_load_that_is_wrong_and_not_known_to_be_is_found_out() -> None:
    (one, *_) = (one for one in all_of("one-h200-launching", "gpm") if one.is_within)
    assert largest_errors([one]) == {}
    off = replace(one, shares={"busy": 0.5, "idle": 0.5})
    assert largest_errors([one, off]).keys() == {one.span.load}


class ReportedSteps(NamedTuple):
    """Jobs of one GPU with steps of 0.1 to 5 s: how many there are, and how many steps are reported
    within 1 %; how many of any job are wrong; seconds of steps said where there are none."""

    jobs: int
    right: int
    wrong: int
    irregular: int


REPORTED_STEPS = {
    "one-h200-again": ReportedSteps(8, 7, 0, 0),
    "one-h200-steps": ReportedSteps(10, 6, 0, 0),
    "one-h200-irregular": ReportedSteps(0, 0, 0, 0),
    "one-h200-limit": ReportedSteps(5, 0, 1, 0),
}
"""Of the first two, steps whose pauses are narrower than a sample are not shown, nor gradients of
equal batches that are added up. The third is ten loads of
irregular work, 53 s each. Of the last, three are held at the limit of their power, whose control
has a rhythm of its own, and two have steps that power hardly shows."""


@pytest.mark.parametrize("tape", shortly(REPORTED_STEPS, ("one-h200-again",)))
def test_steps_are_reported_rightly_or_not_at_all(tape: str) -> None:
    found = all_of(tape, "gpm")
    lines = "\n".join(map(str, found))
    jobs = [said for said in found if said.span.step and said.span.step >= 0.1]
    wrong = [t for t in found if t.step_error is not None and abs(t.step_error) > 0.01]
    right = [t for t in jobs if t.step_error is not None and t not in wrong]
    irregular = sum(len(said.steps) for said in found if said.span.step is None)
    said = ReportedSteps(len(jobs), len(right), len(wrong), irregular)
    reached = REPORTED_STEPS[tape]
    assert said.jobs == reached.jobs
    assert said.right >= reached.right, lines
    assert said.wrong <= reached.wrong, lines
    assert said.irregular <= reached.irregular, lines


@NIGHTLY
def test_servers_on_a_tape_are_known_after_half_a_minute_and_others_are_none() -> None:
    """Loads of 53 s, of which 45 are watched."""
    for one in all_of("one-h200-irregular", "gpm"):
        requests, true = one.shares.get("idle/requests", 0.0), one.span.shares
        if one.span.load in ("poisson-server", "bursty-server", "generation-server"):
            assert one.shares["busy"] == pytest.approx(true["busy"], abs=0.03)
            assert requests > 0.4 * true["starved/unknown"]
        elif one.span.load != "notebook":  # whose user sends requests too
            assert requests < 0.01, one.span.load
