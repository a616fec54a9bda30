"""What of a GPU is broken: the rows on errors and on its memory."""

from agent.diagnosis.accounting import STATE_SECONDS, UNOBSERVED_SECONDS
from agent.model import Metric
from agent.sources import ecc, gpu, temperature, xid
from dashboards.board import Panel, Row
from dashboards.colours import ANY, LOST
from dashboards.kinds import graph
from dashboards.queries import RATE, Labels, Query, Value, grown, largest, now, over
from dashboards.shares import GPU
from dashboards.tables import Column, table

NAME = "{{instance}} GPU {{gpu}}"
ROWS = "on GPUs before Ampere, which retire pages instead of remapping rows"


def errors(title: str, about: str, metric: Metric, by: Labels) -> Panel:
    """How many errors there were in each step of the graph, by labels."""
    legend = " ".join((NAME, *(f"{{{{{label}}}}}" for label in by)))
    query = Query(grown(metric, (*GPU, *by), RATE), legend)
    return graph(title, about, query, width=6)


HARM = Row(
    "Is it broken?",
    (
        errors("XID errors", "Errors that the driver reported, by code.", xid.ERRORS, ("xid",)),
        errors(
            "ECC errors",
            "Memory errors since the driver was loaded, corrected and uncorrected.",
            ecc.ERRORS,
            ("severity", "lifetime"),
        ),
        table(
            "Losses in this time range",
            "For each GPU: XID errors, uncorrected memory errors, and the share of time for which "
            "nothing could be said of it.",
            (
                Column("XID errors", grown(xid.ERRORS, GPU), ANY),
                Column(
                    "ECC errors",
                    grown(ecc.ERRORS, GPU, severity="uncorrected", lifetime="volatile"),
                    ANY,
                ),
                Column(
                    "Not observed",
                    over(
                        grown(UNOBSERVED_SECONDS, GPU),
                        Value(
                            f"{grown(UNOBSERVED_SECONDS, GPU).expr} + "
                            f"{grown(STATE_SECONDS, GPU).expr}",
                            "s",
                        ),
                    ),
                    LOST,
                ),
            ),
            width=6,
        ),
        table(
            "Rows that could not be remapped",
            "Failed: the GPU qualifies for replacement. Pending: it waits for a reset.",
            (
                Column("Failed", largest(now(ecc.REMAP_FAILURE), GPU), ANY),
                Column("Pending", largest(now(ecc.REMAP_PENDING), GPU), ANY),
            ),
            width=6,
            empty=ROWS,
        ),
    ),
)

MEMORY_HEALTH = Row(
    "How healthy is its memory?",
    (
        graph(
            "Remapped rows",
            ecc.REMAPPED_ROWS.meaning,
            Query(largest(now(ecc.REMAPPED_ROWS), (*GPU, "severity")), NAME + " {{severity}}"),
            empty=ROWS,
        ),
        graph(
            "Retired pages",
            ecc.RETIRED_PAGES.meaning,
            Query(largest(now(ecc.RETIRED_PAGES), (*GPU, "cause")), NAME + " {{cause}}"),
            empty="on Ampere and newer, which remap rows instead of retiring pages",
        ),
        graph(
            "Memory temperature",
            temperature.MEMORY_TEMPERATURE.meaning,
            Query(now(temperature.MEMORY_TEMPERATURE), NAME),
            empty="on GPUs before Volta, which do not tell",
        ),
        table(
            "What the driver asks for",
            gpu.RECOVERY_ACTION.meaning,
            (Column("Action", largest(now(gpu.RECOVERY_ACTION), GPU), ANY),),
            empty="with drivers before 570, which do not tell",
        ),
    ),
    collapsed=True,
)
