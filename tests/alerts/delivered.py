"""The texts of all alerts as they arrive: rendered by promtool from the shortest case of each rule,
sent by a running Alertmanager to a webhook, to Slack and by mail.

    python -m tests.alerts.delivered    # each message, as Slack shows it
"""

import email
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from email.policy import default
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

from agent.config.settings import Settings
from agent.stack import programs
from agent.stack.programs import choose
from alerts.build import alertmanager
from alerts.receivers import Receivers
from tests.alerts.test_rules import cases
from tests.stack.daemons import FREE, answers, started
from tests.stack.receivers import Inbox, mailbox, webhook
from tests.stack.running import eventually
from tests.support.alert_input import SYSTEMS, Case, group
from tests.support.alert_replay import rules_of, run_promtool
from tests.support.patience import PATIENCE

Texts = Mapping[str, str]

FIRING = [case for case in cases(SYSTEMS[0]) if case.fires]
OF_GPU = ("gpu", "uuid")
BY_KIND = {
    (case.alert, *sorted(pair for pair in labels.items() if pair[0] not in OF_GPU)): case
    for case in sorted(FIRING, key=lambda case: -max(map(len, case.series.values())))
    for labels in case.fires
}
SHORTEST = {f"{case.alert}: {case.title}": case for case in BY_KIND.values()}
"""The shortest case of each rule that fires, by its title in the answer of promtool."""

SELDOM, SELDOMER = 4, 12
"""Samples to an evaluation: a text has the last alone. The second is of cases that last for hours,
with a sample each two minutes."""
OFTEN = {
    *("wholly, since five minutes", "scraped every 120 s, over a quarter"),
    "half of six hours observed",
}
"""Cases that are too short for that."""

PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
RANKS = ("critical", "warning", "info", "none")


class Fired(NamedTuple):
    """An alert that fires: its labels and annotations."""

    labels: Texts
    annotations: Texts


class Message(NamedTuple):
    """A message about an alert, on each way."""

    alert: Fired  # as the webhook has it
    title: str  # of Slack, and the subject of the mail
    text: str
    mail: str


def rendered(cases: Iterable[Case], folder: Path) -> dict[str, list[Fired]]:
    """The alerts of each case by its title: promtool shows those that a test did not expect."""
    alike: dict[tuple[str, int, int], list[Case]] = {}
    for case in cases:
        apart = 1 if case.title in OFTEN else SELDOMER if case.every == 120 else SELDOM
        alike.setdefault((case.alert, case.every, apart), []).append(case)
    tests = []
    for (alert, every, apart), same in sorted(alike.items()):
        (folder / f"{alert}.yaml").write_text(rules_of({alert}, texts=True))
        content = {
            "rule_files": [f"{alert}.yaml"],
            "evaluation_interval": f"{apart * every}s",
            "tests": [group(case._replace(fires=()), apart) for case in same],
        }
        tests.append(content)
    found: dict[str, list[Fired]] = {}
    title, labels = "", dict[str, str]()
    for line in run_promtool(folder, *tests).splitlines():
        if named := re.match(r"\s*name: (.*),$", line):
            title = named[1]
        pairs = {name: json.loads(text) for name, text in PAIR.findall(line)}
        if "Labels:{" in line:
            labels = pairs
        elif "Annotations:{" in line:
            found.setdefault(title, []).append(Fired(labels, pairs))
    return found


def delivered(alerts: Iterable[Fired], folder: Path) -> list[Message]:
    """The messages about alerts, each by itself: in a cluster of its own."""
    named = enumerate(alerts)
    sent = [Fired({"cluster": f"c{n}", **one.labels}, one.annotations) for n, one in named]
    with ExitStack() as stack:
        inbox = stack.enter_context(webhook())
        smtp, address = stack.enter_context(mailbox(inbox)), f"http://127.0.0.1:{inbox.port}"
        (folder / "slack").write_text(f"{address}/slack")
        ways = Receivers(
            webhook_url=f"{address}/alerts",
            watchdog_url=f"{address}/watchdog",
            slack_url_file=f"{folder}/slack",
            slack_channel="#x",
            email_to="operator@example.com",
            email_from="dgx@example.com",
            email_smarthost=f"127.0.0.1:{smtp}",
            email_tls=False,
        )
        text = alertmanager(Settings(ways), 1 / 60)["alertmanager.yaml"]
        (folder / "alertmanager.yaml").write_text(text)
        program = programs.server_program("alertmanager", choose(FREE).alertmanager, folder)
        stack.enter_context(started(program, folder / "alertmanager.log"))
        eventually(lambda: answers(program), "Alertmanager is ready")
        body = json.dumps([one._asdict() for one in sent]).encode()
        kind = {"Content-Type": "application/json"}
        urlopen(Request(f"{program.address}api/v2/alerts", body, kind), timeout=PATIENCE).close()
        watched = [one for one in sent if one.labels["severity"] != "none"]
        eventually(lambda: _arrived(inbox, len(watched), len(sent)), "every message")
        parsed = [email.message_from_string(mail, policy=default) for mail in inbox.mails]
        mails = [part.get_content() for one in parsed if (part := one.get_body(("plain",)))]
    return [_message(inbox, mails, one) for one in sent]


def _arrived(inbox: Inbox, watched: int, sent: int) -> bool:
    clusters = {one.labels["cluster"] for one in list(inbox.deliveries)}
    return len(clusters) == sent and min(len(inbox.slack), len(inbox.mails)) >= watched


def _says(text: str, description: str) -> bool:
    """Another description may begin alike."""
    return text.partition("\n")[0].strip() == description


def _message(inbox: Inbox, mails: Sequence[str], alert: Fired) -> Message:
    arrived = next(d for d in inbox.deliveries if d.labels["cluster"] == alert.labels["cluster"])
    description = arrived.annotations["description"]
    slack = next((s for s in inbox.slack if _says(s["text"], description)), {})
    mail = next((text for text in mails if _says(text, description)), "")
    shown = Fired(arrived.labels, arrived.annotations)
    return Message(shown, slack.get("title", ""), slack.get("text", ""), mail)


def all_messages(texts: Mapping[str, Iterable[Fired]], folder: Path) -> list[Message]:
    """The message of each rule, the gravest first, from the alerts of its case by title."""
    fired = {one.annotations["description"]: one for title in SHORTEST for one in texts[title]}
    messages = delivered(fired.values(), folder)
    return sorted(messages, key=lambda one: _rank(one.alert.labels))


def _rank(labels: Texts) -> tuple[Any, ...]:
    return RANKS.index(labels["severity"]), labels["alertname"], labels.get("sign", "")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        texts = rendered(SHORTEST.values(), Path(folder))
        for message in all_messages(texts, Path(folder)):
            print(f"{'=' * 80}\n{message.title or message.alert.labels['alertname']}")
            print(f"({message.alert.annotations['summary']})\n")
            print(message.text.rstrip() or message.alert.annotations["description"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
