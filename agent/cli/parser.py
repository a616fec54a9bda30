"""The command line parser: subcommands, their flags, and usage errors."""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from agent import __version__
from agent.cli.doctor import CHECK_SECONDS, SHORTEST_TIMEOUT
from agent.errors import BadInput, printable

USAGE_ERROR = 2
ROWS = "node", "job", "user", "account", "namespace"


class UsageError(BadInput):
    """A command line that cannot be run."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help shows what is possible")

    def format_help(self) -> str:
        text = super().format_help()
        return text + simulated_machines() if "--simulate" in self._option_string_actions else text

    def print_help(self, file: Any = None) -> None:
        """Argparse stays silent if it cannot write."""
        print(self.format_help(), end="", file=file)


def simulated_machines() -> str:
    """Return the names of the simulated machines, out of the simulator's tables: the simulator
    itself takes twice the time of the rest of the help."""
    import tomllib

    folder = Path(__file__).parents[1] / "simulator"
    table = tomllib.loads((folder / "scenarios.toml").read_text("utf-8"))
    lists = [
        ("systems", sorted(path.stem for path in (folder / "systems").glob("*.toml"))),
        ("scenarios", table["scenarios"]),
        ("faults, joined to a scenario and to each other by +", [*table["faults"], "xid-CODE"]),
    ]
    lines = [
        textwrap.fill(
            f"{name}: {' '.join(words)}", 79, subsequent_indent="  ", break_on_hyphens=False
        )
        for name, words in lists
    ]
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
SPAN = _text(r"[1-9]\d{0,4}[mhdw]", "not a span of time, expected one like 24h or 7d")
JOB_ID = _text(r"(?s).+", "empty, expected the number or name of a job")
NODE_NUMBER = _text(r"[1-9]\d{0,5}", "not a number of nodes, expected one like 124")


Flag = tuple[str, dict[str, Any]]
"""Arguments of argparse's add_argument."""


def _flag(name: str, words: str | None = None, **options: Any) -> Flag:
    return name, {"help": words, **options}


def _file(name: str, words: str) -> Flag:
    return _flag(name, words, type=_path, metavar="FILE")


def _switch(name: str, words: str) -> Flag:
    return _flag(name, words, action="store_true")


def _speed(effect: str) -> Flag:
    return _flag("--simulate-speed", effect, type=_number(1000.0), default=1.0, metavar="N")


def _web(words: str) -> Flag:
    return _flag("--web.config.file", words, dest="web_config_file", metavar="FILE")


CONFIG = _file("--config", "configuration (TOML)")
SIMULATE = _flag("--simulate", "use a simulated machine", metavar="SYSTEM[@DRIVER][:SCENARIO]")
REPLAY = _file("--replay", "replay a recorded tape instead of hardware")
AGENT = _flag(
    "--agent",
    "show the data of this agent (http://HOST:PORT); default: the local agent, else this machine",
    metavar="URL",
)
JSON = _switch("--json", "JSON instead of a table")


class Command(NamedTuple):
    """A subcommand; flags in a list exclude each other."""

    summary: str
    examples: str
    flags: tuple[Flag | list[Flag], ...]


COMMANDS = {
    "run": Command(
        "run the agent in the foreground",
        "dgx-telemetry run\n"
        "dgx-telemetry run --simulate dgx-1-v100:starved-disk\n"
        "dgx-telemetry run --replay machine.tape",
        (
            *(CONFIG, SIMULATE),
            _flag("--listen", "default 127.0.0.1:9935", metavar="HOST:PORT"),
            _web("TLS and passwords (YAML, the format of Prometheus exporters)"),
            _speed("run the agent on a clock N times faster"),
            REPLAY,
        ),
    ),
    "once": Command(
        "print the state of the machine once: what is wrong, its GPUs, jobs and data paths",
        "dgx-telemetry once\ndgx-telemetry once --json --simulate dgx-h100:training",
        (CONFIG, SIMULATE, AGENT, REPLAY, JSON),
    ),
    "watch": Command(
        "live view in the terminal: the output of `once`, updated every second; h lists the keys, "
        "q ends it",
        "dgx-telemetry watch\ndgx-telemetry watch --simulate dgx-1-v100:starved-disk",
        (CONFIG, SIMULATE, AGENT, REPLAY),
    ),
    "check": Command(
        "which system this is, what answers, what is wrong and what to do; exit status 1 for a "
        "warning, 3 for a critical fault, 2 for bad usage",
        "dgx-telemetry check\n"
        "dgx-telemetry check --json --bundle /tmp/bundle.tar.gz\n"
        "dgx-telemetry check --simulate dgx-1-p100@580:gpu-lost",
        (
            *(CONFIG, SIMULATE, AGENT, REPLAY),
            _switch("--json", "JSON instead of text"),
            _flag(
                "--timeout",
                "end after this time, even if the driver hangs (default %(default)g)",
                type=_number(DAY, SHORTEST_TIMEOUT),
                default=CHECK_SECONDS,
                metavar="SECONDS",
            ),
            _file("--bundle", "write an archive for a support case (.tar.gz), with names masked"),
        ),
    ),
    "record": Command(
        "record the raw answers of this machine; serials, UUIDs and host name are masked",
        "dgx-telemetry record machine.tape --seconds 60",
        (
            *(CONFIG, SIMULATE, _file("file", "the tape to write")),
            _flag(
                "--seconds",
                "length of the tape; default 60",
                type=_number(DAY),
                default=60.0,
                metavar="N",
            ),
        ),
    ),
    "build": Command(
        "write dashboards, alert rules, the runbook and the reference of metrics",
        "dgx-telemetry build /tmp/dgx",
        (CONFIG, SIMULATE, _flag("directory", "where to write", type=_path, metavar="DIR")),
    ),
    "up": Command(
        "agent, Prometheus, Alertmanager (and Grafana where installed) as one local stack",
        "dgx-telemetry up\n"
        "dgx-telemetry up --simulate dgx-h100:starved-disk --simulate-speed 10\n"
        "dgx-telemetry up --fleet 16\n"
        "dgx-telemetry up --data ~/dgx-telemetry",
        (
            *(CONFIG, SIMULATE),
            _speed("run N times faster, with rules that look back over 1/N of the time"),
            _flag(
                "--fleet",
                "watch N simulated nodes (default 124): DGX-1, or the system that --simulate names",
                type=lambda text: int(NODE_NUMBER(text)),
                nargs="?",
                const=124,
                default=0,
                metavar="N",
            ),
            _flag(
                "--data",
                "keep the data here; default: a folder that is removed at the end",
                type=_path,
                metavar="DIR",
            ),
        ),
    ),
    "report": Command(
        "where GPU-hours went, by node, job, user or account, largest loss first",
        "dgx-telemetry report --prometheus http://127.0.0.1:9090 --since 7d\n"
        "dgx-telemetry report --prometheus http://127.0.0.1:9090 --by user --html week.html\n"
        "dgx-telemetry report --job 1234\ndgx-telemetry report --compare 1233 1234",
        (
            CONFIG,
            [
                _flag(
                    "--prometheus",
                    "query Prometheus or VictoriaMetrics; may contain USER:PASSWORD@",
                    metavar="URL",
                ),
                _flag("--agent", "query this agent; default: the local one", metavar="URL"),
            ],
            _flag("--since", "how far back; default 7d", type=SPAN, default="7d", metavar="SPAN"),
            _flag("--by", choices=ROWS, default="node"),
            [
                _flag("--job", "only this job, with its history", type=JOB_ID, metavar="ID"),
                _flag(
                    "--compare",
                    "these two jobs side by side",
                    type=JOB_ID,
                    nargs=2,
                    metavar="JOB",
                ),
            ],
            [
                JSON,
                _switch("--csv", "CSV instead of a table"),
                _file("--html", "write a page instead of a table"),
            ],
        ),
    ),
    "inventory": Command(
        "the nodes of a fleet as targets of Prometheus, from a list, a file or Slurm",
        "dgx-telemetry inventory 'dgx[001-124]' --cluster seed\n"
        "dgx-telemetry inventory --file fleet.toml --output /etc/prometheus/dgx.json\n"
        "dgx-telemetry inventory --slurm --cluster seed --listen :9936",
        (
            _flag("hosts", "names such as dgx[001-124]", nargs="*", metavar="HOSTS"),
            _file("--file", "a list with racks (TOML)"),
            _switch("--slurm", "Slurm's nodes with GPUs (scontrol)"),
            _flag("--cluster", "the label `cluster`", metavar="NAME"),
            _flag("--port", "port of the agents; default 9935", type=int, metavar="N"),
            _file("--output", "write the targets here, for file_sd"),
            _flag("--every", "rewrite FILE every SECONDS", type=_number(DAY), metavar="SECONDS"),
            _flag("--listen", "serve them at /targets, for http_sd", metavar="HOST:PORT"),
            _web("TLS and passwords of --listen, in the format of the agent's"),
        ),
    ),
    "install": Command(
        "install the agent as a systemd service (as root); run again, it keeps the settings",
        "dgx-telemetry install --dry-run\ndgx-telemetry install",
        (_switch("--dry-run", "only print what would be done"),),
    ),
    "uninstall": Command(
        "remove the systemd service (as root); settings in /etc/dgx-telemetry stay",
        "dgx-telemetry uninstall\ndgx-telemetry uninstall --purge",
        (_switch("--purge", "remove the settings too"),),
    ),
}
"""Subcommands. The module of each name has its `run` and is imported only when needed: the agent
runs all day and needs no code that builds a stack."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="dgx-telemetry",
        description="Where each GPU's time goes, and how close each data path is to its limit.",
    )
    top.add_argument("--version", action="version", version=f"dgx-telemetry {__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, (summary, examples, flags) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog="examples:\n  " + examples.replace("\n", "\n  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for flag in flags:
            group = sub.add_mutually_exclusive_group() if isinstance(flag, list) else sub
            for option, keywords in flag if isinstance(flag, list) else [flag]:
                group.add_argument(option, **keywords)
    return top


def run_command(arguments: Sequence[str]) -> int:
    """Run a subcommand and return the exit status; errors are one sentence on stderr."""
    try:
        chosen = parser().parse_args(arguments)
        if chosen.command == "run":
            from agent.cli import small_process

            small_process.take_one_arena()
            small_process.leave_tls_out(chosen.web_config_file, chosen.config)
        module = chosen.command.removeprefix("un")  # install removes too
        return int(import_module(f"agent.cli.{module}").run(chosen))
    except BadInput as error:
        sentence = printable(str(error)).replace("\n", " ")
        print(f"dgx-telemetry: {sentence}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
        return 0
