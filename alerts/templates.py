"""Converts the places and sentences of faults to Go templates for alerts. Prometheus fills in the
value and the labels of the alert, so parts of a sentence that need other data are omitted."""

from string import Formatter

from agent.faults.model import Fault

ON = "{{ $labels.instance }}"
ONE_GPU = "GPU{{with $labels.gpu}} {{.}}{{end}} of " + ON
"""Template for a GPU with its index, or for `GPU` alone if a relay has dropped the label `gpu`."""

PLACES = {
    "gpu": ONE_GPU,
    "node": ON,
    "path": f"{{{{ $labels.path }}}} {{{{ $labels.device }}}} of {ON}",
    "port": f"{{{{ $labels.device }}}}:{{{{ $labels.port }}}} of {ON}",
    **{
        name: f"{{{{ $labels.{name} }}}} of {ON}" for name in ("device", "switch", "sensor", "dimm")
    },
    "rack": "Rack {{ $labels.rack }}",
}
"""The kinds of places that alerts are about. A fault's key `place` contains one of these names."""

BOARDS = {
    "gpu": f"dgx-gpu?var-instance={ON}&var-gpu={{{{ $labels.gpu }}}}",
    "rack": "dgx-fleet?var-rack={{ $labels.rack }}",
}
"""The dashboards of these places. All others have that of their node."""

GPU_ID = '{{ or $labels.uuid "GPU" }}'
"""Argument for `nvidia-smi -i`. It is never empty, because then all GPUs would be selected."""

COUNT = '{{ printf "%.0f" $value }}'
FORMS = {
    "percent": "{{ $value | humanizePercentage }}",
    "whole": '{{ reReplaceAll "[.].*%" "%" (humanizePercentage $value) }}',
    "duration": "{{ $value | humanizeDuration }}",
    "speed": '{{ reReplaceAll "([kMGT])$" " $1" (humanize $value) }}b/s',
    ".3g": "{{ $value | humanize }}",
    ".0f": COUNT,
}


def board(place: str) -> str:
    path = BOARDS.get(place, f"dgx-node?var-instance={ON}")
    return f"/d/{path}{{{{ with $labels.cluster }}}}&var-cluster={{{{ . }}}}{{{{ end }}}}"


def described(fault: Fault) -> str:
    """Return an alert's description as a template: place, sentence, and first step."""
    do = fault.do.replace("-i GPU", f"-i {GPU_ID}")
    do = do.replace("DEVICE", "{{ $labels.device }}").replace("NODE", ON)
    if "pid" in fault.names:
        do = do.replace("PID", "{{ $labels.pid }}")
    where = f"{ONE_GPU if fault.place == 'gpu' else ON}: "
    return f"{'' if fault.place in ('', 'rack') else where}{sentence_of(fault)}. {do}"


def sentence_of(fault: Fault) -> str:
    """Return the sentence of a fault as a Go template, which words.py fills in for the page."""
    parts = (_part(fault, part) for part in fault.sentence)
    return "".join(part for part in parts if part is not None).replace("-i GPU", f"-i {GPU_ID}")


def _part(fault: Fault, part: str) -> str | None:
    found = ""
    for literal, name, form, _ in Formatter().parse(part):
        found += literal
        if name is not None:
            field = _field(fault, name, form or "")
            if field is None:
                return None
            found += field
    return found


def _field(fault: Fault, name: str, form: str) -> str | None:
    if name == "word":
        numbers: dict[str, str] = {}
        for value, word in fault.words.items():
            numbers[word] = f"{numbers.get(word, '')} {value}.0"
        *others, last = numbers
        tests = (f"if eq $value{numbers[word]} }}}}{word}{{{{ else " for word in others)
        return f"{{{{ {''.join(tests)}}}}}{last}{{{{ end }}}}"
    if name == fault.figure:
        one, bar, many = form.partition("|")
        if not bar:
            return FORMS[form]
        once = one if one == "once" else f"1 {one}"
        return f"{{{{ if eq $value 1.0 }}}}{once}{{{{ else }}}}{COUNT} {many}{{{{ end }}}}"
    label = {"device": fault.device, "path": "path"}.get(name, "")
    if name.isdecimal() and int(name) < len(fault.names):
        label = fault.names[int(name)]
    if fault.device == label == "kind":
        return '{{ reReplaceAll "_" " " $labels.kind }}'
    return f"{{{{ $labels.{label} }}}}" if label else None
