"""Faults of the configuration: files that the agent refuses, and a certificate that ends."""

from collections.abc import Iterator

from agent.faults.model import Fault, Look, Seen, node_fault
from agent.faults.promql import of, seconds
from agent.model import Figure
from agent.sources.agent_health import CERTIFICATE_ENDS, CONFIG_OK

SOON = seconds("14d")


def _ends(machine: Look) -> Iterator[Seen]:
    ends = machine.samples.value(CERTIFICATE_ENDS)
    if ends is not None and (left := ends - machine.snapshot.wall) < SOON:
        yield Seen(figures=(Figure("left", left, SOON, "seconds"),))


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
    node_fault(
        alert="DgxAgentCertificateExpiring",
        kind="certificate_ends",
        when=f"{CERTIFICATE_ENDS} - time() < {SOON:.0f}",
        look=_ends,
        hold="5m",
        summary="TLS certificate ends soon",
        sentence=("the TLS certificate of the agent has {left:duration} left (limit 14 d)",),
        figure="left",
        unit="seconds",
        do="Renew it: write certificate and key to the files that web_config_file names. The agent "
        "serves them within seconds.",
    ),
)
