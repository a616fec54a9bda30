"""The command line parser: subcommands, their flags, and usage errors."""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from agent import __version__
from agent.cli.doctor import SHORTEST_TIMEOUT, TIMEOUT
from agent.errors import BadInput, printable

USAGE_ERROR = 2


class UsageError(BadInput):
    """A command line that cannot be run."""


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help shows what is possible")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What no one knows is refused by the subcommand itself, whose help lists what there is."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def format_help(self) -> str:
        text = super().format_help()
        return text + simulated_machines() if "--simulate" in text else text

    def print_help(self, file: Any = None) -> None:
        """Argparse says nothing where it cannot write."""
        print(self.format_help(), end="", file=file)


def simulated_machines() -> str:
    """The machines that can be simulated; loaded only for who asks for help."""
    from agent.simulator import FAULTS, SCENARIOS, SYSTEMS

    lists = [
        ("systems", SYSTEMS),
        ("scenarios", SCENARIOS),
        ("faults, joined to a scenario and to each other by +", FAULTS),
    ]
    lines = [
        textwrap.fill(
            f"{name}: {' '.join(words)}", 79, subsequent_indent="  ", break_on_hyphens=False
        )
        for name, words in lists
    ]
    return "\n" + "\n".join(lines) + "\n"


def _hardware_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=_path, metavar="FILE", help="configuration (TOML)")
    parser.add_argument(
        "--simulate", metavar="SYSTEM[@DRIVER][:SCENARIO]", help="use a simulated machine"
    )


def _speed_flag(parser: argparse.ArgumentParser, effect: str) -> None:
    parser.add_argument("--simulate-speed", type=_speed, default=1.0, metavar="N", help=effect)


def _run_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:9935")
    parser.add_argument(
        "--web.config.file",
        dest="web_config_file",
        metavar="FILE",
        help="TLS and passwords (YAML, the format of Prometheus exporters)",
    )
    _speed_flag(parser, "run the agent on a clock N times faster")
    parser.add_argument(
        "--replay", type=_path, metavar="FILE", help="replay a recorded tape instead of hardware"
    )
    parser.add_argument("--log.level", dest="log_level", help="debug, info, warning or error")
    parser.add_argument("--log.format", dest="log_format", help="logfmt or json")


AGENT = "show what this agent knows (http://HOST:PORT); default: the one here, else this machine"


def _once_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    parser.add_argument("--agent", metavar="URL", help=AGENT)
    parser.add_argument(
        "--replay", type=_path, metavar="FILE", help="replay a recorded tape instead of hardware"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")


def _watch_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    parser.add_argument("--agent", metavar="URL", help=AGENT)
    parser.add_argument(
        "--replay", type=_path, metavar="FILE", help="replay a recorded tape instead of hardware"
    )


def _check_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    parser.add_argument(
        "--replay", type=_path, metavar="FILE", help="replay a recorded tape instead of hardware"
    )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument(
        "--timeout",
        type=_timeout,
        default=TIMEOUT,
        metavar="SECONDS",
        help="end after this time, even if the driver hangs (default %(default)g)",
    )
    parser.add_argument(
        "--bundle",
        type=_path,
        metavar="FILE",
        help="write what a support case needs (.tar.gz), with names masked",
    )


def _record_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    parser.add_argument("file", type=_path, metavar="FILE", help="the tape to write")
    parser.add_argument(
        "--seconds", type=_seconds, default=60.0, metavar="N", help="length of the tape; default 60"
    )


def _build_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    parser.add_argument("directory", type=_path, metavar="DIR", help="where to write")


def _up_flags(parser: argparse.ArgumentParser) -> None:
    _hardware_flags(parser)
    _speed_flag(parser, "a clock N times faster, with rules that look back N times less")
    parser.add_argument(
        "--fleet",
        type=_nodes,
        nargs="?",
        const=124,
        default=0,
        metavar="N",
        help="watch N simulated nodes (default 124): DGX-1, or the system that --simulate names",
    )
    parser.add_argument(
        "--data",
        type=_path,
        metavar="DIR",
        help="keep the data here; default: a folder that is removed at the end",
    )


def _report_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=_path, metavar="FILE", help="configuration (TOML)")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--prometheus",
        metavar="URL",
        help="ask Prometheus or VictoriaMetrics; may contain USER:PASSWORD@",
    )
    asked.add_argument("--agent", metavar="URL", help="ask this agent; default: the one here")
    parser.add_argument(
        "--since", type=_span, default="7d", metavar="SPAN", help="how far back; default 7d"
    )
    parser.add_argument("--by", choices=("node", "job", "user", "account"), default="node")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--job", type=_job, metavar="ID", help="only this job, with its history")
    which.add_argument(
        "--compare", type=_job, nargs=2, metavar="JOB", help="these two jobs side by side"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="JSON instead of a table")
    form.add_argument("--csv", action="store_true", help="CSV instead of a table")
    form.add_argument("--html", type=_path, metavar="FILE", help="write a page instead of a table")


def _inventory_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("hosts", nargs="*", metavar="HOSTS", help="names such as dgx[001-124]")
    parser.add_argument("--file", type=_path, metavar="FILE", help="a list with racks (TOML)")
    parser.add_argument("--slurm", action="store_true", help="Slurm's nodes with GPUs (scontrol)")
    parser.add_argument("--cluster", metavar="NAME", help="the label `cluster`")
    parser.add_argument("--port", type=int, metavar="N", help="port of the agents; default 9935")
    parser.add_argument(
        "--output", type=_path, metavar="FILE", help="write the targets here, for file_sd"
    )
    parser.add_argument(
        "--every",
        type=_seconds,
        metavar="SECONDS",
        help="rewrite FILE every SECONDS",
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="serve them at /targets, for http_sd")
    parser.add_argument(
        "--web.config.file",
        dest="web_config_file",
        metavar="FILE",
        help="TLS and passwords of --listen, in the format of the agent's",
    )


def _install_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")


def _uninstall_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--purge", action="store_true", help="remove the settings too")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty, expected a path")
    return Path(text)


def _positive(text: str, most: float, least: float = 0.0) -> float:
    above = f"from {least:g} to" if least else "above 0 and at most"
    expected = f"expected a number {above} {most:g}"
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, {expected}") from None
    if not (value > 0 and least <= value <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is out of range, {expected}")
    return value


def _span(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}[mhdw]", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a span of time, expected one like 24h or 7d"
        )
    return text


def _job(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("is empty, expected the number or name of a job")
    return text


def _nodes(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,5}", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of nodes, expected one like 124"
        )
    return int(text)


def _speed(text: str) -> float:
    return _positive(text, 1000.0)


def _seconds(text: str) -> float:
    return _positive(text, 86_400.0)


def _timeout(text: str) -> float:
    return _positive(text, 86_400.0, SHORTEST_TIMEOUT)


Flags = Callable[[argparse.ArgumentParser], None]

COMMANDS: dict[str, tuple[Flags, str, str]] = {
    "run": (
        _run_flags,
        "run the agent in the foreground",
        "dgx-telemetry run\n"
        "dgx-telemetry run --simulate dgx-1-v100:starved-disk\n"
        "dgx-telemetry run --replay machine.tape",
    ),
    "once": (
        _once_flags,
        "print the state of the machine once: what is wrong, its GPUs, jobs and data paths",
        "dgx-telemetry once\ndgx-telemetry once --json --simulate dgx-h100:training",
    ),
    "watch": (
        _watch_flags,
        "live view in the terminal: what `once` prints, each second; h lists the keys, q ends it",
        "dgx-telemetry watch\ndgx-telemetry watch --simulate dgx-1-v100:starved-disk",
    ),
    "check": (
        _check_flags,
        "which system this is, what answers, what is wrong and what to do; exit status 1 for a "
        "warning, 3 for what is critical, 2 for bad usage",
        "dgx-telemetry check\n"
        "dgx-telemetry check --json --bundle /tmp/bundle.tar.gz\n"
        "dgx-telemetry check --simulate dgx-1-p100@580:gpu-lost",
    ),
    "record": (
        _record_flags,
        "record the raw answers of this machine; serials, UUIDs and host name are masked",
        "dgx-telemetry record machine.tape --seconds 60",
    ),
    "build": (
        _build_flags,
        "write dashboards, alert rules, the runbook and the reference of metrics",
        "dgx-telemetry build /tmp/dgx",
    ),
    "up": (
        _up_flags,
        "agent, Prometheus, Alertmanager (and Grafana where installed) as one local stack",
        "dgx-telemetry up\n"
        "dgx-telemetry up --simulate dgx-h100:starved-disk --simulate-speed 10\n"
        "dgx-telemetry up --fleet 16\n"
        "dgx-telemetry up --data ~/dgx-telemetry",
    ),
    "report": (
        _report_flags,
        "where GPU-hours went, by node, job, user or account, most lost first",
        "dgx-telemetry report --prometheus http://127.0.0.1:9090 --since 7d\n"
        "dgx-telemetry report --prometheus http://127.0.0.1:9090 --by user --html week.html\n"
        "dgx-telemetry report --job 1234\ndgx-telemetry report --compare 1233 1234",
    ),
    "inventory": (
        _inventory_flags,
        "the nodes of a fleet as targets of Prometheus, from a list, a file or Slurm",
        "dgx-telemetry inventory 'dgx[001-124]' --cluster seed\n"
        "dgx-telemetry inventory --file fleet.toml --output /etc/prometheus/dgx.json\n"
        "dgx-telemetry inventory --slurm --cluster seed --listen :9936",
    ),
    "install": (
        _install_flags,
        "install the agent as a systemd service (as root); run again, it does what is missing",
        "dgx-telemetry install --dry-run\ndgx-telemetry install",
    ),
    "uninstall": (
        _uninstall_flags,
        "remove the systemd service (as root); settings in /etc/dgx-telemetry stay",
        "dgx-telemetry uninstall\ndgx-telemetry uninstall --purge",
    ),
}
"""Flags, summary and examples. What a subcommand does is `run` in the module of its name, which is
loaded when it is wanted: the agent runs all day, and need not know how a stack is built."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="dgx-telemetry",
        description="Where each GPU's time goes, and how close each data path is to its limit.",
    )
    top.add_argument("--version", action="version", version=f"dgx-telemetry {__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser)
    for name, (flags, summary, examples) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=summary,
            epilog="examples:\n  " + examples.replace("\n", "\n  "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        flags(sub)
    return top


def run_command(arguments: Sequence[str]) -> int:
    """Run one subcommand and return the exit status; errors are one sentence on stderr."""
    try:
        chosen = parser().parse_args(arguments)
        return int(import_module(f"agent.cli.{chosen.command}").run(chosen))
    except BadInput as error:
        sentence = printable(str(error)).replace("\n", " ")
        print(f"dgx-telemetry: {sentence}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who read has seen enough
        sys.stderr.close()
        return 0
