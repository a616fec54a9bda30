"""`dgx-telemetry uninstall`: remove the systemd service."""

import argparse
from collections.abc import Sequence

from agent.cli.install import check_machine, systemctl
from agent.errors import BadInput
from agent.service.part import InstallPart
from agent.service.places import InstallPaths
from agent.service.plan import parts, removable


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
    """Remove what is there; raises BadInput where that cannot be."""
    steps = removable(found, purge=purge)
    for sentence, part in steps:
        print(sentence, flush=True)
        try:
            part.remove()
        except OSError as error:
            raise BadInput(f"cannot {sentence}: {error.strerror or error}") from error
    if not steps:
        print("nothing to do: dgx-telemetry.service is not installed")
