"""Faults of the configuration: files that the agent refuses, and a certificate that ends."""

from collections.abc import Iterator
from functools import partial

from agent.faults.model import Fault, Look, Seen, node_fault
from agent.faults.promql import of, seconds
from agent.model import Figure
from agent.sources.agent_health import CERTIFICATE_ENDS, CONFIG_OK

SOON = seconds("14d")


def _ends(machine: Look, *, expired: bool) -> Iterator[Seen]:
    ends = machine.samples.value(CERTIFICATE_ENDS)
    left = SOON if ends is None else ends - machine.snapshot.wall
    if left < SOON and (left < 0) is expired:
        yield Seen(figures=(Figure("time", abs(left), None, "seconds"),))


certificate = partial(
    node_fault,
    alert="DgxAgentCertificateExpiring",
    hold="5m",
    figure="time",
    unit="seconds",
    do="Renew it: write certificate and key to the files that web_config_file names. The agent "
    "serves them within seconds.",
)


SETTINGS_FAULTS: tuple[Fault, ...] = (
    node_fault(
        alert="DgxAgentReloadFailed",
        kind="reload_failed",
        when=of(CONFIG_OK).equals(0),
        hold="1m",
        summary="new configuration refused, the old one holds",
        sentence=("the agent refused its new configuration, and goes on with the old one",),
        do="`journalctl -u dgx-telemetry` names key and line; correct it, and `systemctl reload "
        "dgx-telemetry`.",
    ),
    certificate(
        kind="certificate_ends",
        when=f"({CERTIFICATE_ENDS} - time() >= 0) < {SOON:.0f}",
        look=partial(_ends, expired=False),
        labels={"sign": "ends"},
        summary="TLS certificate ends soon",
        sentence=("the TLS certificate of the agent ends in {time:duration} (limit 14 d)",),
    ),
    certificate(
        kind="certificate_expired",
        when=f"time() - {CERTIFICATE_ENDS} > 0",
        look=partial(_ends, expired=True),
        labels={"sign": "expired"},
        summary="TLS certificate has expired",
        sentence=(
            "the TLS certificate of the agent expired {time:duration} ago: a Prometheus that "
            "checks it gets no data",
        ),
    ),
)
