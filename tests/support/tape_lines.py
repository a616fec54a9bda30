"""Lines of a tape, for tests that change it."""

import gzip
import json
from pathlib import Path
from typing import Any


def lines_of(tape: Path) -> list[Any]:
    """The lines of a tape, decoded."""
    return [json.loads(line) for line in gzip.decompress(tape.read_bytes()).splitlines()]
