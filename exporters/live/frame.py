"""The messages of the live page, as they go over the wire. This text is the contract.

`/api/v1/stream` sends server-sent events, each with JSON in `data`. After a connection: `history`,
`machine`, `tick`; then a `tick` each tick, a `machine` before it whenever what seldom changes has
changed, and a `history` before it with what the client missed. Times are seconds of the agent's
clock unless called `timestamp`, which is wall time. What is not known is null.

    machine:
    {"edition": 3,
     "machine": {"system", "title", "product", "driver_version", "gpus", "gpus_expected",
                 "version", "simulated", "host", "started", "no_gpus": why},
     "gpus":    [{"gpu", "uuid", "model", "meters": [{"name", "unit", "limit"}],
                  "pcie": [generation, lanes, and what is possible of both]}],
     "paths":   [{"path", "device", "gpu", "direction", "limit", "origin", "source", "threshold",
                  "up": a port has a link, "negotiated": its bytes a second, "sheet": those that its
                  spec sheet has, "array": of which a disk is a member}],
     "words":   {"state/cause": words},
     "reasons": {why a metric is absent: words},
     "links":   [{"gpu", "link", "remote": {"kind", "gpu"}}],
     "graph":   {"kind": "switch|mesh|full|pairs|none", "expected": [[gpu, gpu, links]]},
     "speeds":  [sentences: which links run below, or at, full speed, or cannot be judged],
     "absent":  [{"metric", "meaning", "reason", "detail", "where"}],
     "events":  [{"since", "until", "level", "text", "job"}], the newest first}

    tick:
    {"tick", "timestamp", "second", "edition", "uptime_seconds",
     "banner": [{"level", "sentence", "action", "alert", "notifies"}], first what is
                wrong, then what GPUs do,
     "findings": [{"kind", "severity", "sentence", "text", "gpu", "uuid", "device", "figures",
                   "names", "action", "alert", "notifies", "since"}], the worst first,
     "gpus":  [{"state", "cause", "seconds", "gaps", "summary", "evidence", "rule", "doubts",
                "level", "advice", "quality", "shares": {"state/cause": 0-1}, "lost", "settling",
                "beside", "of_window", "processes": [{"pid", "program", "bytes", "share", "user"}],
                "instances": [{"number", "profile", "uuid", "activity", "sm", "memory",
                               "memory_limit", "processes"}],
                "values": [a number or null for each meter]}],
     "paths": [[ratio, bytes_per_second, saturated]],
     "links": [[up, transmit, receive]],
     "host":  {"cpu": busy, "stalled": {"cpu", "io", "memory": share of the time}},
     "notes": {uuid: what else is said of this GPU},
     "jobs":  [{"id", "ids", "title", "user", "named": not by a pid alone, "gpus",
                "level", "sentence", "gpu_seconds", "lost",
                "cost", "money", "rates": [steps a second each 10 s, oldest first], "saving",
                "before", "shares": [[state, cause, share]], "seconds", "watched"}],
     "ended": [{"id", "ids", "title", "gpus", "ended", "ago", "seconds", "receipt",
                "before"}],
               the newest first}

The lists of a tick have the order and length of those of the machine with the same `edition`:
`whole` puts the two together, and so does the page. `seconds` is how long the verdict has stood, or
the GPU has been lost, `gaps` those of them in which it was something else for less than a minute;
`settling` says that it changed a moment ago and means are of before,
`state` is null while nothing can be judged. Power is the mean of the last 10 s. Ratios are 0-1 of
the limit (and may be above 1); without a limit `ratio` is null and the bytes stand alone, and
a disk is `saturated` while it has a request in flight nearly all of the time. NVLink is judged by
what is on the wire. `links` have ratios where the driver counts link by link, read once a minute:
colour an edge by its ends' totals (`paths`, device gpuN) until then. `remote.kind` is gpu, switch,
npu or unknown; `up` is null where the link does not report. `action` is the first thing to do, or
empty. `level` is good, notice, costly, wrong (as alerts are info, warning and critical) or unknown.
`ids` are all names of a job, `before` is whether one of its name and user ended earlier; `beside`
is what a GPU at work lost most to in the last 15 minutes, `of_window` the share of one that waits
now; `notifies` says how grave something is, whether its alert pages somebody, and when. A finding's
`text` is its sentence without the name of its GPU, its `figures` are numbers by name: {"value",
"limit": what was expected, "unit"}; it has been there since `since` (wall time, null: since before
the agent looked first). `events` are faults, states that cost time for a minute or longer, and jobs
of the last 24 hours: `since` and `until` in wall time (null: from the start; still so).

    history:
    {"whole": true, "newest": second, "timestamp": of the newest, "slots": n,
     "states": [null, "idle/none", ..., "lost/none"],
     "series": {"activity": {"unit", "scale", "bytes": 1 or 2, "gap": 255 or 65535}, ...},
     "gpus":   {uuid: {"state": codes, "shares": {"busy/none": codes, ...}, "activity": codes,
                       "memory", "power", "temperature"}}}

Codes are base64 of unsigned little-endian integers, one a second: those of the seconds
`newest - slots + 1` to `newest`, oldest first. A state's code is its place in `states`, 0 is a
gap; a share's code is a value without gaps (series `share`), and a pair that is not there had
none; elsewhere the value is code times `scale`, `gap` is a gap. With `whole` false it holds only
what this client missed: append it. A tick whose `second` the history holds already adds nothing.

An event's `id` says how far the history has come; a browser that reconnects sends it back.
"""

from typing import Any

from exporters.live.headline import Clause, headline

Document = dict[str, Any]


def whole(machine: Document, tick: Document) -> Document:
    """Machine and tick of one edition put together, as a reader wants them."""
    gpus = [
        {
            **static,
            **dynamic,
            "meters": _meters(static["meters"], dynamic["values"]),
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
    level, sentence, to_do = headline([Clause(**clause) for clause in tick["banner"]])
    lead = {"level": level, "headline": sentence, "action": to_do}
    return {**machine, **tick, **lead, "gpus": gpus, "paths": paths, "links": links}


def _meters(static: list[Document], values: list[float | None]) -> list[Document]:
    return [{**meter, "value": value} for meter, value in zip(static, values, strict=True)]
