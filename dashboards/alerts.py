"""The table of firing alerts and the advice on them, which several dashboards contain."""

import re
from collections.abc import Callable, Iterable, Sequence

from agent.faults.model import Fault
from dashboards.board import BAD, LOOKS, PLAIN, WARNING, Json
from dashboards.kinds import Column, Scope, Table, override, worded
from dashboards.promql import aggregated

SEVERITIES = {"critical": BAD, "warning": WARNING, "info": PLAIN}
"""The colour of each severity, in the order of the table: most severe first."""

_COLOURS = {word: {"color": c, "index": n} for n, (word, c) in enumerate(SEVERITIES.items())}
_PAINTED = {"type": "color-background", "mode": "basic"}
COLOURED = {"mappings": [{"type": "value", "options": _COLOURS}], "custom.cellOptions": _PAINTED}

DECIDING = ("severity", "window", "sign", "action", "cause")
"""Labels that determine the advice on an alert, together with its name."""

TWO_LINES = 184
"""Maximum length of advice that fits in two lines of the table on a screen of 1600 pixels."""

ON_ITS_PAGE = "Depends on the cause: click the name for its page of the runbook."


Advice = tuple[str, Sequence[Fault]]
"""The URL of the runbook, and the faults with alerts."""


def texts(faults: Iterable[Fault], of: Callable[[Fault], str], of_others: str) -> dict[str, str]:
    """Return a dict from regular expressions for alert names and labels to texts."""
    found = {}
    for fault in faults:
        labels = {**fault.labels, "severity": str(fault.severity)}
        words = (rf"/{labels[kind]}\b[^;]*" for kind in DECIDING if kind in labels)
        found[f"{fault.alert}{''.join(words)}"] = of(fault)
    return {key: text for key, text in found.items() if text} | {".*": of_others}


def summary(fault: Fault) -> str:
    """Return the summary of an alert without labels for which the table has a column."""
    text = fault.rule.summary if fault.rule else ""
    text = re.sub(r" {{ \$labels\.(\w+) }}$", r" a \1", text)
    return re.sub(r"^XID {{.*?}}, |{{.*?}} ", "", text)


def firing_alerts(
    advice: Advice, by: tuple[str, ...], scope: Scope, rank: str, height: int
) -> Json:
    """Return the table of firing alerts as JSON, with a row per combination of the labels `by`.
    Rows are in descending order of severity, and then of `rank`, an expression with a value per
    node. If the runbook's URL is not empty, alert names link to it."""
    runbook, faults = advice
    page = {"alertname": f"{runbook}#${{__data.fields.alertname}}"} if runbook else {}
    steps = {
        f"{key};([^;]*);([^;]*).*": text.replace("-i GPU", "-i $1").replace("DEVICE", "$2")
        for key, text in texts(faults, lambda fault: _begin(fault.do), ON_ITS_PAGE).items()
    }
    whats = texts(faults, summary, "-")
    return Table(
        columns=_columns(by, rank),
        links={"instance": "node", **page},
        more=(
            override("severity", COLOURED),
            worded("where", LOOKS["places"], displayName="Where"),
            worded("what", whats, displayName="What is wrong", **LOOKS["wrapped"]),
            override("whose", {"displayName": "Job, user", **LOOKS["wrapped"]}),
            worded("do", steps, displayName="What to do first", **LOOKS["wrapped"]),
        ),
        height=height,
        **LOOKS["firing_alerts"],
    ).drawn(scope)


def _columns(by: tuple[str, ...], rank: str) -> tuple[Column, ...]:
    decisions = ", ".join(f'"{label}"' for label in ("alertname", *DECIDING))
    orders: list[str] = []
    counts, begins = [], []
    for severity in SEVERITIES:
        of = f'{{severity=~"{severity}"}}'
        began = f"(ALERTS_FOR_STATE{of} and ignoring (alertstate) ALERTS{of}) * 1000"
        firing, since = (
            f'label_join(label_join({one}, "what", "/", {decisions}), '
            '"where", ";", "gpu", "device", "link", "xid", "instance")'
            for one in (f"ALERTS{of}", began)
        )
        counts.append(_rows("count", firing, firing, by))
        begins.append(_rows("min", since, firing, by))
        orders.append(f"{len(SEVERITIES) - len(orders)}e6 + 0 * ({counts[-1]})")
    ranked = f"({' or '.join(orders)}) + on (cluster, instance) group_left (whose) ({rank})"
    return (
        Column("Rank", f"sort_desc({ranked})", "none"),
        Column("Count", " or ".join(counts), "none"),
        Column("At least since", " or ".join(begins), "dateTimeFromNow"),
    )


def _begin(text: str) -> str:
    """Return as many of the first sentences as fit in two lines. Grafana cuts off the third line of
    a text that replaces a label."""
    whole = text[:TWO_LINES].rpartition(". ")[0]
    return text if len(text) <= TWO_LINES else f"{whole}. …"


def _rows(operator: str, expr: str, firing: str, by: tuple[str, ...]) -> str:
    """Return PromQL whose result has a row for each alert. If more than three alerts differ only in
    their GPU or device, they have a single row."""
    each = aggregated(operator, expr, by)
    rest = tuple(label for label in by if label != "where")
    on, number = f"on ({', '.join(rest)})", aggregated("count", firing, rest)
    many = f"{aggregated(operator, expr, rest)} and {on} {number} > 3"
    found = f'label_replace({many}, "where", "GPU;DEVICE;several", "", "") or {on} {each}'
    return f'label_join({found}, "do", ";", "what", "where")'
