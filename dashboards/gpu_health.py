"""Rows on the health of a GPU: errors, and its memory."""

from agent.diagnosis.accounting import STATE_SECONDS, UNOBSERVED_SECONDS
from agent.model import Metric
from agent.sources import ecc, gpu, temperature, xid
from dashboards.board import ANY, LOST, Panel, Row
from dashboards.kinds import Column, graph, table
from dashboards.queries import (
    GPU,
    RANGE,
    RATE,
    Labels,
    Query,
    Value,
    grown,
    grown_in_all,
    now,
    select,
    unit_of,
)

NAME = "{{instance}} GPU {{gpu}}"
ROWS = "on GPUs before Ampere, which retire pages instead of remapping rows"


def errors(title: str, about: str, metric: Metric, by: str, growth: Query) -> Panel:
    """Return the number of errors on all GPUs chosen in each step of the graph, by a label."""
    seen = f"on ({by}) {grown_in_all(metric, (by,)).expr} > 0"
    counted = Value(f"{growth.value.expr} and {seen}", growth.value.unit)
    query = Query(counted, growth.legend)
    return graph(title, about, query, height=7, empty="while there are none")


def ecc_errors(by: Labels = (), within: str = RANGE, **match: str) -> Value:
    """Return the number of ECC errors: a GPU that MIG divides shows only those of its whole life,
    so that the larger growth of both lifetimes counts."""
    growth = f"increase({select(ecc.ERRORS, **match)}[{within}])"
    return Value(f"max without (lifetime) ({growth})", unit_of(ecc.ERRORS)).total(by)


def remapped(severity: str) -> Value:
    return now(ecc.REMAPPED_ROWS, severity=severity).largest(GPU)


def retired(cause: str) -> Value:
    return now(ecc.RETIRED_PAGES, cause=cause).largest(GPU)


HARM = Row(
    "Is it broken?",
    (
        errors(
            "XID errors",
            "Errors that the driver reported on the GPUs chosen, by code.",
            xid.ERRORS,
            "xid",
            Query(grown(xid.ERRORS, ("xid",), RATE), "XID {{xid}}"),
        ),
        errors(
            "ECC errors",
            "Memory errors of the GPUs chosen, corrected and uncorrected.",
            ecc.ERRORS,
            "severity",
            Query(ecc_errors(("severity",), RATE), "{{severity}}"),
        ),
        table(
            "Errors and gaps",
            "For each GPU: XID errors, uncorrected memory errors, and the share of time for which "
            "nothing could be said of it.",
            (
                Column("XID errors", grown(xid.ERRORS, GPU), ANY),
                Column(
                    "ECC errors",
                    ecc_errors(GPU, severity="uncorrected"),
                    ANY,
                ),
                Column(
                    "Not observed",
                    grown(UNOBSERVED_SECONDS, GPU).over(
                        Value(
                            f"{grown(UNOBSERVED_SECONDS, GPU).expr} + "
                            f"{grown(STATE_SECONDS, GPU).expr}",
                            "s",
                        ),
                    ),
                    LOST,
                ),
            ),
            height=7,
        ),
        table(
            "Rows that could not be remapped",
            "Failed: the GPU qualifies for replacement. Pending: it waits for a reset.",
            (
                Column("Failed", now(ecc.REMAP_FAILURE).largest(GPU), ANY),
                Column("Pending", now(ecc.REMAP_PENDING).largest(GPU), ANY),
            ),
            height=7,
            empty=ROWS,
        ),
    ),
)

MEMORY_HEALTH = Row(
    "How healthy is its memory?",
    (
        table(
            "Remapped rows",
            ecc.REMAPPED_ROWS.meaning,
            (
                Column("Uncorrected", remapped("uncorrected")),
                Column("Corrected", remapped("corrected")),
            ),
            empty=ROWS,
        ),
        table(
            "Retired pages",
            ecc.RETIRED_PAGES.meaning,
            (
                Column("Double bit", retired("double_bit")),
                Column("Single bit", retired("single_bit")),
            ),
            empty="on Ampere and newer, which remap rows instead of retiring pages",
        ),
        graph(
            "Memory temperature",
            temperature.MEMORY_TEMPERATURE.meaning,
            Query(now(temperature.MEMORY_TEMPERATURE), NAME),
            empty="on GPUs before Volta, which do not report",
        ),
        table(
            "What the driver asks for",
            gpu.RECOVERY_ACTION.meaning,
            (Column("Action", now(gpu.RECOVERY_ACTION).largest(GPU), ANY),),
            empty="with drivers before 570, which do not report",
        ),
    ),
    collapsed=True,
)
