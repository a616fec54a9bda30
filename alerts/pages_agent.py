"""The runbook for whoever runs the monitoring."""

from alerts.page import Page

DOWN = Page(
    "DgxAgentDown",
    "Prometheus gets no answer from the agent (`sign` silence), or has no agent to ask (`sign` "
    "no_target). Nothing is known of the GPUs. While it lasts, other alerts of the machine are "
    "held back.",
    (
        "Is the machine up? `ping`, its service processor.",
        "`systemctl status dgx-telemetry`, `journalctl -u dgx-telemetry -n 50`, "
        "`curl -s localhost:9935/-/healthy` on the machine (its own `listen`; https with TLS).",
        "The page Targets of Prometheus shows the error: a firewall, a password, a name.",
    ),
    (
        "If the machine is down, start it. If it is up, `sudo systemctl restart dgx-telemetry`; "
        "its counters begin at 0 again.",
        "No target: look at the scrape configuration; its job is called dgx-telemetry.",
    ),
    "While the machine is maintained: drain it in Slurm, or list it below `[[drained]]` of the "
    "file that `dgx-telemetry inventory` reads; without an inventory silence its instance.",
)

BLIND = Page(
    "DgxAgentBlind",
    "The agent answers, but its values no longer change: its sources do not deliver (`sign` "
    "sources), some values have expired (`sign` values), or its loop has stopped (`sign` ticks). "
    "The usual reason is a hung driver, which hangs nvidia-smi too. A machine that never had a "
    "driver does not alert.",
    (
        "`nvidia-smi & sleep 15; jobs`: is it still running? (A process that the driver holds ends "
        "by no signal; `timeout` would wait for it too.)",
        "`dgx-telemetry check`, `journalctl -u dgx-telemetry -n 50`.",
        "`dgx_agent_source_up == 0` and `dgx_agent_absent_values` name what is missing and why.",
        "`sudo dmesg -T | tail -50`: XID 119 or 120, tasks blocked for more than 120 seconds.",
    ),
    (
        "If nvidia-smi hangs: the driver hangs, and cannot be unloaded. Drain the node and reboot "
        "it; if it does not come back within ten minutes, power cycle it through its service "
        "processor (BMC).",
        "If `check` says that nvmlInit ended a process: the driver's library is broken. Install "
        "the driver again; the agent finds it within ten minutes.",
        "If one source alone is down (disk, infiniband): `dgx-telemetry check` names its error.",
        "If nvidia-smi answers: `sudo systemctl restart dgx-telemetry`; if the alert comes back, "
        "attach `dgx-telemetry check --bundle /tmp/bundle.tar.gz` to a report.",
    ),
    "While a driver is being installed or updated; after `touch /run/dgx-telemetry-release-driver` "
    "it does not fire.",
)

WATCHDOG = Page(
    "DgxWatchdog",
    "Always fires, so that its silence can be noticed: Prometheus evaluates, and Alertmanager "
    "delivers.",
    ("Alertmanager's page shows it, with the receiver watchdog.",),
    (
        "Its silence raised the alarm: no other alert arrives now either. In this order: "
        "`systemctl status prometheus` and its page `/alerts` (is the watchdog firing?), "
        "`systemctl status prometheus-alertmanager` and `journalctl -u prometheus-alertmanager "
        "-n 50` (is a delivery refused?), then the network to the service.",
        "Until it is mended, look at the page `/alerts` of Prometheus now and then.",
        "When you set it up: `alertmanager.watchdog_url` is a service that raises the alarm when "
        "it hears nothing for five minutes.",
    ),
    "It is meant to fire; its silence is the alarm.",
)

RELOAD = Page(
    "DgxAgentReloadFailed",
    "The agent was asked to read its configuration anew, found it wrong, and goes on with the one "
    "that it had.",
    ("`journalctl -u dgx-telemetry | grep reload_failed` names the key.",),
    (
        "Nothing is lost: the agent works on as before. `dgx-telemetry check --config "
        "/etc/dgx-telemetry/config.toml` names the key that is wrong: mend it, or undo the last "
        "change of that file.",
        "`systemctl reload dgx-telemetry`: the alert ends within minutes.",
    ),
    "Never: after a restart the agent would not start with that file.",
)

CLOCK = Page(
    "DgxClockStepped",
    "Somebody, or the time service, set the machine's clock by a second or more. Logs and samples "
    "before and after do not fit each other; rates of the agent are not touched.",
    ("`timedatectl`, `chronyc tracking` or `ntpq -p`", "`journalctl -b | grep -i 'time has been'`"),
    (
        "`timedatectl`: is the clock synchronized, and right? Then nothing is to be done now.",
        "If not: `systemctl status chrony systemd-timesyncd ntpsec` shows which time service there "
        "is; start it (`sudo timedatectl set-ntp true`), and see that it reaches its servers "
        "(`chronyc sources`, `timedatectl timesync-status`).",
        "If the clock drifts though it runs: the battery of the board.",
    ),
    "Once, when a machine was set by hand.",
)

PAGES = (DOWN, BLIND, RELOAD, CLOCK, WATCHDOG)
