"""The `dgx-telemetry inventory` command. It prints, writes, or serves the nodes of a fleet as
Prometheus targets. The nodes come from a list, a file, or Slurm.

A node that does not respond remains a target, so that an alert reports it. A node is removed if
Slurm has powered it off or it is no longer listed. A drained node remains a target, and its label
`drained` contains the reason. The scrape configurations in `deploy/fleet` drop this label from the
node's series, so that draining a node does not create new series. Only series that Prometheus
generates, such as `up`, have it.
"""

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from agent.bounds import MOST_NAMES
from agent.cli.options import stop_signal
from agent.config.atomic_file import atomic_write, check_target
from agent.config.configuration import read_toml
from agent.config.decoding import Mismatch, decode, shown
from agent.errors import BadInput, printable
from agent.hardware.schedulers import SlurmNode, all_nodes
from agent.jobs import allocation
from agent.model import Absent
from exporters.access_control import AccessControl
from exporters.http import target_application
from exporters.server import serve
from exporters.settings import parse_listen
from exporters.web_file import WebFile

HOST = re.compile(r"([A-Za-z0-9._-]|\[\d{1,12}(-\d{1,12})?(,\d{1,12}(-\d{1,12})?)*\])+", re.ASCII)
EXPECTED = f"names of hosts such as dgx[001-124], separated by commas, fewer than {MOST_NAMES} each"

Name = Annotated[str, Meta(pattern=r"\S", description="a name")]
Hosts = Annotated[str, Meta(pattern=r"\S", description="names of hosts such as dgx[001-124]")]

OFF_STATES = {"FUTURE", "DYNAMIC_FUTURE", "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN"}
"""Node states without a response (node_state_flags in Slurm's slurm_protocol_defs.c)."""

DRAINED = {"DRAIN", "FAIL", "MAINTENANCE", "POWER_DRAIN", "REBOOT_ISSUED"}
"""Node states that mean that an administrator has taken the node out of service."""

Document = list[dict[str, Any]]


class RackTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[rack]]` table in the fleet file: a rack and its hosts."""

    name: Name
    hosts: Hosts


class DrainedTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[drained]]` table in the fleet file: hosts that are temporarily out of service."""

    hosts: Hosts
    reason: Name = "taken out"


class FleetFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the fleet file. If `slurm` is true, the nodes come from Slurm, and the file
    contains only racks and drained nodes."""

    cluster: str = ""
    port: Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")] = 9935
    hosts: str = ""
    slurm: bool = False
    rack: tuple[RackTable, ...] = ()
    drained: tuple[DrainedTable, ...] = ()


class FleetNode(NamedTuple):
    """A node and its scrape address. `drained` is the reason why it is out of service, if it is."""

    name: str
    address: str
    rack: str = ""
    drained: str = ""


def hosts_of(text: str, key: str = "hosts") -> list[str]:
    """Return the host names in a list such as `n[1-3],gpu7`, in the same order. If the list is
    invalid, raise Mismatch for the key `key` of the fleet file."""
    found: list[str] = []
    for word in filter(None, re.split(r"[,\s]+(?![^\[]*\])", text)):
        try:
            names = allocation.expanded(word) if HOST.fullmatch(word) else [str(IPv6Address(word))]
        except (Absent, ValueError):
            names = []
        if not 0 < len(names) < MOST_NAMES:
            raise Mismatch(key, f"{shown(word)} is not {EXPECTED}")
        found += names
    return found


def nodes(fleet: FleetFile, ask_slurm: Callable[[], Iterable[SlurmNode]]) -> list[FleetNode]:
    """Return the nodes to scrape, in the order of the fleet file or of Slurm.

    Raise Mismatch if the fleet file is inconsistent, and BadInput if there are no nodes, because a
    typo could otherwise remove the whole fleet from Prometheus.
    """
    racks: dict[str, str] = {}
    for place, rack in enumerate(fleet.rack):
        for name in hosts_of(rack.hosts, key := f"rack[{place}].hosts"):
            if racks.setdefault(name, rack.name) != rack.name:
                raise Mismatch(key, f"{name} is in {racks[name]} already, expected each host once")
    if fleet.slurm:
        found = {node.name: node for node in slurm_nodes(ask_slurm())}
    else:
        found = {name: FleetNode(name, name) for name in (*hosts_of(fleet.hosts), *racks)}
    reasons = dict.fromkeys(found, "")
    for place, table in enumerate(fleet.drained):
        for name in hosts_of(table.hosts, key := f"drained[{place}].hosts"):
            if name not in found and not fleet.slurm:  # Slurm may have powered off the node
                raise Mismatch(key, f"{name} is not listed, expected a host of the list")
            reasons[name] = table.reason
    if not found:
        raise BadInput("there is no node in the list, expected at least one")
    return [
        node._replace(rack=racks.get(name, ""), drained=reasons[name] or node.drained)
        for name, node in found.items()
    ]


def slurm_nodes(listing: Iterable[SlurmNode]) -> Iterator[FleetNode]:
    """Yield all Slurm nodes that have GPUs and are not powered off."""
    for node in listing:
        if not node.name or "gpu" not in (node.gres or "") or OFF_STATES & {*node.state}:
            continue
        drained = not DRAINED.isdisjoint(node.state)
        reason = ((node.reason or "").strip() or "no reason given") if drained else ""
        address = node.address or node.name
        yield FleetNode(node.name, address, drained=printable(reason)[:120])


def targets(fleet: FleetFile, found: Iterable[FleetNode]) -> Document:
    """Return the targets in the format of Prometheus' `file_sd` and `http_sd`. Omit empty labels,
    and set `instance` only if the name of a node differs from its address."""
    document: Document = []
    for node in found:
        labels = {
            "instance": "" if node.address == node.name else f"{bracketed(node.name)}:{fleet.port}",
            "cluster": fleet.cluster,
            "rack": node.rack,
            "node": node.name,
            "drained": node.drained,
        }
        labels = {name: value for name, value in labels.items() if value}
        document.append({"targets": [f"{bracketed(node.address)}:{fleet.port}"], "labels": labels})
    return document


def bracketed(host: str) -> str:
    """Return a host in the form that precedes a port: an IPv6 address is in brackets."""
    return f"[{host}]" if ":" in host else host


def document(arguments: argparse.Namespace) -> Document:
    """Return the current targets. Raise BadInput if the list is invalid or cannot be read."""
    if sum(map(bool, (arguments.hosts, arguments.file, arguments.slurm))) != 1:
        raise BadInput("inventory needs one of hosts, --slurm and --file")
    content = {"hosts": ",".join(arguments.hosts), "slurm": arguments.slurm}
    flags = {"cluster": arguments.cluster, "port": arguments.port}
    given = {key: flag for key, flag in flags.items() if flag is not None}
    try:
        listed = read_toml(arguments.file) if arguments.file else content
        fleet = decode(listed | given, FleetFile)
        return targets(fleet, nodes(fleet, all_nodes))
    except Mismatch as wrong:
        raise BadInput(f"{arguments.file or 'inventory'}: {wrong}") from wrong
    except OSError as error:  # from the request to Slurm
        raise BadInput(f"the nodes of Slurm (23.02 or newer) cannot be listed: {error}") from error


def put(found: Document, path: Path | None) -> None:
    """Write the targets to the file at `path` and print a message, unless the file already contains
    them. If `path` is None, print the targets instead."""
    text = json.dumps(found, indent=1) + "\n"
    if path is None:
        print(text, end="", flush=True)
    elif not (check_target(path) and path.read_bytes() == text.encode()):
        atomic_write(path, text.encode(), 0o644)  # Prometheus runs as another user
        drained = sum("drained" in one["labels"] for one in found)
        print(f"{path}: {len(found)} targets, {drained} of them drained", flush=True)


def run(arguments: argparse.Namespace) -> int:
    """Write the targets once or at an interval, or serve them over HTTP. An error in the first
    attempt ends the command. A later error is printed, and the file remains unchanged."""
    if arguments.every and not arguments.output:
        raise BadInput("--every needs --output, the file to rewrite")
    if arguments.web_config_file and not arguments.listen:
        raise BadInput("--web.config.file needs --listen")
    if arguments.listen:
        asyncio.run(_serve(partial(document, arguments), arguments))
        return 0
    with suppress(BrokenPipeError):  # without a reader, the file must stay current
        put(document(arguments), arguments.output)
    while arguments.every:
        time.sleep(arguments.every)
        with suppress(BrokenPipeError):
            try:
                put(document(arguments), arguments.output)
            except BadInput as error:
                print(f"dgx-telemetry: {error}", file=sys.stderr, flush=True)
    return 0


async def _serve(read: Callable[[], Document], arguments: argparse.Namespace) -> None:
    await asyncio.to_thread(read)  # an error on startup stops the command
    web = WebFile(arguments.web_config_file or "")
    try:
        host, _ = parse_listen(arguments.listen)
    except ValueError as error:
        raise BadInput(f"--listen must be HOST:PORT, not '{arguments.listen}'") from error
    access = AccessControl(lambda: web.now.users, lambda: (host,))
    server = await serve(target_application(read, access), arguments.listen, context=web.context)
    web.watch()
    scheme, name = ("https" if web.context else "http"), arguments.listen.rpartition(":")[0]
    print(f"{scheme}://{name}:{server.addresses[0][1]}/targets", flush=True)
    await stop_signal()
    await server.cleanup()
