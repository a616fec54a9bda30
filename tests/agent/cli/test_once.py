"""Output of `once`: the sentence of the page first, and no line wider than the terminal."""

import re
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from agent.cli.once import page
from agent.cli.options import board_of, first_readings
from agent.cli.table import table
from agent.cli.watch import ViewChoice, text
from agent.diagnosis.job_watch import CostConfig
from agent.faults.monitoring import ABSENT
from agent.model import Reason
from agent.ranges import device_ranges
from agent.simulator import SYSTEMS
from tests.support.machines import simulated
from tests.support.nightly import covering, shortly
from tests.support.statuses import shown as machine_of

NARROW = ("dgx-1-v100", "dgx-h100", "gb200-tray", "dgx-spark", "gtx-1080", "sixteen")
"""The widest rows of paths and of GPUs, and single GPUs with and without a sheet of their host."""


def lines(name: str, width: int = 80, seconds: int = 8, gpus: int | None = None) -> list[str]:
    return list(page(machine_of(name, gpus=gpus).run(seconds).look, width))


@pytest.mark.parametrize("name", shortly([*SYSTEMS, "sixteen"], NARROW))
def test_it_fits_the_terminal(name: str) -> None:
    look = machine_of(f"{name}:training").run(6).look
    for width in (40, 80, 120):
        shown = list(page(look, width))
        assert max(map(len, shown)) <= width
        first = f"{look.status.at:%Y-%m-%d %H:%M:%S} UTC  {look.status.machine.host}  Simulated, "
        assert " ".join(" ".join(shown).split()).startswith(" ".join(first.split()))
        assert shown[shown.index("") + 1].startswith(
            ("8 GPUs busy", "4 GPUs busy", "16 GPUs busy", "The GPU is busy")
        )
        assert "is present, and no link is known to be slow." in " ".join(shown)


def test_a_port_that_was_never_up_is_said_where_nothing_is_wrong() -> None:
    sound = [machine_of(f"dgx-1-v100:training{down}").skip(15).status.sound for down in PORTS]
    assert [str(text).partition("slow.")[2] for text in sound] == list(PORTS.values())


PORTS = {"": "", "+infiniband-down": " InfiniBand ports that are down: mlx5_0:1."}


@pytest.mark.parametrize(
    ("load", "fault"),
    covering(
        product(
            ("hang", "late-rank", "starved-disk", "held"),
            ("xid-79", "gpu-lost", "gpu-slow", "driver-hang", "mig"),
        )
    ),
)
def test_a_fault_beside_a_load_is_shown(load: str, fault: str) -> None:
    """A lost GPU has no state, one that refuses has no figures, a divided one no verdict."""
    look = machine_of(f"dgx-h100:{load}+{fault}", gpus=2).run(40).look
    for width, keys in product((80, 150), ("", "s", "ss", "0", "1")):
        assert max(map(len, page(look, width))) <= width
        choice = ViewChoice()
        for key in keys:
            choice.press(key)
        assert "None" not in " ".join(text(look, choice, "", width)[1])


def test_gpus_without_a_name_and_a_driver_without_a_version_are_shown() -> None:
    machine = machine_of("dgx-station-v100:training").run(6)
    inventory = machine.bench.agent.gpus.inventory
    first, *others = inventory.gpus
    nameless = (replace(first, model=""), *others)
    source = machine.board.source
    machine.board.source = replace(
        source,
        diagnosis=replace(source.diagnosis, inventory=lambda: replace(inventory, gpus=nameless)),
    )
    shown = " ".join(" ".join(page(machine.look, 120)).split())
    assert "Tesla V100-DGXS-32GB, model not known" in shown


def test_paths_stand_against_their_limits_the_fullest_first() -> None:
    shown = lines("dgx-1-v100:starved-disk")
    head = next(n for n, line in enumerate(shown) if line.split()[:2] == ["path", "device"])
    first = shown[head + 1].split()
    assert first[:2] == ["disk", "md0"]
    assert first[2:6] == ["2", "of", "2", "GB/s"]
    assert first[-1] == "full"
    assert "at rest (below 1 % of the limit, or 5 MB/s where none is known): nvlink gpu0-7" in (
        " ".join(" ".join(shown).split())
    )


def test_why_and_what_to_do_is_reported_once_for_all_alike() -> None:
    shown = " ".join(" ".join(lines("dgx-h100:starved-peer", seconds=24, gpus=4)).split())
    assert shown.count("GPUs 1-3: for example GPU 1: waiting for GPU 0, which works harder") == 1
    assert shown.count("distribute the work evenly") == 1


def test_the_last_seconds_of_the_host_are_reported_and_figures_have_no_needless_digits() -> None:
    machine = machine_of("dgx-h200:starved-network", gpus=4).run(24)
    shown = "\n".join(page(machine.look, 120))
    assert re.search(r"CPUs busy \d+ %; some task waited: cpu 0 %, io 8\d %, memory 0 %", shown)
    assert re.search(r" 0\.\d\d of 0\.\d\d  ", shown)
    said = "\n".join(lines("dgx-h200:training", 120, gpus=2))
    assert re.search(r"hbm +gpu0-1 +\d+ of 4800 GB/s", said), "GPUs that are alike share a row"
    assert re.search(r"network +\S+ +9\d of 100 Gb/s +9\d %", shown), "networks are sold in bits"


def test_a_fault_says_since_when_and_that_its_alert_would_fire() -> None:
    machine = machine_of("l40s:pcie-degraded").run(5)
    for seconds, when in ((0, "would fire in 4 min"), (320, "would fire now")):
        shown = " ".join(" ".join(page(machine.skip(seconds).look, 80)).split())
        assert re.search(rf"alert DgxPcieDegraded \([^)]*\) {when}; more: RUNBOOK.md#dgx", shown)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dgx-h100:training", "infiniband 8 x 400 Gb/s, each at full rate"),
        ("dgx-h100:training", "pcie 8 x generation 5 x16, each at full width"),
        ("dgx-h100:port-degraded", "infiniband 1 x 200 Gb/s (of 400 Gb/s), 7 x 400 Gb/s"),
    ],
)
def test_rates_of_links_are_those_that_they_negotiated(name: str, said: str) -> None:
    assert said in " ".join(" ".join(lines(name, seconds=8)).split())


def test_words_of_a_table_are_not_cut_where_there_is_room() -> None:
    rows = [("train.py:20000", "starved by its launching thread", "-" * 40)]
    assert "  train.py:20000  " in table(("job", "worst", ""), rows, width=80)[1]
    assert "  train.py:20000  " in table(("job", "worst", ""), rows, width=68)[1]


def test_a_finding_that_the_headline_shows_is_reported_once() -> None:
    shown = "\n".join(lines("dgx-station-v100:pcie-degraded"))
    assert shown.count("its PCIe link has lost lanes: x8 instead of x16") == 1
    event = next(line for line in lines("dgx-h100:xid-171") if "XID 171" in line)
    assert event.endswith(" ago."), "what says how long ago it was needs no second time"


def test_what_is_wrong_is_listed() -> None:
    shown = lines("dgx-station-v100:gpu-lost", seconds=10)
    first, second = [place + 1 for place, line in enumerate(shown) if not line][:2]
    assert shown[first].startswith("GPU 2 lost, 3 of 4 respond")
    assert [line for line in shown if line.split()[:2] == ["2", "lost"]]
    said = " ".join(" ".join(shown[first:second]).split())
    missing = "pages on-call immediately) would fire in 50 s; more: RUNBOOK.md#dgxgpumissing"
    assert said.count(missing) == 1
    assert "GPU 2: XID 79" in said


def test_what_has_failed_does_not_rest() -> None:
    machine = machine_of("dgx-a100:training+disk-dead+infiniband-down+disk-hot", gpus=1)
    look = machine.run(6).skip(65).skip(65).look
    shown = " ".join(" ".join(page(look, 150)).split())
    assert "disk nvme0n1 of array md0 has failed: its controller does not respond" in shown
    assert (
        "dead: disk nvme0n1 down: infiniband mlx5_0:1 no link, not in use: network ens6f1 " in shown
    )
    assert "7 x 200 Gb/s, each at full rate, 1 down" in shown


def test_a_slowdown_has_its_reason_and_begins_when_it_did() -> None:
    machine = machine_of("dgx-h100:training", gpus=1).run(60)
    machine.bench.machine.set_scenario("throttled")
    status = machine.run(40).status
    (group,) = status.groups
    assert group.since == status.headline[0].since
    assert group.since is not None
    assert 25 <= (status.at - group.since).total_seconds() <= 40
    assert group.why[0].startswith("thermal slowdown for 100 % of the time, SM clock at ")


def test_events_that_are_over_are_listed() -> None:
    machine = machine_of("dgx-h100:training", gpus=1).run(5).skip(65)
    machine.bench.machine.set_scenario("infiniband-down")
    machine.run(27).bench.machine.set_scenario("training")
    shown = list(page(machine.skip(80).look, 120))
    place = shown.index("Over, in the last 24 h:")
    assert re.match(
        r"  \w{3} \d\d:\d\d to \w{3} \d\d:\d\d: port mlx5_0:1 is down", shown[place + 1]
    )


def test_text_is_wrapped_within_its_column_and_numbers_are_not() -> None:
    rows = [("hbm", "gpu0", "3350.000", "[P] NVIDIA H100 data sheet, and more than fits")]
    shown = table(("path", "device", "GB/s", "source"), rows, width=48)
    assert max(map(len, shown)) <= 48
    assert shown[1].split()[:3] == ["hbm", "gpu0", "3350.000"]
    assert shown[2].strip() in rows[0][3]
    assert table(("a",), [], width=1) == ["  a"]
    pace = "3.87 steps/s (0.258 s each); the others wait for GPU 1"
    shown = table(("job", "in", "progress"), [("train.py:20000", "< 0.01 GB/s", pace)], width=60)
    assert max(map(len, shown)) <= 60, "a sentence that begins with a digit is no number"
    assert shown[1].startswith("  train.py:20000  < 0.01 GB/s  3.87")


def test_devices_are_named_in_few_words() -> None:
    assert device_ranges(("gpu10", "gpu9", "sda", "", "gpu0")) == "gpu0,9-10, sda"
    assert device_ranges(("eth0",), " ") == "eth0"
    assert device_ranges(("mlx5_2:1", "mlx5_0:1", "eth1", "mlx5_1:1")) == "eth1, mlx5_0-2:1"
    assert device_ranges(("enp1s0", "enp2s1")) == "enp1s0, enp2s1"


def test_a_job_has_its_receipt_so_far_and_mig_its_rows() -> None:
    machine = machine_of("dgx-h100:starved-disk", CostConfig(gpu_hour=100.0), gpus=2).run(70)
    shown = " ".join(" ".join(page(machine.look, 200)).split())
    assert re.search(
        r"job of pid \d+: cost \d\.\d\d so far, of which lost \d\.\d\d; its GPUs "
        r"cost 200\.00 per hour; without ",
        shown,
    )
    assert "No cost" not in shown
    assert "No cost: no price of a GPU-hour is configured" in "\n".join(
        lines("dgx-h100:training", 120, seconds=20, gpus=1)
    )
    rows = [line for line in lines("dgx-a100:training+mig", gpus=1) if line.startswith("  0:")]
    assert rows[0].split()[:3] == ["0:2", "MIG", "3g.40gb"]


async def test_a_look_does_not_count_what_stays_after_the_end_of_a_recording() -> None:
    bench = simulated("k40:idle")
    agent = bench.agent
    while agent.poller.waiting_for():
        await agent.poller.tick()
    for finished in (True, False):
        agent.finished = partial(bool, finished)
        before = bench.latest.tick
        await first_readings(agent)
        assert (bench.latest.tick == before) is finished


@pytest.mark.parametrize(
    ("name", "level", "text"),
    [
        ("dgx-h100:hang", "critical", "3 GPUs hung for 10 s, waiting for rank 1 "),
        ("dgx-a100:hang", "critical", "3 GPUs hung for 10 s, waiting for rank 1 "),
        ("dgx-h100:late-rank", None, "3 GPUs busy so far"),
        ("dgx-a100:starved-peer", "warning", "GPUs 1 and 2 waiting for GPU 0, "),
        ("dgx-h100:checkpoint", "warning", "3 GPUs starved by disk, "),
        ("dgx-h100:no-demand", None, "3 GPUs inactive, cause not known yet, "),
        ("dgx-h100:training", "good", "3 GPUs busy"),
    ],
)
async def test_a_first_look_says_what_its_figures_say(
    name: str, level: str | None, text: str
) -> None:
    bench = simulated(name, gpus=3).skip(30)
    board = board_of(bench.agent, bench.hardware)
    await first_readings(bench.agent)
    (clause,) = board.status().headline
    assert (clause.level, clause.text[: len(text)]) == (level, text)
    assert clause.alert is None or level is not None
    assert "checkpoint" not in name or "peer" not in str(board.status().divided)


@pytest.mark.parametrize("name", ["dgx-h200:exposed-communication", "dgx-h200:throttled"])
def test_what_costs_gpus_at_work_has_one_cure_and_is_not_repeated(name: str) -> None:
    shown = " ".join(" ".join(lines(name, seconds=40, gpus=2)).split())
    assert shown.count("Do: ") == 1
    assert "busy: active" not in shown


def test_severity_and_reasons_stand_in_words() -> None:
    look = machine_of("dgx-h100:starved-disk", gpus=2).run(40).look
    shown = " ".join(" ".join(page(look, 80)).split())
    assert re.search(
        r"alert DgxGpuStarved \(warning: notifies, does not page\) fires from 25 % of 15 min "
        r"or 10 % of 6 h; more: RUNBOOK.md#dgxgpustarved",
        shown,
    )
    parts = re.search(r"time of all GPUs, last 10 s: (.*? %) (?=GPUs)", shown)
    assert parts
    assert abs(sum(map(int, re.findall(r"(\d+) %", parts[1]))) - 100) <= 2
    assert "Simulated, not this host's GPUs: NVIDIA DGX H100, " in shown
    assert " of md1 " in shown, "the disks of an array do not count besides it"
    assert re.search(r"no link, not in use: network ens6f1 at rest [^:]*: ", shown)
    assert set(ABSENT) > {*Reason}, "each reason has words, the same in every view"
    begun = {words.split()[0] for words in ABSENT.values()}
    assert not begun & {"of", "for", "without", "answered"}, "each follows `no value: `"
    assert "not supported by this hardware (" in shown
