"""`dgx-telemetry inventory`: the targets of a fleet, printed, written or served."""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.cli.options import stop_signal
from agent.config.atomic_file import atomic_write, check_target
from agent.config.configuration import read_toml
from agent.config.decoding import Mismatch, decode
from agent.errors import BadInput
from agent.hardware.schedulers import all_nodes
from agent.stack.inventory import FleetFile, nodes, targets
from exporters.access_control import AccessControl
from exporters.http import target_application
from exporters.server import serve
from exporters.settings import parse_listen
from exporters.web_file import WebFile

READABLE = 0o644
"""Prometheus reads the file as another user."""

Document = list[dict[str, Any]]


def run(arguments: argparse.Namespace) -> int:
    """Once, each so many seconds, or whenever somebody asks."""

    def read() -> Document:
        return document(arguments)

    if arguments.listen:
        asyncio.run(_serve(read, arguments))
    elif arguments.every:
        follow(read, arguments.output, arguments.every)
    else:
        put(read(), arguments.output)
    return 0


def document(arguments: argparse.Namespace) -> Document:
    """The targets as they are now; raises BadInput with one sentence."""
    if sum(map(bool, (arguments.hosts, arguments.file, arguments.slurm))) != 1:
        raise BadInput("inventory needs one of hosts, --slurm and --file")
    where = str(arguments.file) if arguments.file else "inventory"
    content = {"hosts": ",".join(arguments.hosts), "slurm": arguments.slurm}
    flags = {"cluster": arguments.cluster, "port": arguments.port}
    given = {key: flag for key, flag in flags.items() if flag is not None}
    try:
        listed = read_toml(arguments.file) if arguments.file else content
        fleet = decode(listed | given, FleetFile)
        return targets(fleet, nodes(fleet, all_nodes))
    except Mismatch as wrong:
        raise BadInput(f"{where}: {wrong}") from wrong
    except OSError as error:  # Slurm's
        raise BadInput(f"the nodes of Slurm cannot be listed: {error}") from error


def put(found: Document, path: Path | None) -> None:
    """Write the targets whole, where they changed, and say so; without a path print them."""
    text = json.dumps(found, indent=1) + "\n"
    if path is None:
        print(text, end="")
        return
    if check_target(path) and path.read_text() == text:
        return
    atomic_write(path, text.encode(), READABLE)
    drained = sum("drained" in one["labels"] for one in found)
    print(f"{path}: {len(found)} targets, {drained} of them drained", flush=True)


def follow(read: Callable[[], Document], path: Path | None, seconds: float) -> None:
    """Write again and again; what goes wrong is said once, and the file stays as it was."""
    if path is None:
        raise BadInput("--every needs --output: a file to write each time")
    put(read(), path)  # what is wrong at the start ends it
    said = ""
    while True:
        time.sleep(seconds)
        try:
            put(read(), path)
            said = ""
        except BadInput as error:
            if str(error) != said:
                said = str(error)
                print(f"dgx-telemetry: {said}", file=sys.stderr, flush=True)


async def _serve(read: Callable[[], Document], arguments: argparse.Namespace) -> None:
    await asyncio.to_thread(read)  # what is wrong at the start ends it
    web = WebFile(arguments.web_config_file or "")
    try:
        host, port = parse_listen(arguments.listen)
    except ValueError as error:
        raise BadInput(f"--listen must be HOST:PORT, not '{arguments.listen}'") from error
    access = AccessControl(lambda: web.now.users, lambda: (host,))
    try:
        server = await serve(target_application(read, access), host, port, context=web.context)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot listen on {arguments.listen}: {why}") from error
    web.watch()
    scheme, name = ("https" if web.context else "http"), arguments.listen.rpartition(":")[0]
    print(f"{scheme}://{name}:{server.port}/targets", flush=True)
    await stop_signal()
    await server.cleanup()
