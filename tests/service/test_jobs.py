"""Owner of each GPU, with a real Slurm and a real podman, as the service in its sandbox reports."""

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.service.podman import prepare
from tests.service.service import CONFIGURATION, Service
from tests.service.slurm import ACCOUNTS, Cluster
from tests.stack.running import eventually
from tests.support.nightly import NIGHTLY
from tests.support.repository import ROOT

pytestmark = pytest.mark.systemd

SETTINGS = '[metrics]\nkeep = ["dgx_gpu_state"]\n[job]\ninfo = true\n[allocation]\nslurm = true\n'
AGENT = "ExecStart=/opt/dgx-telemetry/bin/python -OO /mnt/tests/service/used_gpus.py"
LASTS = 24
"""Seconds of a step; receipts are kept of what lasts 10, and Slurm is asked every 15."""

APART = 3.0
"""Seconds: two steps begin and end within a tick each, and sacct shows whole seconds."""

LOADS = {
    "cpu": """
import subprocess, sys, time
loader = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(600)
""",
    "network": """
import socket, subprocess, sys, time
SENDER = '''
import socket, sys, time
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    while True:
        connection.sendall(bytes(1 << 20))
        time.sleep(0.05)
'''
with socket.create_server(("127.0.0.1", 0)) as server:
    sender = subprocess.Popen([sys.executable, "-c", SENDER, str(server.getsockname()[1])])
    connection, _ = server.accept()
    while connection.recv(1 << 20, socket.MSG_WAITALL):
        decoded = time.process_time() + 0.02
        while time.process_time() < decoded:
            pass
""",
}
"""Work of a container on its GPU, by what the GPU waits for: a loader that computes, and 20 MB/s
that arrive in a network of its own and are decoded by 0.4 cores."""

INSIDE = "/srv/root"
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


def shown(service: Service, metric: str) -> list[tuple[dict[str, str], float]]:
    """Each series of a metric, as of another tick."""
    time.sleep(1.0)
    lines = re.findall(rf"^{metric}{{(.*)}} (\S+)$", service.fetch("/metrics"), re.MULTILINE)
    return [(dict(LABELS.findall(labels)), float(value)) for labels, value in lines]


def names(service: Service) -> set[tuple[str, ...]]:
    """Number, user, account, partition and runtime of each job that is reported of."""
    labels = ("job_id", "user", "account", "partition", "runtime")
    return {tuple(one[name] for name in labels) for one, _ in shown(service, "dgx_gpu_job_info")}


def test_jobs_of_two_users_by_name_and_second(cluster: Cluster, node: Service) -> None:
    """Three jobs: one with two steps, an array of two tasks, one that touches no GPU. None ends
    before all have been seen, however late the last one begins."""
    node.run("rm /run/seen")
    gpu = "--gres=gpu:1"
    steps = cluster.submit("ada", gpu, "/srv/steps", str(LASTS))
    cluster.submit("eve", gpu, "--array=1-2", "/srv/train", str(2 * LASTS))
    unused = cluster.submit("eve", gpu, "--wrap", "'until [ -e /run/seen ]; do sleep 1; done'")
    eventually(lambda: len(cluster.running()) == 4, "all of them on the node")
    tasks = set(cluster.running()) - {steps, unused}
    owners = {steps: "ada", **dict.fromkeys((*tasks, unused), "eve")}
    expected = {(str(j), user, ACCOUNTS[user], "long", "slurm") for j, user in owners.items()}

    eventually(lambda: names(node) == expected, f"{expected}, not {names(node)}")
    by_job = {one["job_id"]: one["uuid"] for one, _ in shown(node, "dgx_gpu_job_info")}
    allocated = {one["uuid"]: value for one, value in shown(node, "dgx_gpu_allocated")}
    assert set(allocated.values()) == {1.0}
    assert len(set(by_job.values())) == 4, "a GPU each"

    def idle() -> set[str]:
        used = {one["uuid"]: value for one, value in shown(node, "dgx_gpu_processes")}
        return {job for job, uuid in by_job.items() if not used[uuid]}

    eventually(lambda: idle() == {str(unused)}, f"all but {unused} on their GPUs")

    node.run("touch /run/seen")
    eventually(lambda: not cluster.running(), "their end")
    eventually(lambda: not names(node), "nothing left of them")
    assert {value for _, value in shown(node, "dgx_gpu_allocated")} == {0.0}
    spent: dict[str, float] = {}
    for job in json.loads(node.fetch("/api/v1/jobs"))["ended"]:
        spent[job["job_id"]] = spent.get(job["job_id"], 0.0) + job["seconds"]
    assert spent.keys() == {str(job) for job in (steps, *tasks)}
    for number, seconds in spent.items():
        user, account, by_slurm = cluster.shown(int(number))
        print(f"job {number}: {seconds:.2f} s by the agent, {by_slurm:.0f} s by sacct")
        assert (user, account) == (owners[int(number)], ACCOUNTS[owners[int(number)]])
        assert seconds == pytest.approx(by_slurm, abs=APART)

    remembered = by_user(node)
    assert remembered.keys() == {"ada", "eve"}
    assert 2 * LASTS - APART < remembered["ada"] < remembered["eve"]
    node.change("ExecStart=", AGENT, "ExecStartPre=/bin/true")
    assert by_user(node) == pytest.approx(remembered), "the hourly sums outlast the agent"


@NIGHTLY
def test_a_job_that_is_cancelled_or_requeued(cluster: Cluster, node: Service) -> None:
    """Its names go with it, and come again under the same number."""

    def is_reported(number: int, there: bool) -> bool:
        return any(one[0] == str(number) for one in names(node)) == there

    number = cluster.submit("ada", "--gres=gpu:1", "--requeue", "/srv/train", "600")
    eventually(lambda: is_reported(number, True), "its names")
    time.sleep(12)  # what lasts less leaves no receipt
    cluster.run(f"scontrol requeue {number}")
    eventually(lambda: is_reported(number, False), "none while it waits")
    cluster.run(f"scontrol update JobId={number} StartTime=now", check=False)
    eventually(lambda: is_reported(number, True), "its names again")
    time.sleep(12)
    cluster.run(f"scancel {number}")
    eventually(lambda: is_reported(number, False), "nothing left of it")
    ended = json.loads(node.fetch("/api/v1/jobs"))["ended"]
    runs = [job["seconds"] for job in ended if job["job_id"] == str(number)]
    assert len(runs) == 2, ended
    assert min(runs) >= 10


def by_user(service: Service) -> dict[str, float]:
    """GPU-seconds of each user, as `report` reports them of the agent's hourly sums."""
    shown = json.loads(service.run("dgx-telemetry report --by user --json"))
    assert "hourly sums" in shown["source"]
    return {row["name"]: row["gpu_hours"] * 3600 for row in shown["rows"]}


CHECKED = Path(__file__).with_name("checked.sh").read_text(encoding="utf-8")
RECEIPTS = "/var/spool/dgx-telemetry"

STATE = "sinfo -h -o '%T %E'"


@pytest.fixture(scope="module")
def scripts(node: Service) -> Service:
    """The scripts of deploy/slurm, on a node that looks at a simulated machine."""
    for name in ("prolog", "epilog"):
        script = f"/etc/slurm/dgx-telemetry-{name}"
        node.container.write(script, (ROOT / "deploy/slurm" / name).read_text())
        node.run(f"chmod 755 {script}; echo {name.title()}={script} >>/etc/slurm/slurm.conf")
    node.container.write("/usr/local/bin/dgx-telemetry", CHECKED)
    node.run("touch /run/looks; echo dgx-station-v100:idle >/run/simulated")
    node.run("chmod 755 /usr/local/bin/dgx-telemetry; scontrol reconfigure")
    return node


def looks(service: Service, machine: str) -> list[tuple[int, float]]:
    """Exit status and seconds of each look at this machine that is over."""
    lines = [line.split() for line in service.run("cat /run/looks").splitlines()]
    return [(int(s), float(to) - float(since)) for what, s, since, to in lines if what == machine]


def test_prolog_drains_and_epilog_keeps_receipts(cluster: Cluster, scripts: Service) -> None:
    """As slurmd starts them."""
    node = scripts
    job = cluster.submit("ada", "--gres=gpu:1", "/srv/train", str(LASTS))
    receipt = f"{RECEIPTS}/{job}.json"
    written = f"test -e {receipt}"
    eventually(lambda: node.container.status(written)[0] == 0, "its receipt")
    row = json.loads(node.run(f"cat {receipt}"))["rows"][0]
    assert (row["name"], row["user"], row["account"]) == (str(job), "ada", ACCOUNTS["ada"])
    assert row["gpu_hours"] * 3600 == pytest.approx(LASTS, abs=APART)
    owners = f"stat -c '%U %a' {RECEIPTS} {receipt}"
    assert node.run(f"ls {RECEIPTS}; {owners}") == f"{job}.json\nroot 755\nada 600"

    node.run("echo dgx-station-v100:ecc >/run/simulated")
    kept_off = cluster.submit("ada", "--gres=gpu:1", "/srv/train", "15")
    eventually(lambda: "drain" in node.run(STATE), "a node that takes no more jobs")
    eventually(lambda: "PENDING" in node.run("squeue -h -o %T"), "a job queued again")
    assert "held" not in node.run("squeue -h -o %r")
    assert re.search("dgx-telemetry: .*ECC", node.run(STATE)), node.run(STATE)
    node.run(f"scancel {kept_off}")


def test_a_health_check_drains_what_is_broken_alone(scripts: Service) -> None:
    """The same script as HealthCheckProgram, as slurmd starts it again and again: a healthy node
    passes, a driver that hangs ends in time, and the reason of who drained a node stays."""
    node = scripts
    name = node.run("hostname")
    program = "HealthCheckProgram=/etc/slurm/dgx-telemetry-prolog\\nHealthCheckInterval=3\\n"
    node.run(f"printf '{program}' >>/etc/slurm/slurm.conf; scontrol reconfigure")

    def looked_at(machine: str, status: int, times: int = 1) -> None:
        seen = len(looks(node, machine))
        node.run(f"echo {machine} >/run/simulated")
        more = f"{times} more at {machine}"
        eventually(lambda: len(looks(node, machine)) >= seen + times, more)
        print(machine, looks(node, machine))
        assert {found for found, _ in looks(node, machine)} == {status}

    def drained(word: str) -> bool:
        """By this finding; what a look at the machine before it found may come in between."""
        state = node.run(STATE)
        found = re.search(f"drain.* dgx-telemetry: .*{word}", state)
        if not found:
            node.run(f"scontrol update nodename={name} state=resume", check=False)
        return bool(found)

    looked_at("dgx-a100:training", 0)
    node.run(f"scontrol update nodename={name} state=resume", check=False)  # of the test before
    looked_at("dgx-a100:fan-failed", 1)
    assert "idle" in node.run(STATE), "neither of them is reason enough"
    for machine, word in (("driver-hang", "driver"), ("xid-62", "XID 62")):
        looked_at(f"dgx-station-v100:{machine}", 3)
        eventually(partial(drained, word), f"a node drained because of {word}")
    node.run(f"scontrol update nodename={name} state=drain reason='board ordered'")
    looked_at("dgx-station-v100:xid-62", 3, times=3)
    assert "board ordered" in node.run(STATE)
    # Each look takes a processor for a second, and goes on every three.
    node.run("sed -i /^HealthCheck/d /etc/slurm/slurm.conf; scontrol reconfigure")


@pytest.fixture(scope="module")
def podman(node: Service) -> Service:
    """A root for containers, with the programs of the machine."""
    prepare(node.container)
    for cause, load in LOADS.items():
        node.container.write(f"{INSIDE}/{cause}/load.py", load)
    folders = " ".join(f"{INSIDE}/{n}" for n in ("usr", "run", "proc", "sys", "dev", "tmp", "etc"))
    links = "for n in bin lib lib64; do ln -s usr/$n $n; done"
    node.run(f"mkdir -p {folders} && cd {INSIDE} && {links} && mount --bind /usr usr")
    node.run(f"chown ada {INSIDE} {INSIDE}/[!u]*; install -d -o ada /home/ada")
    node.run("echo ada:100000:65536 | tee /etc/subuid >/etc/subgid")
    return node


@pytest.mark.parametrize(
    ("user", "cause"),
    [
        ("root", "cpu"),
        ("ada", "cpu"),
        pytest.param("root", "network", marks=NIGHTLY),
        pytest.param("ada", "network", marks=NIGHTLY),
    ],
)
def test_a_container_is_named_and_its_cause_is_found(
    podman: Service, user: str, cause: str
) -> None:
    """Of root in a control group, of others without one; in namespaces of its own."""
    unit, home = f"of-{user}-{cause}", "/root" if user == "root" else f"/home/{user}"
    podman.run(
        f"systemd-run --quiet --unit={unit} --uid={user} -p Delegate=yes -p Environment=HOME={home}"
        f" -p WorkingDirectory={home} podman run --rm --network=none --rootfs {INSIDE} "
        f"python3 /{cause}/load.py"
    )
    try:
        find = f"pgrep -u {user} -f '^python3 /{cause}/load.py'"
        eventually(lambda: podman.container.status(find)[0] == 0, "the container")
        pid = int(podman.run(find).split()[0])
        for kind in ("net", "pid"):
            links = f"/proc/{pid}/ns/{kind} /proc/1/ns/{kind}"
            inside, outside = podman.run(f"readlink {links}").split()
            assert inside != outside
        if cause == "network":  # on a busy machine it waits for a core first, and that is reported
            podman.run(f"renice -n -20 -p {pid} $(pgrep -P {pid})")
        podman.run(f"echo {pid} >/run/gpus/2")
        number = podman.run(f"pgrep -u {user} -a conmon").split(" -c ")[1][:12]

        def called() -> set[tuple[str, ...]]:
            found = shown(podman, "dgx_gpu_job_info")
            return {(one["user"], one["runtime"], one["container"]) for one, _ in found}

        mine = {(user, "podman", number)}
        eventually(lambda: called() == mine, f"{mine}, not {called()}")

        def causes() -> set[tuple[str, str]]:
            found = shown(podman, "dgx_gpu_state")
            return {(one["state"], one["cause"]) for one, value in found if value}

        eventually(lambda: ("starved", cause) in causes(), "what it waits for")
    finally:
        podman.run(f"pkill -KILL -u {user} -f ^python3.*/load.py; rm -f /run/gpus/2", check=False)
    eventually(lambda: not shown(podman, "dgx_gpu_job_info"), "nothing left of it")
