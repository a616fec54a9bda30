"""Receivers of alerts, from the `[alertmanager]` table. It names files that contain secrets."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from agent.config.configuration import ConfigError
from agent.config.settings import Section
from agent.faults.thresholds import Email, SecretFile, Smarthost, Url, Word
from agent.metrics import beside


class Receivers(Section, frozen=True):
    """Settings of receivers such as Slack. It is off if its first setting is empty."""

    table = "alertmanager"
    webhook_url: Url = ""  # not secret; the token is in a file
    webhook_token_file: SecretFile = ""
    watchdog_url: Url = ""  # a service that alerts when messages stop
    watchdog_token_file: SecretFile = ""
    email_to: Email = ""
    email_from: Email = ""
    email_smarthost: Smarthost = ""  # HOST:PORT
    email_username: Word = ""
    email_password_file: SecretFile = ""
    email_tls: bool = True
    slack_url_file: SecretFile = ""  # the URL of a Slack webhook is secret
    slack_channel: Word = ""
    pagerduty_key_file: SecretFile = ""


_MESSAGE = beside(__file__, "message")
TEXT: str = _MESSAGE["text"].replace("KIND", _MESSAGE["kind"])
ROUTES: dict[str, dict[str, str]] = _MESSAGE["routes"]
"""Alertmanager's routes by receiver: the severity of the alerts, and durations."""

NEEDS: dict[str, list[str]] = _MESSAGE["needs"]
"""The settings that a setting requires, by setting."""


def check(receivers: Receivers) -> None:
    """Raise ConfigError if a setting requires others that are empty."""
    for key, needed in NEEDS.items():
        lacking = [name for name in needed if not getattr(receivers, name)]
        if getattr(receivers, key) and lacking:
            names = " and ".join(f"alertmanager.{name}" for name in lacking)
            raise ConfigError(f"alertmanager.{key} needs {names}")


def ways(r: Receivers, receiver: str) -> dict[str, list[Any]]:
    """Return a receiver's integrations, such as Slack. Omit those with an empty first setting."""
    given = {**asdict(r), "subject": _MESSAGE["subject"], "text": TEXT}
    known = _MESSAGE["ways"]
    of_people = {} if receiver == "watchdog" else known["all"]
    wanted = {**of_people, **known.get(receiver, {})}
    filled = {kind: _filled(way, given) for kind, way in wanted.items()}
    return {kind: [way] for kind, way in filled.items() if next(iter(wanted[kind])) in way}


def _filled(template: Any, given: Mapping[str, Any]) -> Any:
    """Return a template filled in with the values of settings. Omit options without a value."""
    if isinstance(template, dict):
        filled = ((key, one, _filled(one, given)) for key, one in template.items())
        return {key: value for key, one, value in filled if value not in ("", {}) or one == ""}
    known = isinstance(template, str) and template.startswith("$")
    return given[template[1:]] if known else template
