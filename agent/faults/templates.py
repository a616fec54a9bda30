"""The texts of alerts: Go templates that Prometheus fills in, made of the sentences of faults."""

from collections.abc import Mapping
from string import Formatter

from agent.faults.model import Fault, Listed
from agent.faults.places import GPU_NUMBER, ON
from agent.faults.promql import Recording, matcher
from agent.model import Metric

GPU = f"{GPU_NUMBER}{{{{ with $labels.uuid }}}} ({{{{ . }}}}){{{{ end }}}} of {ON}"
GPU_ID = '{{ or $labels.uuid $labels.gpu "GPU" }}'
"""Argument for `nvidia-smi -i`, which without a value would mean all GPUs."""

NODE = "{{ $labels.instance }}"
SHARE = "{{ $value | humanizePercentage }}"
WHOLE = 'printf "%.0f"'
COUNT = f"{{{{ $value | {WHOLE} }}}}"

Asked = Metric | Recording


def by_label(label: str, texts: Mapping[str, str], of: str = "$labels") -> str:
    return "".join(
        f'{{{{ if eq {of}.{label} "{value}" }}}}{text}{{{{ end }}}}'
        for value, text in texts.items()
    )


def by_value(texts: Mapping[int, str]) -> str:
    return "".join(
        f"{{{{ if eq $value {value}.0 }}}}{text}{{{{ end }}}}" for value, text in texts.items()
    )


def series(metric: Asked, labels: tuple[str, ...], fixed: Mapping[str, str]) -> str:
    """A selector, for printf to fill in with the labels that it shares with the alert; a fixed
    value that begins with an operator brings it along."""
    wanted = [f"{name}='%s'" for name in labels]
    for name, value in fixed.items():
        operator, word = matcher(value)
        wanted.append(f"{name}{operator}'{word}'")
    return f"{metric}{{{', '.join(wanted)}}}"


def _query(expression: str, labels: tuple[str, ...]) -> str:
    times = expression.count("%s") // len(labels)
    values = " ".join(f"$labels.{name}" for name in labels * times)
    return f'printf "{expression}" {values} | query'


def look_up(metric: Asked, form: str, *labels: str, **fixed: str) -> str:
    """The value of another series, such as a limit; "unknown" where there is none."""
    return _value(_query(series(metric, labels, fixed), labels), form)


OF_PATH = "instance", "job", "path", "device", "direction"


def speed_of(metric: Asked) -> str:
    """Return the traffic or capacity of a data path as text; of networks in bits, as they are
    sold."""
    bits, plain = (
        _value(_query(f"{times}{series(metric, OF_PATH, {})}", OF_PATH), "humanize")
        for times in ("8 * ", "")
    )
    network = 'or (eq $labels.path "network") (eq $labels.path "infiniband")'
    return f"{{{{ if {network} }}}}{bits}b/s{{{{ else }}}}{plain}B/s{{{{ end }}}}"


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
    return f"{{{{ range {_query(expression, labels)} }}}}{text}{{{{ end }}}}"


def either(expression: str, labels: tuple[str, ...], text: str, other: str) -> str:
    return f"{{{{ if {_query(expression, labels)} }}}}{text}{{{{ else }}}}{other}{{{{ end }}}}"


def described(fault: Fault) -> str:
    """The description of an alert: where, what is wrong, what to do."""
    do = fault.do.replace("-i GPU", f"-i {GPU_ID}") if isinstance(fault.do, str) else ""
    do = do.replace("/dev/DISK", "/dev/{{ $labels.device }}")
    if fault.description:
        return f"{fault.description} {do}".rstrip()
    if fault.of_node:
        return f"{NODE}: {fault.of_node}. {do}"
    where = GPU if fault.place is not None and "GPU" in fault.place.text else NODE
    return f"{where}: {sentence_of(fault)}. {do}"


def sentence_of(fault: Fault) -> str:
    """The sentence of a fault, as `exporters/messages.py` fills it in, as a Go template."""
    found = ""
    for literal, name, form, _ in Formatter().parse("".join(fault.sentence)):
        found += literal
        if name == "names":
            found = found.rstrip()  # each name brings its blank along
        found += "" if name is None else _field(fault, name, form or "")
    return found


def _field(fault: Fault, name: str, form: str) -> str:
    if name in fault.terms:
        return fault.terms[name].template
    if name == fault.figure:
        one, bar, many = form.partition("|")
        words = f" {{{{ if eq $value 1.0 }}}}{one}{{{{ else }}}}{many}{{{{ end }}}}" if bar else ""
        return f"{COUNT}{words}"
    if name == f"{fault.figure}_limit":
        if not isinstance(fault.limit, Metric):
            return f"{fault.limit:.0f}"
        return look_up(
            fault.limit, WHOLE, "instance", "job", *sorted(set(fault.limit.labels) - {"gpu"})
        )
    if name in ("names", "n") and fault.listed:
        return _names(fault.listed, name, form)
    label = fault.device if name == "device" else fault.names[int(name)]
    return f"{{{{ $labels.{label} }}}}"


def _names(listed: Listed, name: str, form: str) -> str:
    """The names that a sentence lists, or a word that agrees with their number."""
    metric, label, value = listed
    same = ("instance", "job", "uuid")
    if name == "names":
        return list_of(metric, label, f"== {value:g}", *same)
    one, _, many = form.removeprefix("~").partition("|")
    number = f"len ({_query(f'{series(metric, same, {})} == {value:g}', same)})"
    return f"{{{{ if eq ({number}) 1 }}}}{one}{{{{ else }}}}{many}{{{{ end }}}}"
