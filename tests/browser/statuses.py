"""Statuses of machines that the page lays out, made from the one written by hand."""

from collections.abc import Callable
from copy import deepcopy

from agent.diagnosis.advice import TEXTS
from tests.browser.status_server import Json, example


def busy(gpus: int) -> Json:
    """A machine with so many GPUs at work, and nothing wrong."""
    status = example()
    model = deepcopy(status["gpus"][0])
    model |= {"state": "busy", "cause": "none", "level": "good", "text": "busy", "do": None}
    model |= {"findings": [], "note": None, "shares": {"busy/none": 1.0}}
    status["gpus"] = [{**model, "gpu": n, "uuid": f"GPU-{n}"} for n in range(gpus)]
    group = {**status["groups"][1], "name": f"GPUs 0-{gpus - 1}", "gpus": [*range(gpus)]}
    group |= {"state": "busy", "level": "good", "text": "busy", "findings": []}
    clause = {**status["headline"][0], "level": "good", "text": f"{gpus} GPUs busy"}
    clause |= {"findings": [], "do": None, "alert": None, "runbook": None, "gpus": [*range(gpus)]}
    edge = {**status["links"][1], "load": "mid", "ratio": 0.5}
    status["links"] = [{**edge, "gpu": n} for n in range(gpus)]
    sound = "All expected hardware is present."
    quiet: Json = {"findings": [], "jobs": [], "ended": [], "events": [], "level": "good"}
    return {**status, **quiet, "groups": [group], "headline": [clause], "sound": sound}


def starved() -> Json:
    """Eight GPUs that wait, the common case of a first look."""
    status = busy(8)
    status["headline"][0] |= {
        "level": "warning",
        "text": "8 GPUs starved by disk, 62 % of the last 15 min",
        "do": TEXTS["read_faster"],
        "alert": {
            **example()["findings"][0]["alert"],
            "text": "alert DgxGpuStarved (warning: notifies, does not page) fires from 25 % of "
            "15 min or 10 % of 6 h",
        },
        "runbook": "dgxgpustarved",
    }
    status["groups"][0] |= {
        "state": "starved",
        "cause": "disk",
        "level": "warning",
        "text": "starved by disk, 62 % of the last 15 min",
        "why": ["for example GPU 0: the job reads 20 GB/s from disk"],
    }
    for gpu in status["gpus"]:
        gpu |= {"state": "starved", "cause": "disk", "level": "warning", "text": "starved by disk"}
    return {**status, "level": "warning"}


def without_gpus() -> Json:
    status = busy(0)
    status["headline"][0] |= {"level": None, "text": "No GPU is known: no driver is loaded"}
    hosts = [path for path in status["paths"] if path["gpu"] is None]
    kinds = [kind for kind in status["path_kinds"] if "gpu0" not in kind["devices"]]
    status["machine"] |= {"gpus": None, "driver_version": None}
    none: Json = {"groups": [], "paths": hosts, "path_kinds": kinds, "sound": None, "level": None}
    return {**status, **none}


STATUSES: dict[str, Callable[[], Json]] = {
    "lost": example,
    "starved": starved,
    "sixteen": lambda: busy(16),
    "rack": lambda: busy(72),
    "none": without_gpus,
}


def grown(status: Json) -> Json:
    """The same with one more word in each text."""
    status = deepcopy(status)
    for one in (*status["headline"], *status["groups"], *status["findings"]):
        for name in ("text", "do"):
            one[name] = one[name] and f"{one[name]} furthermore"
        if "why" in one:
            one["why"] = [f"{fact} furthermore" for fact in one["why"]]
    return status
