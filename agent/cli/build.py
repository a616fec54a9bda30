"""`dgx-telemetry build`: write what is generated from the catalogue."""

import argparse
from pathlib import Path

from agent.catalogue import EXPORTED
from agent.cli.options import settings_of
from agent.config.settings import Settings
from agent.config.whole_file import write_whole
from agent.errors import BadInput


def generated(settings: Settings) -> dict[str, str]:
    """Every generated file: relative path to text. Needs the `dashboards` extra."""
    from alerts.build import files as alerting
    from alerts.thresholds import AlertThresholds
    from exporters.reference import reference

    try:
        from dashboards.build import files as boards
    except ImportError as error:
        raise BadInput(
            f"build needs {error.name}: pip install 'dgx-telemetry[dashboards]'"
        ) from error
    book = settings[AlertThresholds].runbook
    book = book.replace("{{$labels.", "${__data.fields.").replace("}}", "}")  # as Grafana has it
    shown = boards(book if "://" in book else "")
    return {**shown, **alerting(settings), "METRICS.md": reference(EXPORTED)}


def run(arguments: argparse.Namespace) -> int:
    """Write every file whole."""
    settings = settings_of(arguments)
    directory: Path = arguments.directory
    for name, text in generated(settings).items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{path.parent}: cannot be made: {error.strerror}") from error
        write_whole(path, text.encode())
        print(path)
    return 0
