"""Boards by their structure: what is drawn where, in which unit and colour, with which queries."""

import json
import re
import warnings
from collections import Counter
from itertools import pairwise

import promql_parser
import pytest

from agent.model import Kind
from dashboards.board import BOARDS
from dashboards.promql import METRICS
from tests.support import parsed_queries
from tests.support.boards import (
    Asked,
    Json,
    boards,
    column_of,
    of_column,
    panels,
    plain,
    queries,
    rows,
    unit_of,
)
from tests.support.each import of_each

UNITS = {"percentunit", "watt", "celsius", "bytes", "Bps", "bps", "hertz", "s", "iops", "none"}
UNITS |= {"short", "string"}
KINDS = {"timeseries", "stat", "bargauge", "table"}
TARGET_LABELS = {"job", "instance"}

of_every_board = of_each(boards().values(), lambda board: board["uid"])
of_every_query = of_each(queries())


@of_every_board
def test_ids_are_unique_and_the_frame_is_of_today(board: Json) -> None:
    ids = [p["id"] for row in board["panels"] for p in (row, *row.get("panels", []))]
    assert [number for number, times in Counter(ids).items() if times > 1] == []
    assert re.fullmatch(r"[a-z-]{1,40}", board["uid"])
    assert board["schemaVersion"] >= 39, "older ones are migrated over"
    assert (board["editable"], board["graphTooltip"], board["tags"]) == (
        True,
        1,
        ["dgx-telemetry"],
    )


def overlap(a: Json, b: Json) -> bool:
    return bool(
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


@of_every_board
def test_panels_lie_side_by_side_within_the_grid(board: Json) -> None:
    for group in (board["panels"], *(row["panels"] for row in rows(board))):
        grids = [panel["gridPos"] for panel in group]
        assert all(g["x"] >= 0 and g["x"] + g["w"] <= 24 and g["h"] > 0 for g in grids)
        assert [(a, b) for i, a in enumerate(grids) for b in grids[:i] if overlap(a, b)] == []


@of_every_board
def test_a_board_opens_with_few_panels_below_questions(board: Json) -> None:
    shown = [p for p in board["panels"] if p["type"] != "row"]
    assert len(shown) <= 23
    assert rows(board)
    assert [r["title"] for r in rows(board) if not r["title"].endswith("?")] == []
    assert board["panels"][0]["type"] == "row"


@of_every_board
def test_every_panel_says_what_it_shows(board: Json) -> None:
    titles = [panel["title"] for panel in panels(board)]
    assert len(set(titles)) == len(titles)
    for panel in panels(board):
        assert panel["type"] in KINDS
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert len(panel["description"]) > len(panel["title"])
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert (panel["type"] == "table") >= (panel["fieldConfig"]["defaults"]["unit"] == "string")
        assert panel["targets"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def all_steps(panel: Json) -> list[list[Json]]:
    """The thresholds of a panel, and of each field of its own."""
    found = [panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
    for override in panel["fieldConfig"]["overrides"]:
        found += [p["value"]["steps"] for p in override["properties"] if p["id"] == "thresholds"]
    return found


@of_every_board
def test_thresholds_begin_with_null_and_ascend(board: Json) -> None:
    for steps in (steps for panel in panels(board) for steps in all_steps(panel)):
        assert steps[0]["value"] is None, "a base that is not null never gives way"
        values = [step["value"] for step in steps[1:]]
        assert all(isinstance(value, int | float) for value in values)
        assert all(a < b for a, b in pairwise(values))


def through_grafanas_types(board: Json) -> Json:
    """A board as Grafana's own SDK reads and writes it: keys that it does not know are gone."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        # It prefers boards of version 2, which Grafana 10 to 12 do not read.
        from grafana_foundation_sdk.models.dashboard import Dashboard

        register_default_plugins()  # without them options and queries pass unread
        back: Json = json.loads(JSONEncoder().encode(Dashboard.from_json(board)))
    return back


@of_every_board
def test_a_board_round_trips_through_grafanas_own_types(board: Json) -> None:
    assert lost(board, through_grafanas_types(board)) == []


@pytest.mark.parametrize("place", ["", "options", "fieldConfig.defaults.custom", "targets.0"])
def test_a_key_that_grafana_does_not_know_is_lost(place: str) -> None:
    board = json.loads(json.dumps(boards()["dgx-gpu"]))
    wrong = next(panel for panel in panels(board) if panel["type"] == "timeseries")
    for key in filter(None, place.split(".")):
        wrong = wrong[int(key) if key.isdigit() else key]  # type: ignore[index]
    wrong["mistyped"] = 1
    assert len(lost(board, through_grafanas_types(board))) == 1


def lost(ours: object, theirs: object, place: str = "") -> list[str]:
    """Keys and values that did not survive."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        gone = [f"{place}.{key}" for key in ours if key not in theirs]
        kept = ((key, value) for key, value in ours.items() if key in theirs)
        return gone + [e for key, value in kept for e in lost(value, theirs[key], f"{place}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        both = enumerate(zip(ours, theirs, strict=True))
        return [e for n, (a, b) in both for e in lost(a, b, f"{place}[{n}]")]
    return [] if ours == theirs else [f"{place}: {ours!r} became {theirs!r}"]


CHOICES = {
    "dgx-fleet": ("job", "cluster", "rack", "instance", "gpu"),
    "dgx-agent": ("job", "cluster", "rack", "instance"),
}
"""Variables of boards that begin with every node; the others begin with one."""
OF_NODES = "job", "cluster", "instance", "gpu"


@of_every_board
def test_variables_are_those_of_a_good_neighbour(board: Json) -> None:
    variables = {v["name"]: v for v in board["templating"]["list"]}
    assert list(variables) == ["datasource", *CHOICES.get(board["uid"], OF_NODES)]
    source = variables.pop("datasource")
    assert (source["type"], source["query"], source["label"]) == (
        "datasource",
        "prometheus",
        "Data source",
    )
    for name, variable in variables.items():
        assert variable["multi"]
        assert variable["includeAll"] is (name != "instance" or board["uid"] in CHOICES)
        assert variable["refresh"] == 2, "nodes come and go: read again with the time range"
        assert variable["datasource"]["uid"] == "${datasource}"
        assert ("current" in variable) is variable["includeAll"], "else with its first value"
        assert re.fullmatch(r"label_values\((dgx_\w+|up)(\{.*\})?, \w+\)", variable["query"])
    used = set(re.findall(r"\$(\w+)", " ".join(t.target["expr"] for t in of(board))))
    used |= set(re.findall(r"\$(\w+)", " ".join(v["query"] for v in variables.values())))
    assert set(variables) <= used


def all_of(variable: Json, values: list[str]) -> str:
    """Return the text that Grafana puts in a query for a variable with All chosen, as of version 10
    to 13."""
    return variable["allValue"] if "allValue" in variable else f"({'|'.join(values)})"


@of_every_board
def test_all_jobs_are_all_jobs_of_agents(board: Json) -> None:
    """`up` and `process_*` are of every target of Prometheus: node_exporter is no node of ours."""
    job = next(v for v in board["templating"]["list"] if v["name"] == "job")
    assert job["query"] == "label_values(dgx_agent_build_info, job)", "what no other target exports"
    chosen = all_of(job, ["dgx-telemetry", "slurm-agents"])
    assert re.fullmatch(chosen, "slurm-agents")
    assert not re.fullmatch(chosen, "node-exporter")
    instance = next(v for v in board["templating"]["list"] if v["name"] == "instance")
    assert instance["query"].startswith('label_values(up{job=~"$job"'), "dead ones too"


def of(board: Json) -> list[Asked]:
    return [asked for asked in queries() if asked.board == board["uid"]]


@of_every_board
def test_alerts_are_marked_and_boards_lead_to_each_other(board: Json) -> None:
    (annotation,) = board["annotations"]["list"]
    assert annotation["enable"]
    assert annotation["expr"].startswith('ALERTS{alertstate="firing",alertname=~"Dgx.+"')
    promql_parser.parse(plain(annotation["expr"]))
    (link,) = board["links"]
    assert (link["type"], link["tags"]) == ("dashboards", board["tags"])
    assert link["keepTime"]
    assert link["includeVars"]


LINK = re.compile(
    r"/d/([a-z-]+)\?\$\{__url_time_range\}&\$\{datasource:queryparam\}"
    r"&\$\{job:queryparam\}&\$\{cluster:queryparam\}(.*)"
)


def test_links_of_tables_lead_to_boards_with_time_and_place() -> None:
    urls = re.findall(r"'url': '(/[^']*)'", str(list(boards().values())))
    assert len(urls) >= 5
    for url in urls:
        match = LINK.fullmatch(url)
        assert match, url
        assert match[1] in boards()
        assert match[2].startswith("&var-instance=${__data.fields.instance}")
    assert set(boards()) == {f"dgx-{name}" for name in BOARDS}


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    return [selector for selector, _ in parsed_queries.selectors(plain(expr))]


def matchers(selector: promql_parser.VectorSelector) -> set[str]:
    return {matcher.name for matcher in selector.matchers.matchers}


@of_every_query
def test_a_query_names_what_the_agent_exports(asked: Asked) -> None:
    expr = asked.target["expr"]
    found = selectors(expr)
    series = r"\b[a-z_]+:dgx_[\w:]+|(?<!:)\b(?:dgx_|process_|scrape_|ALERTS|up\b)\w*"
    names = set(re.findall(series, expr))
    assert {selector.name for selector in found} == names, "the parser sees every metric"
    for selector in found:
        metric = METRICS[str(selector.name)]
        given = {"alertname", "alertstate"} if metric.name == "ALERTS" else set[str]()
        own = given.union(metric.labels)
        assert matchers(selector) >= TARGET_LABELS
        assert matchers(selector) <= own | TARGET_LABELS | {"cluster", "rack"}


@of_every_query
def test_labels_of_groups_and_legends_exist(asked: Asked) -> None:
    expr, legend = plain(asked.target["expr"]), asked.target["legendFormat"]
    known = {"cluster", "rack"} | TARGET_LABELS.union(
        *(METRICS[str(s.name)].labels for s in selectors(expr))
    )
    if "ALERTS" in expr:
        known |= {"gpu", "path", "device", "link", "direction", "xid"}
    known |= set(re.findall(r', "(\w+)", (?:"[^"]*", "\w*", "[^"]*"\)|"[/;]", )', expr))
    grouped = re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expr)
    asked_for = {label for group in grouped for label in group.split(", ") if label}
    assert asked_for <= known
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= known


@of_every_query
def test_counters_and_only_they_are_rated(asked: Asked) -> None:
    expr = asked.target["expr"]
    rated = set()
    said = f"{asked.panel['title']} {column_of(asked)} {asked.panel['description']}"
    windows = {"$__rate_interval", "$__range", *(["5m"] if "last 5 min" in said else [])}
    for name, window in re.findall(r"(?:rate|increase)\((\w+)\{[^}]*\}\[([^]]+)\]", expr):
        rated.add(name)
        assert window in windows, "windows follow the board, or are named"
    counters = {s.name for s in selectors(expr) if METRICS[str(s.name)].kind is Kind.COUNTER}
    exempt = {"dgx_gpu_remapped_rows_total", "dgx_gpu_retired_pages_total"}
    assert counters - rated <= exempt, "what counts over a GPU's life is shown as it stands"
    assert rated <= counters
    assert set(re.findall(r"\[(\d+[smhd])", expr)) <= windows


@of_every_query
def test_a_query_asks_the_chosen_source(asked: Asked) -> None:
    assert asked.target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert asked.panel["datasource"] == asked.target["datasource"]
    assert asked.target["instant"] is not asked.target["range"]
    assert "maxDataPoints" not in asked.panel, "100 points would make graphs coarse"


def limits(asked: Asked) -> list[Json]:
    """Overrides of the query's line."""
    return [
        override
        for override in asked.panel["fieldConfig"]["overrides"]
        if override["matcher"] == {"id": "byFrameRefID", "options": asked.target["refId"]}
    ]


def test_limits_are_queries_drawn_as_dashed_lines() -> None:
    named = [q for q in queries() if re.search(r"_limit_|_total_bytes\{", q.target["expr"])]
    drawn = [q for q in named if q.panel["type"] == "timeseries"]
    assert len(drawn) >= 10
    for asked in drawn:
        (override,) = limits(asked)
        properties = {p["id"]: p["value"] for p in override["properties"]}
        assert properties["custom.lineStyle"]["fill"] == "dash"
        assert properties["custom.fillOpacity"] == 0
        assert properties["custom.stacking"]["mode"] == "none"


def test_zeros_alone_do_not_fill_an_axis_of_their_own() -> None:
    """Left to itself, Grafana draws a share of 0 on an axis that ends at 10000 %."""
    graphs = [p for b in boards().values() for p in panels(b) if p["type"] == "timeseries"]
    for panel in graphs:
        defaults = panel["fieldConfig"]["defaults"]
        if defaults["unit"] in {"percentunit", "none"}:
            assert "max" in defaults or defaults["custom"]["axisSoftMax"] > 0, panel["title"]


def test_figures_have_no_more_decimals_than_they_mean() -> None:
    """Shares one, hours two; counts none, although `increase` makes 1.02 of one error."""
    figures = [q for q in queries() if q.panel["type"] in {"stat", "bargauge"} or column_of(q)]
    assert len(figures) >= 50
    for asked in figures:
        own = of_column(asked, "decimals") if column_of(asked) else None
        decimals = asked.panel["fieldConfig"]["defaults"].get("decimals") if own is None else own
        assert decimals == {"percentunit": 1, "none": 0, "short": 2}.get(unit_of(asked)), asked


@of_every_board
def test_a_panel_without_data_says_why_in_words(board: Json) -> None:
    for panel in panels(board):
        assert len(panel["fieldConfig"]["defaults"]["noValue"].split()) >= 3, panel["title"]


@of_every_board
def test_one_screen_comes_before_the_first_folded_row(board: Json) -> None:
    folded = min(row["gridPos"]["y"] for row in rows(board) if row["collapsed"])
    assert folded * (30 + 8) <= 1400, "pixels: Grafana's unit of height, and a margin"
