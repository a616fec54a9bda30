"""`dgx-telemetry uninstall`: remove the systemd service."""

import argparse
from collections.abc import Sequence

from agent.cli.install import carry_out, check_machine, systemctl
from agent.errors import BadInput
from agent.service.plan import InstallPart, InstallPaths, UserSettings, parts


def run(arguments: argparse.Namespace) -> int:
    """Remove what `install` has put there and report each step; settings stay unless --purge."""
    places = InstallPaths()
    check_machine("uninstall", places, changes=True)
    if places.packaged:
        verb = "purge" if arguments.purge else "remove"
        raise BadInput(
            f"dgx-telemetry came as a package, which removes it: apt {verb} dgx-telemetry"
        )
    uninstall(parts(places, systemctl), purge=arguments.purge)
    if not arguments.purge and places.configuration.exists():
        print(f"{places.configuration} stays: --purge removes it too")
    return 0


def uninstall(found: Sequence[InstallPart], *, purge: bool) -> None:
    """Remove what is there, the last part first, settings only to purge; raises BadInput where that
    cannot be."""
    steps = [
        (part.removing(), part.remove)
        for part in reversed(found)
        if part.there() and (purge or not isinstance(part, UserSettings))
    ]
    carry_out(steps)
    if not steps:
        print("nothing to do: dgx-telemetry.service is not installed")
