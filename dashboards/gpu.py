"""The GPU: where its time goes, what it computes, what holds it down, what is broken."""

from agent.diagnosis import job_watch, pulses
from agent.diagnosis.accounting import STATE_SECONDS, UNOBSERVED_SECONDS
from agent.model import State
from agent.sources import (
    activity,
    allocation,
    clocks,
    gpu,
    memory,
    nccl,
    power,
    process,
    temperature,
    workload,
)
from dashboards.board import LOST, NEUTRAL, Board, Row
from dashboards.gpu_health import HARM, MEMORY_HEALTH
from dashboards.kinds import Column, graph, table, wide
from dashboards.queries import GPU, Labels, Query, Value, grown, now, rate, spread, time_in
from dashboards.scope import RHYTHM, board, firing_alerts, goodput, time_panels

NAME = "{{instance}} GPU {{gpu}}"
JOB: Labels = ("instance", *(name for name in workload.JOB_INFO.labels if name != "uuid"))
GPM = "on GPUs before Hopper, which do not count it"

TIME = Row(
    "Where does the time of each GPU go?",
    (
        *time_panels("Time by state and cause", (8, 8)),
        table(
            "Time lost by each GPU",
            "Share of each GPU's time in this range for which it waited, was held by a process "
            "that did nothing, or was slowed down; and for which nothing could be said of it.",
            (
                Column("Starved", time_in(State.STARVED, GPU), LOST),
                Column("Held", time_in(State.HELD, GPU), LOST),
                Column("Throttled", time_in(State.THROTTLED, GPU), LOST),
                Column(
                    "Not observed",
                    grown(UNOBSERVED_SECONDS, GPU).over(
                        Value(
                            f"{grown(UNOBSERVED_SECONDS, GPU).expr} + "
                            f"{grown(STATE_SECONDS, GPU).expr}",
                            "s",
                        ),
                    ),
                    LOST,
                ),
            ),
            overrides=[wide("gpu", 45), wide("Not observed", 105)],
            width=8,
            height=10,
        ),
        goodput(
            GPU,
            lambda which: grown(STATE_SECONDS, GPU, state=which),
            grown(activity.TENSOR_SECONDS, GPU).over(
                grown(STATE_SECONDS, GPU, state=State.BUSY.value)
            ),
        ),
    ),
)

WORK = Row(
    "What does it compute?",
    (
        graph(
            "Activity",
            activity.ACTIVITY.meaning,
            *spread(now(activity.ACTIVITY), NAME),
            whole=True,
            height=7,
        ),
        graph(
            "Memory",
            memory.USED.meaning,
            *spread(now(memory.USED), NAME),
            Query(now(memory.TOTAL).smallest(), "all of it", limit=True),
            height=7,
        ),
        graph(
            "Multiprocessors and tensor cores",
            "Share of the multiprocessors with work on them (least, mean, most), of the warps that "
            "they could hold, of time in which tensor cores worked, and of their peak at the "
            "highest clock that this gave: an upper bound of MFU.",
            *spread(now(activity.SM_ACTIVE), f"{NAME} SM active"),
            Query(now(activity.SM_OCCUPANCY).mean(), "mean occupancy"),
            Query(now(activity.TENSOR_ACTIVE).mean(), "mean tensor"),
            Query(rate(activity.TENSOR_SECONDS).mean(), "mean tensor throughput"),
            whole=True,
            width=16,
            height=7,
            empty=GPM,
        ),
        graph(
            "Video engines",
            "Share of time in which each engine worked, on the GPU where it worked most: video "
            "decoder, video encoder. They work beside the multiprocessors. "
            " No line for engines that a GPU does not have.",
            Query(now(gpu.DECODER).largest(), "decoder (NVDEC)"),
            Query(now(gpu.ENCODER).largest(), "encoder (NVENC)"),
            width=8,
            height=7,
        ),
    ),
)

STEPS = Row(
    "How fast are the steps of its job?",
    (
        graph(
            "Length of a step",
            f"{pulses.STEP.meaning} And in the first hour of the job.",
            Query(now(pulses.STEP), NAME),
            Query(now(job_watch.REFERENCE), f"{NAME} first hour", limit=True),
            height=7,
            empty=RHYTHM,
        ),
        graph(
            "Confidence in the step",
            pulses.CONFIDENCE.meaning,
            Query(now(pulses.CONFIDENCE), NAME),
            whole=True,
            height=7,
            empty=RHYTHM,
        ),
        graph(
            "Collectives per second",
            nccl.COLLECTIVES.meaning,
            Query(rate(nccl.COLLECTIVES), NAME),
            every="1m",
            height=7,
            empty='unless job.nccl is "always" and NCCL (2.30 or newer) answers for two GPUs',
        ),
    ),
    collapsed=True,
)

BRAKES = Row(
    "What holds it down?",
    (
        graph(
            "Power",
            f"{power.POWER.meaning} And the smallest limit now enforced.",
            *spread(now(power.POWER), NAME),
            Query(now(power.POWER_LIMIT).smallest(), "limit", limit=True),
            height=7,
        ),
        graph(
            "SM clock",
            "Clock of the multiprocessors, and the highest that they can have; it falls when the "
            "GPU idles.",
            *spread(now(clocks.CLOCK, clock="sm"), NAME),
            Query(now(clocks.CLOCK_LIMIT, clock="sm").smallest(), "highest", limit=True),
            height=7,
        ),
        graph(
            "Throttled",
            "Share of time for which something held the clocks down, by reason: of each, the GPU "
            "that it held most. Reasons overlap, and power_cap is normal while the clocks stay "
            "high.",
            Query(rate(clocks.THROTTLE).largest(("reason",)), "{{reason}}"),
            whole=True,
            height=7,
        ),
        graph(
            "Temperature",
            "Temperature of the core, and where the GPU slows down.",
            *spread(now(temperature.TEMPERATURE), NAME),
            Query(now(temperature.LIMIT, limit="slowdown").smallest(), "slowdown", limit=True),
            height=7,
        ),
        graph(
            "Fans",
            "Speed of each fan of a GPU, as a share of its highest.",
            Query(now(temperature.FAN), f"{NAME} fan {{{{fan}}}}"),
            whole=True,
            height=6,
            empty="on GPUs without a fan of their own, which the chassis cools",
        ),
    ),
)


WHO = Row(
    "Who is on it?",
    (
        graph("Processes", process.PROCESSES.meaning, Query(now(process.PROCESSES), NAME), width=6),
        table(
            "Jobs",
            workload.JOB_INFO.meaning,
            (Column("GPUs", now(workload.JOB_INFO).counted(JOB)),),
            hidden=("Value",),
            overrides=[wide("instance", 80), wide("gpu", 45)],
            width=9,
            empty="unless job.info in the agent's configuration is on",
        ),
        graph(
            "Memory of each process",
            process.PROCESS_MEMORY.meaning,
            Query(now(process.PROCESS_MEMORY), NAME + " {{name}} ({{pid}})"),
            width=9,
            empty="unless process.series in the agent's configuration is above 0",
        ),
    ),
)

IDENTITY = Row(
    "Which GPU is it, and is it used?",
    (
        table(
            "Identity",
            gpu.INFO.meaning,
            (
                Column(
                    "GPUs",
                    now(gpu.INFO).counted(
                        (*GPU, "model", "uuid", "serial", "pci_bus_id", "vbios_version"),
                    ),
                    NEUTRAL,
                ),
            ),
            hidden=("Value",),
            overrides=[wide("uuid", 350), wide("model", 240)],
            width=24,
        ),
        graph(
            "Given to a job and not used",
            "1 while a job was given the GPU and has no process on it.",
            Query(
                now(allocation.ALLOCATED).where(f"== 1 unless {now(process.PROCESSES).expr} > 0"),
                NAME,
            ),
            width=6,
            empty="unless Slurm or the kubelet reports the GPUs of jobs",
        ),
        graph(
            "NVML's utilisation",
            f"{gpu.UTILIZATION.meaning} And of its memory: time, not bandwidth.",
            Query(now(gpu.UTILIZATION), NAME),
            Query(now(gpu.MEMORY_UTILIZATION), f"{NAME} memory"),
            whole=True,
            width=6,
        ),
    ),
    collapsed=True,
)


def gpu_board(runbook: str = "") -> Board:
    about = "Where each GPU's time goes, what it computes, what slows it down, what is broken."
    fires = firing_alerts(runbook)
    rows = TIME, fires, WORK, STEPS, BRAKES, HARM, WHO, MEMORY_HEALTH, IDENTITY
    return board("dgx-gpu", about, *rows)
