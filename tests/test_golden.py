"""Whole machines to whole scrapes, byte for byte. `tests/update` writes them; the diff is
the review."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.catalogue import EXPORTED
from agent.config.settings import Settings
from agent.diagnosis.job_watch import CostConfig
from agent.sources.agent_health import CERTIFICATE_ENDS
from agent.sources.allocation import AllocationConfig
from agent.sources.process import ProcessConfig
from agent.sources.workload import JobConfig
from tests.conftest import Committed
from tests.support import machines
from tests.support.exposition import complaints, of_the_library
from tests.support.machine_controls import set_mig, start_process
from tests.support.machines import OPENMETRICS, TEXT, AgentBench
from tests.support.repository import TAPES, TESTS

GOLDEN = TESTS / "golden"
SECONDS = 12
TAPED_SECONDS = 30  # into the load


def _mig() -> AgentBench:
    bench = machines.simulated("dgx-h100:training", gpus=2)
    set_mig(bench.machine, 0, on=True)
    return bench.run(SECONDS)


def _xid() -> AgentBench:
    config = Settings(ProcessConfig(series=2), JobConfig(info=True))
    bench = machines.simulated("dgx-h100:training", config, gpus=2)
    bench.run(2).machine.driver.xid(1, 13)
    start_process(bench.machine, 0)  # beside the one that trains there
    return bench.run(68)  # its job has a share once samples of a minute are there


def _shared() -> AgentBench:
    """Two jobs take turns on a GPU with GPM."""
    bench = machines.simulated("dgx-h200:nvlink-saturated", Settings(JobConfig(info=True)), gpus=2)
    start_process(bench.run(2).machine, 1)
    return bench.run(68)


def _allocated() -> AgentBench:
    """No one is on any GPU, and one was given to a job; an hour has a price."""
    config = Settings(JobConfig(info=True), AllocationConfig(slurm=True), CostConfig(2.5, "EUR"))
    return machines.simulated("dgx-station-v100:idle", config).run(2)


def _simulated(name: str, seconds: int = SECONDS) -> Callable[[], AgentBench]:
    """Two GPUs behind NVSwitches have all that eight would say."""
    return lambda: machines.simulated(name, gpus=2).run(seconds)


def _taped(path: Path) -> Callable[[], AgentBench]:
    return lambda: machines.taped(path).run(TAPED_SECONDS)


NAMES = tomllib.loads((GOLDEN / "machines.toml").read_text(encoding="utf-8"))["names"]
MACHINES: dict[str, Callable[[], AgentBench]] = {
    **{re.sub("[@:+]", "-", name): _simulated(name) for name in NAMES},
    "dgx-h200-nvlink-saturated": _shared,
    "dgx-h100-mig": _mig,
    "dgx-h100-xid": _xid,
    "dgx-h100-late-rank": _simulated("dgx-h100:late-rank", 100),  # more than a minute of steps
    "dgx-h100-hang": _simulated("dgx-h100:hang", 30),  # until it is known who is waited for
    "dgx-station-v100-allocated": _allocated,
    "laptop": lambda: machines.laptop(Path("/nonexistent")).run(2),
    **{f"tape-{path.stem}": _taped(path) for path in sorted(TAPES.glob("*.tape"))},
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_scrapes_as_it_did(name: str, committed: Committed) -> None:
    bench = MACHINES[name]()
    scrape = bench.scrape()
    latest, now = bench.latest, bench.clock.monotonic()
    for accept in (TEXT, OPENMETRICS):
        assert bench.exposition().page(accept).plain == of_the_library(latest, now, accept)
    committed(GOLDEN / f"{name}.prom", scrape)


def test_every_golden_belongs_to_a_machine() -> None:
    assert {path.stem for path in GOLDEN.glob("*.prom")} == set(MACHINES)


def test_every_metric_occurs_in_a_golden() -> None:
    text = "".join(path.read_text() for path in GOLDEN.glob("*.prom"))
    absent = {metric.name for metric in EXPORTED if f"\n{metric.name}" not in text}
    expected = {CERTIFICATE_ENDS.name}  # only an agent that serves TLS has it
    assert absent == expected, "add each metric to a machine of MACHINES, then run tests/update"


@pytest.mark.promtool
def test_promtool_has_no_complaint() -> None:
    """Of any metric, with the samples of one machine that has it."""
    families: dict[str, str] = {}
    for path in GOLDEN.glob("*.prom"):
        for family in re.split(r"^(?=# HELP )", path.read_text(), flags=re.MULTILINE):
            families[family.partition("\n")[0]] = family
    assert complaints("".join(families.values())) == (0, "")
