"""The Slurm of a simulated machine: one job, which was given the last GPU."""

from agent.hardware.schedulers import NoSchedulers
from agent.simulator.jobs import LOGIN, USER
from agent.simulator.machine import Machine


class SimulatedSlurm(NoSchedulers):
    """Answers at once; no one runs what the job would."""

    def __init__(self, machine: Machine) -> None:
        self._gpus = len(machine.gpus)

    def slurm(self, host: str) -> list[str]:
        who = f"JobId=4711 UserId={LOGIN}({USER}) Account=vision Partition=gpu"
        return [f"{who} Nodes={host} GRES=gpu:1(IDX:{self._gpus - 1})"]
