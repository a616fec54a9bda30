"""Pictures of the boards, with Grafana's own panel components, over simulated nodes.

    python -m tests.pictures                              all boards, each of a node worth a look
    python -m tests.pictures dgx-gpu@dgx04 dgx-fleet      some; after the @, the node
    python -m tests.pictures --opened dgx-node            with the rows that are collapsed
    python -m tests.pictures --light dgx-fleet            in Grafana's light theme

It installs what package.json lists into a cache folder. It needs node, npm, Chromium and
Prometheus. There is no Grafana server in it: a kind of panel that Grafana publishes no component
for is left blank, and says so.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.pictures.draw import Drawn, Missing, Picture, draw, workshop
from tests.pictures.node import SCRAPE
from tests.pictures.nodes import ALL, HISTORY, LIVE, Machine, machine
from tests.support.boards import boards

USUAL = ("dgx-fleet", "dgx-node@dgx02", "dgx-node@dgx06", "dgx-gpu@dgx04", f"dgx-agent@{LIVE}")

OUT = Path(tempfile.gettempdir()) / "dgx-pictures"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    summary, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.pictures",
        description=summary,
        epilog=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("boards", nargs="*", metavar="BOARD[@NODE]", default=USUAL)
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help=f"usually {OUT}")
    parser.add_argument("--opened", action="store_true", help="open rows that are collapsed")
    parser.add_argument("--light", action="store_true", help="in Grafana's light theme")
    parser.add_argument("--width", type=int, default=1600, metavar="PIXELS")
    return parser.parse_args(words)


def jobs(prometheus: str) -> list[str]:
    """The jobs of agents, which are what All stands for in Grafana."""
    query = urlencode({"match[]": "dgx_agent_build_info"})
    with urlopen(f"{prometheus}/api/v1/label/job/values?{query}", timeout=30) as answer:
        found: list[str] = json.load(answer)["data"]
    return found


def picture(name: str, given: argparse.Namespace, made: Machine) -> Picture:
    """`BOARD@NODE` as it is to be drawn."""
    uid, _, node = name.partition("@")
    live = node == LIVE
    file = re.sub("[@:]", "-", name) + ("-light" if given.light else "")
    return Picture(
        file=str(given.out.resolve() / f"{file}.png"),
        board=boards()[uid],
        prometheus=made.address,
        variables={
            "datasource": "prometheus",
            "job": "|".join(jobs(made.address)) or ".+",
            "cluster": ".*",
            "rack": ".*",
            "instance": node or ALL,
            "gpu": ".+",
        },
        since=made.lived if live else made.until - HISTORY,
        until=made.until,
        scrape=1 if live else SCRAPE,
        theme="light" if given.light else "dark",
        width=given.width,
        opened=given.opened,
    )


def shown(drawn: Drawn) -> str:
    """Return the notes for a person who looks at the picture."""
    kinds = {
        "not drawn, for Grafana publishes no component": drawn.undrawn,
        "without data": drawn.empty,
        "FAILED": drawn.failed,
    }
    lines = (f"\n  {kind}: {', '.join(titles)}" for kind, titles in kinds.items() if titles)
    return "".join((drawn.file, *lines))


def main() -> int:
    given = arguments()
    unknown = {name.partition("@")[0] for name in given.boards} - set(boards())
    if unknown:
        print(f"no board: {', '.join(sorted(unknown))}; there are {', '.join(boards())}")
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        folder = workshop()
    except Missing as reason:
        print(reason)
        return 2
    failed = False
    with tempfile.TemporaryDirectory() as past, machine(Path(past)) as made:
        for drawn in draw([picture(name, given, made) for name in given.boards], folder):
            print(shown(drawn), flush=True)
            failed |= bool(drawn.failed)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
