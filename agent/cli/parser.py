"""Parses the command line, runs the subcommand, and reports usage errors."""

import argparse
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from agent import __version__
from agent.errors import BadInput, printable


class _Parser(argparse.ArgumentParser):
    """An argument parser that reports an error as a single sentence."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; {self.prog} --help shows what is possible")

    def format_help(self) -> str:
        text = super().format_help()
        return text + simulated_machines() if "--simulate" in self._option_string_actions else text

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a text. Unlike argparse, raise an error if the output cannot be written."""
        print(message, end="", file=file)


def simulated_machines() -> str:
    """Return the help text that lists the simulator's systems, scenarios, and faults. It uses data
    files, because importing the simulator would double the time for printing the help."""
    folder = Path(__file__).parents[1] / "simulator"
    table = tomllib.loads((folder / "scenarios.toml").read_text("utf-8"))
    lists = [
        ("systems", sorted(path.stem for path in (folder / "systems").glob("*.toml"))),
        ("scenarios", table["scenarios"]),
        ("faults, joined to a scenario and to each other by +", [*table["faults"], "xid-CODE"]),
    ]
    fill = partial(textwrap.fill, width=79, subsequent_indent="  ", break_on_hyphens=False)
    lines = [fill(f"{name}: {' '.join(words)}") for name, words in lists]
    return "\n" + "\n".join(lines) + "\n"


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty, expected a path")
    return Path(text)


def _number(most: float, least: float = 0.0) -> Callable[[str], float]:
    above = f"from {least:g} to" if least else "above 0 and at most"
    expected = f"expected a number {above} {most:g}"

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number, {expected}") from None
        if not (value > 0 and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is out of range, {expected}")
        return value

    return parsed


def _text(pattern: str, what: str) -> Callable[[str], str]:
    def parsed(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} is {what}")
        return text

    return parsed


DAY = 86_400.0

TYPES: dict[str, Callable[[str], Any]] = {
    "path": _path,
    "int": int,
    "seconds": _number(DAY),
    "timeout": _number(DAY, 3.0),  # s; a check of a healthy, idle machine takes less
    "speed": _number(1000.0),
    "span": _text(r"[1-9](\d{0,4}[mh]|\d{0,3}d|\d{0,2}w)", "no span of time like 24h or 7d"),
    "url": _text(r"(?s).+", "empty, expected http://HOST:PORT"),
    "job": _text(r"(?s).+", "empty, expected the number or name of a job"),
    "nodes": lambda text: int(_text(r"[1-9]\d{0,5}", "no number of nodes, such as 124")(text)),
}
_TABLE = tomllib.loads(Path(__file__).with_name("commands.toml").read_text("utf-8"))
COMMANDS: dict[str, dict[str, Any]] = _TABLE["commands"]
"""The subcommands by name. The module with the same name contains the function `run`. It is
imported only if the command is used, so that the agent loads no unnecessary code."""

SHARED = {flag["name"]: flag for flag in _TABLE["shared"]}


def parser() -> argparse.ArgumentParser:
    """Return the parser for the complete command line."""
    top = _Parser(
        prog="dgx-telemetry",
        description="Where each GPU's time goes, and how close each data path is to its limit.",
    )
    top.add_argument("--version", action="version", version=f"dgx-telemetry {__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command["summary"],
            description=command["summary"],
            epilog="examples:\n" + textwrap.indent(command["examples"], "  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for flag in command["flags"]:
            group = sub.add_mutually_exclusive_group() if isinstance(flag, list) else sub
            for one in flag if isinstance(flag, list) else [flag]:
                options = {**(SHARED[one] if isinstance(one, str) else one)}
                if "type" in options:
                    options["type"] = TYPES[options["type"]]
                group.add_argument(options.pop("name"), **options)
    return top


def run_command(arguments: Sequence[str]) -> int:
    """Run a subcommand and return its exit status. Print each error to stderr as one sentence."""
    try:
        chosen = parser().parse_args(arguments)
        if chosen.command == "run":
            from agent.cli import small_process

            small_process.take_one_arena()
            small_process.leave_tls_out(chosen.web_config_file, chosen.config)
        module = chosen.command.removeprefix("un")  # `uninstall` is in install.py
        return int(import_module(f"agent.cli.{module}").run(chosen))
    except BadInput as error:
        sentence = printable(str(error)).replace("\n", " ")
        with suppress(BrokenPipeError):  # the reader has gone
            print(f"dgx-telemetry: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
