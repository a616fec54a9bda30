"""`dgx-telemetry build`: write what is generated from the catalogue."""

import argparse
import os
from pathlib import Path

from agent.catalogue import EXPORTED
from agent.config import ConfigError


def generated() -> dict[str, str]:
    """Every generated file: relative path to text. Needs the `dashboards` extra."""
    from alerts.build import files as rules
    from exporters.reference import reference

    try:
        from dashboards.build import files as boards
    except ImportError as error:
        raise ConfigError(
            f"build needs {error.name}: pip install 'dgx-telemetry[dashboards]'"
        ) from error
    return {**boards(), **rules(), "METRICS.md": reference(EXPORTED)}


def run(arguments: argparse.Namespace) -> int:
    """Write every file beside its place, then rename."""
    directory: Path = arguments.directory
    try:
        for name, text in generated().items():
            write(directory / name, text)
            print(directory / name)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return 0


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
