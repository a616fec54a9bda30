"""RUNBOOK.md: one section an alert, from its page and its rules."""

from collections.abc import Iterator, Sequence

from agent.diagnosis.advice import ADVICE, SUMMARIES
from agent.faults.model import PAGES, Fault, Group
from agent.faults.parameters import RuleParameters
from agent.faults.xids import table
from agent.model import CAUSES, State
from agent.sources import nccl


def runbook(parameters: RuleParameters, groups: Sequence[Group]) -> str:
    """The whole text."""
    generated = {
        "{XIDs}": "\n".join(table()),
        "{reports of NCCL}": nccl.REPORTS,
        **{f"{{cures of {state}}}": _cures(state) for state in (State.STARVED, State.THROTTLED)},
    }
    lines = [(PAGES / "HEAD.md").read_text(encoding="utf-8").rstrip()]
    for group in groups:
        faults = [rule for rule in group.rules if isinstance(rule, Fault)]
        if faults:
            lines += ["", f"# {group.title}"]
        for alert in dict.fromkeys(fault.alert for fault in faults):
            page = (PAGES / f"{alert}.md").read_text(encoding="utf-8").rstrip()
            for mark, text in generated.items():
                page = page.replace(mark, text)
            lines += ["", f'## <a id="{alert}"></a>{alert}', "", page]
            lines += ["", "<details><summary>When it fires</summary>", ""]
            for fault in faults:
                lines += _when(fault, parameters) if fault.alert == alert else ()
            lines.append("</details>")
    return "\n".join(lines) + "\n"


def _cures(state: State) -> str:
    return "\n".join(f"- {SUMMARIES[state, c]}: {ADVICE[state, c]}" for c in CAUSES[state])


def _when(fault: Fault, parameters: RuleParameters) -> Iterator[str]:
    hold = "at once" if fault.hold == "0s" else f"for {parameters.over(fault.hold)}"
    labels = ", ".join(f"{name} {value}" for name, value in fault.labels.items())
    yield f"- {fault.severity}, {hold}{f' ({labels})' if labels else ''}:"
    yield from ("", "  ```promql", f"  {fault.expr}", "  ```", "")
