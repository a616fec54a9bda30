"""Any configuration at all: refused in one sentence, or an agent that runs with it."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.cli.options import SECTIONS
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from agent.errors import BadInput
from tests.support.configuration import KEYS, value_of
from tests.support.machines import simulated

LONGEST_SENTENCE = 2_500
"""Letters: what is expected may be one of all keys, what was found is cut."""

ODD_TEXTS = (
    "",
    "-1",
    "nan",
    "inf",
    "1e400",
    "0x10",
    "½",
    "٣",
    "\0",
    "true",
    "9" * 5000,
    "x" * 9999,
)
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(ODD_TEXTS))
SCALARS = st.one_of(
    TEXTS.map(json.dumps),
    st.integers().map(str),
    st.floats().map(lambda f: str(f).replace("+", "")),
    st.sampled_from(
        ["true", "false", "9" * 400, "-0.0", "1e308", "5e-324", "1979-05-27T07:32:00Z"]
    ),
    st.sampled_from(
        ['"^(a+)+$"', '"([a-z"', '"a{9999999999}"', '"info"', '":0"', '"15m"', '"dgx-9"']
    ),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3).map(lambda values: f"[{', '.join(values)}]"),
    SCALARS.map("{{ a = {} }}".format),
)
LIKELY = {
    str: st.sampled_from(
        ['"^x$"', '"/nonexistent"', '":1"', '"15m"', '""', '"http://h/x"', '"a@b"']
    ),
    float: st.floats(0, 1).map(str),
    int: st.integers(0, 1000).map(str),
    bool: st.sampled_from(["true", "false"]),
}
"""Of a type, and often accepted; the rest is refused before anything else is seen."""


def default(key: str) -> str:
    return json.dumps(value_of(Settings(), key)).replace("null", "0.5")


ENTRIES = st.sampled_from(sorted(KEYS)).flatmap(
    lambda key: st.tuples(st.just(key), st.one_of(st.just(default(key)), LIKELY[KEYS[key]], VALUES))
)
ODD_ENTRIES = st.tuples(st.sampled_from(sorted(KEYS)), TEXTS)


def table(name: str, content: dict[str, str]) -> str:
    return "\n".join([name, *(f"{key} = {value}" for key, value in content.items()), ""])


def outcome(path: Path | None, environment: dict[str, str]) -> Settings | None:
    """The configuration, or nothing after one sentence."""
    try:
        return load(SECTIONS, path, environment)
    except ConfigError as error:
        said = str(error)
    assert said.startswith(f"{path}: " if path else "DGX_TELEMETRY_")
    assert "\n" not in said
    assert len(said) < LONGEST_SENTENCE
    return None


def runs(config: Settings) -> None:
    """An agent ticks with it and is scraped, or says in one sentence why not."""
    try:
        bench = simulated("dgx-station-v100:training", config)
    except BadInput as error:
        said = str(error)
        assert "\n" not in said
        return
    for _ in range(2):
        asyncio.run(bench.agent.poller.tick())
        bench.clock.advance(1.0)
    snapshot = bench.agent.poller.latest
    assert [r.failure for r in snapshot.readings.values() if r.failure] == []
    assert bench.scrape()


odd_sets = pytest.mark.filterwarnings("ignore::FutureWarning")  # of re


@odd_sets
@given(st.lists(ENTRIES, max_size=3).map(dict))
def test_any_value_of_a_known_key(tmp_path: Path, values: dict[str, str]) -> None:
    file = tmp_path / "config.toml"
    file.write_text(table("", values), encoding="utf-8", errors="surrogatepass")
    config = outcome(file, {})
    if config is not None:
        runs(config)


@odd_sets
@given(st.lists(st.one_of(ENTRIES, ODD_ENTRIES), max_size=3).map(dict))
@example({"log.format": "9" * 5000})
def test_any_text_of_a_variable(values: dict[str, str]) -> None:
    names = {key: f"DGX_TELEMETRY_{key.replace('.', '_').upper()}" for key in values}
    config = outcome(None, {names[key]: text.strip('"') for key, text in values.items()})
    if config is not None:
        runs(config)
