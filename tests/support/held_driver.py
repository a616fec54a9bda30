"""`python -m tests.support.held_driver NODE HOW run ...`: the agent with a library that has a file
open for as long as NVML is initialised, as the real one has its device nodes.

HOW: `well`; `keeps` (the file stays open after nvmlShutdown); `hangs` (calls no longer return once
NODE.hang exists).
"""

# ruff: noqa: N802

import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from agent import __main__ as command
from agent.cli import assembly, driver_release
from agent.clock import SystemClock
from agent.simulator import SimulatedSystem
from agent.simulator.nvml import SimulatedNvml
from tests.support.machines import first_gpus

PATIENCE = 4.0
"""Seconds, where the agent has 10."""


class HeldNvml(SimulatedNvml):
    """Two GPUs, and one open file."""

    def __init__(self, node: Path, how: str) -> None:
        super().__init__(SimulatedSystem(first_gpus("dgx-h100:idle", 2), SystemClock()))
        self.node, self.how = node, how
        self.opened: BinaryIO | None = None

    def nvmlInit(self) -> None:
        super().nvmlInit()
        self.opened = self.node.open("rb")

    def nvmlShutdown(self) -> None:
        super().nvmlShutdown()
        if self.opened is not None and self.how != "keeps":
            self.opened.close()

    def _ask(self, name: str, *args: Any) -> Any:
        while self.how == "hangs" and self.node.with_suffix(".hang").exists():
            time.sleep(0.1)
        return super()._ask(name, *args)


if __name__ == "__main__":
    library = HeldNvml(Path(sys.argv[1]), sys.argv[2])
    vars(assembly)["real_library"] = lambda: library
    driver_release.NVIDIA_NODES = sys.argv[1]
    driver_release.RELEASE_SECONDS = PATIENCE
    sys.argv[1:3] = []
    command.main()
