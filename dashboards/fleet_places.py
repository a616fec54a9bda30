"""The fleet by its places: racks, jobs over several nodes, what is in it and what that draws."""

from agent.diagnosis import job_watch
from agent.faults.records import OWN_TIME, RACK_POWER
from agent.sources import system, workload
from dashboards.board import ANY, GOOD, WARNING, Row, Step
from dashboards.kinds import Column, graph, table, wide
from dashboards.queries import UP, Labels, Query, Value, now, of_cluster, select
from dashboards.scope import TO_NODE

OF_RACK: Labels = ("cluster", "rack")
OF_JOB: Labels = ("job_id", "user", "account")
JOB = ", ".join(OF_JOB)
NUMBERED = "~slurm|kubernetes"
"""Runtimes that name a job alike on all of its nodes: others call it by a pid of one of them."""

BEHIND = (Step(None, GOOD), Step(0.04, WARNING))
"""By how much a node holds up its job."""

RACKS = Row(
    "Which racks, and which jobs over several nodes?",
    (
        table(
            "Racks, most nodes silent first",
            "Nodes of each rack that do not answer, and all of its nodes. A rack that is cut off "
            "is one alert (DgxNodeMissing).",
            (
                Column("Silent", now(UP).where("== 0").counted(OF_RACK), ANY),
                Column("Nodes", now(UP).counted(OF_RACK)),
                Column("GPUs", now(system.GPUS).total(OF_RACK)),
            ),
        ),
        table(
            "Jobs on the most nodes",
            "Jobs of Slurm or Kubernetes by the nodes that they are on, joined by their number, "
            "user and account. Behind: by how much the GPUs of the slowest node have more of their "
            "own work than those of the median node, while the others wait for it; from 4 % on "
            "DgxNodeSlow names the node.",
            (
                Column("Nodes", now(OWN_TIME).counted(OF_JOB)),
                Column("GPUs", now(workload.JOB_INFO, runtime=NUMBERED).counted(OF_JOB)),
                Column(
                    "Behind",
                    Value(now(OWN_TIME).largest(OF_JOB).expr, "percentunit").less(
                        Value(f"quantile by ({JOB}) (0.5, {select(OWN_TIME)})", "percentunit"),
                    ),
                    BEHIND,
                ),
                Column(
                    "Hung ranks",
                    Value(
                        f"count by ({JOB}) ({select(job_watch.HUNG)} * on (instance, job, gpu, "
                        f"uuid) group_left ({JOB}) {select(workload.JOB_INFO, runtime=NUMBERED)})",
                        "none",
                    ),
                    ANY,
                ),
            ),
            empty="unless [job] info is on and Slurm or Kubernetes runs jobs; others stand on the "
            "board of their node, with [job] info too",
        ),
    ),
)

INVENTORY = Row(
    "How large is the fleet, and how much power does it draw?",
    (
        table(
            "Machines",
            "What each agent took its machine for, and the driver that it found.",
            (
                Column(
                    "Nodes",
                    now(system.INFO).counted(
                        ("instance", "title", "product", "system", "driver_version"),
                    ),
                ),
            ),
            links={"instance": TO_NODE},
            hidden=("Nodes", "Value"),
            overrides=[wide("title", 260)],
            width=12,
        ),
        graph(
            "Power",
            "Power of all GPUs of each rack, from their energy counters.",
            Query(of_cluster(RACK_POWER, "watt"), "{{cluster}} {{rack}}"),
            width=12,
        ),
    ),
    collapsed=True,
)
