"""The same with Slurm's plugin for control groups of version 2, which keeps each job to its GPUs by
a program in the kernel. Each file that it reads of hierarchies of version 1 is hidden from it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service import test_jobs
from tests.service.conftest import HERE, staged
from tests.service.container import Container
from tests.service.slurm import Cluster
from tests.stack.running import eventually
from tests.support.nightly import NIGHTLY

pytestmark = [pytest.mark.systemd, NIGHTLY]

PRELOADED = "[Service]\nEnvironment=LD_PRELOAD=/mnt/one_hierarchy.so\n"


@pytest.fixture(scope="module")
def cluster(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    stage = tmp_path_factory.mktemp("cluster")
    shared = staged(package, stage)
    library = shared / "one_hierarchy.so"
    source = HERE / "one_hierarchy.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    with Container(shared, stage / "boot.log", hierarchy="yes") as container:
        container.write("/etc/systemd/system/slurmd.service.d/version-2.conf", PRELOADED)
        container.run("systemctl daemon-reload")
        yield Cluster(container, version=2)


def test_a_job_has_its_groups_in_slurms_scope(cluster: Cluster) -> None:
    number = cluster.submit("ada", "--gres=gpu:1", "/srv/train", "8")
    found = f"/sys/fs/cgroup/system.slice/*slurmstepd.scope/job_{number}/step_batch/user/task_0"
    eventually(lambda: cluster.container.status(f"ls -d {found}")[0] == 0, found)
    eventually(lambda: not cluster.running(), "its end")


node, scripts = test_jobs.node, test_jobs.scripts
test_names = test_jobs.test_jobs_of_two_users_by_name_and_second
test_scripts = test_jobs.test_prolog_drains_and_epilog_keeps_receipts
test_health_check = test_jobs.test_a_health_check_drains_what_is_broken_alone
