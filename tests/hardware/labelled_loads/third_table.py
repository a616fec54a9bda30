"""The loads of a third blind trial, as FRESH those of the second. No PyTorch here."""

from tests.hardware.labelled_loads.load import ALONE, ARRIVAL, HANG_TRUTH, declared

_HOST = "the host's clock after each phase"
_JAX = ("jax", "jax.numpy")
_SOME_MEMORY = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

_ALONE = (
    declared(
        "unet-resolutions",
        "third_alone.unet_resolutions",
        batch=64,
        sides=((48, 80), (64, 64), (96, 64), (96, 96), (128, 128)),
        healthy=True,
        pulse=False,
    ),
    declared(
        "selective-scan",
        "third_alone.selective_scan",
        batch=8,
        length=2048,
        width=1024,
        layers=12,
        healthy=True,
    ),
    declared(
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
    declared(
        "adapters",
        "third_alone.adapters",
        batch=10,
        layers=24,
        width=2048,
        rank=16,
        validate_every=50,
        healthy=True,
    ),
    declared(
        "wave-inversion",
        "third_alone.wave_inversion",
        side=384,
        times=60,
        smoothing=14,
        healthy=True,
    ),
    declared(
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
    declared(
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
    declared(
        "policy-steps",
        "third_alone.policy_steps",
        "events; the launching thread's: a step against its replay as a CUDA graph",
        carts=1024,
        turns=64,
        width=64,
    ),
    declared(
        "poisson-server",
        "third_alone.image_server",
        batch=256,
        demand=0.4,
        bursts=False,
        pulse=False,
        seconds=14.0,
    ),
    declared(
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
    declared("python-augmenting", "third_input.python_augmenting", ARRIVAL, batch=128, share=0.3),
    declared(
        "few-workers",
        "third_input.few_workers",
        ARRIVAL,
        batch=128,
        share=0.4,
        workers=3,
        pulse=False,
    ),
    declared(
        "workers-nearly-enough",
        "third_input.few_workers",
        ARRIVAL,
        batch=128,
        share=0.15,
        workers=5,
        pulse=False,
    ),
    declared(
        "small-files",
        "third_input.small_files",
        ARRIVAL,
        batch=128,
        share=0.4,
        files=2400,
        workers=4,
        pulse=False,
    ),
    declared(
        "unpacked-by-command", "third_input.unpacked_by_command", ARRIVAL, batch=128, share=0.35
    ),
    declared(
        "jittery-feeder",
        "third_input.jittery_feeder",
        ARRIVAL,
        batch=128,
        share=0.3,
        pulse=False,
    ),
    declared(
        "pageable-clips",
        "third_input.pageable_clips",
        batch=128,
        share=0.35,
        frames=16,
        clips=64,
    ),
    declared(
        "saves-every-24",
        "third_input.saves_every",
        batch=128,
        every=24,
        lasting=0.7,
        seconds=14.0,
    ),
)

_PAIRS = (
    declared("bucketed-exchange", "third_pairs.bucketed_exchange", batch=72, share=0.1),
    declared(
        "scattered-gathered", "third_pairs.scattered_gathered", batch=3, layers=24, width=1280
    ),
    declared(
        "ring-attention",
        "third_pairs.ring_attention",
        ALONE,
        layers=16,
        batch=16,
        length=1024,
        width=2048,
    ),
    declared(
        "uneven-stages",
        "third_pairs.uneven_stages",
        layers=(8, 12),
        width=1280,
        batch=4,
        microbatches=8,
    ),
    declared(
        "late-8-scanning",
        "third_pairs.late_scanning",
        batch=12,
        more=1,
        length=2048,
        width=1024,
        layers=8,
    ),
    declared("fed-by-a-command", "third_pairs.fed_by_a_command", batch=128, share=0.3),
    declared(
        "mixer-accumulating",
        "third_pairs.mixer_accumulating",
        ALONE,
        batch=48,
        accumulate=4,
        healthy=True,
    ),
    *(
        declared(
            f"hang-{way}",
            f"third_pairs.hang_{way}",
            HANG_TRUTH,
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
