"""`python -m tests.hardware.confidence [STEM ...]`: counts of right verdicts, from tapes of trials.

Replays STEM.tape (without STEM all tapes of `tests/tapes/shares`) with the rules of now, with and
without GPM, compares each GPU and load with STEM.json, and writes
`agent/diagnosis/confidence.toml`. Loads whose labels mean something else by now are left out.
"""

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from agent.model import PAIRS, Cause, SignalQuality, State
from tests.hardware.share_comparison import LABELS, SIGNALS, Judged, by_label
from tests.hardware.share_replay import TAPED, replayed

WITHIN = 0.10
OUT = Path(__file__).parents[2] / "agent/diagnosis/confidence.toml"
RELABELLED = (
    "hang-",
    "compile",
    "gpt-accumulating",
    *("poisson-server", "bursty-server", "generation-server"),
    *("b1_pageable_masks", "b2_pageable_batches", "b2_pageable_beside", "b1_ddp_rank0_logs"),
    *("b1_decode_gil", "h_thread_feeds", "lock_taken", "s_lock_holder"),
    "scorer_two",
)
"""Begins of names: requests that a server waits for were `unknown`, copies from pageable memory
without a mark and waits for the interpreter's lock `host_thread`; hangs are seconds of other states
until they are known. The second rank of a server waits for the first one, which waits for requests:
both labels are right."""

PAIR = {label: pair for pair, label in LABELS.items()}


def main(stems: Sequence[str]) -> int:
    """Write the counts and print them."""
    counts: dict[tuple[str, bool, tuple[State, Cause]], list[float]] = defaultdict(
        lambda: [0.0] * 5
    )
    for stem in stems or TAPED:
        for signals in SIGNALS:
            found = list(replayed(Path(stem), signals))
            for one in found:
                if not one.span.load.startswith(RELABELLED) and one.span.shares:
                    beside = sum(
                        other.span.load == one.span.load and other.span.since == one.span.since
                        for other in found
                    )
                    _count(counts, one, several=beside > 1)
    rows = [
        f'[[verdicts]]\nsignals = "{signals}"\nseveral = {str(several).lower()}\n'
        f'state = "{pair[0]}"\ncause = "{pair[1]}"\nright = {right:.0f}\nof = {of:.0f}\n'
        f"counted = {counted:.1f}\ntrue = {true:.1f}\nboth = {both:.1f}\n"
        for (signals, several, pair), (right, of, counted, true, both) in sorted(
            counts.items(), key=lambda entry: (entry[0][0], entry[0][1], PAIRS.index(entry[0][2]))
        )
    ]
    head = "# Written by `python -m tests.hardware.confidence`; see confidence.py.\n\n"
    OUT.write_text(head + "\n".join(rows), encoding="utf-8")
    print(OUT.read_text(encoding="utf-8"))
    return 0


def _count(
    counts: dict[tuple[str, bool, tuple[State, Cause]], list[float]], one: Judged, *, several: bool
) -> None:
    signals = SignalQuality(one.signals).value
    seconds = one.span.until - one.span.since
    for label, sums in by_label([one]).items():
        row = counts[signals, several, PAIR[label]]
        row[2:] = [before + share * seconds for before, share in zip(row[2:], sums, strict=True)]
    leader = max(one.shares, key=one.shares.__getitem__)
    row = counts[signals, several, PAIR[leader]]
    row[0] += abs(one.shares[leader] - one.span.shares.get(leader, 0.0)) <= WITHIN
    row[1] += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
