"""The `dgx-telemetry build` command. It writes generated files, such as rules and dashboards."""

import argparse
import json
import sys

import msgspec

from agent.cli.options import settings_of
from agent.config.atomic_file import atomic_write
from agent.config.settings import Settings
from agent.simulator import parse


def generated(settings: Settings) -> dict[str, str]:
    """Return the contents of all generated files, by relative path. Omit the dashboards if the
    `dashboards` extra is not installed."""
    from agent.faults.thresholds import AlertThresholds
    from agent.status.model import Status
    from alerts.build import alerts_of, groups
    from alerts.build import files as alerting
    from exporters.reference import reference

    schema = json.dumps(msgspec.json.schema(Status), indent=1)
    own = {"METRICS.md": reference(), "status.schema.json": f"{schema}\n"}
    found = {**alerting(settings), **own}
    try:
        from dashboards.build import files as boards
    except ImportError as error:
        print(f"no boards: {error.name} is not here; a clone has it", file=sys.stderr)
        return found
    return {**boards(settings[AlertThresholds].runbook, alerts_of(groups(settings))), **found}


def run(arguments: argparse.Namespace) -> int:
    """Write every generated file. The flag `--simulate` is validated, but has no effect."""
    if arguments.simulate:
        parse(arguments.simulate)
    settings = settings_of(arguments)
    texts = {arguments.directory / name: text for name, text in generated(settings).items()}
    for path, text in texts.items():
        atomic_write(path, text.encode(), 0o644, make=True)
    print("\n".join(map(str, texts)))  # printed last, because the reader may go away
    return 0
