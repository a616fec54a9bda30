"""The places that alerts are about, such as a GPU or a node, with their text and dashboard."""

from collections.abc import Mapping
from typing import NamedTuple

ON = "{{ $labels.instance }}"
ONE_GPU = "GPU{{with $labels.gpu}} {{.}}{{end}} of " + ON
"""Template for a GPU with its index, or for `GPU` alone if a relay has dropped the label `gpu`."""

CLUSTER = "{{ with $labels.cluster }}&var-cluster={{ . }}{{ end }}"
GPU_BOARD = f"/d/dgx-gpu?var-instance={ON}&var-gpu={{{{ $labels.gpu }}}}{CLUSTER}"
NODE_BOARD = f"/d/dgx-node?var-instance={ON}{CLUSTER}"
FLEET_BOARD = f"/d/dgx-fleet?var-rack={{{{ $labels.rack }}}}{CLUSTER}"


class Place(NamedTuple):
    """A kind of place. `text` is a template for alert labels. `board` is a dashboard's path."""

    text: str
    board: str


PLACES: Mapping[str, Place] = {
    "gpu": Place(ONE_GPU, GPU_BOARD),
    "node": Place(ON, NODE_BOARD),
    "path": Place(f"{{{{ $labels.path }}}} {{{{ $labels.device }}}} of {ON}", NODE_BOARD),
    "port": Place(f"{{{{ $labels.device }}}}:{{{{ $labels.port }}}} of {ON}", NODE_BOARD),
    "device": Place(f"{{{{ $labels.device }}}} of {ON}", NODE_BOARD),
    "switch": Place(f"{{{{ $labels.switch }}}} of {ON}", NODE_BOARD),
    "sensor": Place(f"{{{{ $labels.sensor }}}} of {ON}", NODE_BOARD),
    "dimm": Place(f"{{{{ $labels.dimm }}}} of {ON}", NODE_BOARD),
    "rack": Place("Rack {{ $labels.rack }}", FLEET_BOARD),
}
"""The kinds of places. A fault's key `place` contains one of these names."""

PATHS = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "hbm": "HBM",
    "disk": "disk",
    "network": "network port",
    "infiniband": "InfiniBand port",
}
"""Names of the kinds of data paths in texts."""
