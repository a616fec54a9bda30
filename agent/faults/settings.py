"""Faults of what people configure: files that the agent refuses, and a certificate that ends."""

from agent.faults.model import Fault, node_fault
from agent.faults.promql import seconds
from agent.faults.templates import COUNT
from agent.faults.templates import NODE as MACHINE
from agent.sources.agent_health import CERTIFICATE_ENDS, CONFIG_OK

SETTINGS_FAULTS: tuple[Fault, ...] = (
    node_fault(
        alert="DgxAgentReloadFailed",
        when=f"{CONFIG_OK} == 0",
        hold="1m",
        summary="new configuration refused, the old one holds",
        description=f"The agent on {MACHINE} was given a configuration that it refused "
        f"(successful: {COUNT}, limit 1), and goes on with the old one.",
        do="journalctl -u dgx-telemetry names key and line; correct it, and systemctl reload "
        "dgx-telemetry.",
    ),
    node_fault(
        alert="DgxAgentCertificateExpiring",
        when=f"{CERTIFICATE_ENDS} - time() < {seconds('14d'):.0f}",
        hold="5m",
        summary="TLS certificate ends soon",
        description=f"The TLS certificate of the agent on {MACHINE} ends in "
        "{{ $value | humanizeDuration }} (limit 14d).",
        do="Renew it: write certificate and key to the files that web_config_file names. The agent "
        "serves them within seconds.",
    ),
)
