"""Cost of a scrape after a tick, beside prometheus_client's for the same bytes: `python -m
tests.benchmarks.scrape [SYSTEM:SCENARIO]`.

Both write the same snapshot in turns, so that what else the machine does falls on both.
"""

import gzip
import sys
import time
from collections.abc import Callable
from statistics import median

from exporters.prometheus import GZIP_LEVEL, Exposition
from tests.support.exposition import of_the_library
from tests.support.machines import simulated

ACCEPT = "text/plain;version=0.0.4"
TICKS = 40


def milliseconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return (time.thread_time() - start) * 1e3


def main() -> None:
    bench = simulated(sys.argv[1] if len(sys.argv) > 1 else "dgx-h100:training")
    exposition = Exposition(lambda: bench.agent.poller.latest, bench.clock.monotonic, process=False)
    own, library = [], []
    for _ in range(TICKS):
        bench.run(1)
        snapshot, now = bench.agent.poller.latest, bench.clock.monotonic()
        own.append(milliseconds(lambda: exposition.page(ACCEPT)))
        page = exposition.page(ACCEPT)
        written: list[bytes] = []
        library.append(
            milliseconds(
                lambda: written.append(  # noqa: B023 - run at once
                    gzip.compress(of_the_library(snapshot, now, ACCEPT), GZIP_LEVEL)  # noqa: B023
                )
            )
        )
        assert gzip.decompress(written[0]) == page.plain
    samples = sum(not line.startswith(b"#") for line in page.plain.splitlines())
    ratio = median(a / b for a, b in zip(own, library, strict=True))
    print(f"{samples} samples, {len(page.plain)} bytes; CPU of a scrape with gzip, ms (median)")
    print(f"  own {median(own):.2f}, prometheus_client {median(library):.2f}, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
