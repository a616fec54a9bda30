"""Utilisation of the GPU's video and image engines, which work beside the multiprocessors."""

from collections.abc import Iterator
from functools import partial

from agent.hardware.device import NvmlDevice
from agent.hardware.nvml import number
from agent.model import GpuMetric
from agent.polling import intervals
from agent.polling.reads import GpuRow, Read
from agent.sources.context import GpuContext

DECODER = GpuMetric.ratio(
    "dgx_gpu_decoder_utilization_ratio",
    "Share of time, 0-1, in which the video decoder (NVDEC) worked, over the driver's last "
    "sampling period (1/6 to 1 s).",
    "nvmlDeviceGetDecoderUtilization",
)
ENCODER = GpuMetric.ratio(
    "dgx_gpu_encoder_utilization_ratio",
    "Share of time, 0-1, in which the video encoder (NVENC) worked, over the driver's last "
    "sampling period (1/6 to 1 s).",
    "nvmlDeviceGetEncoderUtilization",
)
JPEG = GpuMetric.ratio(
    "dgx_gpu_jpeg_utilization_ratio",
    "Share of time, 0-1, in which the JPEG decoder (NVJPG) worked, over the driver's last "
    "sampling period (1/6 to 1 s).",
    "nvmlDeviceGetJpgUtilization (driver 535 and newer)",
)
OPTICAL_FLOW = GpuMetric.ratio(
    "dgx_gpu_optical_flow_utilization_ratio",
    "Share of time, 0-1, in which the optical flow accelerator (OFA) worked, over the driver's "
    "last sampling period (1/6 to 1 s).",
    "nvmlDeviceGetOfaUtilization (driver 535 and newer)",
)


def _utilization(device: NvmlDevice, engine: str) -> float:
    percent, _period = device.get(f"{engine}Utilization")
    return number(percent, f"nvmlDeviceGet{engine}Utilization") / 100


ENGINES = {DECODER: "Decoder", ENCODER: "Encoder", JPEG: "Jpg", OPTICAL_FLOW: "Ofa"}


def reads(gpu_context: GpuContext) -> Iterator[Read]:
    rows = (GpuRow(metric, partial(_utilization, engine=one)) for metric, one in ENGINES.items())
    yield gpu_context.rows("media", "engines", intervals.MEDIA, *rows)
