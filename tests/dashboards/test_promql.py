"""Expressions of the boards' files become Grafana's."""

import pytest

from dashboards.promql import scoped


def test_a_wrong_query_is_refused_while_it_is_written() -> None:
    with pytest.raises(ValueError, match="no metric"):
        scoped("rate(dgx_gpu_power_wats[1m])")
    with pytest.raises(ValueError, match="no label"):
        scoped('dgx_gpu_power_watts{state="busy"}')
    with pytest.raises(ValueError, match="no definition"):
        scoped("TIEM", {"TIME": "up"})
    with pytest.raises(ValueError, match="no matchers"):
        scoped('TIME{state="busy"}', {"TIME": "up"})


def test_a_name_that_a_board_defines_takes_matchers_through_other_names() -> None:
    names = {
        "TIME": "sum by (gpu) (SECONDS{*})",
        "SECONDS": "increase(dgx_gpu_state_seconds_total{*}[1m])",
        "BAD": 'state="hung"',
    }
    places = 'job=~"$job",cluster=~"$cluster",instance=~"$instance",gpu=~"$gpu"'
    for asked, matchers in (("TIME", ""), ("TIME{BAD}", ',state="hung"')):
        metric = f"dgx_gpu_state_seconds_total{{{places}{matchers}}}"
        assert scoped(asked, names) == f"sum by (gpu) (increase({metric}[1m]))"
