"""The alerts that fire, as a table: since when, of what, and the way to the runbook."""

from dashboards.board import Row
from dashboards.colours import BAD, PLAIN, WARNING
from dashboards.queries import Labels, either
from dashboards.scope import TO_NODE
from dashboards.shares import PLACES_OF_NODES, alerts, since
from dashboards.tables import Column, coloured_words, table

SEVERITIES = {"critical": BAD, "warning": WARNING, "info": PLAIN}
"""The worst first, as the table lists them."""

OF_DEVICES = ("alertname", "severity", "instance", "gpu", "device", "link")
QUIET = "when no alerts are firing"


def firing_alerts(
    runbook: str, by: Labels = OF_DEVICES, places: str = PLACES_OF_NODES, height: int = 6
) -> Row:
    """Return the table of firing alerts, the worst first; a name links to its page of the runbook
    if that has an address."""
    links = {"alertname": f"{runbook}#${{__data.fields.alertname}}"} if runbook else {}
    return Row(
        "Which alerts fire?",
        (
            table(
                "Firing alerts",
                "Firing alerts, with the number of GPUs and devices and the start. An alert on a "
                "whole rack has no node. A name links to its page of RUNBOOK.md.",
                (
                    Column("Alerts", either(*(alerts(by, s, places=places) for s in SEVERITIES))),
                    Column("Began", either(*(since(by, s, places) for s in SEVERITIES))),
                ),
                links={"instance": TO_NODE, **links},
                overrides=[coloured_words("severity", SEVERITIES)],
                as_asked=True,
                empty=QUIET,
                width=24,
                height=height,
            ),
        ),
    )
