"""Rows on the health of a GPU: errors, and its memory."""

from agent.sources import ecc, gpu, temperature, xid
from dashboards.board import ANY, Row
from dashboards.kinds import Column, graph, table, wide
from dashboards.queries import (
    GPU,
    RANGE,
    RATE,
    Labels,
    Query,
    Value,
    either,
    grown,
    now,
    select,
    unit_of,
)

NAME = "{{instance}} GPU {{gpu}}"
ROWS = "on GPUs before Ampere, which retire pages instead of remapping rows"


def ecc_errors(by: Labels = (), within: str = RANGE, **match: str) -> Value:
    """Return the number of ECC errors: a GPU that MIG divides shows only those of its whole life,
    so that the larger growth of both lifetimes counts."""
    growth = f"increase({select(ecc.ERRORS, **match)}[{within}])"
    return Value(f"max without (lifetime) ({growth})", unit_of(ecc.ERRORS)).total(by)


def _errors_within(window: str) -> Value:
    xids = grown(xid.ERRORS, (*GPU, "xid"), window).labelled("error", "XID $1", "xid")
    uncorrected = ecc_errors(GPU, window, severity="uncorrected")
    found = either(xids, uncorrected.labelled("error", "uncorrected ECC", "gpu"))
    return found.total(OF_ERROR).where("> 0")


OF_ERROR = (*GPU, "error")
ERRORS_OF_GPUS = table(
    "Errors by GPU",
    "XID errors by code, and uncorrected memory errors, in this time range; when they came first "
    "and last.",
    (
        Column("Errors", _errors_within(RANGE), ANY),
        Column("First", _errors_within(RATE).when("min", OF_ERROR)),
        Column("Last", _errors_within(RATE).when("max", OF_ERROR)),
    ),
    overrides=[wide("First", 140), wide("Last", 140)],
    height=7,
    empty="while no GPU has errors",
)


def remapped(severity: str) -> Value:
    return now(ecc.REMAPPED_ROWS, severity=severity).largest(GPU)


def retired(cause: str) -> Value:
    return now(ecc.RETIRED_PAGES, cause=cause).largest(GPU)


HARM = Row(
    "Is it broken?",
    (
        ERRORS_OF_GPUS,
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
