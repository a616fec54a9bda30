"""Reads the declarations of faults and recording rules from the files in `subjects/`.

`${name}` in a string is replaced with the threshold or definition of that name. Definitions are in
the file or in `shared.toml`. In sentences, durations and shares are written in words. `${name+30}`
is 30 seconds more than the duration, `${name*2}` is twice the duration, and `${name.seconds*0.5}`
is half of its number of seconds. `${name?yes:no}` is `yes` if the number is above 0, and otherwise
`no`. In a list, the name of another list is replaced with the items of that list. A table or block
with the key `each` is repeated for each row of names and values in it.
"""

import re
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

from msgspec import convert
from msgspec.structs import asdict, replace

from agent.diagnosis import advice
from agent.faults.conditions import Condition, condition
from agent.faults.model import Fault, Group, function
from agent.faults.promql import SPAN, Recording, scaled, seconds, span, spoken
from agent.faults.records import BUSY_DISK, events
from agent.faults.thresholds import RuleParameters
from agent.metrics import beside
from agent.model import WHAT_LOST

MARK = re.compile(r"\$\{(\w+)(\.seconds)?(?:([-+*])([\d.]+))?(?:\?([^:}]*):([^}]*))?\}")

GIVEN = {
    **{f"advice_{state}_{cause}": text for (state, cause), text in advice.ADVICE.items()},
    **{f"summary_{state}_{cause}": text for (state, cause), text in advice.SUMMARIES.items()},
    "hang_advice": advice.hang_advice("PID"),
    "hang_advice_each": advice.hang_advice(),
    "mend": advice.peer_advice("this GPU"),
    "mend_unknown": advice.peer_advice("a GPU"),
    **{f"step_{name}": text for name, text in advice.TEXTS.items()},
    "what_lost": WHAT_LOST,
    "busy_disk": BUSY_DISK,
}
"""Names that declarations may use, with values that other modules define."""

Json = dict[str, Any]


class Declared(NamedTuple):
    """All faults that have a finding, by kind, in the order of declaration, and all rule groups."""

    findings: Mapping[str, Fault]
    groups: Sequence[Group]


@lru_cache(maxsize=2)
def declared(parameters: RuleParameters) -> Declared:
    """Return the faults and rule groups, with thresholds and time scale from `parameters`."""
    index, scale = _file("groups"), parameters.scale
    given = {**asdict(parameters.thresholds), **GIVEN, **_file("shared")["define"]}
    tables = [
        (name, kind, {"group": file.get("group", ""), **table})
        for name, file in ((name, _file(name)) for name in index["order"])
        for kind, table in _tables(file, given, scale)
    ]
    records: dict[str, Recording] = {}
    findings: dict[str, Fault] = {}
    records_of = defaultdict[tuple[str, str], list[Recording]](list)  # by group and file
    faults_of = defaultdict[tuple[str, str], list[Fault]](list)
    for name, kind, table in tables:
        if kind != "fault":
            group = table.pop("group")
            window = parameters.thresholds.event_window
            for one in events(window, **table) if kind == "events" else (Recording(**table),):
                record = one._replace(expr=scaled(one.expr, scale))
                if records.setdefault(record.record, record) is record:
                    records_of[group, name].append(record)

    @cache
    def parsed(name: str) -> Condition | None:
        record = records.get(name)
        return condition(record.here or record.expr, parsed) if record else None

    for name, kind, table in tables:
        if kind == "fault":
            fault = convert(table, Fault, strict=False)
            if finding := fault.finding:
                text = finding.when or ("" if finding.look else fault.when)
                fault = replace(fault, condition=condition(text, parsed)) if text else fault
                findings[fault.kind] = fault
            if fault.rule:
                rule = replace(fault.rule, when=scaled(fault.rule.when, scale))
                fault = replace(fault, when=scaled(fault.when, scale), rule=rule)
                faults_of[fault.group, name].append(fault)
    groups = convert(index["group"], list[Group])
    return Declared(findings, [_filled(group, records_of, faults_of) for group in groups])


def _filled(group: Group, records: Mapping[Any, Any], faults: Mapping[Any, Any]) -> Group:
    """Return a rule group with the rules in its files, which are by group and file."""
    own = [(group.name, file) for file in group.files]
    of_records, of_faults = ([rule for key in own for rule in of[key]] for of in (records, faults))
    return replace(group, records=of_records, faults=of_faults)


# Reading


def _file(name: str) -> Json:
    return beside(__file__, f"subjects/{name}")


def _tables(file: Json, given: Mapping[str, Any], scale: float) -> Iterator[tuple[str, Json]]:
    """Yield each table's kind and content, with `${...}` replaced, those of `[[block]]` first."""
    known = ChainMap(file.get("define", {}), given)  # type: ignore[arg-type]
    for block in (*file.get("block", ()), {**file, "each": [{}]}):
        for outer in _rows(block, known):
            for kind in ("events", "record", "fault"):
                for table in block.get(kind, ()):
                    for row in _rows(table, known):
                        names = _Names(ChainMap(row, outer, *known.maps), scale)
                        yield kind, names.table(table)


def _rows(table: Json, known: Mapping[str, Any]) -> Iterable[Json]:
    """Return the rows given by a table's key `each`: a list of rows or of names. A name refers to a
    list of rows or to a function that returns it. Return each combination if there are several."""
    each = table.get("each", [{}])
    if isinstance(each[0], dict):
        return list(each)
    lists = (_list(name, known) if name in known else function(name)() for name in each)
    return [{key: v for row in rows for key, v in row.items()} for rows in product(*lists)]


def _list(name: str, known: Mapping[str, Any]) -> Iterator[Any]:
    for item in known[name]:
        whole = MARK.fullmatch(item) if isinstance(item, str) else None
        if whole:
            yield from _list(whole[1], known)
        else:
            yield item


class _Names(NamedTuple):
    """The names that a declaration may use, and the factor by which durations are multiplied."""

    known: Mapping[str, Any]
    scale: float

    def table(self, table: Json) -> Json:
        return {key: self.filled(value, key) for key, value in table.items() if key != "each"}

    def filled(self, value: Any, key: str) -> Any:
        """Return a value in which names are replaced. Omit list items and labels that are empty."""
        if isinstance(value, str):
            if "${" in value:
                in_words = key in ("sentence", "summary", "do")  # for people
                value = MARK.sub(lambda found: self._shown(found, in_words), value)
            return " ".join(value.split()) if "\n" in value else value
        if isinstance(value, list):
            return [part for item in value for part in self._items(item, key) if part != ""]
        if isinstance(value, dict):
            table = {name: self.filled(item, name) for name, item in value.items()}
            return {n: v for n, v in table.items() if v != ""} if key == "labels" else table
        return value

    def _items(self, item: Any, key: str) -> list[Any]:
        whole = MARK.fullmatch(item) if isinstance(item, str) else None
        meant = self.known.get(whole[1]) if whole else None
        return self.filled(meant, key) if isinstance(meant, list) else [self.filled(item, key)]

    def _shown(self, found: re.Match[str], in_words: bool) -> str:
        name, in_seconds, sign, amount, above, absent = found.groups()
        if name not in self.known:
            raise ValueError(f"{found[0]} is no threshold and no definition")
        value = self.known[name]
        counts = bool(in_seconds or sign)
        if isinstance(value, str):
            value = self.filled(value, "do" if in_words and not counts else "")
        if above is not None:
            return above.replace("%", f"{value:g}") if value > 0 else absent
        if counts:
            by = float(amount or 1)
            length = seconds(value) * (by if sign in ("*", None) else 1)
            length += {"+": by, "-": -by}.get(sign, 0)
            if in_seconds:
                return f"{length * self.scale:g}"
            value = span(length)
        if isinstance(value, str):
            return spoken(value) if in_words and SPAN.fullmatch(value) else value
        if in_words and name.endswith("share"):
            return f"{value:.0%}"
        return f"{value:g}" if isinstance(value, float) else f"{value}"
