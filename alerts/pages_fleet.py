"""The runbook for whoever runs many nodes."""

from alerts.page import Page

NODE_MISSING = Page(
    "DgxNodeMissing",
    "Nodes that were there and are not. `sign` rack: half of a rack (two or more) does not answer; "
    "`sign` cluster: half of a cluster of several racks. That is one fault, of power, of a switch, "
    "or of the way to them, so DgxAgentDown of each node is held back. `sign` removed: Prometheus "
    "asks a node no more, for the inventory lists it no more; nothing is known to have failed.",
    (
        '`up{job="dgx-telemetry"} == 0`: which nodes; the page Targets of Prometheus shows the '
        "error of each (refused: the machine is up and the agent is not; timeout, no route: power "
        "or network).",
        "Service processors of the rack, the switch above it, its power distribution.",
        "Removed: the list that Prometheus reads (`file_sd`, `http_sd`), and who made it last.",
    ),
    (
        "rack, cluster: ask one of the nodes (`ssh NODE uptime`) and its service processor "
        "(`ipmitool -H BMC power status`). Neither answers: the switch, or power of the rack: call "
        "who runs them. The processor alone: the node has no power, or no network. Both answer: "
        "the agent, or the way from Prometheus to it.",
        "Repair the rack first. For each node that still does not answer DgxAgentDown fires.",
        "Jobs over these nodes hang or end: tell their owners, and drain the nodes.",
        "Removed by mistake: put it back; its series go on.",
    ),
    "While a rack is maintained: silence `cluster` and `rack`. A node that you took out: it is "
    "over within an hour.",
)

NODE_SLOW = Page(
    "DgxNodeSlow",
    "In a job over three nodes or more, one is slower than the middle one. `sign` waited_for: they "
    "work in step, and the GPUs of this node spend more of their time at work (or waiting for "
    "their own disks and cores) than those of the others, which wait for it in each step. `sign` "
    "steps: each goes at its own pace, and this node makes fewer steps. Nodes are joined by the "
    "job id of Slurm, which agents export only with `[job] info = true`.",
    (
        "`node_job:dgx_gpu_own_time:ratio_rate5m` and `instance_job:dgx_gpu_steps:rate5m` of the "
        "job: is it one node, and since when?",
        '`dgx_gpu_clock_hertz{clock="sm"}`, `dgx_gpu_throttle_seconds_total` and temperatures of '
        "that node beside those of another.",
        "`dgx_gpu_state_seconds_total` of that node: does it starve for something of its own?",
        "Ports and links of that node: DgxLinkDegraded, DgxPcieDegraded, DgxInfinibandErrors.",
    ),
    (
        "Drain the node when its job ends, or let the job go on without it from its last "
        "checkpoint.",
        "Run the same short benchmark on it and on a neighbour: slow there too, it is the node; "
        "else it had more work than the others.",
    ),
    "Jobs that give one node more work by design (a node that evaluates, or writes checkpoints). "
    "To be told of larger differences only, raise `alerts.slower_node_share`.",
)

VERSIONS = Page(
    "DgxAgentVersions",
    "Agents of more than one version have run in a cluster for six hours: longer than an upgrade "
    "takes. Metrics that one version has may be missing in another.",
    ("`count by (version, instance) (dgx_agent_build_info)`",),
    ("Upgrade the rest; CHANGELOG.md says what differs.",),
    "While you try a version on some nodes.",
)

PAGES = (NODE_MISSING, NODE_SLOW, VERSIONS)
