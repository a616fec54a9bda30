"""systemctl, and what it needs before it is called."""

import os
import shutil
import subprocess

from agent.errors import BadInput
from agent.service.places import InstallPaths

LONGEST = 120.0
"""Seconds that systemctl may take: starting waits until the agent has read everything once."""


def systemctl(*words: str) -> str:
    """Run systemctl and return what it says; raises BadInput with its last words."""
    try:
        ended = subprocess.run(  # noqa: S603 (words of ours)
            [shutil.which("systemctl") or "systemctl", *words],
            capture_output=True,
            text=True,
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
