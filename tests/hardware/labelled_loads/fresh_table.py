"""The loads of a second blind trial, as BLIND those of the first. No PyTorch here."""

from typing import Any

from tests.hardware.labelled_loads.load import ARRIVAL, EVENTS, LabelledLoad


def _fresh(name: str, function: str, truth: str = EVENTS, **more: Any) -> LabelledLoad:
    options = {
        option: more.pop(option)
        for option in ("pulse", "healthy", "seconds", "settles", "environment", "libraries")
        if option in more
    }
    gpus = 2 if function.startswith("fresh_pairs.") else 1
    return LabelledLoad(name, function, more, truth, gpus, **options)


_HANG = "events until both ranks are about to wait for ever; from then on hung"
_GRAPH = "events; the launching thread's: a step against its replay as a CUDA graph"

FRESH = (
    _fresh("host-optimiser", "fresh_alone.host_optimiser", batch=32, threads=8),
    _fresh(
        "offloaded-activations",
        "fresh_alone.offloaded_activations",
        "events; the copies': a step against one whose activations stay on the GPU",
        rows=32768,
        width=4096,
        layers=16,
        offloaded=4,
    ),
    _fresh(
        "rollouts",
        "fresh_alone.rollouts",
        environments=256,
        turns=64,
        cpu_seconds=0.005,
        learning=0.35,
    ),
    _fresh(
        "generating",
        "fresh_alone.generating",
        _GRAPH,
        batch=8,
        positions=1024,
        layers=24,
        width=2048,
    ),
    _fresh(
        "vgg-accumulating", "fresh_alone.vgg_accumulating", batch=256, accumulate=4, healthy=True
    ),
    _fresh(
        "sparse-graph",
        "fresh_alone.sparse_graph",
        nodes=800_000,
        degree=20,
        layers=3,
        width=256,
        healthy=True,
    ),
    _fresh(
        "merges-first",
        "fresh_alone.merges_first",
        batch=16,
        preparing=8.0,
        pulse=False,
        seconds=16.0,
    ),
    _fresh(
        "saves-often",
        "fresh_alone.saves_often",
        batch=16,
        every=30,
        writing=0.8,
        seconds=14.0,
    ),
    _fresh(
        "generation-server",
        "fresh_alone.generation_server",
        pause=0.6,
        tokens=60,
        batch=32,
        positions=1024,
        layers=24,
        width=2048,
        pulse=False,
    ),
    _fresh(
        "spectra-threads",
        "fresh_input.spectra_threads",
        f"{ARRIVAL}; what a step takes longer than before the threads began is theirs",
        batch=16,
        cpu_seconds=0.25,
        threads=2,
        pulse=False,
    ),
    _fresh(
        "heavy-tailed",
        "fresh_input.heavy_tailed",
        ARRIVAL,
        batch=64,
        cpu_seconds=0.35,
        workers=8,
        pulse=False,
    ),
    _fresh(
        "direct-threads",
        "fresh_input.direct_threads",
        ARRIVAL,
        batch=64,
        bytes_per_image=2 << 20,
        threads=3,
        file_bytes=2 << 30,
        pulse=False,
    ),
    _fresh(
        "streamed-records",
        "fresh_input.streamed_records",
        ARRIVAL,
        batch=64,
        bytes_per_second=120e6,
        connections=2,
        pulse=False,
    ),
    _fresh(
        "jax-augmenting",
        "fresh_input.jax_augmenting",
        "the host's clock after each phase",
        batch=16384,
        columns=128,
        layers=16,
        width=4096,
        cpu_seconds=0.06,
        environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
        libraries=("jax", "jax.numpy"),
    ),
    _fresh(
        "dense-embeddings",
        "fresh_pairs.dense_embeddings",
        entries=8_000_000,
        width=128,
        features=26,
        rows=65536,
        wide=4096,
    ),
    _fresh(
        "one-channel",
        "fresh_pairs.averaging",
        batch=16,
        environment={"NCCL_MAX_NCHANNELS": "1"},
    ),
    _fresh("batches-of-20-and-21", "fresh_pairs.averaging", batch=20, more=1),
    _fresh("batches-of-20-and-23", "fresh_pairs.averaging", batch=20, more=3),
    _fresh(
        "sequence-halves",
        "fresh_pairs.sequence_halves",
        layers=12,
        batch=4,
        length=16384,
        width=2048,
        environment={"TORCH_NCCL_HIGH_PRIORITY": "1"},  # else the exchange waits for attention
    ),
    _fresh(
        "uneven-experts",
        "fresh_pairs.uneven_experts",
        layers=32,
        tokens=8192,
        chosen=8,
        width=4096,
        narrow=1024,
    ),
    _fresh(
        "alternating-pipeline", "fresh_pairs.alternating_pipeline", forward=0.012, microbatches=8
    ),
    _fresh(
        "scoring",
        "fresh_pairs.scoring",
        batch=16,
        every=25,
        cpu_seconds=0.8,
        seconds=14.0,
    ),
    _fresh("actor-learner", "fresh_pairs.actor_learner", batch=16, acting=0.6, learning=0.4),
    *(
        _fresh(
            f"hang-{way}",
            f"fresh_pairs.hang_{way}",
            _HANG,
            batch=16,
            after=4.0,
            pulse=False,
            seconds=28.0,
            settles=16.0,
        )
        for way in ("uneven", "looping")
    ),
)
"""As BLIND, and of other make."""
