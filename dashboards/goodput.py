"""Goodput of GPU-hours: allocated to jobs, at work, at which part of the tensor peak; or lost."""

from collections.abc import Callable

from agent.diagnosis.job_watch import PRICE
from agent.model import WHAT_LOST, State
from agent.sources.allocation import ALLOCATED
from dashboards.board import Row
from dashboards.queries import RANGE, Labels, Value, aggregated, over, select, total
from dashboards.shares import NODE
from dashboards.tables import Column, table


def goodput_row(by: Labels, seconds: Callable[[str], Value], peak: Value) -> Row:
    """`seconds` of each node within what the board shows that were in a state, or `~` some; `peak`
    is the tensor throughput of those at work over what it could be."""
    whole, worked, lost = (seconds(state) for state in ("~.+", State.BUSY, f"~{WHAT_LOST}"))
    share = over(total(worked, by), total(whole, by)).expr
    given = aggregated("avg", f"avg_over_time({select(ALLOCATED)}[{RANGE}])", by)
    priced = f"{lost.expr} / 3600 * on (instance) group_left () max by (instance) ({select(PRICE)})"
    at_work = f"clamp_max({share} / on ({', '.join(by)}) ({given} > 0) or {share}, 1)"
    return Row(
        "What comes of the GPU-hours?",
        (
            table(
                "Goodput",
                "Share of the GPU-hours of this time range that jobs were given (only if Slurm or "
                "the kubelet reports it), share of those in which GPUs worked, tensor "
                "throughput meanwhile over its peak (an upper bound of MFU; Hopper and newer). "
                "Their product is goodput. Lost: starved, throttled, held or hung; its cost where "
                "[cost] gpu_hour is configured.",
                (
                    Column("GPU-hours", Value(f"{total(whole, by).expr} / 3600", "short")),
                    Column("Given", Value(given, "percentunit")),
                    Column("At work", Value(at_work, "percentunit")),
                    Column("Of the tensor peak", peak),
                    Column("Lost GPU-hours", Value(f"{total(lost, by).expr} / 3600", "short")),
                    Column("Cost of lost", Value(aggregated("sum", priced, by), "short")),
                ),
                width=24,
                height=4 if by != NODE else 5,
            ),
        ),
    )
