"""Builds RUNBOOK.md, and an HTML page with the same content. Each alert has a section with its
explanation and its rules. Every agent serves the HTML page, to which alerts link."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.faults.model import PAGES, Fault, Group
from agent.faults.thresholds import RuleParameters
from agent.faults.xids import table
from agent.model import CAUSES, State


def runbook(parameters: RuleParameters, groups: Sequence[Group]) -> str:
    """Return the text of RUNBOOK.md."""
    generated = {
        "{XIDs}": "\n".join(table()),
        **{
            f"{{cures of {s}}}": "\n".join(
                f"- {SUMMARIES[s, c]}: {ADVICE[s, c]}" for c in CAUSES[s]
            )
            for s in (State.STARVED, State.THROTTLED)
        },
    }
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
