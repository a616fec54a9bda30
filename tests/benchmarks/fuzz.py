"""The fuzz tests with as many inputs as there is time for:

    python -m tests.benchmarks.fuzz --inputs 100000 [--processes 4]

Says how many inputs of each kind were tried, every some thousand; ends with the first that fails,
which is shown. Counted is each input that a test was given: of a kind that has fewer than were
asked for, fewer are.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from tests.agent.config import test_fuzz_configuration as configuration
from tests.agent.nccl import test_json as nccl
from tests.agent.sources import test_fuzz_files as files
from tests.exporters import test_prometheus as prometheus

KINDS: dict[str, tuple[Callable[..., Any], bool, float]] = {
    "configuration": (configuration.test_any_value_of_a_known_key, True, 0.1),
    "limits that are none": (configuration.test_any_limit_that_is_none, True, 0.1),
    "limits": (configuration.test_any_limit_of_a_known_path, True, 0.01),
    "variables": (configuration.test_any_text_of_a_variable, False, 0.19),
    "communicators of NCCL": (nccl.test_any_list_of_communicators, False, 0.25),
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
"""Each test, whether it wants a folder, and its share of all inputs: those that run an agent with
what is accepted take up to 100 times as long as the others."""

AT_ONCE = 2_000
"""Inputs of one kind that are tried, and reported, at once."""


def portions(inputs: int) -> Iterator[tuple[str, int]]:
    """Kinds, and how many of each to try at once; all kinds come in turns."""
    left = {kind: max(1, round(share * inputs)) for kind, (*_, share) in KINDS.items()}
    while left:
        for kind, count in tuple(left.items()):
            yield kind, min(count, AT_ONCE)
            left[kind] -= AT_ONCE
            if left[kind] <= 0:
                del left[kind]


def tried(portion: tuple[str, int]) -> tuple[str, int, float]:
    """Try so many inputs; the kind, how many there were, and the seconds that it took."""
    kind, inputs = portion
    test, in_folder, _ = KINDS[kind]
    began, count = time.monotonic(), 0
    inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

    @wraps(inner)
    def counted(*arguments: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        inner(*arguments, **named)

    more = settings(
        max_examples=inputs, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    test._hypothesis_internal_use_settings = more  # type: ignore[attr-defined] # over its own
    test.hypothesis.inner_test = counted  # type: ignore[attr-defined]
    try:
        with tempfile.TemporaryDirectory() as folder:
            test(*[Path(folder)] * in_folder)
    finally:
        test.hypothesis.inner_test = inner  # type: ignore[attr-defined]
    return kind, count, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    with Pool(given.processes, maxtasksperchild=20) as pool:
        for kind, inputs, seconds in pool.imap_unordered(tried, portions(given.inputs)):
            counts[kind] += inputs
            so_far = f"{counts.total():9}: {counts[kind]} {kind}"
            print(f"{so_far}, the last {seconds:.0f} s", flush=True)
    print(*(f"{count:9} {kind}" for kind, count in counts.items()), sep="\n")
    print(f"{counts.total():9} in all: none failed")


if __name__ == "__main__":
    main()
