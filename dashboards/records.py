"""Recording rules for boards that show many nodes over days."""

from agent.model import gauge

NODE_SECONDS = gauge(
    "node_state_cause:dgx_gpu_state_seconds:increase5m",
    "GPU-seconds of each node by state and cause, each five minutes.",
    "recording rules",
    ("state", "cause"),
)
GPU_LOST = gauge(
    "gpu_state_cause:dgx_gpu_lost_seconds:increase5m",
    "Seconds in which a GPU was starved, throttled, held or hung, each five minutes.",
    "recording rules",
    ("gpu", "uuid", "state", "cause"),
)
PATH_SECONDS = gauge(
    "path:dgx_bandwidth_saturated_seconds:increase5m",
    "Seconds for which a data path was full, each five minutes.",
    "recording rules",
    ("path", "device", "gpu", "uuid", "direction"),
)
OF_SPEC = gauge(
    "path:dgx_bandwidth_of_spec:ratio",
    "Capacity of a data path over the figure of its spec sheet, if it is less.",
    "recording rules",
    ("path", "device", "gpu", "uuid", "direction"),
)
OWN_TIME = gauge(
    "node_job:dgx_gpu_own_time:ratio_rate5m",
    "Share of the time that the GPUs of a node had for their job.",
    "recording rules",
    ("job_id", "user", "account"),
)
TENSOR_SECONDS = gauge(
    "instance_job_id:dgx_gpu_tensor_throughput_seconds:increase5m",
    "GPU-seconds at the tensor peak of each node and job, each five minutes.",
    "recording rules",
    ("job_id", "user", "account"),
)
JOB_SECONDS = gauge(
    "instance_job_id_state_cause:dgx_gpu_state_seconds:increase5m",
    "GPU-seconds of each node and job by state and cause, each five minutes.",
    "recording rules",
    ("job_id", "user", "account", "state", "cause"),
)
RACK_POWER = gauge(
    "rack:dgx_gpu_power_watts:rate5m", "Watts of the GPUs of a rack.", "recording rules"
)
CLUSTER_NVLINK = gauge(
    "cluster:dgx_nvlink_transmitted_bytes:rate5m", "NVLink payload.", "recording rules"
)
CLUSTER_INFINIBAND = gauge(
    "cluster:dgx_infiniband_transmitted_bytes:rate5m", "InfiniBand, sent.", "recording rules"
)
BISECTION = gauge(
    "cluster:dgx_infiniband_bisection_bytes_per_second", "What it carries.", "recording rules"
)
RECORDED = (
    *(
        NODE_SECONDS,
        GPU_LOST,
        PATH_SECONDS,
        OF_SPEC,
        OWN_TIME,
        TENSOR_SECONDS,
        JOB_SECONDS,
        RACK_POWER,
    ),
    *(CLUSTER_NVLINK, CLUSTER_INFINIBAND, BISECTION),
)
