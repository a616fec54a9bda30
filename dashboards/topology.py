"""NVLink topology: a graph and a matrix of which GPUs are connected."""

from agent.sources import gpu, nvlink
from dashboards.board import Row
from dashboards.queries import Value, counted, either, labelled, linked, now, with_labels_of
from dashboards.tables import matrix, node_graph

FAR = ("instance", "gpu", "pci_bus_id", "remote", "remote_pci_bus_id")
JOINED = counted(
    with_labels_of(
        now(nvlink.LINK_INFO, remote="~gpu|switch"), gpu.INFO, ("instance", "uuid"), ("pci_bus_id",)
    ),
    FAR,
)
"""How many NVLinks each GPU has to each neighbour; of a link that is down, none is known."""


def _edges() -> Value:
    """Each end of an edge is called `instance/PCI address`, or `instance/switch`."""
    near = linked(JOINED, "source", "instance", "pci_bus_id")
    far = linked(near, "far", "remote", "remote_pci_bus_id")
    short = labelled(labelled(far, "far", "$1", "far", "gpu/(.*)"), "far", "$1", "far", "(.*)/")
    return linked(linked(short, "target", "instance", "far"), "id", "source", "target")


def _nodes() -> Value:
    """GPUs with their NVLinks that are up, and one switch for all NVSwitches of a node."""
    links = with_labels_of(now(nvlink.LINKS), gpu.INFO, ("instance", "uuid"), ("pci_bus_id",))
    gpus = labelled(linked(links, "id", "instance", "pci_bus_id"), "title", "GPU $1", "gpu")
    behind = counted(now(nvlink.LINK_INFO, remote="switch"), ("instance", "remote"))
    switch = labelled(linked(behind, "id", "instance", "remote"), "title", "NVSwitch", "remote")
    return either(gpus, switch)


TOPOLOGY = Row(
    "Which GPU is joined to which?",
    (
        node_graph(
            "NVLink graph",
            "GPUs with the number of their NVLinks that are up; lines tell how many NVLinks join "
            "two GPUs, or a GPU and the NVSwitches.",
            _nodes(),
            _edges(),
        ),
        matrix(
            "NVLinks between GPUs",
            "How many NVLinks lead from each GPU (down) to each neighbour, by its PCI address "
            "(across); NVSwitches have none. Choose one node: addresses repeat.",
            labelled(JOINED, "remote_pci_bus_id", "NVSwitch", "remote", "switch"),
            "pci_bus_id",
            "remote_pci_bus_id",
        ),
    ),
    collapsed=True,
)
