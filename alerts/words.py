"""Pieces of the texts of alerts: Go templates that Prometheus fills in."""

from collections.abc import Mapping

from agent.model import Metric
from alerts.model import Recording
from alerts.places import GPU_NUMBER, ON

GPU = f"{GPU_NUMBER}{{{{ with $labels.uuid }}}} ({{{{ . }}}}){{{{ end }}}} of {ON}"
GPU_ID = '{{ or $labels.uuid $labels.gpu "GPU" }}'
"""For `nvidia-smi -i`, which without a value would mean all GPUs."""

NODE = "{{ $labels.instance }}"
SHARE = "{{ $value | humanizePercentage }}"
WHOLE = 'printf "%.0f"'
COUNT = f"{{{{ $value | {WHOLE} }}}}"

Asked = Metric | Recording


def by_label(label: str, texts: Mapping[str, str], of: str = "$labels") -> str:
    """The text for the value that a label has."""
    return "".join(
        f'{{{{ if eq {of}.{label} "{value}" }}}}{text}{{{{ end }}}}'
        for value, text in texts.items()
    )


def by_value(texts: Mapping[int, str]) -> str:
    """The text for the value of the alert."""
    return "".join(
        f"{{{{ if eq $value {value}.0 }}}}{text}{{{{ end }}}}" for value, text in texts.items()
    )


def series(metric: Asked, labels: tuple[str, ...], fixed: Mapping[str, str]) -> str:
    """A selector, for printf to fill in with the labels that it shares with the alert; a fixed
    value that begins with != brings its own operator."""
    wanted = [f"{name}='%s'" for name in labels]
    for name, value in fixed.items():
        wanted.append(f"{name}!='{value[2:]}'" if value[:2] == "!=" else f"{name}='{value}'")
    return f"{metric}{{{', '.join(wanted)}}}"


def _query(expression: str, labels: tuple[str, ...]) -> str:
    times = expression.count("%s") // len(labels)
    values = " ".join(f"$labels.{name}" for name in labels * times)
    return f'printf "{expression}" {values} | query'


def look_up(metric: Asked, form: str, *labels: str, **fixed: str) -> str:
    """The value of another series, such as a limit; "unknown" where there is none."""
    return _value(_query(series(metric, labels, fixed), labels), form)


def sum_of(one: Asked, other: Asked, form: str, *labels: str) -> str:
    """The sum of two series with the same labels; "unknown" where one is missing."""
    return _value(_query(f"{series(one, labels, {})} + {series(other, labels, {})}", labels), form)


def _value(query: str, form: str) -> str:
    value = f"{{{{ . | first | value | {form} }}}}"
    return f"{{{{ with {query} }}}}{value}{{{{ else }}}}unknown{{{{ end }}}}"


def list_of(metric: Asked, label: str, condition: str, *labels: str, **fixed: str) -> str:
    """A label of every series that meets a condition, such as the links that are down."""
    query = _query(f"{series(metric, labels, fixed)} {condition}", labels)
    one = f'{{{{ or .Labels.{label} "?" }}}}'
    return f'{{{{ range {query} | sortByLabel "{label}" }}}} {one}{{{{ end }}}}'


def for_each(expression: str, labels: tuple[str, ...], text: str) -> str:
    """A text for each series of an expression, in its order."""
    return f"{{{{ range {_query(expression, labels)} }}}}{text}{{{{ end }}}}"
