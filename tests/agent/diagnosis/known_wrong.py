"""Loads of the tapes whose shares are not right, by tape and signals."""

from typing import NamedTuple

LINKS = "links show traffic, and not how much of it stands alone: without GPM none of it"
SHARDED = "collectives of ranks that launch kernel by kernel spin for milliseconds"
BOTH = "workers fetch and decode in turns, and its clock puts all of the wait down to one of them"
NO_THREADS = "the tape holds no thread that did it, or not what the job received"
LAUNCHES = "what launching or a copy takes counts as active, or as work by its own clock"
COPIES = (
    "PCIe alone does not distinguish copies beside work from work: without GPM they count as active"
)


EDGES = "12 s hold few requests, and the agent's seconds begin and end a second later"
TOO_NEW = "it is judged before a server can be known to be one"
EVEN = "at full load the activity of a server is too even to be that of requests"
SMALL = "its requests are too small to show as activity"
NOTEBOOK = "a notebook that waits for its user looks like a server that waits for a request"
SAMPLED = "uninterruptible sleep is sampled once a second, and ends on a core"
TURNS = "threads of one interpreter take turns with the main one"
LEADS = "how far one rank is ahead shows in power and DRAM activity in part"
SPIN = "threads of one operation spin while the main thread reads: they count as workers"
LUMPS = "children of a compiler, and its threads, show when they end"
PINNED = "a thread that prepares data beside pinned copies looks like one that copies itself"
POLLS = "a thread that polls while its GPU is active for more than 5 % looks like one that prepares"
NAMESPACE = "one program began both loads, and what the other receives counts for it too"
NVML = "without GPM a rank that waits and one that works are told apart by power alone"


class Wrong(NamedTuple):
    """A load whose shares are not right, why, and by how much at most."""

    why: str
    most: float


KNOWN_WRONG: dict[tuple[str, str], dict[str, Wrong]] = {
    ("one-h200-fifth", "gpm"): {
        "video-frames": Wrong(LAUNCHES, 0.12),
    },
    ("one-h200-fifth", "nvml"): {
        "swapped-caches": Wrong(COPIES, 0.38),
        "video-frames": Wrong(LAUNCHES, 0.12),
    },
    ("one-h200-first", "gpm"): {
        "files-mapped": Wrong(BOTH, 0.10),
        "http-objects": Wrong(BOTH, 0.10),
        "little": Wrong(LAUNCHES, 0.08),
        "network": Wrong(BOTH, 0.10),
        "threads": Wrong(LAUNCHES, 0.10),
    },
    ("one-h200-first", "nvml"): {
        "pageable-copies": Wrong(COPIES, 0.16),
    },
    ("one-h200-fourth", "gpm"): {
        "burgers-equation": Wrong(LAUNCHES, 0.12),
        "from-database": Wrong(BOTH, 0.08),
        "ranged-downloads": Wrong(BOTH, 0.08),
        "remote-lookups": Wrong(NO_THREADS, 0.32),
    },
    ("one-h200-fourth", "nvml"): {
        "remote-lookups": Wrong(NO_THREADS, 0.32),
        "streamed-layers": Wrong(COPIES, 0.52),
    },
    ("one-h200-launching", "gpm"): {
        "integrator": Wrong(LAUNCHES, 0.10),
        "message-passing": Wrong(NO_THREADS, 0.24),
        "small-images": Wrong(LAUNCHES, 0.10),
        "unrolled-cell": Wrong(LAUNCHES, 0.12),
    },
    ("one-h200-launching", "nvml"): {
        "message-passing": Wrong(NO_THREADS, 0.24),
    },
    ("two-h100", "gpm"): {
        "all-to-all": Wrong(LINKS, 0.06),
        "checkpoint": Wrong(NO_THREADS, 0.20),
        "compile": Wrong(NO_THREADS, 1.02),
        "disk-mapped": Wrong(BOTH, 0.08),
        "exposed-10-200ms": Wrong(LINKS, 0.08),
        "exposed-25-20ms": Wrong(LINKS, 0.08),
        "gpt-accumulating": Wrong(SHARDED, 0.12),
        "little": Wrong(LAUNCHES, 0.08),
        "network": Wrong(BOTH, 0.08),
        "threads": Wrong(LAUNCHES, 0.08),
    },
    ("two-h100", "nvml"): {
        "all-to-all": Wrong(LINKS, 0.40),
        "checkpoint": Wrong(NO_THREADS, 0.20),
        "compile": Wrong(NO_THREADS, 1.00),
        "exposed-25-20ms": Wrong(LINKS, 0.32),
        "late-20-sleeping": Wrong(LINKS, 0.16),
    },
    ("two-h100-rest", "gpm"): {
        "exposed-25-2000ms": Wrong(LINKS, 0.12),
        "sharded": Wrong(SHARDED, 0.34),
    },
    ("two-h100-rest", "nvml"): {
        "exposed-25-2000ms": Wrong(LINKS, 0.12),
        "exposed-50-20ms": Wrong(LINKS, 0.52),
        "sharded": Wrong(SHARDED, 0.34),
    },
    ("two-h200", "gpm"): {
        "checkpoint": Wrong(NO_THREADS, 0.18),
        "exposed-10-200ms": Wrong(LINKS, 0.08),
        "exposed-25-20ms": Wrong(LINKS, 0.06),
        "files-mapped": Wrong(BOTH, 0.10),
        "http-objects": Wrong(BOTH, 0.12),
        "main-process": Wrong(LAUNCHES, 0.08),
        "network": Wrong(BOTH, 0.10),
        "parameter-server": Wrong(LINKS, 0.22),
        "sharded": Wrong(SHARDED, 0.14),
    },
    ("two-h200", "nvml"): {
        "all-to-all": Wrong(LINKS, 0.40),
        "checkpoint": Wrong(NO_THREADS, 0.18),
        "exposed-25-20ms": Wrong(LINKS, 0.32),
        "exposed-50-20ms": Wrong(LINKS, 0.56),
        "http-objects": Wrong(BOTH, 0.12),
        "pageable-copies": Wrong(COPIES, 0.54),
        "parameter-server": Wrong(LINKS, 0.22),
        "sharded": Wrong(SHARDED, 0.16),
    },
    ("two-h200-blind", "gpm"): {
        "dense-embeddings": Wrong(LINKS, 0.10),
        "direct-threads": Wrong(BOTH, 0.16),
        "host-optimiser": Wrong(NO_THREADS, 0.14),
        "offloaded-activations": Wrong(COPIES, 0.08),
        "saves-often": Wrong(NO_THREADS, 0.20),
        "sequence-halves": Wrong(LINKS, 0.08),
        "tensor-parallel": Wrong(LINKS, 0.08),
        "uneven-experts": Wrong(LINKS, 0.08),
    },
    ("two-h200-blind", "nvml"): {
        "batches-of-20-and-23": Wrong(LINKS, 0.14),
        "direct-threads": Wrong(BOTH, 0.16),
        "host-optimiser": Wrong(NO_THREADS, 0.28),
        "offloaded-activations": Wrong(COPIES, 0.44),
        "saves-often": Wrong(NO_THREADS, 0.24),
        "scoring": Wrong(LINKS, 0.14),
        "tensor-parallel": Wrong(LINKS, 0.22),
        "uneven-experts": Wrong(LINKS, 0.50),
    },
    ("two-h200-third", "gpm"): {
        "compiled-lengths": Wrong(NO_THREADS, 0.78),
        "jittery-feeder": Wrong(BOTH, 0.08),
        "scattered-gathered": Wrong(LINKS, 0.12),
        "small-files": Wrong(BOTH, 0.12),
        "uneven-stages": Wrong(SHARDED, 0.08),
    },
    ("two-h200-third", "nvml"): {
        "compiled-lengths": Wrong(NO_THREADS, 0.78),
        "fed-by-a-command": Wrong(LINKS, 0.14),
        "ring-attention": Wrong(LINKS, 0.16),
        "scattered-gathered": Wrong(LINKS, 0.14),
        "uneven-stages": Wrong(SHARDED, 0.42),
    },
    ("two-h100-threads", "gpm"): {
        "chat_server": Wrong(TOO_NEW, 0.70),
        "third_checkpoints": Wrong(NO_THREADS, 0.16),
        "third_embedding_server": Wrong(EVEN, 0.10),
        "third_train_and_evaluate": Wrong(LAUNCHES, 0.08),
    },
    ("two-h100-threads", "nvml"): {
        "chat_server": Wrong(TOO_NEW, 0.64),
        "tensor_parallel": Wrong(LINKS, 0.16),
        "third_checkpoints": Wrong(NO_THREADS, 0.16),
        "third_k_means": Wrong(COPIES, 0.64),
    },
    ("two-h100-servers", "gpm"): {
        "server_graph_100": Wrong(EVEN, 0.10),
        "server_graph_20": Wrong(EDGES, 0.12),
        "server_graph_40": Wrong(EDGES, 0.10),
    },
    ("two-h100-servers", "nvml"): {},
    ("two-h200-traced-first", "gpm"): {
        "first_checkpoint_fsync": Wrong(SAMPLED, 0.10),
        "first_compiled_graphs": Wrong(PINNED, 0.48),
        "first_compiler_child": Wrong(LUMPS, 0.12),
        "first_main_reads_disk": Wrong(SAMPLED, 0.22),
        "first_offload_adam": Wrong(COPIES, 0.08),
        "first_recommender_threads": Wrong(TURNS, 0.10),
        "first_shards_cold_loader": Wrong(PINNED, 0.26),
        "second_ddp_lstm_cells": Wrong(SHARDED, 0.20),
        "second_ddp_scores_on_first": Wrong(LEADS, 0.12),
    },
    ("two-h200-traced-first", "nvml"): {
        "first_checkpoint_fsync": Wrong(SAMPLED, 0.12),
        "first_compiler_child": Wrong(LUMPS, 0.14),
        "first_main_reads_disk": Wrong(SAMPLED, 0.28),
        "first_offload_adam": Wrong(COPIES, 0.24),
        "first_shards_cold_loader": Wrong(PINNED, 0.26),
        "second_ddp_lstm_cells": Wrong(SHARDED, 0.22),
        "second_ddp_scores_on_first": Wrong(LEADS, 0.12),
        "second_sharded_optimizer": Wrong(LINKS, 0.28),
    },
    ("two-h200-traced-second", "gpm"): {
        "first_serve_half_graph": Wrong(EVEN, 0.20),
        "longer_rows_ddp": Wrong(LEADS, 0.08),
        "pipeline_1f1b": Wrong(LEADS, 0.12),
        "rank0_evaluates": Wrong(LEADS, 0.12),
        "second_checkpoint_on_first": Wrong(SAMPLED, 0.12),
        "second_experts": Wrong(SHARDED, 0.08),
        "second_polling_server": Wrong(SMALL, 1.04),
        "small_cnn_ddp": Wrong(SHARDED, 0.08),
    },
    ("two-h200-traced-second", "nvml"): {
        "first_serve_half_graph": Wrong(EVEN, 0.20),
        "longer_rows_ddp": Wrong(LEADS, 0.12),
        "pipeline_1f1b": Wrong(LEADS, 0.20),
        "second_experts": Wrong(SHARDED, 0.18),
        "second_polling_server": Wrong(SMALL, 1.04),
        "third_flax_mixer": Wrong(LAUNCHES, 0.12),
    },
    ("two-h200-traced-servers", "gpm"): {},
    ("two-h200-traced-servers", "nvml"): {},
    ("two-h200-traced-third", "gpm"): {
        "first_notebook": Wrong(NOTEBOOK, 0.84),
        "fsdp_checkpointed": Wrong(SHARDED, 0.10),
        "second_tensor_parallel_server": Wrong(SHARDED, 0.14),
    },
    ("two-h200-traced-third", "nvml"): {
        "first_notebook": Wrong(NOTEBOOK, 0.84),
        "fsdp_checkpointed": Wrong(SHARDED, 0.12),
        "second_tensor_parallel_server": Wrong(SHARDED, 0.16),
    },
    ("two-h100-blind", "gpm"): {
        "annotates_rows": Wrong(BOTH, 0.18),
        "eight_microbatches": Wrong(LEADS, 0.10),
        "lock_taken": Wrong(TURNS, 0.32),
        "loopback_tiles": Wrong(PINNED, 0.08),
        "split_decoding": Wrong(LINKS, 0.16),
        "width_search": Wrong(LUMPS, 0.22),
    },
    ("two-h100-traced-first", "gpm"): {
        "h_cold_loaders": Wrong(BOTH, 0.50),
        "h_compiles_often": Wrong(LUMPS, 0.38),
        "h_decode_reduces": Wrong(SHARDED, 0.26),
        "h_direct_reads": Wrong(SPIN, 0.10),
        "h_graph_reduces": Wrong(LINKS, 0.24),
        "h_nvcc_children": Wrong(LUMPS, 0.10),
        "h_thread_feeds": Wrong(TURNS, 0.44),
        "h_uneven_experts": Wrong(LEADS, 0.16),
        "pipeline_1f1b": Wrong(LEADS, 0.08),
    },
    ("two-h100-blind", "nvml"): {
        "annotates_rows": Wrong(BOTH, 0.22),
        "eight_microbatches": Wrong(LEADS, 0.22),
        "lock_taken": Wrong(TURNS, 0.32),
        "one_generates": Wrong(NVML, 0.64),
        "pageable_search": Wrong(COPIES, 0.14),
        "split_decoding": Wrong(LINKS, 0.16),
        "uneven_experts": Wrong(LEADS, 0.28),
        "width_search": Wrong(LUMPS, 0.22),
    },
    ("two-h100-traced-first", "nvml"): {
        "h_cold_loaders": Wrong(BOTH, 0.50),
        "h_compiles_often": Wrong(LUMPS, 0.38),
        "h_decode_reduces": Wrong(SHARDED, 0.26),
        "h_gloo_barrier": Wrong(NVML, 0.50),
        "h_graph_reduces": Wrong(LINKS, 0.26),
        "h_pageable_back": Wrong(COPIES, 0.16),
        "h_pageable_loop": Wrong(COPIES, 0.14),
        "h_thread_feeds": Wrong(TURNS, 0.44),
        "h_uneven_experts": Wrong(LEADS, 0.32),
        "h_unpinned_batches": Wrong(COPIES, 0.46),
        "pipeline_1f1b": Wrong(LEADS, 0.20),
    },
    ("two-h100-sixth", "gpm"): {
        "s_builds_kernels": Wrong(LUMPS, 0.14),
        "s_compiles_shapes": Wrong(NAMESPACE, 0.32),
        "s_lock_holder": Wrong(TURNS, 0.72),
        "s_mapped_cold": Wrong(SAMPLED, 0.08),
        "s_pageable_loader": Wrong(PINNED, 0.18),
        "s_saves_and_syncs": Wrong(BOTH, 0.18),
        "s_sequence_parallel": Wrong(LINKS, 0.14),
        "s_spin_server": Wrong(POLLS, 0.94),
        "s_split_decoding_graph": Wrong(LINKS, 0.12),
        "s_streamed_rows": Wrong(BOTH, 0.06),
    },
    ("two-h100-sixth", "nvml"): {
        "s_compiles_shapes": Wrong(NAMESPACE, 0.32),
        "s_lock_holder": Wrong(TURNS, 0.72),
        "s_pageable_loader": Wrong(COPIES, 0.56),
        "s_saves_and_syncs": Wrong(BOTH, 0.18),
        "s_sequence_parallel": Wrong(LINKS, 0.18),
        "s_spin_server": Wrong(POLLS, 0.48),
        "s_split_decoding_graph": Wrong(LINKS, 0.14),
    },
}
