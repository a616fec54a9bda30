"""Alert receivers: the `[alertmanager]` table. Secrets are only referenced by file name."""

from collections.abc import Mapping
from typing import Any

from agent.config.settings import Section
from agent.faults.thresholds import Email, SecretFile, Smarthost, Url, Word
from agent.metrics import beside


class Receivers(Section, frozen=True):
    """Settings of the receivers. Empty settings disable a receiver, and secrets are in files."""

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
NEEDS: dict[str, list[str]] = _MESSAGE["needs"]
"""Settings, and the other settings that each of them requires."""


def missing(receivers: Receivers) -> str:
    """Return a description of the first incomplete setting, or an empty string if there is none."""
    for key, needed in NEEDS.items():
        lacking = [name for name in needed if not getattr(receivers, name)]
        if getattr(receivers, key) and lacking:
            names = " and ".join(f"alertmanager.{name}" for name in lacking)
            return f"alertmanager.{key} needs {names}"
    return ""


def webhook(url: str, token_file: str) -> dict[str, Any]:
    """Return a webhook configuration. Only a token is read from a file, because Alertmanager 0.25
    cannot read URLs from files."""
    if not token_file:
        return {"url": url}
    return {"url": url, "http_config": {"authorization": {"credentials_file": token_file}}}


def _email(r: Receivers) -> dict[str, Any]:
    account = {"auth_username": r.email_username, "auth_password_file": r.email_password_file}
    return {
        "to": r.email_to,
        "from": r.email_from,
        "smarthost": r.email_smarthost,
        "require_tls": r.email_tls,
        "send_resolved": True,
        **(account if r.email_username else {}),
        "headers": {"subject": SUBJECT},
        "text": TEXT,
        "html": "",
    }


SUBJECT: str = _MESSAGE["subject"]
TEXT: str = _MESSAGE["text"].replace("KIND", _MESSAGE["kind"])


def ways(r: Receivers, *, page: bool) -> Mapping[str, list[dict[str, Any]]]:
    """Return the notification integrations of a receiver, with PagerDuty only if `page` is true."""
    found: dict[str, list[dict[str, Any]]] = {}
    if r.webhook_url:
        found["webhook_configs"] = [webhook(r.webhook_url, r.webhook_token_file)]
    if r.email_to:
        found["email_configs"] = [_email(r)]
    if r.slack_url_file:
        slack = {"api_url_file": r.slack_url_file, "channel": r.slack_channel}
        words = {"title": SUBJECT, "text": TEXT, "send_resolved": True}
        found["slack_configs"] = [slack | words]
    if r.pagerduty_key_file and page:
        found["pagerduty_configs"] = [
            {"routing_key_file": r.pagerduty_key_file, "description": SUBJECT}
        ]
    return found
