"""`dgx-telemetry build`: write what is generated from the catalogue."""

import argparse
from pathlib import Path

from agent.cli.options import settings_of
from agent.config.atomic_file import atomic_write
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.simulator import parse


def generated(settings: Settings) -> dict[str, str]:
    """Every generated file: relative path to text. Needs the `dashboards` extra."""
    from agent.faults.thresholds import AlertThresholds
    from alerts.build import files as alerting
    from exporters.reference import reference

    try:
        from dashboards.build import files as boards
    except ImportError as error:
        raise BadInput(
            f"build needs {error.name}: pip install 'dgx-telemetry[dashboards]'"
        ) from error
    shown = boards(settings[AlertThresholds].runbook)
    return {**shown, **alerting(settings), "METRICS.md": reference()}


def run(arguments: argparse.Namespace) -> int:
    """Write every file whole; a machine to simulate changes nothing, and must be one."""
    if arguments.simulate:
        parse(arguments.simulate)
    settings = settings_of(arguments)
    directory: Path = arguments.directory
    for name, text in generated(settings).items():
        path = directory / name
        atomic_write(path, text.encode(), 0o644, make=True)
        print(path)
    return 0
