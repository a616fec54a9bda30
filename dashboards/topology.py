"""NVLink topology: a matrix of which GPUs are connected."""

from agent.sources import gpu, nvlink
from dashboards.board import Row
from dashboards.queries import counted, labelled, now, with_labels_of
from dashboards.tables import matrix

FAR = ("instance", "gpu", "pci_bus_id", "remote", "remote_pci_bus_id")
JOINED = counted(
    with_labels_of(
        now(nvlink.LINK_INFO, remote="~gpu|switch"), gpu.INFO, ("instance", "uuid"), ("pci_bus_id",)
    ),
    FAR,
)
"""Number of NVLinks from each GPU to each neighbour; unknown for a link that is down."""


TOPOLOGY = Row(
    "Which GPU is joined to which?",
    (
        matrix(
            "NVLinks between GPUs",
            "How many NVLinks lead from each GPU (down) to each neighbour, by its PCI address "
            "(across); NVSwitches have none. Choose one node: addresses repeat.",
            labelled(JOINED, "remote_pci_bus_id", "NVSwitch", "remote", "switch"),
            "pci_bus_id",
            "remote_pci_bus_id",
            width=24,
        ),
    ),
    collapsed=True,
)
