"""Whose GPU it is on a node of a real Slurm, as the service in its sandbox tells."""

import json
import re
import time
from collections.abc import Iterator

import pytest

from tests.service.service import CONFIGURATION, TIMEOUT, Service
from tests.service.slurm import Cluster
from tests.stack.running import eventually

pytestmark = [pytest.mark.systemd, pytest.mark.timeout(600)]

SETTINGS = "[job]\ninfo = true\n[allocation]\nslurm = true\n"
AGENT = "ExecStart=/opt/dgx-telemetry/bin/python /mnt/tests/service/used_gpus.py"
LASTS = 24
"""Seconds of a step; receipts are kept of what lasts 10, and Slurm is asked each 15."""

APART = 2.0
GONE = 60.0
LABELS = re.compile(r'(\w+)="([^"]*)"')


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Service]:
    """The service, which sees the processes of jobs on simulated GPUs."""
    service = Service(cluster.container)
    service.run("dpkg -i /mnt/dgx-telemetry.deb")
    service.container.write(CONFIGURATION, SETTINGS)
    service.change("ExecStart=", AGENT, "ExecStartPre=/bin/true")
    yield service
    service.run("dpkg -P dgx-telemetry", check=False)


def told(service: Service, metric: str) -> list[tuple[dict[str, str], float]]:
    """Each series of a metric, as of another tick."""
    time.sleep(1.0)
    lines = re.findall(rf"^{metric}{{(.*)}} (\S+)$", service.fetch("/metrics"), re.MULTILINE)
    return [(dict(LABELS.findall(labels)), float(value)) for labels, value in lines]


def names(service: Service) -> set[tuple[str, str, str, str]]:
    """Number, user, partition and runtime of each job that is told of."""
    found = told(service, "dgx_gpu_job_info")
    return {(one["job_id"], one["user"], one["partition"], one["runtime"]) for one, _ in found}


def test_jobs_of_two_users_by_name_and_second(cluster: Cluster, node: Service) -> None:
    """Three jobs: one with two steps, an array of two tasks, one that touches no GPU."""
    gpu = "--gres=gpu:1"
    steps = cluster.submit("ada", gpu, "/srv/steps", str(LASTS))
    cluster.submit("eve", gpu, "--array=1-2", "/srv/train", str(2 * LASTS))
    unused = cluster.submit("eve", gpu, "--wrap", f"'sleep {2 * LASTS}'")
    eventually(lambda: len(cluster.running()) == 4, TIMEOUT, "all of them on the node")
    tasks = set(cluster.running()) - {steps, unused}
    expected = {(str(steps), "ada", "long", "slurm")}
    expected |= {(str(job), "eve", "long", "slurm") for job in (*tasks, unused)}

    eventually(lambda: names(node) == expected, TIMEOUT, f"{expected}, not {names(node)}")
    by_job = {one["job_id"]: one["uuid"] for one, _ in told(node, "dgx_gpu_job_info")}
    allocated = {one["uuid"]: value for one, value in told(node, "dgx_gpu_allocated")}
    assert set(allocated.values()) == {1.0}
    assert len(set(by_job.values())) == 4, "a GPU each"

    def idle() -> set[str]:
        used = {one["uuid"]: value for one, value in told(node, "dgx_gpu_processes")}
        return {job for job, uuid in by_job.items() if not used[uuid]}

    eventually(lambda: idle() == {str(unused)}, TIMEOUT, f"all but {unused} on their GPUs")

    eventually(lambda: not cluster.running(), TIMEOUT, "their end")
    eventually(lambda: not names(node), GONE, "nothing left of them")
    assert {value for _, value in told(node, "dgx_gpu_allocated")} == {0.0}
    spent: dict[str, float] = {}
    for job in json.loads(node.fetch("/api/v1/jobs"))["ended"]:
        spent[job["job_id"]] = spent.get(job["job_id"], 0.0) + job["seconds"]
    print("seconds by the agent:", spent)
    assert spent.keys() == {str(job) for job in (steps, *tasks)}
    for number, seconds in spent.items():
        print(number, "by Slurm:", cluster.seconds(int(number)))
        assert seconds == pytest.approx(cluster.seconds(int(number)), abs=APART)
