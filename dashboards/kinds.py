"""The kinds of panels: time series, figure, bars."""

from collections.abc import Mapping, Sequence

from dashboards.board import Json, Panel
from dashboards.colours import NEUTRAL, WELL, Steps
from dashboards.queries import Query, Value

REDUCED: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}

LEAST: Mapping[str, float] = {"percentunit": 0.1, "none": 4.0}
"""Smallest range of an axis, by its unit: Grafana's, of zeros alone, goes to 100 (10000 %)."""

DECIMALS: Mapping[str, int] = {"percentunit": 1, "none": 0}
"""Of figures, by their unit: 0.0193 % is no news, and `increase` makes 1.02 of one error."""

BARS: Json = {
    "sizing": "manual",
    "minVizHeight": 14,
    "maxVizHeight": 26,
    "minVizWidth": 8,
    "namePlacement": "left",
    "text": {"valueSize": 14},
}
"""In pixels: by itself, a bar and its text fill the room that there is, in each panel another."""


def graph(
    title: str,
    about: str,
    *queries: Query,
    stacked: bool = False,
    whole: bool = False,
    steps: Steps = NEUTRAL,
    overrides: Sequence[Json] = (),
    empty: str = "",
    named: bool = True,
    every: str = "",
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Lines over time, or areas on each other; `whole`: a share, on an axis that goes to 1.

    `named`: below them a legend; where there would be a hundred names, the tooltip reports them.
    `every` is the least time between two points, for what the agent reads less often than it is
    scraped: with it the window of `rate` grows.
    """
    units = {query.value.unit for query in queries}
    if len(units) > 1:
        raise ValueError(f"{title}: one axis has one unit, not {sorted(units)}")
    (unit,) = units
    # Stacked shares sum to 1, and a trifle more by rounding; a path can carry more than its limit.
    ends: Json = {"min": 0, "max": 1} if whole and stacked else {"min": 0}
    if unit == "none":
        ends["decimals"] = 0
    custom = {**_lines(stacked), "axisSoftMax": 1.0 if whole else LEAST.get(unit)}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": named, "calcs": []}
    return Panel(
        "timeseries",
        title,
        about,
        queries,
        width,
        height,
        steps,
        empty,
        defaults={"color": {"mode": "palette-classic"}, "custom": custom, **ends},
        options={"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}},
        overrides=overrides,
        every=every,
    )


def _lines(stacked: bool) -> Json:
    return {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 80 if stacked else 0,  # eight areas over each other are mud
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "axisSoftMin": 0,
    }


def stat(
    title: str,
    about: str,
    value: Value,
    steps: Steps = NEUTRAL,
    *,
    empty: str = "",
    legend: str = "",
    width: int = 4,
    height: int = 4,
    fields: Mapping[str, object] | None = None,
) -> Panel:
    """One figure, or one for each series, coloured by how bad it is."""
    return Panel(
        "stat",
        title,
        about,
        [Query(value, legend)],
        width,
        height,
        steps,
        empty,
        instant=True,
        defaults={"color": {"mode": "thresholds"}, **decimals(value), **(fields or {})},
        options={
            "reduceOptions": REDUCED,
            "orientation": "auto",
            "textMode": "auto",
            "colorMode": "background_solid" if steps not in (NEUTRAL, WELL) else "none",
            "graphMode": "none",
            "justifyMode": "center",
        },
    )


def bars(
    title: str,
    about: str,
    query: Query,
    steps: Steps = NEUTRAL,
    *,
    empty: str = "",
    ends: Json | None = None,
    overrides: Sequence[Json] = (),
    width: int = 12,
    height: int = 8,
) -> Panel:
    """A bar for each series, as things stand now or over all that the board shows."""
    return Panel(
        "bargauge",
        title,
        about,
        [query],
        width,
        height,
        steps,
        empty,
        instant=True,
        defaults={
            "color": {"mode": "thresholds"},
            **decimals(query.value),
            **({"min": 0, "max": 1} if ends is None else ends),
        },
        options={
            "reduceOptions": REDUCED,
            "orientation": "horizontal",
            "displayMode": "basic",
            "valueMode": "text",  # in the colour of text: of its bar it could not be read
            "showUnfilled": True,
            **BARS,
        },
        overrides=overrides,
    )


def decimals(value: Value) -> Json:
    """Return the number of decimals of a figure, for units that alone would show too many."""
    return {"decimals": DECIMALS[value.unit]} if value.unit in DECIMALS else {}


def override(name: str, properties: Mapping[str, object]) -> Json:
    """Properties of one field, by its name."""
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


def words(*names: tuple[int, str, str]) -> Json:
    """Return the word and the colour of each number."""
    return {
        str(n): {"text": text, "color": colour, "index": place}
        for place, (n, text, colour) in enumerate(names)
    }
