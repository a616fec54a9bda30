"""The fuzz tests with as many inputs as there is time for:

    python -m tests.benchmarks.fuzz --inputs 100000 [--processes 4]

Says how many inputs of each kind were tried; ends with the first that fails, which is shown.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from tests.agent.config import test_fuzz_configuration as configuration
from tests.agent.nccl import test_fuzz as nccl
from tests.agent.sources import test_fuzz_files as files
from tests.exporters import test_prometheus as prometheus

KINDS: dict[str, tuple[Callable[..., Any], bool, float]] = {
    "configuration": (configuration.test_any_value_of_a_known_key, True, 0.1),
    "limits that are none": (configuration.test_any_limit_that_is_none, True, 0.1),
    "limits": (configuration.test_any_limit_of_a_known_path, True, 0.1),
    "variables": (configuration.test_any_text_of_a_variable, False, 0.15),
    "JSON of NCCL": (nccl.test_any_json, False, 0.1),
    "communicators of NCCL": (nccl.test_any_list_of_communicators, False, 0.05),
    "lines of NCCL": (nccl.test_lines_in_any_order, False, 0.05),
    "bytes of NCCL": (nccl.test_any_bytes, False, 0.1),
    "labels and numbers": (prometheus.test_any_label_and_number_survive, False, 0.05),
    "ticks of series": (
        prometheus.test_whatever_changes_is_written_as_the_library_writes_it,
        False,
        0.05,
    ),
    "Accept headers": (prometheus.test_any_header_gets_an_answer, False, 0.149),
    "odd files": (files.test_what_a_file_holds_costs_at_most_its_own_values, False, 0.001),
}
"""Each test, whether it wants a folder, and its share of all inputs."""


def tried(inputs: int, kind: str) -> tuple[str, int, float]:
    """Try so many inputs; the kind, how many, and the seconds that it took."""
    test, in_folder, _ = KINDS[kind]
    began = time.monotonic()
    more = settings(
        max_examples=inputs, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    test._hypothesis_internal_use_settings = more  # type: ignore[attr-defined] # over its own
    with tempfile.TemporaryDirectory() as folder:
        test(*[Path(folder)] * in_folder)
    return kind, inputs, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    counts = {kind: max(1, round(share * given.inputs)) for kind, (*_, share) in KINDS.items()}
    with Pool(given.processes) as pool:
        jobs = [pool.apply_async(partial(tried, count, kind)) for kind, count in counts.items()]
        for job in jobs:
            kind, inputs, seconds = job.get()
            print(f"{inputs:9} {kind}, {seconds:.0f} s", flush=True)
    print(f"{sum(counts.values()):9} in all: none failed")


if __name__ == "__main__":
    main()
