"""What is wrong with a machine, a sentence each: what `check` tells and exits by."""

from collections.abc import Iterator

from agent import bandwidth
from agent.health import SOURCE_UP
from agent.look import Look
from agent.model import Metric, Reason, Snapshot
from agent.sources import (
    activity,
    chassis,
    clocks,
    disk,
    ecc,
    gpu,
    nvlink,
    pcie,
    system,
    temperature,
    xid,
)
from agent.specs import SystemSpec
from agent.wiring import wiring

WRONG_REASONS = (Reason.STALLED, Reason.FAILED, Reason.LOST, Reason.DENIED, Reason.NO_DRIVER)
"""Reasons of absence that somebody should see to; the others are what this hardware is like."""

HARMFUL = {"software_thermal", "hardware_thermal", "power_brake", "hardware_slowdown"}
"""Throttle reasons that are trouble; a power cap alone is health."""

ACTIONS = {1: "a reset", 2: "a reboot", 3: "its peer traffic drained", 4: "a drain and a reset"}
"""What the driver may ask for a GPU, by `dgx_gpu_recovery_action`."""

PORTS = {"network": "network port", "infiniband": "InfiniBand port"}

LOADED = 0.5
"""Activity from which a GPU holds its PCIe link at full speed; an idle link may rest."""

TRAFFIC = 0.05
"""Share of the limit of PCIe from which it is in use: the lowest generation reaches more."""

AT_ONCE = 1.0
"""Seconds: a generation read earlier than this before the load was seen may be that of rest."""

OPTIONAL = {chassis.POWER.name, chassis.TEMPERATURE.name}
"""Metrics of sensors that many machines have none of, or keep for root: absent without harm."""

FLAGS = (
    (ecc.REMAP_FAILURE, "a memory row could not be remapped, the GPU is due for replacement"),
    (ecc.REMAP_PENDING, "a memory row waits for a GPU reset to be remapped"),
)


def findings(snapshot: Snapshot, spec: SystemSpec | None = None) -> Iterator[str]:
    """Everything wrong that one snapshot shows, the worst first; `spec` is what the system is."""
    look = Look(snapshot)
    yield from _sources(look)
    yield from _gpus(look)
    yield from _memory(look)
    yield from _events(look)
    yield from _links(look)
    yield from wiring(look, spec)
    yield from _lanes(look)
    yield from _generations(look)
    yield from _slots(look, spec)
    yield from _ports(look)
    yield from _heat(look)
    yield from _arrays(look)
    yield from _unused(snapshot)
    for reason in WRONG_REASONS:
        metrics = {a.metric.name for a in snapshot.absences(snapshot.at) if a.reason is reason}
        metrics -= OPTIONAL
        if metrics:
            have = f"{len(metrics)} metrics have" if len(metrics) > 1 else "1 metric has"
            yield f"{have} values that are absent: {reason.value}"


def _per_gpu(look: Look, metric: Metric) -> Iterator[tuple[str, str, float]]:
    for (index, uuid, *_), value in sorted(look.all(metric).items()):
        yield index, uuid, value


def _sources(look: Look) -> Iterator[str]:
    for (source,), up in sorted(look.all(SOURCE_UP).items()):
        if not up:
            yield f"source {source} is down"


def _gpus(look: Look) -> Iterator[str]:
    found, expected = look.value(system.GPUS), look.value(system.GPUS_EXPECTED)
    if found is not None and expected is not None and found < expected:
        yield f"{found:.0f} of {expected:.0f} GPUs answer{_gap(look)}"
    if found is not None and expected is not None and found > expected:
        yield (
            f"{found:.0f} GPUs answer where the system has {expected:.0f}: is `system` in the "
            "configuration right?"
        )
    for index, _, action in _per_gpu(look, gpu.RECOVERY_ACTION):
        if action:
            yield f"GPU {index}: the driver asks for {ACTIONS.get(int(action), 'attention')}"


def _gap(look: Look) -> str:
    """Which GPUs do not answer, as far as the numbers of the others tell."""
    known = {int(labels["gpu"]) for labels in look.labelled(gpu.INFO)}
    absent = sorted(set(range(max(known, default=0))) - known)
    if not absent:
        return ""
    return f", GPU{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} not among them"


def _memory(look: Look) -> Iterator[str]:
    for metric, sentence in FLAGS:
        for index, _, flag in _per_gpu(look, metric):
            if flag:
                yield f"GPU {index}: {sentence}"
    wanted = look.where(ecc.ERRORS, severity="uncorrected", lifetime="volatile")
    for (index, *_), errors in sorted(wanted.items()):
        if errors:
            yield f"GPU {index}: {errors:.0f} uncorrected ECC errors since the driver was loaded"


def _events(look: Look) -> Iterator[str]:
    for (index, _, code), count in sorted(look.all(xid.ERRORS).items()):
        if count:
            meaning = xid.FATAL.get(int(code), "see NVIDIA's XID catalogue")
            seen = "once" if count == 1 else f"{count:.0f} times"
            yield f"GPU {index}: XID {code}, {meaning}, seen {seen}"


def _links(look: Look) -> Iterator[str]:
    for index, uuid, expected in _per_gpu(look, nvlink.LINKS_EXPECTED):
        up = look.value(nvlink.LINKS, index, uuid)
        if up is not None and up < expected:
            states = look.where(nvlink.LINK_UP, uuid=uuid).items()
            down = ", ".join(key[2] for key, state in states if not state)
            names = f" (down: {down})" if down else ""
            yield f"GPU {index}: {up:.0f} of {expected:.0f} NVLinks are up{names}"
    errors: dict[tuple[str, str], float] = {}
    for (index, _, link, _), count in look.all(nvlink.ERRORS).items():
        errors[index, link] = errors.get((index, link), 0.0) + count
    for (index, link), count in sorted(errors.items()):
        if count:
            yield f"GPU {index}: NVLink {link} has had {count:.0f} errors since the last reset"


def _lanes(look: Look) -> Iterator[str]:
    for index, uuid, limit in _per_gpu(look, pcie.WIDTH_LIMIT):
        lanes = look.value(pcie.WIDTH, index, uuid)
        if lanes is not None and lanes < limit:
            yield f"GPU {index}: {lanes:.0f} of {limit:.0f} PCIe lanes are in use"


def _generations(look: Look) -> Iterator[str]:
    """Only under load: a link at rest may run slower to save power."""
    for index, uuid, most in _per_gpu(look, pcie.GENERATION_LIMIT):
        now, since = look.point(pcie.GENERATION, index, uuid), _under_load(look, index, uuid)
        if now is None or since is None:
            continue
        if now[1] < most and now[0] >= since - AT_ONCE:
            told = f"generation {now[1]:.0f} of {most:.0f}"
            yield f"GPU {index}: PCIe runs at {told} while under load"


def _under_load(look: Look, index: str, uuid: str) -> float | None:
    """When the GPU was last seen to compute, or to move data over PCIe; None where it rests or
    that is not known."""
    active = look.point(activity.ACTIVITY, index, uuid)
    if active is not None and active[1] >= LOADED:
        return active[0]
    for direction, moved in (("receive", pcie.RECEIVED), ("transmit", pcie.TRANSMITTED)):
        ratio = look.value(bandwidth.RATIO, "pcie", f"gpu{index}", index, uuid, direction)
        counted = look.point(moved, index, uuid)
        if ratio is not None and ratio >= TRAFFIC and counted is not None:
            return counted[0]
    return None


def _slots(look: Look, spec: SystemSpec | None) -> Iterator[str]:
    """Slots that offer less than the system's sheet; lanes that are not in use are told above.

    Only for systems whose maker chose the slots: a single GPU may sit in any board.
    """
    if spec is None or spec.products is None:
        return
    for key in sorted(_held_by_hardware(look, "pcie")):
        index, uuid = key[2], key[3]
        speed, sheet = look.value(bandwidth.LIMIT, *key), look.value(bandwidth.SPEC, *key)
        lanes = look.value(pcie.WIDTH, index, uuid), look.value(pcie.WIDTH_LIMIT, index, uuid)
        if speed is not None and sheet is not None and speed < sheet and lanes[0] == lanes[1]:
            most = look.value(pcie.GENERATION_LIMIT, index, uuid)
            offers = f"generation {most:.0f} x{lanes[0]:.0f}, {speed / 1e9:.3g} GB/s"
            yield f"GPU {index}: its slot offers {offers}, the sheet says {sheet / 1e9:.3g}"


def _held_by_hardware(look: Look, path: str) -> set[tuple[str, ...]]:
    """Keys of the paths whose limit the hardware sets, not the sheet nor the configuration; one
    direction stands for both."""
    wanted = look.where(bandwidth.LIMIT_INFO, path=path, origin="hardware", direction="receive")
    return {key[:5] for key in wanted}


def _ports(look: Look) -> Iterator[str]:
    """Ports with carrier that run below their sheet; links and lanes of GPUs are told above."""
    for path, name in PORTS.items():
        for key in sorted(_held_by_hardware(look, path)):
            speed, sheet = look.value(bandwidth.LIMIT, *key), look.value(bandwidth.SPEC, *key)
            if speed is not None and sheet is not None and speed < sheet:
                yield f"{name} {key[1]} runs at {speed / 1e9:g} of {sheet / 1e9:g} GB/s"


def _unused(snapshot: Snapshot) -> Iterator[str]:
    """Limits in the configuration that hold for nothing."""
    for metric, labels, reason, _ in snapshot.absences(snapshot.at):
        if metric is bandwidth.LIMIT and reason is Reason.MISSING:
            path, device, _, _, direction = labels
            yield f"[[limit]] names {path} {device} {direction}, which is not here"


def _heat(look: Look) -> Iterator[str]:
    for index, _, margin in _per_gpu(look, temperature.MARGIN):
        if margin < 0:
            beyond = f"{-margin:.0f} degree{'' if round(-margin) == 1 else 's'}"
            yield f"GPU {index}: {beyond} hotter than its operating range"
    for index, _, mask in _per_gpu(look, clocks.REASONS):
        held = sorted(
            t.reason for t in clocks.THROTTLES if t.bit & int(mask) and t.reason in HARMFUL
        )
        if held:
            yield f"GPU {index}: clocks are held down by {', '.join(held)}"


def _arrays(look: Look) -> Iterator[str]:
    for (array,), expected in sorted(look.all(disk.MEMBERS_EXPECTED).items()):
        members = look.value(disk.MEMBERS, array)
        if members is not None and members < expected:
            yield f"{array}: {members:.0f} of {expected:.0f} disks are in the array"
