"""`python -m tests.hardware.labelled_loads [NAME SECONDS [--gpu N] [--ranks N] [--standby]]`.

Without arguments: the names. Otherwise one load for so many seconds of its steady phase; what it
prints is described in `clock`. With --standby it says `standby` once its libraries are imported,
and touches nothing before a line comes on standard input.
"""

import argparse
import json
import os
import sys

from tests.hardware.labelled_loads.table import LOADS


def main(words: list[str]) -> int:
    """Run one load, or list all."""
    parser = argparse.ArgumentParser(description="A load that knows its true shares.")
    parser.add_argument("name", nargs="?", choices=LOADS)
    parser.add_argument("seconds", nargs="?", type=float, default=12.0)
    parser.add_argument("--gpu", type=int, default=0, help="its first GPU")
    parser.add_argument("--ranks", type=int, default=2, help="of a load of several GPUs")
    parser.add_argument("--standby", action="store_true")
    given = parser.parse_args(words)
    if given.name is None:
        for load in LOADS.values():
            gpus = "GPU" if load.gpus == 1 else "GPUs"
            print(f"{load.name:24} {load.gpus} {gpus:4}  {dict(load.parameters)}")
        return 0
    load = LOADS[given.name].over(given.ranks)
    os.environ.update(load.environment)
    if load.gpus == 1 or given.gpu:
        os.environ.update(
            CUDA_DEVICE_ORDER="PCI_BUS_ID",
            CUDA_VISIBLE_DEVICES=",".join(str(given.gpu + rank) for rank in range(load.gpus)),
            DGX_LOAD_FIRST_GPU=str(given.gpu),
        )
    if given.standby:
        load.import_libraries()
        print(json.dumps({"event": "standby", "pid": os.getpid()}), flush=True)
        if not sys.stdin.readline():
            return 0
    load.run(given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
