"""Rows on jobs: their steps, measured from outside, and the process that a hung one waits for."""

from agent.diagnosis import job_watch, pulses
from agent.sources import nccl
from dashboards.board import Row
from dashboards.kinds import graph
from dashboards.queries import Query, now, rate, where
from dashboards.tables import Column, table

NAME = "{{instance}} GPU {{gpu}}"
RHYTHM = "while no job has steps that can be seen"

STEPS = Row(
    "How fast are the steps of its job?",
    (
        graph(
            "Steps per second",
            "Iterations of the job on each GPU, counted in the rhythm of its power.",
            Query(rate(pulses.STEPS), NAME),
            height=7,
            empty=RHYTHM,
        ),
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

JOBS = Row(
    "How do the jobs get on?",
    (
        graph(
            "Steps per second of the jobs",
            "Iterations of the job on each GPU; the GPUs of one job have the same. No line if no "
            "steps are detected.",
            Query(where(rate(pulses.STEPS), "> 0"), NAME),
            height=7,
            empty=RHYTHM,
        ),
        table(
            "Whom hung jobs wait for",
            job_watch.HUNG.meaning,
            (Column("Hung", now(job_watch.HUNG)),),
            height=7,
            empty="while no job hangs, or the process that it waits for is not known",
        ),
    ),
)
