"""The MIG instances of each GPU: a row each, under that of their GPU."""

from typing import Any

from agent.series import SampleStore
from agent.sources import instances as source

Document = dict[str, Any]


def instances(samples: SampleStore) -> dict[str, list[Document]]:
    """By UUID of the GPU, in the order of their numbers; figures that are not known are None."""
    found: dict[str, list[Document]] = {}
    for info in samples.labelled(source.INFO):
        labels = info["gpu"], info["uuid"], info["gpu_instance"]
        row = {
            "number": int(labels[2]),
            "profile": info["profile"],
            "uuid": info["mig_uuid"],
            "activity": samples.value(source.ACTIVITY, *labels),
            "sm": samples.value(source.SM_ACTIVE, *labels),
            "memory": samples.value(source.USED, *labels),
            "memory_limit": samples.value(source.TOTAL, *labels),
            "processes": samples.value(source.PROCESSES, *labels),
        }
        found.setdefault(labels[1], []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: row["number"])
    return found
