"""The sentences: one for each kind, from values alone, and nothing said that is not known."""

import json
import re

import pytest

from agent.diagnosis.advice import ADVICE
from agent.diagnosis.facts import FactKind
from agent.faults.findings import action
from agent.jobs.job import percent
from agent.model import (
    BUSY,
    Cause,
    Fact,
    Figure,
    Finding,
    GpuKey,
    Severity,
    SignalQuality,
    State,
    Verdict,
)
from agent.status.words import FACTS, duration, fact_text, finding_text
from exporters.snapshot_json import fact_document, verdict_document

GPU, PEER = GpuKey(3, "GPU-3"), GpuKey(0, "GPU-0")


def test_every_kind_has_a_sentence() -> None:
    assert set(FACTS) == set(FactKind)


def rate(value: float, limit: float | None = None, name: str = "traffic") -> Figure:
    return Figure(name, value, limit, "bytes_per_second")


def share(name: str, value: float) -> Figure:
    return Figure(name, value, None, "ratio")


def count(name: str, value: float, limit: float | None = None) -> Figure:
    return Figure(name, value, limit, "count")


FACT_TEXTS = {
    "1 process on it, no activity for 61 s": Fact(
        FactKind.HOLDING, (count("processes", 1), Figure("quiet_for", 61.2, 60, "seconds"))
    ),
    "no activity for 61 s": Fact(FactKind.HOLDING, (Figure("quiet_for", 61.2, 60, "seconds"),)),
    "thermal slowdown for 60 % of the time": Fact(FactKind.THERMAL_SLOWDOWN, (share("time", 0.6),)),
    "power cap for 60 % of the time, SM clock at 65 % of its maximum": Fact(
        FactKind.POWER_CAP, (share("time", 0.6), share("sm_clock", 0.65))
    ),
    "waiting for GPU 0, which works harder (SM activity 88 %; this one 50 %)": Fact(
        FactKind.BUSIER_PEER, (share("sm", 0.5), share("peer_sm", 0.88)), gpu=PEER
    ),
    "waiting for GPU 0, which works harder (92 % of its power limit; this one 46 %)": Fact(
        FactKind.BUSIER_PEER, (share("power", 0.46), share("peer_power", 0.92)), gpu=PEER
    ),
    "sda reads 0.48 GB/s, busy 99 % of the time": Fact(
        FactKind.DISK_READS, (rate(0.48e9, name="read"), share("busy", 0.99)), ("sda",)
    ),
    "InfiniBand mlx5_0:1 carries 200 of 400 Gb/s (50 %, transmit)": Fact(
        FactKind.INFINIBAND_TRAFFIC,
        (rate(25e9, 50e9), share("share", 0.5)),
        ("transmit", "mlx5_0:1"),
    ),
    "the launching thread waits while 1 other thread or process of the job use 1.0 cores": Fact(
        FactKind.WORKERS_RUNNING, (count("workers", 1), Figure("cores", 1.0, None, "cores"))
    ),
    "local disks are quiet, lustre, nfs4 is mounted": Fact(
        FactKind.NETWORK_MOUNTED, names=("lustre", "nfs4")
    ),
    "kernels have only waited for other GPUs of the job": Fact(
        FactKind.HUNG_SPINNING, (Figure("time", 240.0, 20.0, "seconds"),)
    ),
    "the launching thread uses 0.94 cores while the GPU is active 31 % of the time": Fact(
        FactKind.ONE_THREAD, (Figure("cores", 0.94, None, "cores"), share("activity", 0.31))
    ),
    "the processes cannot be seen (they {hide})": Fact(
        FactKind.PROCESSES_HIDDEN, names=("they {hide}",)
    ),
}


@pytest.mark.parametrize("text", FACT_TEXTS)
def test_a_fact_is_said_as_far_as_it_is_known(text: str) -> None:
    assert fact_text(FACT_TEXTS[text]) == text
    assert json.loads(json.dumps(fact_document(FACT_TEXTS[text])))["sentence"] == text


WARNING = Severity.WARNING
FINDING_TEXTS = {
    "the agent cannot read its source power: alerts on its values cannot fire": Finding(
        "source_down", WARNING, device="power"
    ),
    "no GPU is watched: the driver is released by /run/file": Finding(
        "driver_released", Severity.INFO, names=("the driver is released by /run/file",)
    ),
    "1 GPU is missing": Finding("gpus_missing", WARNING, figures=(count("gpus", 1),)),
    "GPU 3: it no longer answers": Finding("gpu_lost", WARNING, GPU),
    "GPU 3: the driver requests a reboot of the node": Finding(
        "recovery_needed", WARNING, GPU, figures=(count("action", 2),)
    ),
    "GPU 3: the driver requests a reset (`nvidia-smi --gpu-reset -i 3`)": Finding(
        "recovery_needed", WARNING, GPU, figures=(count("action", 1),)
    ),
    "GPU 3: the driver requests code 9": Finding(
        "recovery_needed", WARNING, GPU, figures=(count("action", 9),)
    ),
    "GPU 3: XID 48, memory lost data (Double Bit ECC Error), seen once": Finding(
        "xid", WARNING, GPU, "48", (count("times", 1),), ("Double Bit ECC Error",)
    ),
    "GPU 3: XID 48, memory lost data (Double Bit ECC Error), seen 2 times": Finding(
        "xid", WARNING, GPU, "48", (count("times", 2),), ("Double Bit ECC Error",)
    ),
    "GPU 3: XID 48, memory lost data (Double Bit ECC Error), seen once, 3 min ago": Finding(
        "xid",
        WARNING,
        GPU,
        "48",
        (count("times", 1), Figure("ago", 200.0, None, "seconds")),
        ("Double Bit ECC Error",),
    ),
    "GPU 3: XID 48, memory lost data (Double Bit ECC Error), seen 2 times, last 2 h 1 min "
    "ago": Finding(
        "xid",
        WARNING,
        GPU,
        "48",
        (count("times", 2), Figure("ago", 7300.0, None, "seconds")),
        ("Double Bit ECC Error",),
    ),
    "GPU 3: the core has reached its temperature limit": Finding(
        "too_hot", WARNING, GPU, figures=(Figure("margin", -1.2, None, "celsius"),)
    ),
    "network port eno1 runs at 1.2 GB/s, below its rate of 12 GB/s": Finding(
        "port_speed", WARNING, None, "eno1", (rate(1.25e9, 12.5e9, "speed"),), ("network",)
    ),
    "GPU 3: NVLink graph: 2 links to a gpu, expected a switch (0, 4)": Finding(
        "stray_links", WARNING, GPU, figures=(count("links", 2),), names=("gpu", "switch", "0", "4")
    ),
    "NVLink graph: gpu0-gpu1 has no links, expected 1; gpu0-gpu2 has 1 link, expected 2": Finding(
        "wrong_pairs", WARNING, figures=(count("gpu0-gpu1", 0, 1), count("gpu0-gpu2", 1, 2))
    ),
    "2 metrics have no value: requires root": Finding(
        "values_absent", WARNING, figures=(count("metrics", 2),), names=("denied",)
    ),
}


@pytest.mark.parametrize("text", FINDING_TEXTS)
def test_a_finding_is_said_with_its_gpu(text: str) -> None:
    finding = FINDING_TEXTS[text]
    assert finding_text(finding) == text
    assert finding_text(finding, named=False) == text.removeprefix("GPU 3: ")


def test_sentences_of_facts_fit_several_gpus() -> None:
    of_one = re.compile(r"\bits (?!limit|maximum|highest|power)")
    assert [parts for parts in FACTS.values() if of_one.search("".join(parts))] == []


def test_only_the_worst_pairs_are_named() -> None:
    pairs = tuple(count(f"gpu0-gpu{n}", 0, 1) for n in range(1, 8))
    text = finding_text(Finding("wrong_pairs", WARNING, figures=pairs))
    assert text.endswith("; 3 more pairs differ")


def test_a_verdict_is_reported_in_words_and_in_values() -> None:
    pair = State.STARVED, Cause.PEER
    verdict = Verdict(
        *pair,
        SignalQuality.GPM,
        {pair: 0.75, BUSY: 0.25},
        since=90.0,
        evidence=(Fact(FactKind.SLOW_PEER, (share("peer_activity", 0.16),), gpu=PEER),),
        doubts=(Fact(FactKind.WITHOUT_GPM),),
        waits_for=PEER,
    )
    words = verdict_document(verdict, 100.0)
    why = "waiting for GPU 0 of the same job, active 16 % of the time"
    assert words["sentence"] == f"starved by a slow peer: {why}"
    assert (words["seconds"], words["evidence"], len(words["doubts"])) == (10.0, [why], 1)
    values = json.loads(json.dumps(words))
    assert values["shares"] == {"starved/peer": 0.75, "busy/none": 0.25}
    assert values["waits_for"] == "GPU-0"
    assert values["facts"][0]["figures"] == {
        "peer_activity": {"value": 0.16, "limit": None, "unit": "ratio"}
    }


@pytest.mark.parametrize(
    ("names", "causes"),
    [
        (("hardware_slowdown", "hardware_thermal"), (Cause.THERMAL,)),
        (("hardware_slowdown", "power_brake"), (Cause.POWER,)),
        (("hardware_slowdown",), (Cause.THERMAL, Cause.POWER)),
    ],
)
def test_low_clocks_have_the_cure_of_their_state(
    names: tuple[str, ...], causes: tuple[Cause, ...]
) -> None:
    finding = Finding("clocks_held_down", Severity.WARNING, GPU, names=names)
    assert action(finding) == " ".join(ADVICE[State.THROTTLED, cause] for cause in causes)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((59, "50 s"), (900, "15 min"), (3600, "1 h"), (78 * 60, "1 h 18 min")),
        *((11_100, "3 h 5 min"), (86_399, "23 h 59 min"), (187_300, "2 d 4 h")),
    ],
)
def test_durations_have_two_units_from_an_hour_on(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_first_step_names_its_disk() -> None:
    finding = Finding("disk_smart", Severity.WARNING, device="nvme0n1", names=("temperature",))
    assert "smartctl -a /dev/nvme0n1" in action(finding)


@pytest.mark.parametrize(("share", "words"), [(0.0, "0 %"), (0.009, "< 1 %"), (0.01, "1 %")])
def test_only_nothing_is_zero_per_cent(share: float, words: str) -> None:
    assert percent(share) == words
