"""Builds the files generated from the faults: rules, Alertmanager's configuration, and the runbook,
as RUNBOOK.md and as an HTML page with the same content, which every agent serves and to which
alerts link. Each alert has a section with its explanation and its rules."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from agent.config.settings import Settings
from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.faults.declarations import declared
from agent.faults.hiding import inhibitions
from agent.faults.model import PAGES, Fault, Group
from agent.faults.promql import NODE, held, seconds
from agent.faults.thresholds import AlertPatches, AlertThresholds, RuleParameters
from agent.faults.xids import table
from agent.model import CAUSES, State
from alerts.receivers import ROUTES, Receivers, check, ways
from alerts.templates import PLACES, board, described

OWN = "{{$labels.instance}}/"
WITH_PORT = '{{$labels.instance}}{{if not (match ":" $labels.instance)}}:9935{{end}}/'


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """A YAML writer, in C if possible, that writes a repeated URL as an alias of the first."""

    def ignore_aliases(self, data: Any) -> bool:
        return not (isinstance(data, str) and data.startswith("http"))


def rule_file(group: Group, parameters: RuleParameters) -> str:
    every, scale = {"interval": parameters.over(group.every)}, parameters.scale
    records = (
        {"record": str(rule), "expr": held(rule.expr, scale) if rule.held else rule.expr}
        for rule in group.records
    )
    rules = [*records, *(alert_rule(fault, parameters) for fault in group.faults)]
    content = {"groups": [{"name": group.name, **every, "rules": rules}]}
    return yaml.dump(content, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


def alert_rule(fault: Fault, parameters: RuleParameters) -> dict[str, Any]:
    """Return the Prometheus alerting rule for a fault."""
    assert fault.rule
    place, thresholds = PLACES.get(fault.place), parameters.thresholds
    grafana, book = thresholds.grafana.rstrip("/"), thresholds.runbook.replace(OWN, WITH_PORT)
    if OWN in thresholds.runbook and (fault.place in ("", "rack") or fault.alert == DOWN):
        # no agent can serve this page, so link to the agent dashboard
        book = f"{grafana}/d/dgx-agent" if grafana else "RUNBOOK.md"
    where = f"{place}: " if place else ""
    link = {"dashboard_url": f"{grafana}{board(fault.place)}"} if place and grafana else {}
    expr, words = held(fault.expr, parameters.scale, seconds(fault.hold)), ""
    if fault.place == "gpu" and seconds(fault.hold) <= 120.0:  # a new job restarts a longer one
        job = "group_left (job_id, user) instance_gpu:job_info:owner"
        expr = f"({expr}) * on ({NODE}, uuid) {job}"
        words = "{{ with $labels.job_id }} Its job: {{ . }}.{{ end }}"
    elif place:  # an agent scraped under two names has a single row
        expr = f"({expr}) unless on ({NODE}) instance:up:doubled"
    texts = {
        "summary": f"{where}{fault.rule.summary}",
        "description": f"{described(fault)}{words}",
        "runbook_url": f"{book}#{fault.alert.lower()}",
        **link,
    }
    blanks = r"(?<={{) | (?=}})"  # 1 % of the files
    texts = {name: sys.intern(re.sub(blanks, "", text)) for name, text in texts.items()}
    if link:
        texts["dashboard"] = texts["dashboard_url"]  # name of the annotation up to version 0.2
    return {
        "alert": fault.alert,
        "expr": expr,
        **({} if fault.hold == "0s" else {"for": parameters.over(fault.hold)}),
        "labels": {"severity": str(fault.severity), **fault.labels},
        "annotations": texts,
    }


DOWN = "DgxAgentDown"


def groups(settings: Settings, scale: float = 1.0) -> list[Group]:
    """Return all rule groups, changed by `[alerts.NAME]`. `scale` multiplies ranges and `for`."""
    parameters = RuleParameters(settings[AlertThresholds], scale)
    return [settings[AlertPatches].applied_to(group) for group in declared(parameters).groups]


def alerts_of(groups: Iterable[Group]) -> list[Fault]:
    return [fault for group in groups for fault in group.faults]


def rules(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    parameters = RuleParameters(settings[AlertThresholds], scale)
    used = (group for group in groups(settings, scale) if group.records or group.faults)
    return {f"{group.name}.yaml": rule_file(group, parameters) for group in used}


def alertmanager(settings: Settings, scale: float = 1.0) -> dict[str, str]:
    """Return a dict that maps alertmanager.yaml to its text. `scale` multiplies durations. Raise
    ConfigError if a receiver is incomplete.

    An inhibiting alert must fire before Alertmanager would send the alert that it hides. Therefore,
    rules have different values of `for`: per-second counts and lost data (0 to 2 min), links and
    requests of the driver (3 min), minor errors (5 min), and faults that require only a reset (8
    min and longer). tests/alerts/test_bounds.py verifies this order.
    """
    parameters, r = RuleParameters(settings[AlertThresholds], scale), settings[Receivers]
    check(r)
    routes = [
        {"receiver": name, "matchers": [f'severity="{way["severity"]}"']}
        | {key: parameters.over(way[key]) for key in way if key != "severity"}
        for name, way in ROUTES.items()
    ]
    receivers = [{"name": name, **ways(r, name)} for name in sorted(ROUTES, key="watchdog".__eq__)]
    content = {
        "route": {
            "receiver": "warning",
            "group_by": ["cluster", "rack", "alertname"],  # one message for each of these
            "routes": routes,
        },
        "inhibit_rules": [
            {key: list(value) for key, value in rule._asdict().items()}
            for rule in inhibitions(alerts_of(groups(settings, scale)))
        ],
        "receivers": receivers,
    }
    text = yaml.dump(content, Dumper=Dumper, sort_keys=False, width=100)
    return {"alertmanager.yaml": text}


def files(settings: Settings) -> dict[str, str]:
    """Return a dict that maps the relative paths of all generated files to their texts."""
    book = runbook(RuleParameters(settings[AlertThresholds]), groups(settings))
    return {
        **{f"prometheus/{name}": text for name, text in rules(settings).items()},
        **{f"alertmanager/{name}": text for name, text in alertmanager(settings).items()},
        "RUNBOOK.md": book,
        "runbook.html": runbook_page(book),
    }


def runbook(parameters: RuleParameters, groups: Sequence[Group]) -> str:
    """Return the text of RUNBOOK.md."""
    generated = {"{XIDs}": "\n".join(table())}
    for state in (State.STARVED, State.THROTTLED):
        pairs = [(state, cause) for cause in CAUSES[state]]
        cures = "\n".join(f"- {SUMMARIES[pair]}: {ADVICE[pair]}" for pair in pairs)
        generated[f"{{cures of {state}}}"] = cures
    parts: dict[str, dict[str, list[Fault]]] = {}
    title, rules_of = "", dict[str, list[Fault]]()
    for group in groups:
        title = group.title or title
        for fault in group.faults:
            if fault.alert not in rules_of:  # several groups may have rules for it
                rules_of[fault.alert] = parts.setdefault(title, {})[fault.alert] = []
            rules_of[fault.alert].append(fault)
    lines = [(PAGES / "HEAD.md").read_text(encoding="utf-8").rstrip(), "", "# Contents", ""]
    for part, alerts in parts.items():
        lines.append(f"- {part}: {', '.join(f'[{name}](#{name})' for name in alerts)}")
    for part, alerts in parts.items():
        lines += ["", f"# {part}"]
        for alert, faults in alerts.items():
            page = (PAGES / f"{alert}.md").read_text(encoding="utf-8").rstrip()
            for mark, text in generated.items():
                page = page.replace(mark, text)
            lines += ["", f'## <a id="{alert}"></a>{alert}', "", page]
            lines += ["", "<details><summary>When it fires</summary>", ""]
            for fault in faults:
                hold = "at once" if fault.hold == "0s" else f"for {parameters.over(fault.hold)}"
                labels = ", ".join(f"{name} {value}" for name, value in fault.labels.items())
                hold = f"{hold} ({labels})" if labels else hold
                lines += [f"- {fault.severity}, {hold}:", ""]
                lines += ["  ```promql", f"  {fault.expr}", "  ```", ""]
            lines.append("</details>")
    return "\n".join(lines) + "\n"


LINK = re.compile(r"\[([^]]+)\]\((#\w+)\)")


def runbook_page(markdown: str) -> str:
    """Convert RUNBOOK.md to HTML. Only the subset of Markdown in this file is supported."""
    blocks = (block for block in markdown.split("\n\n") if block.strip())
    whole = Path(__file__).with_name("runbook.template.html").read_text(encoding="utf-8")
    return whole.replace("<!-- sections -->", "\n".join(map(_block, blocks)))


def _block(block: str) -> str:
    lines = block.strip("\n").splitlines()
    first = lines[0].strip()
    if first.startswith("#"):
        return _heading(first)
    if first.startswith("```"):
        code = "\n".join(line.strip() for line in lines[1:-1])
        return f"<pre><code>{escape(code)}</code></pre>"
    if first.startswith("|"):
        return "\n".join(("<table>", *_rows(lines), "</table>"))
    if first.startswith("- "):
        items = re.split(r"(?m)^- ", block.strip())[1:]
        return "\n".join(("<ul>", *(f"<li>{_inline(item)}</li>" for item in items), "</ul>"))
    if first.startswith(("<details>", "</details>")):
        return "\n".join(lines)
    return f"<p>{_inline(block)}</p>"


def _heading(line: str) -> str:
    """Return an HTML heading for a Markdown one. Its name and the lowercase form are anchors."""
    marks, _, text = line.partition(" ")
    level = len(marks)
    if anchored := re.fullmatch(r'<a id="(\w+)"></a>(.+)', text):
        name, title = anchored.groups()
        other = f'<a id="{name}"></a>' if name != name.lower() else ""
        return f'<h{level} id="{name.lower()}">{other}{title}</h{level}>'
    return f"<h{level}>{_inline(text)}</h{level}>"


def _rows(lines: list[str]) -> Iterator[str]:
    rows = (line for line in lines if not re.fullmatch(r"\|[-| ]+\|", line.strip()))
    for place, line in enumerate(rows):
        cell = "td" if place else "th"
        cells = line.strip().strip("|").split("|")
        yield f"<tr>{''.join(f'<{cell}>{_inline(c.strip())}</{cell}>' for c in cells)}</tr>"


def _inline(text: str) -> str:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
    return LINK.sub(r'<a href="\2">\1</a>', marked)
