"""`dgx-telemetry install` and `uninstall`: the agent as a systemd service."""

import argparse
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence

from agent.errors import BadInput
from agent.service.plan import InstallPart, InstallPaths, parts

LONGEST = 120.0
"""Seconds that systemctl may take: starting waits until the agent has read everything once."""


def systemctl(*words: str) -> str:
    """Run systemctl and return what it says; raises BadInput with its last words."""
    try:
        ended = subprocess.run(  # noqa: S603 (words of ours)
            [shutil.which("systemctl") or "systemctl", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"systemctl {words[0]} did not answer: {error}") from error
    if ended.returncode:
        why = " ".join(ended.stderr.split()) or f"exit status {ended.returncode}"
        raise BadInput(f"systemctl {' '.join(words)} failed: {why}")
    return ended.stdout


def check_machine(command: str, places: InstallPaths, *, changes: bool) -> None:
    """Raise BadInput where there is no systemd, or no right to change what it runs."""
    if not places.booted:
        raise BadInput(f"{command} needs systemd, and this machine was not started by it")
    if changes and os.geteuid() != 0:
        raise BadInput(f"{command} needs root: sudo, or --dry-run to see what it would do")


NOTHING = "nothing to do: dgx-telemetry.service is installed, enabled and active"
NO_SYSTEMD = "this machine was not started by systemd: without --dry-run, install would refuse"
DONE = "dgx-telemetry.service is active; its log: journalctl -u dgx-telemetry"


def run(arguments: argparse.Namespace) -> int:
    """Install what is missing, or remove what is there, and report each step."""
    places = InstallPaths()
    if arguments.command == "uninstall":
        check_machine("uninstall", places, changes=True)
        if places.packaged:
            verb = "purge" if arguments.purge else "remove"
            raise BadInput(f"dgx-telemetry came as a package: apt {verb} dgx-telemetry")
        uninstall(parts(places, systemctl), purge=arguments.purge)
        if not arguments.purge and places.configuration.exists():
            print(f"{places.configuration} stays: --purge removes it too")
        return 0
    if arguments.dry_run and not places.booted:
        # What systemctl answers for an unknown service.
        install(parts(places, lambda *_: ""), dry=True)
        print(NO_SYSTEMD)
        return 0
    check_machine("install", places, changes=not arguments.dry_run)
    os.umask(0o022)  # the service is another user, and reads what root writes here
    install(parts(places, systemctl), dry=arguments.dry_run)
    return 0


def install(wanted: Sequence[InstallPart], *, dry: bool) -> None:
    """Put there what is not as it should be; raises BadInput where that cannot be."""
    steps = [(part.putting(), part.put) for part in wanted if not part.right()]
    carry_out(steps, dry=dry)
    if not steps:
        print(NOTHING)
    elif not dry:
        print(DONE)


def uninstall(found: Sequence[InstallPart], *, purge: bool) -> None:
    """Remove what is there, the last part first, settings only to purge; raises BadInput where that
    cannot be."""
    steps = [
        (part.removing(), part.remove)
        for part in reversed(found)
        if part.there() and (purge or not part.of_user)
    ]
    carry_out(steps)
    if not steps:
        print("nothing to do: dgx-telemetry.service is not installed")


def carry_out(steps: Iterable[tuple[str, Callable[[], object]]], *, dry: bool = False) -> None:
    """Report each step and do it; raises BadInput where that cannot be."""
    for sentence, act in steps:
        print(sentence, flush=True)
        if not dry:
            try:
                act()
            except OSError as error:
                raise BadInput(f"cannot {sentence}: {error.strerror or error}") from error
