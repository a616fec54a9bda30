"""The one-GPU loads of a fifth blind trial, as FOURTH those of the fourth. No PyTorch here."""

from tests.hardware.labelled_loads.load import ARRIVAL, declared

_GRAPH = "events; the main thread's: a step against its replay as a CUDA graph"

_ALONE = (
    declared(
        "kmeans-clusters",
        "fifth_alone.kmeans_clusters",
        rows=4_194_304,
        width=256,
        count=4096,
        part=65_536,
        healthy=True,
    ),
    declared(
        "preference-pairs",
        "fifth_alone.preference_pairs",
        pairs=8,
        length=512,
        layers=16,
        width=1024,
        accumulate=4,
        healthy=True,
    ),
    declared(
        "lengthening-sequences",
        "fifth_alone.lengthening_sequences",
        tokens=16_384,
        lengths=(128, 192, 256, 384, 512, 768, 1024),
        stage=25,
        layers=12,
        width=1024,
        healthy=True,
        pulse=False,
    ),
    declared(
        "boosted-trees",
        "fifth_alone.boosted_trees",
        rows=4_000_000,
        features=32,
        depth=6,
        healthy=True,
    ),
)

_TURNS = (
    declared(
        "beam-search",
        "fifth_turns.beam_search",
        beams=4,
        share=0.4,
        batch=64,
        positions=512,
        layers=16,
        width=2048,
    ),
    declared(
        "logged-steps",
        "fifth_turns.logged_steps",
        _GRAPH,
        batch=16,
        length=256,
        layers=8,
        width=512,
    ),
    declared(
        "evaluation-harness",
        "fifth_turns.evaluation_harness",
        tokens=256,
        causes=(0.25, 0.2),
        workers=4,
        batch=32,
        positions=512,
        layers=16,
        width=2048,
        seconds=14.0,
    ),
)

_SERVING = (
    declared(
        "swapped-caches",
        "fifth_serving.swapped_caches",
        share=0.4,
        conversations=2,
        batch=8,
        positions=1024,
        layers=24,
        width=2048,
    ),
    declared(
        "embedding-queue",
        "fifth_serving.embedding_queue",
        batch=32,
        length=256,
        layers=24,
        width=1024,
        window=0.5,
        pulse=False,
        seconds=18.0,
    ),
)

_INPUT = (
    declared(
        "video-frames",
        "fifth_input.video_frames",
        ARRIVAL,
        clips=32,
        frames=8,
        layers=24,
        width=1280,
        share=0.4,
        workers=4,
        pulse=False,
    ),
    declared(
        "augmented-pairs",
        "fifth_input.augmented_pairs",
        f"{ARRIVAL}; what a step takes longer than before the threads began is theirs",
        batch=128,
        length=77,
        layers=12,
        width=768,
        reading=512,
        share=0.3,
        threads=6,
        pulse=False,
    ),
    declared(
        "checkpoint-rounds",
        "fifth_disk.checkpoint_rounds",
        batch=16,
        length=512,
        layers=12,
        width=1280,
        share=0.4,
        pulse=False,
        seconds=16.0,
    ),
    declared(
        "trajectory-writing",
        "fifth_disk.trajectory_writing",
        side=256,
        share=0.35,
        most=2 << 30,
        pulse=False,
        seconds=14.0,
    ),
    declared(
        "federated-rounds",
        "fifth_server.federated_rounds",
        batch=12,
        steps=16,
        share=0.4,
        pace=118e6,
        kept=8,
        seconds=16.0,
    ),
)

FIFTH = (*_ALONE, *_TURNS, *_SERVING, *_INPUT)
"""As FOURTH, and of other make again."""
