"""The monitoring of deploy/fleet, while parts of it are killed: who is reported, and what is lost.

Every alert that a node causes arrives once, whatever is left of the pair that reports it.
"""

import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from agent.cli.parser import run_command
from tests.stack.fleet_monitors import PEER_TIMEOUT, Engine, Monitors, Nodes
from tests.stack.receivers import Delivery, Inbox, webhook
from tests.stack.running import eventually
from tests.support.prometheus import Series, ask

pytestmark = pytest.mark.stack

COUNT = 10
"""Nodes: fewer than half are silent at any time, for half of a cluster is one alert of its own."""
TICK = "dgx_agent_last_tick_timestamp_seconds"
ENERGY = "dgx_gpu_energy_joules_total"
DOWN = "DgxAgentDown"


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes(COUNT) as made:
        yield made


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with webhook() as made:
        yield made


@pytest.fixture
def monitors(tmp_path: Path, inbox: Inbox) -> Iterator[Monitors]:
    with Monitors(tmp_path, inbox.port) as made:
        yield made


def list_nodes(monitors: Monitors, nodes: Nodes, *drained: int) -> None:
    """The inventory, as a file and a command make it."""
    rack = '[[rack]]\nname = "{0.name}"\nhosts = "{0.address}"\n'
    hosts = "".join(map(rack.format, nodes.all))
    out = "".join(f'[[drained]]\nhosts = "{nodes.all[n - 1].address}"\n' for n in drained)
    source = monitors.path("fleet.toml")
    source.write_text(f'cluster = "test"\nport = {nodes.port}\n{hosts}{out}')
    output = monitors.path("targets/nodes.json")
    assert run_command(["inventory", "--file", str(source), "--output", str(output)]) == 0


def value(engine: Engine, query: str) -> float:
    """A query with one value; 0 where there is none."""
    found = series(engine, query)
    return found[0].value if found else 0.0


def series(engine: Engine, query: str) -> list[Series]:
    result = ask(engine.address, "query", query=query)["result"]
    return [Series(entry["metric"], float(entry["value"][1])) for entry in result]


def gap(engine: Engine, seconds: float, metric: str = TICK) -> float:
    """The longest time between two samples of any node in the last seconds."""
    data = ask(engine.address, "query", query=f"{metric}[{seconds:.0f}s]")["result"]
    times = [[at for at, _ in entry["values"]] for entry in data]
    return max((b - a for one in times for a, b in pairwise(one)), default=inf)


def shown(inbox: Inbox, instance: str) -> list[Delivery]:
    return [d for d in inbox.of(instance) if d.status == "firing" and d.name == DOWN]


def comes_once(inbox: Inbox, instance: str) -> None:
    """It arrives, and by the time that the other one would report it too, not again."""
    eventually(lambda: shown(inbox, instance), f"{instance} is reported")
    time.sleep(PEER_TIMEOUT + 1)
    assert len(shown(inbox, instance)) == 1
    assert not {"replica", "alertgroup"} & set(shown(inbox, instance)[0].labels)


def pair_of_alertmanagers(monitors: Monitors) -> list[Engine]:
    pair = [monitors.alertmanager(which) for which in "ab"]
    eventually(lambda: all(one.joined() for one in pair), "the Alertmanagers know each other")
    return pair


def up(engine: Engine, count: int) -> bool:
    return value(engine, 'count(up{job="dgx-telemetry"} == 1)') == count


def test_two_prometheus_and_two_alertmanagers(
    monitors: Monitors, nodes: Nodes, inbox: Inbox
) -> None:
    list_nodes(monitors, nodes)
    first, second = pair_of_alertmanagers(monitors)
    a, b = [monitors.prometheus(which) for which in "ab"]
    for engine in (a, b):
        eventually(partial(up, engine, COUNT), f"{engine.name} scrapes all nodes")
    instances = [f"{one.address}:{nodes.port}" for one in nodes.all]

    nodes.silence(1)
    comes_once(inbox, instances[0])

    first.kill()
    nodes.silence(2)
    comes_once(inbox, instances[1])

    first.start()
    eventually(lambda: first.joined() and second.joined(), "it has joined again")
    before = time.time()
    a.kill()
    nodes.silence(3)
    comes_once(inbox, instances[2])
    outage = time.time() - before
    assert gap(b, outage, "up") < outage, "the other one scraped meanwhile"

    a.start()  # what it had it still has, and it says nothing again
    eventually(partial(up, a, COUNT - 3), "it scrapes again")
    oldest = f'min_over_time(timestamp({TICK}{{instance="{instances[4]}"}})[1h:1s])'
    assert 0 < value(a, oldest) < before

    # Taken out: its silence is no one's business, and nothing of it begins again.
    list_nodes(monitors, nodes, 4)
    for engine in (a, b):  # either reports what it does not know to be drained
        labelled = partial(series, engine, "count(up{drained!=''}) == 1")
        eventually(labelled, "it carries the label")
    assert not series(b, f"{ENERGY}{{drained!=''}}")
    assert len(series(b, f'count_over_time({ENERGY}{{instance="{instances[3]}"}}[1h])')) == 1
    nodes.silence(4)
    nodes.silence(5)
    comes_once(inbox, instances[4])
    assert shown(inbox, instances[3]) == []


@pytest.mark.victoria
def test_vmagent_a_store_and_vmalert(monitors: Monitors, nodes: Nodes, inbox: Inbox) -> None:
    list_nodes(monitors, nodes)
    pair_of_alertmanagers(monitors)
    stores = [monitors.store(which) for which in "ab"]
    agents = [monitors.vmagent(number, 3, stores) for number in range(3)]
    alerts = [monitors.vmalert(which, store) for which, store in zip("ab", stores, strict=True)]
    for store in stores:
        eventually(partial(up, store, COUNT), f"{store.name} has all nodes")
    instances = [f"{one.address}:{nodes.port}" for one in nodes.all]

    began = time.time()
    agents[0].kill()  # two of three scrape each node
    nodes.silence(1)
    comes_once(inbox, instances[0])
    outage = time.time() - began
    for store in stores:
        assert gap(store, outage, "up") < outage, "another one scraped its nodes"
    agents[0].start()

    stores[0].kill()
    began = time.time()
    nodes.silence(2)  # vmalert of the other store reports
    comes_once(inbox, instances[1])
    stores[0].start()
    ended = time.time()

    def caught_up() -> bool:
        """Return whether the store has the samples that others kept while it was away."""
        return gap(stores[0], time.time() - began + 2, "up") < (ended - began) / 2

    eventually(caught_up, "the store has what it missed")
    assert ended - began > PEER_TIMEOUT

    alerts[0].kill()
    nodes.silence(3)
    comes_once(inbox, instances[2])
