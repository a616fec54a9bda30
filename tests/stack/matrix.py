"""Faults and their combinations through real Prometheus and Alertmanager: what arrives, and
nothing else.

    python -m tests.stack.matrix            # all of them, in batches: about a quarter of an hour
    python -m tests.stack.matrix 2/6        # the second sixth of them
    python -m tests.stack.matrix short      # those that CI plays
    python -m tests.stack.matrix xid-       # those with this in their name

prints a line for each and exits 1 where another alert arrived than the fault's own.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

from agent.simulator import parse
from agent.sources.agent_health import LAST_TICK
from tests.stack.daemons import monitoring
from tests.stack.receivers import Inbox, webhook
from tests.stack.running import eventually
from tests.stack.scenario_run import SCALE, SCRAPE, SPEED, fleets, is_ready, text_of, texts

H100, A100, H200, STATION, ONE, P100, K40 = (
    "dgx-h100",
    "dgx-a100",
    "dgx-h200",
    "dgx-station-v100",
    "dgx-1-v100",
    "dgx-1-p100",
    "k40",
)
NOTHING: frozenset[str] = frozenset()


def named(*alerts: str) -> frozenset[str]:
    """Alerts without the prefix that all have."""
    return frozenset(f"Dgx{alert}" for alert in alerts)


MATRIX: Mapping[str, frozenset[str]] = {
    # single faults
    f"{A100}@580:training+recovery-reset": named("GpuRecoveryNeeded"),
    f"{A100}@580:training+recovery-reboot": named("GpuRecoveryNeeded"),
    f"{A100}:training+rows-pending": named("GpuPagesPending"),
    f"{STATION}:training+pages-pending": named("GpuPagesPending"),
    f"{A100}:training+rows-near": named("GpuEccRising"),
    f"{STATION}:training+pages-near": named("GpuEccRising"),
    f"{STATION}:training+ecc-rising": named("GpuEccRising"),
    f"{STATION}:training+pcie-replays": named("PcieReplays"),
    f"{A100}:training+fabric-service": named("FabricFault"),
    f"{H100}:training+fabric-service": named("FabricFault"),
    f"{H100}:training+fabric-state": named("FabricFault"),
    f"{H100}:training+fabric-health": named("FabricFault"),
    f"{A100}:training+switch-fatal": named("FabricFault"),
    f"{A100}:training+switch-noise": NOTHING,
    f"{A100}:training+infiniband-errors": named("InfinibandErrors"),
    f"{A100}:training+infiniband-down": named("InfinibandErrors"),
    f"{A100}:training+infiniband-flapping": named("InfinibandFlapping"),
    f"{A100}:training+raid-degraded": named("RaidDegraded"),
    f"{STATION}:training+disk-dead": named("DiskFailing"),
    f"{A100}:training+disk-hot": named("DiskFailing"),
    f"{STATION}:training+disk-damaged": named("DiskFailing"),
    f"{STATION}:training+disk-smart": named("DiskFailing"),
    f"{STATION}:training+fan-failed": named("ChassisFault"),
    f"{STATION}:training+supply-failed": named("ChassisFault"),
    # XIDs of each action
    f"{STATION}:training+xid-13": named("GpuXid"),
    f"{STATION}:training+xid-31": named("GpuXid"),
    f"{A100}:training+xid-63": named("GpuXid"),
    f"{A100}:training+xid-74": named("GpuXid"),
    f"{STATION}:training+xid-92": named("GpuXid"),
    f"{A100}:training+xid-94": named("GpuXid"),
    f"{A100}:training+xid-109": named("GpuXid"),
    f"{A100}:training+xid-119": named("GpuXid"),
    f"{A100}:training+xid-140": named("GpuXid"),
    f"{H100}:training+xid-149": named("GpuXid"),
    f"{A100}@580:training+xid-154": named("GpuXid"),
    f"{STATION}:training+xid-999": named("GpuXid"),
    # one fault with all that it brings along
    f"{STATION}:double-bit": named("GpuXid"),
    f"{A100}@580:double-bit": named("GpuXid"),
    f"{A100}:row-remap+rows-pending+xid-64": named("GpuRowRemapFailure"),
    f"{A100}:system-processor": named("GpuXid"),
    f"{STATION}:gpu-lost+xid-45": named("GpuMissing", "GpuXid"),
    f"{A100}:gpu-lost": named("GpuMissing"),
    f"{STATION}:nvlink-down+nvlink-errors": named("NvlinkDown"),
    f"{STATION}:pcie-degraded+pcie-replays": named("PcieDegraded"),
    f"{A100}:raid-degraded+disk-hot": named("RaidDegraded", "DiskFailing"),
    f"{A100}:infiniband-flapping+infiniband-errors": named("InfinibandFlapping"),
    f"{STATION}:driver-hang+fan-failed": named("AgentBlind", "ChassisFault"),
    f"{STATION}:log-flood": named("GpuXid"),
    f"{A100}:nvlink-down+xid-74": named("GpuXid"),
    f"{A100}@580:recovery-reset+rows-pending+xid-63": named("GpuRecoveryNeeded"),
    f"{A100}:rows-pending+xid-63": named("GpuPagesPending"),
    f"{A100}:rows-pending+xid-94": named("GpuXid"),
    f"{A100}:raid-degraded+disk-dead": named("RaidDegraded"),
    # two faults that have nothing to do with each other
    f"{STATION}:ecc+disk-damaged": named("GpuEccUncorrected", "DiskFailing"),
    f"{STATION}:gpu-hot+supply-failed": named("GpuHot", "ChassisFault"),
    f"{STATION}:xid-79+pcie-replays": named("GpuXid", "PcieReplays"),
    # healthy days
    f"{P100}:training": NOTHING,
    f"{ONE}:training": NOTHING,
    f"{STATION}:training": NOTHING,
    f"{A100}:training": NOTHING,
    f"{H100}:training": NOTHING,
    f"{H200}:idle": NOTHING,
    f"{H200}:training": NOTHING,
    f"{K40}:training": NOTHING,
    "titan-x-maxwell:training": NOTHING,
    "titan-x-pascal:idle": NOTHING,
    "gtx-1080:training": NOTHING,
}
"""Machine with what is wrong with it, and the alerts that must arrive."""

SHORT = (
    f"{STATION}:double-bit",
    f"{STATION}:driver-hang+fan-failed",
    f"{STATION}:training+xid-31",
    f"{STATION}:training+disk-damaged",
    f"{STATION}:training+pages-pending",
    f"{STATION}:training",
)
GPUS = 32
"""Of all machines of a batch: each takes 2 to 3 % of a core."""

LEAST, MOST = 45.0, 100.0
"""Seconds that each batch plays: at least, so that what must not come has its time; at most."""


def instance(machine: str) -> str:
    """A name that Prometheus and a command line take."""
    return re.sub("[:+@]", "-", machine)


def query(port: int, expr: str) -> list[float]:
    """Return the values of Prometheus' answer now."""
    answer = json.loads(text_of(port, f"api/v1/query?{urlencode({'query': expr})}"))
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def scraped(port: int, machines: int) -> bool:
    """Return whether every machine was scraped as often as rules need to detect a change."""
    times = query(port, f"count_over_time({LAST_TICK}[1m])")
    return len(times) == machines and min(times) >= 3


def play(
    machines: Mapping[str, frozenset[str]], least: float = LEAST, most: float = MOST
) -> tuple[dict[str, set[str]], Inbox]:
    """Return the messages that arrived of each machine; and of all of them together."""
    names = {instance(machine): machine for machine in machines}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        inbox = stack.enter_context(webhook())
        well = {name: f"{machine.partition(':')[0]}:training" for name, machine in names.items()}
        hosts = stack.enter_context(fleets(SPEED, well))
        ports = {name: host.ports[name] for name, host in hosts.items()}
        for name, port in ports.items():
            eventually(partial(is_ready, port), 120, f"the agent of {name} is ready")
        watched = monitoring(folder, SCRAPE, ports, texts(inbox, SCALE, silent_for="10m"))
        server = stack.enter_context(watched).prometheus
        # what was there before the first scrapes is no one's news
        eventually(partial(scraped, server, len(ports)), 60, "each machine was scraped")
        for name, machine in names.items():
            hosts[name].play(name, machine.partition(":")[2])
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < most:
            came = {m: {d.name for d in inbox.of(n)} for n, m in names.items()}
            if passed >= least and all(machines[m] <= found for m, found in came.items()):
                break
            time.sleep(0.5)
        late = query(server, "max(max_over_time(scrape_duration_seconds[2m]))")
        print(
            f"{len(names)} machines for {passed:.0f} s; longest scrape {late[0]:.2f} s", flush=True
        )
    return came, inbox


def batches(machines: Mapping[str, frozenset[str]]) -> list[dict[str, frozenset[str]]]:
    """So many at once as this machine can carry."""
    found: list[dict[str, frozenset[str]]] = []
    room = 0
    for machine, alerts in machines.items():
        gpus = parse(machine).system.gpus
        if gpus > room:
            found.append({})
            room = GPUS
        room -= gpus
        found[-1][machine] = alerts
    return found


def asked(word: str = "") -> Mapping[str, frozenset[str]]:
    """All, `short`, a slice like `2/6`, or those with the word in their name."""
    if word == "short":
        return {m: MATRIX[m] for m in SHORT}
    number, slices, parts = word.partition("/")
    if not slices:
        return {m: alerts for m, alerts in MATRIX.items() if word in m}
    return dict(list(MATRIX.items())[int(number) - 1 :: int(parts)])


def main() -> int:
    chosen = asked(*sys.argv[1:])
    wrong = 0
    for batch in batches(chosen):
        came, inbox = play(batch)
        for machine, wanted in batch.items():
            right = came[machine] == wanted
            wrong += not right
            texts_of = {d.name: d.text for d in inbox.of(instance(machine))}
            print("ok   " if right else "WRONG", machine, sorted(came[machine]), flush=True)
            if not right:
                print(f"      expected {sorted(wanted)}")
                for name in came[machine] ^ wanted:
                    print(f"      {name}: {texts_of.get(name, 'never came')}", flush=True)
    print(f"{len(chosen)} machines, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
