"""Slurm of one node in a container, with accounts in MariaDB and GPUs that are device files."""

from pathlib import Path

from tests.service import podman
from tests.service.container import Container
from tests.stack.running import eventually

ADDRESS = "10.9.2.1"  # on loopback alone it finds no address of its own; a private one, which
# the service may reach: with control groups of version 2 its IPAddressDeny is enforced
USERS = {"ada": 4242, "eve": 4343}
ACCOUNTS = {"ada": "bio", "eve": "physics"}

CONF = Path(__file__).with_name("slurm.conf").read_text("utf-8").replace("ADDRESS", ADDRESS)

TRAIN = Path(__file__).with_name("train.sh").read_text(encoding="utf-8")
STEPS = """#!/bin/sh
srun --ntasks=1 /srv/train "$1"
srun --ntasks=1 /srv/train "$1"
"""


class Cluster:
    """slurmctld, slurmd, slurmdbd and munge of a container, with this version of control groups."""

    def __init__(self, container: Container, version: int = 1) -> None:
        self.container, self.run = container, container.run
        host = self.run("hostname")
        files = {
            "slurm": CONF,
            "gres": "Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n",
            "cgroup": f"CgroupPlugin=cgroup/v{version}\nConstrainDevices=yes\n",
            "slurmdbd": Path(__file__).with_name("slurmdbd.conf").read_text(encoding="utf-8"),
        }
        for name, text in files.items():
            container.write(f"/etc/slurm/{name}.conf", text.replace("HOST", host))
        for name, text in (("train", TRAIN), ("steps", STEPS)):
            container.write(f"/srv/{name}", text)
        people = "".join(f"{n}:x:{uid}:{uid}::/tmp:/bin/sh\\n" for n, uid in USERS.items())
        self.run(
            f"chmod 755 /srv/*; printf '{people}' >>/etc/passwd; mkdir -m 1777 /run/gpus; "
            "touch /run/seen; "
            f"echo {ADDRESS} {host} >>/etc/hosts; mkdir -p /var/spool/slurmd /var/spool/slurmctld; "
            "for n in 0 1 2 3; do mknod -m 666 /dev/nvidia$n c 195 $n; done"
        )
        podman.make_writable(container)
        self.run(
            f"ip link add name one type veth peer name two && ip addr add {ADDRESS}/24 dev one && "
            "ip link set one up && ip link set two up && chmod 600 /etc/slurm/slurmdbd.conf && "
            "systemctl start munge mariadb slurmdbd"
        )
        known = "sacctmgr -n list cluster"
        eventually(lambda: container.status(known)[0] == 0, "a database of accounts")
        accounts = "; ".join(
            f"sacctmgr -iQ add account {account}; sacctmgr -iQ add user {user} account={account}"
            for user, account in ACCOUNTS.items()
        )
        self.run(f"sacctmgr -iQ add cluster tests; {accounts}; systemctl start slurmctld slurmd")
        eventually(lambda: "idle" in self.run("sinfo -h -o %t", check=False), "a node")

    def submit(self, user: str, *words: str) -> int:
        """The number of a job that this user runs."""
        uid = USERS[user]
        who = f"setpriv --reuid {uid} --regid {uid} --clear-groups"
        line = f"cd /tmp; {who} sbatch --parsable --output=/dev/null {' '.join(words)}"
        return int(self.run(line))

    def running(self) -> list[int]:
        """The number of each job and each task of an array."""
        return [int(word) for word in self.run("squeue -h -t R,CG -o %A").split()]

    def shown(self, job: int) -> tuple[str, str, float]:
        """User and account of a job that has ended, and for how long (s) it ran: by sacct."""
        said = self.run("sacct -a -n -P -X -o JobIDRaw,User,Account,ElapsedRaw").splitlines()
        found = [line.split("|") for line in said if line.startswith(f"{job}|")]
        _, user, account, seconds = found[0]
        return user, account, float(seconds)
