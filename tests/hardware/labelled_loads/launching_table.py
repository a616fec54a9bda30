"""Loads of kernels that are launched one by one, for the rule that counts them. No PyTorch here."""

from tests.hardware.labelled_loads.load import declared

_GRAPH = "events; the launching thread's: a step against its replay as a CUDA graph"

LAUNCHING = (
    declared(
        "message-passing",
        "launching_alone.message_passing",
        _GRAPH,
        nodes=4096,
        edges=32_768,
        width=64,
        layers=12,
    ),
    declared(
        "unrolled-cell", "launching_alone.unrolled_cell", _GRAPH, batch=64, width=512, times=96
    ),
    declared("small-images", "launching_alone.small_images", _GRAPH, batch=64, width=96, layers=16),
    declared(
        "short-prompts",
        "launching_alone.short_prompts",
        _GRAPH,
        batch=4,
        layers=24,
        width=1024,
        length=128,
    ),
    declared("integrator", "launching_alone.integrator", _GRAPH, rows=512, width=1024, steps=40),
)
"""Written after that rule was frozen, and played once."""
