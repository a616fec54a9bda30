"""Subject of an alert: the beginning of its summary, and the board that it links to."""

from typing import NamedTuple

ON = "{{ $labels.instance }}"
GPU_NUMBER = "GPU{{with $labels.gpu}} {{.}}{{end}}"
"""A relay may have dropped labels: no blank is left in their place."""

ONE_GPU = f"{GPU_NUMBER} of {ON}"

CLUSTER = "{{ with $labels.cluster }}&var-cluster={{ . }}{{ end }}"
GPU_BOARD = f"/d/dgx-gpu?var-instance={ON}&var-gpu={{{{ $labels.gpu }}}}{CLUSTER}"
NODE_BOARD = f"/d/dgx-node?var-instance={ON}{CLUSTER}"
FLEET_BOARD = f"/d/dgx-fleet?var-rack={{{{ $labels.rack }}}}{CLUSTER}"


class Place(NamedTuple):
    """A kind of place: its name, of the alert's labels, and its board below Grafana's address."""

    text: str
    board: str


GPU = Place(ONE_GPU, GPU_BOARD)
NODE = Place(ON, NODE_BOARD)
PATH = Place(f"{{{{ $labels.path }}}} {{{{ $labels.device }}}} of {ON}", NODE_BOARD)
PORT = Place(f"{{{{ $labels.device }}}}:{{{{ $labels.port }}}} of {ON}", NODE_BOARD)
DEVICE = Place(f"{{{{ $labels.device }}}} of {ON}", NODE_BOARD)
SWITCH = Place(f"{{{{ $labels.switch }}}} of {ON}", NODE_BOARD)
SENSOR = Place(f"{{{{ $labels.sensor }}}} of {ON}", NODE_BOARD)
DIMM = Place(f"{{{{ $labels.dimm }}}} of {ON}", NODE_BOARD)
RACK = Place("Rack {{ $labels.rack }}", FLEET_BOARD)

PATHS = {
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "hbm": "HBM",
    "disk": "disk",
    "network": "network port",
    "infiniband": "InfiniBand port",
}
"""A data path in words."""
