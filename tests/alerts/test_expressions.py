"""Properties of the rules that need no evaluation: names, labels, ranges, texts, scale."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from agent.catalogue import EXPORTED
from agent.cli.options import SECTIONS
from agent.config.configuration import ConfigError, load
from agent.config.settings import Settings
from agent.faults.model import Fault, alert_names
from agent.faults.promql import Recording, seconds, span
from agent.faults.thresholds import AlertThresholds, RuleParameters
from agent.model import Kind
from alerts.build import alert_rule, alertmanager, alerts_of, groups, rules
from alerts.templates import described, sentence_of
from tests.alerts.test_rules import cases
from tests.stack.running import run_to_end
from tests.support.alert_input import SCRAPE, SYSTEMS, TARGET
from tests.support.each import of_each
from tests.support.parsed_queries import selectors, walk

ALERTS = alerts_of(groups(Settings()))
RECORDS = [record for part in groups(Settings()) for record in part.records]
RULES: list[Fault | Recording] = [*ALERTS, *RECORDS]
RECORDED = {str(rule) for rule in RECORDS}
METRICS = {metric.name: metric for metric in EXPORTED}
OF_TARGETS = {"up", "process_start_time_seconds", "prometheus_rule_evaluation_failures_total"}
OF_TARGETS |= {f"vmalert_{kind}_rules_error" for kind in ("alerting", "recording")}
OF_FLEETS = {"cluster", "rack", "node"}
"""Labels that a target may have."""
LABELS = OF_FLEETS | {*TARGET, "drained", "rule_group", "group", "started", "twin"}
LABELS |= {label for metric in EXPORTED for label in metric.labels}


def by_title(rule: Fault | Recording) -> str:
    sign = dict(rule.labels).get("sign", rule.severity) if isinstance(rule, Fault) else ""
    return f"{rule.alert}-{sign}" if isinstance(rule, Fault) else str(rule)


of_every_rule = of_each(RULES, by_title)
of_every_alert = of_each(ALERTS, by_title)


@of_every_rule
def test_metrics_and_their_labels_exist(rule: Fault | Recording) -> None:
    found = list(selectors(rule.expr))
    assert found or rule.expr == "vector(1)"
    for selector, _ in found:
        if selector.name is None:  # several families: at least one of this pattern exists
            (names,) = selector.matchers.matchers
            assert (names.name, any(re.fullmatch(names.value, n) for n in METRICS)) == (
                "__name__",
                True,
            )
            continue
        assert selector.name in METRICS or selector.name in RECORDED | OF_TARGETS
        metric = METRICS.get(str(selector.name))
        allowed = {*TARGET, *metric.labels} if metric else LABELS
        assert {m.name for m in selector.matchers.matchers} <= allowed, selector.name


@of_every_rule
def test_labels_that_are_matched_or_grouped_by_exist(rule: Fault | Recording) -> None:
    for _, inside in re.findall(r"\b(on|by|ignoring|without|group_left)\s*\(([^)]*)\)", rule.expr):
        assert {label.strip() for label in inside.split(",") if label.strip()} <= LABELS


FOR_LIFE = {"dgx_gpu_remapped_rows_total", "dgx_gpu_retired_pages_total"}
"""Counters that a GPU keeps for its whole life, and of which it can bear so many."""

FROM_SAMPLE_TO_SAMPLE = re.compile(r"^(\w+\{[^}]*\}) - \(?last_over_time\(\1\[\w+\] offset \w+\)")
WHAT_WAS_THERE = ("last_over_time", "count_over_time")


@of_every_rule
def test_a_counter_is_read_as_growth(rule: Fault | Recording) -> None:
    """Or asked only whether it is there, or above 0: by group, by `> 0`, by `* 0`, and by unless
    with an offset. Records of reports
    take the growth since the sample before: what increase shows at the ends of a window is a guess.
    """
    for selector, above in selectors(rule.expr):
        metric = METRICS.get(str(selector.name))
        if metric is None or metric.kind is not Kind.COUNTER:
            continue
        whole = [n for n in above if not isinstance(n, promql.ParenExpr)]
        nearest = whole[0]
        if isinstance(nearest, promql.MatrixSelector):
            assert isinstance(whole[1], promql.Call)
            there = whole[1].func.name in (*WHAT_WAS_THERE, "max_over_time")
            asked = there and any(re.search(r" unless |^group ", str(node)) for node in whole[2:])
            asked |= metric.name in FOR_LIFE and there
            in_report = any(FROM_SAMPLE_TO_SAMPLE.search(str(node)) for node in whole[2:])
            assert asked or in_report or whole[1].func.name in ("rate", "increase", "changes")
        else:
            assert (
                metric.name in FOR_LIFE
                or " unless " in str(nearest)
                or any(str(node).startswith("group ") for node in whole)
                or str(nearest).endswith((" > 0", " * 0"))
                or any(FROM_SAMPLE_TO_SAMPLE.search(str(node)) for node in whole)
            )


@of_every_rule
def test_growth_is_asked_of_counters_only(rule: Fault | Recording) -> None:
    for node, above in walk(promql.parse(rule.expr)):
        if isinstance(node, promql.MatrixSelector):
            call = next(n for n in above if isinstance(n, promql.Call))
            name = str(node.vector_selector.name)
            if name in OF_TARGETS:
                averaged = ("max_over_time", "avg_over_time", "increase", "changes")
                assert call.func.name in (*WHAT_WAS_THERE, *averaged)
                continue
            if name in RECORDED:
                assert call.func.name in (*WHAT_WAS_THERE, "max_over_time")
                continue
            metric = METRICS[name]
            growth = call.func.name in ("rate", "increase")
            known = call.func.name in (*WHAT_WAS_THERE, "changes", "max_over_time")
            assert known or growth == (metric.kind is Kind.COUNTER), f"{call.func.name} of {metric}"
            assert call.func.name != "holt_winters"  # gone in Prometheus 3


@of_every_rule
def test_a_range_holds_four_scrapes(rule: Fault | Recording) -> None:
    for node, _ in walk(promql.parse(rule.expr)):
        if isinstance(node, promql.MatrixSelector):
            assert node.range.total_seconds() >= 4 * SCRAPE


@of_every_rule
def test_a_pattern_says_more_than_anything(rule: Fault | Recording) -> None:
    """PromQL anchors patterns by itself; one that matches nothing at all is a mistake."""
    for selector, _ in selectors(rule.expr):
        for matcher in selector.matchers.matchers:
            if matcher.op in (promql.MatchOp.Re, promql.MatchOp.NotRe):
                assert not re.fullmatch(matcher.value, "")


@of_every_alert
def test_labels_in_texts_exist_in_what_fires(rule: Fault) -> None:
    used = set(
        re.findall(
            r"(?<!with )\$labels\.(\w+)",
            f"{rule.rule and rule.rule.summary}{sentence_of(rule)}{described(rule)}",
        )
    )
    own = {"severity": str(rule.severity), **rule.labels}
    fired = [
        {k for k, v in {**TARGET, **labels}.items() if v}
        for case in cases(SYSTEMS[0])
        for labels in case.fires
        if case.alert == rule.alert and own.items() <= labels.items()
    ]
    assert fired
    assert all(used <= labels for labels in fired), used


@of_every_alert
def test_a_text_says_where_how_much_and_what_to_do(rule: Fault) -> None:
    summary = alert_rule(rule, RuleParameters(AlertThresholds()))["annotations"]["summary"]
    for label in ("instance", "gpu"):  # woken by one line, somebody knows where to look
        assert f"$labels.{label}" not in described(rule) or f"$labels.{label}" in summary
    assert re.sub(r"{{.*?}}", "", described(rule)).rstrip().endswith(".")
    of_many = {"no_target", "rack"}
    if rule.severity != "none" and dict(rule.labels).get("sign") not in of_many:
        assert "$labels.instance" in described(rule)
    by_itself = {"silence", "no_target", "ticks"}  # their figure is how long it held
    flag = not rule.figure or rule.alert == "DgxGpuHot"  # its limit is the GPU's own
    if rule.severity != "none" and rule.labels.get("sign") not in by_itself and not flag:
        assert "$value" in described(rule) or "| value" in described(rule)


@of_every_alert
def test_a_runbook_section_belongs_to_it(rule: Fault) -> None:
    url = alert_rule(rule, RuleParameters(AlertThresholds(runbook="https://wiki/x")))[
        "annotations"
    ]["runbook_url"]
    assert url == f"https://wiki/x#{rule.alert.lower()}"
    assert rule.alert in alert_names()


def test_the_runbook_speaks_of_no_other_alert() -> None:
    assert alert_names() == {rule.alert for rule in ALERTS}


def test_thresholds_of_the_configuration_reach_the_rules() -> None:
    own = AlertThresholds(starved_share=0.4, starved_window="20m", hot_margin=3.0, nvlink_errors=9)
    text = " ".join("".join(rules(Settings(own)).values()).split())
    for piece in (">= 0.4", "[20m]", "ratio_rate20m", "limit 40%", ")) <= 3", ">= 9"):
        assert piece in text


SPANS = re.compile(r"(?<=\[)\d+[a-z]+(?=[\]:])|(?<=:)\d+\w+(?=\])|(?<=offset )\w+")

AGE = re.compile(
    r"(?<=_seconds\) <= )[\d.]+|(?<=\]\)\) <= )[\d.]+"
    r"|(?<=_seconds_total\[T\]\) >= )[\d.]+|(?<=_seconds_total\[T\]\)\) >= )[\d.]+"
    r"|(?<=offset T\) >= )[\d.]+|(?<=\"\}\[T\]\) >= )[\d.]+"
)
"""Of a sample, or of the part of a window that must have been observed, in seconds."""


def test_scale_changes_ranges_and_holds_and_nothing_else() -> None:
    scale = 1 / 60
    usual, faster = rules(Settings()), rules(Settings(), scale)
    for name, text in usual.items():
        whole, scaled = yaml.load(text, yaml.CSafeLoader), yaml.load(faster[name], yaml.CSafeLoader)
        both = (text["groups"][0]["rules"] for text in (whole, scaled))
        for rule, other in zip(*both, strict=True):
            before = [*SPANS.findall(rule["expr"]), rule.pop("for", "0s")]
            after = [*SPANS.findall(other["expr"]), other.pop("for", "0s")]
            at_scale = [seconds(s) * scale for s in before]
            assert at_scale == pytest.approx([seconds(s) for s in after], abs=0.001)
            slower = r"\((rate\([^()]*\)) \* 0.0166666667\)"  # a rate is in seconds of the clock
            other["expr"], rates = re.subn(slower, r"\1", other["expr"])
            assert rates == len(re.findall(r"\brate\(", rule["expr"]))
            for one in (rule, other):  # texts query ranges too
                one["expr"] = AGE.sub("T", SPANS.sub("T", one["expr"]))
                texts = one.get("annotations", {})
                texts |= {name: SPANS.sub("T", text) for name, text in texts.items()}
            assert rule == other


@pytest.mark.parametrize("text", ["15m", "90s", "1h", "1d", "250ms", "61m"])
def test_spans_are_written_as_they_are_read(text: str) -> None:
    assert span(seconds(text)) == text


OWN = AlertThresholds(
    starved_window="1h", held_window="1h", event_window="2h", runbook="https://x/y"
)


@pytest.mark.promtool
@pytest.mark.parametrize(
    ("config", "scale"),
    [(Settings(), 1.0), (Settings(), 1 / 60), (Settings(OWN), 1.0)],
    ids=["default", "scaled", "own thresholds"],
)
def test_promtool_accepts_them(config: Settings, scale: float, tmp_path: Path) -> None:
    for name, text in rules(config, scale).items():
        (tmp_path / name).write_text(text)
    files = sorted(tmp_path.iterdir())
    done = run_to_end(["promtool", "check", "rules", "--lint=all", "--lint-fatal", *files])
    assert done.returncode == 0, done.stdout + done.stderr


UNIT = "{{ $labels.gpu }}"
STARVED = "[alerts]\nstarved_share = 0.4\n[alerts.DgxGpuStarved]\n"


def configured(folder: Path, text: str) -> Settings:
    path = folder / "config.toml"
    path.write_text(text)
    return load(SECTIONS, path, {})


def alerts(settings: Settings, scale: float = 1.0) -> list[dict[str, Any]]:
    files = (yaml.load(text, yaml.CSafeLoader) for text in rules(settings, scale).values())
    found = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return [rule for rule in found if "alert" in rule]


def named(settings: Settings, name: str, scale: float = 1.0) -> list[dict[str, Any]]:
    return [rule for rule in alerts(settings, scale) if rule["alert"] == name]


def test_a_rule_is_dropped_and_no_other(tmp_path: Path) -> None:
    before, after = (
        alerts(Settings()),
        alerts(configured(tmp_path, "[alerts.DgxGpuHot]\nenabled = false\n")),
    )
    assert after == [rule for rule in before if rule["alert"] != "DgxGpuHot"]


def test_all_rules_of_an_alert_are_changed_beside_the_thresholds(tmp_path: Path) -> None:
    text = f'{STARVED}for = "5m"\nseverity = "critical"\nlabels = {{ u = "{UNIT}" }}\n'
    settings = configured(tmp_path, text)
    assert settings[AlertThresholds].starved_share == 0.4
    usual, changed = named(Settings(), "DgxGpuStarved"), named(settings, "DgxGpuStarved")
    assert len(changed) == len(usual) > 1
    for before, after in zip(usual, changed, strict=True):
        assert after["for"] == "5m"
        assert after["labels"] == {**before["labels"], "severity": "critical", "u": UNIT}
    assert any(">= 0.4" in rule["expr"] for rule in changed)
    assert {rule["for"] for rule in named(settings, "DgxGpuStarved", 1 / 60)} == {"5s"}
    assert alertmanager(settings) == alertmanager(Settings())


def test_at_once(tmp_path: Path) -> None:
    rule, _ = named(configured(tmp_path, '[alerts.DgxPcieReplays]\nfor = "0s"\n'), "DgxPcieReplays")
    assert "for" not in rule


WRONG = tomllib.loads(Path(__file__).with_name("patches.toml").read_text("utf-8"))["wrong"]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, text)
    message = str(refused.value).removeprefix(f"{tmp_path}/config.toml: ")
    assert message.startswith(WRONG[text])
    assert "\n" not in message


def test_build_refuses_an_alert_that_there_is_not(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("[alerts.DgxGpuStarving]\nenabled = false\n")
    command = [sys.executable, "-m", "agent", "build", f"{tmp_path}/out", "--config", f"{path}"]
    end = run_to_end(command)
    assert end.returncode == 2
    assert "alerts.DgxGpuStarving is not a known key" in end.stderr
    assert not (tmp_path / "out").exists()
