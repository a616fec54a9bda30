"""Slurm of one node in a container, with GPUs that are device files and nothing more."""

import re

from tests.service.container import Container
from tests.stack.running import eventually

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
ADDRESS = "192.0.2.1"  # on loopback alone it finds no address of its own
READY = 60.0
USERS = {"ada": 4242, "eve": 4343}

CONF = f"""
ClusterName=tests
SlurmctldHost=HOST({ADDRESS})
SlurmUser=root
SlurmdSpoolDir=/var/spool/slurmd
StateSaveLocation=/var/spool/slurmctld
SlurmctldLogFile=/var/log/slurmctld
SlurmdLogFile=/var/log/slurmd
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=HOST NodeAddr={ADDRESS} CPUs=16 Gres=gpu:4 State=UNKNOWN
PartitionName=long Nodes=HOST Default=YES MaxTime=INFINITE State=UP
"""
GRES = "Name=gpu File=/dev/nvidia[2-3]\nName=gpu File=/dev/nvidia[0-1]\n"
CGROUP = "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\n"

TRAIN = """#!/bin/sh
# Without a driver, what may be opened is no such device; what may not is not permitted.
for n in 0 1 2 3; do
    case $(cat /dev/nvidia$n 2>&1) in *"No such device"*) echo $$ >/run/gpus/$n ;; esac
done
exec sleep "$1"
"""
STEPS = """#!/bin/sh
srun --ntasks=1 /srv/train "$1"
srun --ntasks=1 /srv/train "$1"
"""


class Cluster:
    """slurmctld, slurmd and munge of a container."""

    def __init__(self, container: Container) -> None:
        self.container, self.run = container, container.run
        host = self.run("hostname")
        for name, text in (("slurm", CONF), ("gres", GRES), ("cgroup", CGROUP)):
            container.write(f"/etc/slurm/{name}.conf", text.replace("HOST", host))
        for name, text in (("train", TRAIN), ("steps", STEPS)):
            container.write(f"/srv/{name}", text)
        people = "".join(f"{n}:x:{uid}:{uid}::/tmp:/bin/sh\\n" for n, uid in USERS.items())
        self.run(
            f"chmod 755 /srv/*; printf '{people}' >>/etc/passwd; mkdir -m 1777 /run/gpus; "
            f"echo {ADDRESS} {host} >>/etc/hosts; mkdir -p /var/spool/slurmd /var/spool/slurmctld; "
            "for n in 0 1 2 3; do mknod -m 666 /dev/nvidia$n c 195 $n; done"
        )
        writable = "mount -o remount,bind,rw $at || true"
        self.run(f"for at in /sys/fs/cgroup/*/; do {writable}; done 2>/dev/null")
        self.run(
            f"ip link add name one type veth peer name two && ip addr add {ADDRESS}/24 dev one && "
            "ip link set one up && ip link set two up && systemctl start munge slurmctld slurmd"
        )
        eventually(lambda: "idle" in self.run("sinfo -h -o %t", check=False), READY, "a node")

    def submit(self, user: str, *words: str) -> int:
        """The number of a job that this user runs."""
        uid = USERS[user]
        who = f"setpriv --reuid {uid} --regid {uid} --clear-groups"
        line = f"cd /tmp; {who} sbatch --parsable --output=/dev/null {' '.join(words)}"
        return int(self.run(line))

    def running(self) -> list[int]:
        """The number of each job and each task of an array."""
        return [int(word) for word in self.run("squeue -h -t R,CG -o %A").split()]

    def seconds(self, job: int) -> float:
        """For how long it ran, as Slurm says."""
        told = self.run(f"scontrol show job --oneliner {job}")
        line = next(line for line in told.splitlines() if line.startswith(f"JobId={job} "))
        hours, minutes, seconds = re.findall(r"RunTime=(\d+):(\d+):(\d+)", line)[0]
        return int(hours) * 3600 + int(minutes) * 60 + int(seconds)
