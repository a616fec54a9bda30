"""The default set of `/metrics`: series that rules or dashboards need and that are not always 0.

PromQL cannot compute the first increase of a counter whose first sample is above 0. Therefore, a
new series, such as the first error of a type, is first exported as 0: for at least 30 s, and in at
least two responses to the same client. Prometheus thus stores a sample before the increase. A
series that is above 0 in the first snapshot is exported with its value immediately.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.limits import paths
from agent.model import InDefault, Kind, Labels, Metric, Sample
from exporters.settings import Families


class NewPart(NamedTuple):
    """A new series that is still exported as 0: when it appeared (s), and responses by client."""

    since: float
    answers: Counter[str]


@dataclass(eq=False)
class DefaultSet:
    """Selects series from each snapshot. Once selected, a series remains selected."""

    _devices: dict[str, set[Labels]] = field(default_factory=dict)
    """The devices seen so far, by metric. All labels except `Metric.parts` identify a device."""
    _kept: dict[str, set[Labels]] = field(default_factory=dict)  # by metric
    _new: dict[tuple[str, Labels], NewPart] = field(default_factory=dict)

    def choose(self, families: Families, now: float) -> dict[str, list[Sample]]:
        """Return the samples in the default set, by metric. `now` is in monotonic seconds."""
        chosen = {name: self._chosen(its, families, now) for name, its in families.items()}
        return {name: its for name, its in chosen.items() if its}

    def _chosen(self, samples: list[Sample], families: Families, now: float) -> list[Sample]:
        metric = samples[0].metric
        match metric.shown:
            case InDefault.ALL:
                found = samples
            case InDefault.FULL:
                found = []
            case InDefault.WHICH:
                found = [sample for sample in samples if metric.which(sample.labels)]
            case InDefault.MOVED:
                found = [*_unnamed(metric, samples), *self._grown(metric, samples, now)]
            case InDefault.GROWN:
                found = self._grown(metric, samples, now)
            case InDefault.ZERO:
                kept = self._kept.setdefault(metric.name, set())
                kept |= {sample.labels for sample in samples if not sample.value}
                found = [sample for sample in samples if sample.labels in kept]
            case InDefault.ONE_WAY:
                found = self._one_way(metric, samples)
            case InDefault.SHORT:
                found = self._short(metric, samples, families)
        return found

    def answered(self, client: str) -> None:
        """For every series that is still exported as 0, count the response to this client, which
        its address and user agent identify."""
        for part in list(self._new.values()):  # the rendering thread may change it
            if client in part.answers or len(part.answers) < 64:  # clients
                part.answers[client] += 1

    def _grown(self, metric: Metric, samples: list[Sample], now: float) -> list[Sample]:
        """Return the samples of series that have ever been above 0. A new counter starts at 0."""
        kept = self._kept.setdefault(metric.name, set())
        devices = self._devices.setdefault(metric.name, set())
        own = [at for at, label in enumerate(metric.labels) if label not in metric.parts]
        there, chosen = set[Labels](), []
        for sample in samples:
            there.add(place := tuple(sample.labels[at] for at in own))
            if sample.labels not in kept:
                if sample.value <= 1e-9:  # smaller values are rounding errors (1e-19 s)
                    continue
                at_once = metric.kind is Kind.GAUGE or metric.which(sample.labels)
                known = place in devices and not at_once
                if known and not self._is_born(metric, sample.labels, now):
                    chosen.append(sample._replace(value=0.0))
                    continue
                kept.add(sample.labels)
            chosen.append(sample)
        devices |= there
        return chosen

    def _is_born(self, metric: Metric, labels: Labels, now: float) -> bool:
        new = self._new.setdefault((metric.name, labels), NewPart(now, Counter()))
        enough = any(count >= 2 for count in new.answers.values())
        if now - new.since < 30.0 or not enough:
            return False
        del self._new[metric.name, labels]
        return True

    def _one_way(self, metric: Metric, samples: list[Sample]) -> list[Sample]:
        """Return the samples of both directions of each device. If they have always had the same
        value, return one sample with an empty `direction`."""
        differ, place = self._kept.setdefault(metric.name, set()), metric.labels.index("direction")
        ways: dict[Labels, list[Sample]] = {}
        for sample in samples:
            device = *sample.labels[:place], "", *sample.labels[place + 1 :]
            ways.setdefault(device, []).append(sample)
        chosen = []
        for labels, both in ways.items():
            if len(both) > 1 and len({sample.value for sample in both}) > 1:
                differ.add(labels)
            same = len(both) > 1 and labels not in differ
            chosen += [both[0]._replace(labels=labels)] if same else both
        return chosen

    def _short(self, metric: Metric, samples: list[Sample], families: Families) -> list[Sample]:
        """Return the samples of paths whose hardware limit was ever below the spec sheet's."""
        known = {sample.labels: sample.value for sample in families.get(str(paths.LIMIT), ())}
        of_hardware = {
            sample.labels[: len(paths.PATH_LABELS)]
            for sample in families.get(str(paths.LIMIT_INFO), ())
            if "hardware" in sample.labels
        }
        kept = self._kept.setdefault(str(paths.SPEC), set())
        for sample in families.get(str(paths.SPEC), ()):
            limit = known.get(sample.labels, sample.value)
            if sample.labels in of_hardware and limit < sample.value:
                kept.add(sample.labels)
        short = [one for one in samples if one.labels[: len(paths.PATH_LABELS)] in kept]
        return self._one_way(metric, short) if short else []


def _unnamed(metric: Metric, samples: list[Sample]) -> list[Sample]:
    """Return a sample with the value 0 for each device. Its labels in `Metric.parts` are empty."""
    parts = [label in metric.parts for label in metric.labels]
    devices = dict.fromkeys(
        tuple("" if part else value for part, value in zip(parts, sample.labels, strict=True))
        for sample in samples
    )
    return [Sample(metric, labels, 0.0) for labels in devices]
