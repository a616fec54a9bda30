"""One line an event, whatever the values hold."""

import json
import logging

from agent.journal import Json, Logfmt

ODD = 'ValueError: bad "thing" in key=5\nand \\ more'


def record() -> logging.LogRecord:
    args = ("gpu", 3, ODD)
    return logging.LogRecord(
        "agent.x", logging.ERROR, "", 0, 'event=failed source=%s n=%d error="%s"', args, None
    )


def test_logfmt_keeps_to_one_line_and_escapes() -> None:
    line = Logfmt().format(record())
    assert "\n" not in line
    assert r'error="ValueError: bad \"thing\" in key=5 and \\ more"' in line


def test_json_gives_the_value_back() -> None:
    entry = json.loads(Json().format(record()))
    assert entry["error"] == ODD.replace("\n", " ")
    assert (entry["source"], entry["n"]) == ("gpu", "3")
    assert "key" not in entry
