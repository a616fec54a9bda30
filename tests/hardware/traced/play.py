"""`python -m tests.hardware.traced.play NAME SECONDS MARKS`: one rank of one load.

It prints `ready` once its libraries are imported, and begins with a line on standard input.
"""

import importlib
import pkgutil
import sys

from tests.hardware import traced
from tests.hardware.traced.load import Load
from tests.hardware.traced.marks import Marks


def modules() -> dict[str, str]:
    """The module of each load, by the load's name; modules of loads are `loads_*.py`, and name
    what they hold in NAMES, so that none is imported to find out."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(traced.__path__):
        if module.name.startswith("loads_"):
            names = importlib.import_module(f"tests.hardware.traced.{module.name}").LOADS
            found |= dict.fromkeys(names, module.name)
    return found


def load(name: str) -> Load:
    """The load of this name."""
    loads: dict[str, Load] = importlib.import_module(
        f"tests.hardware.traced.{modules()[name]}"
    ).LOADS
    return loads[name]


def main(name: str, seconds: str, marks: str) -> None:
    """Stand by, then play."""
    found = load(name)
    import torch  # noqa: F401  # takes seconds

    print("ready", flush=True)
    if sys.stdin.readline():
        found.function(Marks(marks, float(seconds)))


if __name__ == "__main__":
    main(*sys.argv[1:])
