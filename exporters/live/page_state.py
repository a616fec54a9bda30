"""One tick as the open pages see it: what seldom changes, and what does (MESSAGES.md)."""

from collections.abc import Mapping, Sequence

from agent.diagnosis.advice import SUMMARIES, advice
from agent.faults.monitoring import ABSENT
from agent.faults.promql import seconds
from agent.jobs.job import Job, Receipt, WatchedJobs
from agent.model import GpuKey, Pair, Reason, Snapshot, State, Verdict
from agent.series import SampleStore
from agent.sources import activity, host, system
from agent.status.history import SPAN, History
from exporters.job_words import culprit_name, ended_row, hang_action, row, title, waited_for
from exporters.live import headline, tiles
from exporters.live.findings_document import FindingsDocument
from exporters.live.links import LinkStates, link_rates, slow_links
from exporters.live.paths import PathDirections, PathValues
from exporters.live.view import View, silence
from exporters.messages import Document, pair_name

WORDS = {pair_name(pair): words for pair, words in SUMMARIES.items()}
MOST_ENDED = 5
"""Jobs that ended of which the page reports; `/api/v1/jobs` has all."""


class PageState:
    """Takes every tick while a page is open."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._directions = PathDirections(view.diagnosis.bandwidth)
        self._links = LinkStates(view.diagnosis.bandwidth)
        self._seen: object = None  # that what seldom changes was made of
        self.known = FindingsDocument()
        self._history: History | None = None
        self._receipts: Sequence[Receipt] = ()
        self._snapshot = Snapshot(-1, 0.0, 0.0)
        self._started: float | None = None  # the first look (wall time)
        self._began: float | None = None  # when the host did, on the agent's clock
        self._machine: Document = {}
        self.edition = 0

    def take(
        self, snapshot: Snapshot, known: FindingsDocument, history: History | None = None
    ) -> None:
        """Take in a tick, what was understood of it or of one before, and the last 15 minutes."""
        self._history, self._snapshot = history, snapshot
        samples, inventory = self._view.samples, self._view.diagnosis.inventory()
        jobs = self._view.jobs()
        self._receipts = (*(job.receipt for job in jobs.running), *jobs.ended)
        titles = [*map(title, self._receipts)]  # without names once these are off
        seen = inventory, known, titles
        refreshed, self._seen = seen != self._seen, seen
        self.known = known
        if self._started is None and known.timeline.first is not None:
            self._started = round(snapshot.wall - snapshot.at + known.timeline.first)
        if self._directions.survey(samples, refreshed=refreshed) or refreshed:
            self._survey()

    def _survey(self) -> None:
        view, samples = self._view, self._view.samples
        self._links.survey(samples, view.system())
        uptime = view.uptime()
        self._began = None if uptime is None else view.now() - uptime
        machine = {
            "machine": identity(samples)
            | {
                "version": view.version,
                "simulated": view.simulated,
                "host": view.host,
                "started": self._started,
            },
            "gpus": [
                tiles.static(one.key, one.model, samples) for one in view.diagnosis.inventory().gpus
            ],
            "paths": self._directions.static(samples),
            "words": WORDS,
            "reasons": ABSENT,
            "links": self._links.static(),
            "graph": self._links.graph,
            "absent": self.known.absent,
            "events": self.known.timeline.document(self._snapshot.at, self._receipts),
        }
        machine["speeds"] = slow_links(machine, self._links.dynamic(samples))
        machine["rates"] = link_rates(machine)
        if machine != self._machine:
            self.edition += 1
            self._machine = machine

    def machine(self) -> Document:
        """Return the data that seldom change, as MESSAGES.md has them."""
        return {"edition": self.edition, **self._machine}

    def tick(self) -> Document:
        """This tick, as MESSAGES.md has it."""
        samples, snapshot, jobs = self._view.samples, self._snapshot, self._view.jobs()
        inventory = self._view.diagnosis.inventory()
        processes = tiles.processes(snapshot)
        on = {gpu.uuid: job for job in jobs.running for gpu in job.receipt.gpus}
        hangs = {uuid: job.hang for uuid, job in on.items() if job.hang}
        divided = tiles.instances(samples)
        summaries = self._summaries(on, divided)
        silent = silence(snapshot)
        gpus = [
            tiles.dynamic(one.key, snapshot, samples, summary, silent=silent > 0)
            | {
                "processes": [] if summary.lost else processes.get(one.uuid, ()),
                "instances": divided.get(one.uuid, []),
            }
            for one, summary in zip(inventory.gpus, summaries, strict=True)
        ]
        paths = self._directions.dynamic(samples, silent=silent > 0)
        clauses = headline.banner(self._facts(paths, jobs, summaries))
        return {
            "tick": snapshot.tick,
            "timestamp": snapshot.wall,
            "second": int(snapshot.at),
            "edition": self.edition,
            "banner": [one._asdict() for one in clauses],
            "uptime_seconds": None if self._began is None else int(snapshot.at - self._began),
            "findings": self.known.documents,
            "gpus": gpus,
            "paths": paths,
            "host": _host(samples),
            "links": self._links.dynamic(samples),
            "notes": {u: t for hang in hangs.values() for u, t in waited_for(hang).items()},
            "jobs": [row(job, jobs.ended, silent=silent > 0) for job in jobs.running],
            "ended": [ended_row(one, snapshot.at, jobs.ended) for one in jobs.ended[:MOST_ENDED]],
        }

    def _summaries(
        self, on: Mapping[str, Job], divided: Mapping[str, object]
    ) -> list[headline.GpuSummary]:
        inventory, verdicts = self._view.diagnosis.inventory(), self._snapshot.verdicts
        windows = {gpu: self._window(gpu, one, on) for gpu, one in verdicts.items()}
        found = []
        for key in (one.key for one in inventory.gpus):
            if key.uuid in inventory.lost or key not in verdicts:
                why = "divided by MIG" if key.uuid in divided else self._why_not(key)
                at, lost = self._snapshot.at, key.uuid in inventory.lost
                kept = self._history.gpus.get(key.uuid) if self._history and not lost else None
                stood = kept.unjudged(at) if kept else at - inventory.lost.get(key.uuid, at)
                found.append(headline.GpuSummary(key.index, None, stood, lost, why=why))
            else:
                found.append(self._gpu(key, verdicts[key], on.get(key.uuid), *windows[key]))
        return found

    def _why_not(self, gpu: GpuKey) -> str:
        absence = self._view.samples.absence(activity.ACTIVITY, *gpu.labels)
        absence = absence or self._snapshot.unjudged.get(gpu)
        if absence is None:
            return "cannot be judged"
        late = absence.reason in (Reason.STALLED, Reason.NOT_ANSWERING)
        words = (
            "the driver does not respond"
            if late
            else f"no activity value, {ABSENT[absence.reason]}"
        )
        detail = absence.detail if absence.reason is not Reason.NOT_ANSWERING else ""
        return f"cannot be judged: {words}" + f" ({detail})" * bool(detail)

    def _facts(
        self,
        paths: Sequence[PathValues],
        jobs: WatchedJobs,
        summaries: Sequence[headline.GpuSummary],
    ) -> headline.HeadlineFacts:
        inventory, snapshot = self._view.diagnosis.inventory(), self._snapshot
        return headline.HeadlineFacts(
            ticked=snapshot.tick > 0,
            why_not=inventory.why_not,
            driver_known=inventory.most > 0 and inventory.reason is not Reason.RELEASED,
            silence=silence(snapshot),
            gpus=summaries,
            full=any(
                saturated and way.key.path != "hbm"
                for way, (*_, saturated) in zip(
                    self._directions.path_directions, paths, strict=True
                )
            ),
            findings=self.known.findings,
            over=self.known.over,
            notices={
                one: document["notifies"]
                for one, document in zip(self.known.findings, self.known.documents, strict=True)
            },
            thresholds=self._view.thresholds(),
            waited_for=[
                culprit_name(one) for job in jobs.running if job.hang for one in job.hang.culprits
            ],
        )

    def _window(
        self, gpu: GpuKey, verdict: Verdict, on: Mapping[str, Job]
    ) -> tuple[Mapping[Pair, float], int]:
        """Return the shares of the last 15 minutes, or since the job `on` it began, and how many
        seconds of them are known; without a history those of the last ten (0)."""
        if self._history and (kept := self._history.gpus.get(gpu.uuid)):
            watched = on[gpu.uuid].receipt.watched if gpu.uuid in on else SPAN
            shares, known = kept.window(self._history.newest or 0, max(1, int(watched)))
            if known:
                return shares, known
        return verdict.shares, 0

    def _spent(self, gpu: GpuKey) -> Mapping[tuple[State, float], float]:
        """Return the share of each state in the windows of alerts that the history spans."""
        found: dict[tuple[State, float], float] = {}
        if not self._history or not (kept := self._history.gpus.get(gpu.uuid)):
            return found
        limits = self._view.thresholds()
        windows = {seconds(w) for w in (limits.starved_window, limits.throttled_window)}
        for window in (w for w in windows if w <= SPAN):
            shares, known = kept.window(self._history.newest or 0, int(window))
            for (state, _), share in shares.items() if known >= window / 2 else ():
                found[state, window] = found.get((state, window), 0.0) + share
        return found

    def _gpu(
        self,
        gpu: GpuKey,
        verdict: Verdict,
        job: Job | None,
        window: Mapping[Pair, float],
        known: int,
    ) -> headline.GpuSummary:
        now = self._snapshot.at
        low = (p for p, n in verdict.shares.items() if p[0] is State.THROTTLED and n >= COSTS)
        pair = next(low, verdict.pair)
        beside = None if pair[0] is State.IDLE else _costly(window)
        late = verdict.waits_for.index if verdict.waits_for else None
        hung = job.hang if job and pair[0] is State.HUNG else None
        began = self.known.timeline.began((*pair, gpu.uuid), verdict.since)
        if job:
            began = max(began, now - job.receipt.watched)  # not in the job before
        stood = max(hung.seconds if hung else 0.0, now - min(began, verdict.since))
        found = headline.GpuSummary(
            gpu.index, pair, stood, share=window.get(pair), beside=beside, window=known
        )._replace(waits_for=late, spent=self._spent(gpu))
        loss = headline.shown(found, beside[0] if beside else None) or pair
        return found._replace(advice=hang_action(hung) if hung else advice(verdict, loss))


def whole(machine: Document, tick: Document) -> Document:
    """Machine and tick of one edition put together, as a reader wants them."""
    gpus = [
        {
            **static,
            **dynamic,
            "meters": [
                {**meter, "value": value}
                for meter, value in zip(static["meters"], dynamic["values"], strict=True)
            ],
            "note": tick["notes"].get(static["uuid"], ""),
            "sentence": ": ".join(
                filter(None, (dynamic["summary"], ", ".join(dynamic["evidence"])))
            ),
        }
        for static, dynamic in zip(machine["gpus"], tick["gpus"], strict=True)
    ]
    paths = [
        {**static, "ratio": ratio, "bytes_per_second": moved, "saturated": saturated}
        for static, (ratio, moved, saturated) in zip(machine["paths"], tick["paths"], strict=True)
    ]
    links = [
        {**static, "up": up, "ratio": {"transmit": transmit, "receive": receive}}
        for static, (up, transmit, receive) in zip(machine["links"], tick["links"], strict=True)
    ]
    level, sentence, to_do = headline.headline(
        [headline.Clause(**clause) for clause in tick["banner"]]
    )
    lead = {"level": level, "headline": sentence, "action": to_do}
    return {**machine, **tick, **lead, "gpus": gpus, "paths": paths, "links": links}


def identity(samples: SampleStore) -> Document:
    """Return the identity of the machine; `no_gpus` is the reason if none can be counted."""
    found = samples.labelled(system.INFO)
    info = found[-1] if found else {}
    gpus = samples.value(system.GPUS)
    expected = samples.value(system.GPUS_EXPECTED)
    absence = samples.absence(system.GPUS)
    return {
        "system": info.get("system") or None,
        "title": info.get("title") or None,
        "product": info.get("product") or None,
        "driver_version": info.get("driver_version") or None,
        "gpus": None if gpus is None else int(gpus),
        "gpus_expected": None if expected is None else int(expected),
        "no_gpus": absence.reason.value if absence else None,
    }


def _host(samples: SampleStore) -> Document:
    stalled = {
        resource: samples.rate(host.PRESSURE, resource, "some", seconds=tiles.SETTLED)
        for resource in host.STALLS
    }
    return {"cpu": samples.value(host.BUSY), "stalled": stalled}


COSTS = 0.25
"""Share of the time that low clocks take, from which they are reported though work takes more."""

BESIDE = 0.06
"""Share of the time that a GPU at work loses to one cause, from which the headline reports it;
twice that for exposed communication, of which a healthy job has a few per cent."""


def _costly(shares: Mapping[Pair, float]) -> tuple[Pair, float] | None:
    """Return the state that costs most of the window, and its share."""
    lost = [
        (share, pair)
        for pair, share in shares.items()
        if pair[0] in (State.STARVED, State.THROTTLED, State.COMMUNICATING)
        and share >= BESIDE * (2 if pair[0] is State.COMMUNICATING else 1)
    ]
    share, pair = max(lost, default=(0.0, None))
    return (pair, share) if pair else None
