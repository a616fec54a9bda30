"""The loads of a third blind trial, as FRESH those of the second. No PyTorch here."""

from typing import Any

from tests.hardware.labelled_loads.load import ALONE, ARRIVAL, EVENTS, LabelledLoad


def _third(name: str, function: str, truth: str = EVENTS, **more: Any) -> LabelledLoad:
    options = {
        option: more.pop(option)
        for option in ("pulse", "healthy", "seconds", "settles", "environment", "libraries")
        if option in more
    }
    gpus = 2 if function.startswith("third_pairs.") else 1
    return LabelledLoad(name, function, more, truth, gpus, **options)


_HOST = "the host's clock after each phase"
_HANG = "events until both ranks are about to wait for ever; from then on hung"
_JAX = ("jax", "jax.numpy")
_SOME_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

_ALONE = (
    _third(
        "unet-resolutions",
        "third_alone.unet_resolutions",
        batch=64,
        sides=((48, 80), (64, 64), (96, 64), (96, 96), (128, 128)),
        healthy=True,
        pulse=False,
    ),
    _third(
        "selective-scan",
        "third_alone.selective_scan",
        batch=8,
        length=2048,
        width=1024,
        layers=12,
        healthy=True,
    ),
    _third(
        "recommender",
        "third_alone.recommender",
        entries=40_000_000,
        width=64,
        features=26,
        hot=6,
        rows=147_456,
        wide=5120,
        healthy=True,
    ),
    _third(
        "adapters",
        "third_alone.adapters",
        batch=10,
        layers=24,
        width=2048,
        rank=16,
        validate_every=50,
        healthy=True,
    ),
    _third(
        "wave-inversion",
        "third_alone.wave_inversion",
        side=384,
        times=60,
        smoothing=14,
        healthy=True,
    ),
    _third(
        "phase-retrieval",
        "third_alone.phase_retrieval",
        _HOST,
        views=32,
        side=1024,
        rounds=150,
        sharpening=100,
        healthy=True,
        environment=_SOME_MEMORY,
        libraries=_JAX,
    ),
    _third(
        "compiled-lengths",
        "third_alone.compiled_lengths",
        _HOST,
        preparing=14.0,
        layers=24,
        width=2048,
        batch=64,
        pulse=False,
        seconds=14.0,
        # else the compiler tries kernels on the GPU
        environment={**_SOME_MEMORY, "XLA_FLAGS": "--xla_gpu_autotune_level=0"},
        libraries=_JAX,
    ),
    _third(
        "policy-steps",
        "third_alone.policy_steps",
        "events; the launching thread's: a step against its replay as a CUDA graph",
        carts=1024,
        turns=64,
        width=64,
    ),
    _third(
        "poisson-server",
        "third_alone.image_server",
        batch=256,
        demand=0.4,
        bursts=False,
        pulse=False,
        seconds=14.0,
    ),
    _third(
        "bursty-server",
        "third_alone.image_server",
        batch=256,
        demand=0.4,
        bursts=True,
        pulse=False,
        seconds=18.0,
    ),
)

_INPUT = (
    _third("python-augmenting", "third_input.python_augmenting", ARRIVAL, batch=128, share=0.3),
    _third(
        "few-workers",
        "third_input.few_workers",
        ARRIVAL,
        batch=128,
        share=0.4,
        workers=3,
        pulse=False,
    ),
    _third(
        "workers-nearly-enough",
        "third_input.few_workers",
        ARRIVAL,
        batch=128,
        share=0.15,
        workers=5,
        pulse=False,
    ),
    _third(
        "small-files",
        "third_input.small_files",
        ARRIVAL,
        batch=128,
        share=0.4,
        files=2400,
        workers=4,
        pulse=False,
    ),
    _third(
        "unpacked-by-command", "third_input.unpacked_by_command", ARRIVAL, batch=128, share=0.35
    ),
    _third(
        "jittery-feeder",
        "third_input.jittery_feeder",
        ARRIVAL,
        batch=128,
        share=0.3,
        pulse=False,
    ),
    _third(
        "pageable-clips",
        "third_input.pageable_clips",
        batch=128,
        share=0.35,
        frames=16,
        clips=64,
    ),
    _third(
        "saves-every-24",
        "third_input.saves_every",
        batch=128,
        every=24,
        lasting=0.7,
        seconds=14.0,
    ),
)

_PAIRS = (
    _third("bucketed-exchange", "third_pairs.bucketed_exchange", batch=72, share=0.1),
    _third("scattered-gathered", "third_pairs.scattered_gathered", batch=3, layers=24, width=1280),
    _third(
        "ring-attention",
        "third_pairs.ring_attention",
        ALONE,
        layers=16,
        batch=16,
        length=1024,
        width=2048,
    ),
    _third(
        "uneven-stages",
        "third_pairs.uneven_stages",
        layers=(8, 12),
        width=1280,
        batch=4,
        microbatches=8,
    ),
    _third(
        "late-8-scanning",
        "third_pairs.late_scanning",
        batch=12,
        more=1,
        length=2048,
        width=1024,
        layers=8,
    ),
    _third("fed-by-a-command", "third_pairs.fed_by_a_command", batch=128, share=0.3),
    _third(
        "mixer-accumulating",
        "third_pairs.mixer_accumulating",
        ALONE,
        batch=48,
        accumulate=4,
        healthy=True,
    ),
    *(
        _third(
            f"hang-{way}",
            f"third_pairs.hang_{way}",
            _HANG,
            batch=8,
            after=4.0,
            pulse=False,
            seconds=12.0,
            settles=16.0,
        )
        for way in ("halfway", "loader")
    ),
)

THIRD = (*_ALONE, *_INPUT, *_PAIRS)
"""As FRESH, and of other make again."""
