"""The kinds of panels: time series, timeline, figure, bars."""

from collections.abc import Mapping, Sequence

from dashboards.board import Json, Panel
from dashboards.colours import NEUTRAL, WELL, Steps
from dashboards.queries import Query, Value

REDUCED: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def graph(
    title: str,
    about: str,
    *queries: Query,
    stacked: bool = False,
    whole: bool = False,
    steps: Steps = NEUTRAL,
    overrides: Sequence[Json] = (),
    empty: str = "",
    width: int = 12,
    height: int = 8,
) -> Panel:
    """Lines over time, or areas on each other; `whole` fixes the axis of a share to 0 and 1."""
    units = {query.value.unit for query in queries}
    if len(units) > 1:
        raise ValueError(f"{title}: one axis has one unit, not {sorted(units)}")
    custom: Json = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 0 if stacked else 1,
        "fillOpacity": 80 if stacked else 6,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "axisSoftMin": 0,
    }
    ends: Json = {"min": 0, "max": 1} if whole else {"min": 0}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
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
    )


def timeline(
    title: str, about: str, query: Query, mappings: Json, *, empty: str = "", height: int = 8
) -> Panel:
    """A bar of colours for each series; the mapping names each number and gives its colour."""
    return Panel(
        "state-timeline",
        title,
        about,
        [query],
        24,
        height,
        NEUTRAL,
        empty,
        defaults={
            "mappings": [{"type": "value", "options": mappings}],
            "color": {"mode": "thresholds"},
            "custom": {"fillOpacity": 85, "lineWidth": 0},
        },
        options={
            "mergeValues": True,
            "showValue": "auto",
            "alignValue": "left",
            "rowHeight": 0.85,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


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
        defaults={"color": {"mode": "thresholds"}, **(fields or {})},
        options={
            "reduceOptions": REDUCED,
            "orientation": "auto",
            "textMode": "auto",
            "colorMode": "background" if steps not in (NEUTRAL, WELL) else "value",
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
            **({"min": 0, "max": 1} if ends is None else ends),
        },
        options={
            "reduceOptions": REDUCED,
            "orientation": "horizontal",
            "displayMode": "basic",
            "valueMode": "color",
            "showUnfilled": True,
            "minVizHeight": 12,
            "namePlacement": "auto",
        },
        overrides=overrides,
    )


def override(name: str, properties: Mapping[str, object]) -> Json:
    """Properties of one field, by its name."""
    listed = [{"id": key, "value": value} for key, value in properties.items()]
    return {"matcher": {"id": "byName", "options": name}, "properties": listed}


def words(*names: tuple[int, str, str]) -> Json:
    """What a timeline says at each number, and in which colour."""
    return {
        str(n): {"text": text, "color": colour, "index": place}
        for place, (n, text, colour) in enumerate(names)
    }
