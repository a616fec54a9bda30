"""The `dgx-telemetry install` and `uninstall` commands. They set up or remove the service."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from agent.cli.options import SECTIONS
from agent.config.configuration import load
from agent.diagnosis.hours import STATE
from agent.errors import BadInput
from agent.service.program import MAKE_ENVIRONMENT, SERVICE, UNITS, shipped

HOME = Path("/opt/dgx-telemetry")
"""The virtual environment that the systemd units use."""

MARK = HOME / "installed-by-dgx-telemetry"
PROGRAM = HOME / "bin/dgx-telemetry"
COMMAND = Path("/usr/local/bin/dgx-telemetry")
CONFIGURATION = Path("/etc/dgx-telemetry")
UNIT_FOLDER = Path("/etc/systemd/system")
DROP_INS = UNIT_FOLDER / f"{SERVICE}.d"
PACKAGED = Path("/usr/lib/systemd/system", SERVICE)
BOOTED = Path("/run/systemd/system")
"""Directory that exists only if systemd is the init system (see sd_booted(3))."""

Command = tuple[str | Path, ...]


def run(arguments: argparse.Namespace) -> int:
    """Install or remove the service, and print each command before it is run."""
    command, dry = arguments.command, getattr(arguments, "dry_run", False)
    if not dry and not BOOTED.is_dir():
        raise BadInput(f"{command} needs systemd, and this machine was not started by it")
    if not dry and os.geteuid() != 0:
        raise BadInput(f"{command} needs root: sudo, or --dry-run to see what it would do")
    os.umask(0o022)  # the service user must be able to read files created by root
    if command == "install":
        if not dry and (file := CONFIGURATION / "config.toml").exists():
            load(SECTIONS, file)  # the service does not start with wrong settings
        carry_out(installing(), dry=dry)
        if not dry:
            print(f"{SERVICE} is active; its log: journalctl -u dgx-telemetry")
        return 0
    if PACKAGED.exists():
        verb = "purge" if arguments.purge else "remove"
        raise BadInput(f"dgx-telemetry came as a package: apt {verb} dgx-telemetry, or dnf remove")
    if not carry_out(uninstalling(purge=arguments.purge)):
        print(f"nothing to do: {SERVICE} is not installed")
    if not arguments.purge and CONFIGURATION.exists():
        print(f"{CONFIGURATION} stays: --purge removes its config.toml too")
    return 0


def installing() -> Iterator[Command]:
    """Yield the commands that install the program and its systemd units, and then enable and start
    the service. If a package has installed the program, only enable and start the service."""
    if not PACKAGED.exists():
        if HOME.exists() and not MARK.exists():
            raise BadInput(f"{HOME} is there, and was not made by this command: move it away")
        script = shipped(MAKE_ENVIRONMENT)
        yield "sh", script, "dgx-telemetry install", sys.executable
        if COMMAND.is_symlink() or not COMMAND.exists():
            yield "ln", "-sfn", PROGRAM, COMMAND
        yield "install", "-m", "644", "-t", UNIT_FOLDER, *map(shipped, UNITS)
        yield "systemctl", "daemon-reload"
    yield "systemctl", "enable", "--quiet", SERVICE
    yield "systemctl", "restart", SERVICE


def uninstalling(*, purge: bool) -> Iterator[Command]:
    """Yield the commands that stop and disable the service, and remove its files. If `purge` is
    true, also remove its settings and state. Keep directories with files of other programs."""
    units = [UNIT_FOLDER / name for name in UNITS]
    if any(unit.exists() for unit in units):
        yield "systemctl", "disable", "--quiet", "--now", *UNITS
    files = [*units, DROP_INS / "10-kernel-log.conf"]
    files += [HOME.with_name(f"{HOME.name}.{end}") for end in ("new", "old")]
    if MARK.exists():
        files.append(HOME)
    if COMMAND.is_symlink() and COMMAND.readlink() == PROGRAM:
        files.append(COMMAND)
    shared = [DROP_INS]
    if purge:
        shared.append(CONFIGURATION)
        files += [CONFIGURATION / "config.toml", STATE, STATE.parent / "private" / STATE.name]
    if found := [file for file in files if file.exists() or file.is_symlink()]:
        yield "rm", "-rf", *found
        if folders := [folder for folder in shared if folder.is_dir()]:
            kept = "!", "-type", "d", "-printf", "kept, not of this program: %p\\n"
            yield "find", *folders, "-type", "d", "-empty", "-delete", "-o", *kept
        yield "systemctl", "daemon-reload"
        yield "systemctl", "reset-failed", "dgx-telemetry*"  # otherwise, failed units remain listed


def carry_out(commands: Iterable[Command], *, dry: bool = False) -> bool:
    """Print and run each command. Return False if there is no command. If `dry` is true, only print
    the commands. Raise BadInput if a command fails."""
    any_of_them = False
    for command in commands:
        any_of_them = True
        with suppress(BrokenPipeError):  # the reader has gone
            print(shlex.join(map(str, command)), flush=True)
        if dry:
            continue
        ended = subprocess.run(  # noqa: S603 (no untrusted input)
            command, stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
        if ended.returncode:
            why = " ".join(ended.stderr.split()) or f"exit status {ended.returncode}"
            raise BadInput(f"{shlex.join(map(str, command))} failed: {why}")
    return any_of_them
