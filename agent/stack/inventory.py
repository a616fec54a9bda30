"""The nodes of a fleet as targets of Prometheus, from a list, a file or Slurm.

A node that stops answering stays a target, and an alert reports it. Of those that were taken
out, what Slurm has switched off, or what no one lists any more, is no target; what is drained is
one that carries the label `drained` with the reason. The scrape configurations in `deploy/fleet`
take that label from every series but those that Prometheus makes itself (`up`), so that nothing
else of a node begins again when it is drained.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any

from msgspec import Meta, Struct

from agent.config.decoding import Mismatch, shown
from agent.errors import BadInput, printable

MOST = 20_000
"""Hosts of one list: more is a slip of the finger."""

BETWEEN = re.compile(r"[,\s]+(?![^\[]*\])")
HOST = re.compile(r"([A-Za-z0-9._-]|\[\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\])+", re.ASCII)
BRACKETS = re.compile(r"\[([^]]*)\]")
EXPECTED = "names of hosts such as dgx[001-124], separated by commas"


def expanded(text: str, key: str = "hosts") -> list[str]:
    """The hosts, in their order; raises Mismatch, reported of `key`."""
    found: list[str] = []
    for word in filter(None, BETWEEN.split(text)):
        if HOST.fullmatch(word) is None:
            raise Mismatch(key, shown(word), EXPECTED)
        # Names and what stands in brackets come in turn.
        parts = BRACKETS.split(word)
        choices = [_numbers(p, key) if n % 2 else [p] for n, p in enumerate(parts)]
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(found) + size > MOST:
            raise Mismatch(key, shown(word), f"at most {MOST} hosts")
        found += map("".join, product(*choices))
    return found


def _numbers(inside: str, key: str) -> list[str]:
    """`001-003,7` as numbers, as wide as the first of each range."""
    found: list[str] = []
    for part in inside.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not 0 <= int(last) - int(first) < MOST:
            raise Mismatch(key, f"'{part}'", f"a range that rises, of at most {MOST} hosts")
        found += (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return found


PORT = 9935

Name = Annotated[str, Meta(pattern=r"\S", description="a name")]
Hosts = Annotated[str, Meta(pattern=r"\S", description="names of hosts such as dgx[001-124]")]
Port = Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]

OFF = {"FUTURE", "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN"}
"""States of nodes that Slurm itself does not expect to answer."""

DRAINED = {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "REBOOT_ISSUED"}
"""States of nodes that somebody took out of service."""

SLURM_KEY = re.compile(r"(?:^| )(NodeName|NodeAddr|Gres|State|Reason)=")
SIGNED = re.compile(r" \[[^\]]*\]$")
"""Person that gave a reason, and the date."""

LONGEST_REASON = 120


class RackTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The hosts of one rack."""

    name: Name
    hosts: Hosts


class DrainedTable(Struct, frozen=True, forbid_unknown_fields=True):
    """Hosts that are out of service for a while."""

    hosts: Hosts
    reason: Name = "taken out"


class FleetFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A list of a fleet. With `slurm` the nodes come from there, and their racks from here."""

    cluster: str = ""
    port: Port = PORT
    hosts: str = ""
    slurm: bool = False
    rack: tuple[RackTable, ...] = ()
    drained: tuple[DrainedTable, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetNode:
    """One node; `address` is where it is reached, `drained` why it is out of service."""

    name: str
    address: str
    rack: str = ""
    drained: str = ""


def nodes(fleet: FleetFile, ask_slurm: Callable[[], str]) -> list[FleetNode]:
    """The nodes that are targets, in the order of the list; raises BadInput.

    An empty list is refused: Prometheus would forget a whole fleet for a slip.
    """
    racks = _racks(fleet.rack)
    found = dict(_listed(fleet, racks, ask_slurm))
    for place, table in enumerate(fleet.drained):
        for name in expanded(table.hosts, f"drained[{place}].hosts"):
            if name in found:
                found[name] = replace(found[name], drained=table.reason)
            elif not fleet.slurm:  # there it may have been switched off meanwhile
                raise Mismatch(f"drained[{place}].hosts", shown(name), "a host that is listed")
    if not found:
        raise BadInput("there is no node in the list, expected at least one")
    return list(found.values())


def _racks(tables: Iterable[RackTable]) -> dict[str, str]:
    racks: dict[str, str] = {}
    for place, table in enumerate(tables):
        for name in expanded(table.hosts, f"rack[{place}].hosts"):
            if name in racks:
                key, expected = f"rack[{place}].hosts", f"each host once: it is in {racks[name]}"
                raise Mismatch(key, shown(name), expected)
            racks[name] = table.name
    return racks


def _listed(
    fleet: FleetFile, racks: Mapping[str, str], ask_slurm: Callable[[], str]
) -> Iterator[tuple[str, FleetNode]]:
    if fleet.slurm:
        for node in slurm_nodes(ask_slurm()):
            yield node.name, replace(node, rack=racks.get(node.name, ""))
        return
    for name in (*expanded(fleet.hosts), *racks):
        yield name, FleetNode(name, name, racks.get(name, ""))


def slurm_nodes(listing: str) -> Iterator[FleetNode]:
    """The nodes with GPUs of `scontrol --oneliner show nodes`, but those that are switched off."""
    for line in listing.splitlines():
        _, *parts = SLURM_KEY.split(line)
        of = dict(zip(parts[::2], parts[1::2], strict=True))
        first = {key: value.partition(" ")[0] for key, value in of.items()}
        states = set(re.split(r"[+*~#!%$@^-]+", first.get("State", "")))
        if "gpu" not in first.get("Gres", "") or states & OFF:
            continue
        name = first["NodeName"]
        drained = ""
        if states & DRAINED:
            drained = SIGNED.sub("", of.get("Reason", "").strip()) or "no reason given"
        address = first.get("NodeAddr", name)
        yield FleetNode(name, address, drained=printable(drained)[:LONGEST_REASON])


def targets(fleet: FleetFile, found: Iterable[FleetNode]) -> list[dict[str, Any]]:
    """Return the targets in the format of `file_sd` and `http_sd`. Labels without a value are left
    out, and `instance` is named only where it is not the address."""
    return [
        {
            "targets": [f"{node.address}:{fleet.port}"],
            "labels": {
                name: value
                for name, value in (
                    ("instance", "" if node.address == node.name else f"{node.name}:{fleet.port}"),
                    ("cluster", fleet.cluster),
                    ("rack", node.rack),
                    ("node", node.name),
                    ("drained", node.drained),
                )
                if value
            },
        }
        for node in found
    ]
