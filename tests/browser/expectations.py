"""Expected texts and marks of the page in each scenario of DESIGN: the shown of a person."""

from dataclasses import dataclass, field

from tests.browser.page import Page

ALL = -1
"""Stands for every GPU of the machine."""

READ_PAGE = """(() => {
  const list = (selector, read) => [...document.querySelectorAll(selector)].map(read);
  const of = (node, name) => node.closest(`[data-${name}]`)?.getAttribute(`data-${name}`);
  return {
    headline: document.querySelector('#headline').textContent,
    level: document.querySelector('#headline').dataset.level,
    tiles: list('.tile', ({ dataset }) => [+dataset.gpu, dataset.state, dataset.cause ?? '']),
    faults: list('.tile[data-faults]', (tile) => +tile.dataset.gpu),
    saturated: list('.flow[data-level]:not(dialog *)', (flow) =>
      [of(flow, 'path'), of(flow, 'device'), of(flow, 'direction')].join(' ')),
    ports: list('tr[data-level]', (row) => row.dataset.device),
    edges: list('#graph-drawing .edge', ({ dataset }) => `${dataset.gpus}: ${dataset.load}`),
    notes: document.querySelector('#graph-notes').textContent,
    findings: list('#findings .words, #headline .words, #sound', (line) => line.textContent),
  };
})()"""


SHORT_OF_PROCESSORS = "in each second for a processor"


@dataclass(frozen=True, slots=True)
class Shown:
    """One scenario: words of the sentence, and what else must be marked.

    `judged` are the GPUs with `state` and `cause`; `ailing` those with a finding on their tile.
    """

    scenario: str
    says: tuple[str, ...]
    level: str
    state: str = ""
    cause: str = "none"
    judged: tuple[int, ...] = (ALL,)
    ailing: tuple[int, ...] = ()
    saturated: tuple[str, ...] = ()  # `path device direction`
    port: str = ""  # a device whose row is marked
    edge: str = ""  # `gpus: load`
    note: str = ""
    finding: str = ""

    def misses(self, page: Page) -> list[str]:
        """Return the differences from what is expected; empty if there are none."""
        seen = page.run(READ_PAGE)
        tiles = {gpu: (state, cause) for gpu, state, cause in seen["tiles"]}
        judged = list(tiles) if self.judged == (ALL,) else self.judged
        wrong = [f"says {w!r}" for w in self.says if w.lower() not in seen["headline"].lower()]
        wrong += [f"level {self.level}, not {seen['level']}"] * (seen["level"] != self.level)
        if self.state:
            wrong += [
                f"GPU {gpu} {self.state} {self.cause}, not {tiles.get(gpu)}"
                for gpu in judged
                if tiles.get(gpu) != (self.state, self.cause)
            ]
            others = [gpu for gpu in tiles if gpu not in judged]
            wrong += [f"GPU {g} too" for g in others if tiles[g] == (self.state, self.cause)]
        if self.ailing:
            wrong += [f"marked {seen['faults']}"] * (tuple(seen["faults"]) != self.ailing)
        wrong += [f"saturated {s}" for s in self.saturated if s not in seen["saturated"]]
        wrong += [f"port {self.port}"] * (bool(self.port) and self.port not in seen["ports"])
        wrong += [f"edge {self.edge}"] * (bool(self.edge) and self.edge not in seen["edges"])
        wrong += [f"note {self.note}"] * (self.note not in seen["notes"])
        # An agent on a busy machine has one finding of its own in place of none.
        said = (self.finding, SHORT_OF_PROCESSORS)
        found = any(words in line for line in seen["findings"] for words in said)
        return wrong + [f"finding {self.finding}"] * (not found)


@dataclass(frozen=True, slots=True)
class PageMachine:
    """One machine, and what it plays; what cannot be undone comes last."""

    system: str
    gpus: int
    expectations: tuple[Shown, ...] = field(default_factory=tuple)


PAGE_MACHINES = {
    "station": PageMachine("dgx-station-v100", 4, (
        Shown("starved-disk", ("4 GPUs starved by disk",), "warning", "starved", "disk"),
        Shown("starved-cpu", ("4 GPUs starved by the CPU",), "warning", "starved", "cpu"),
        Shown("throttled", ("4 GPUs slowed down by heat",), "warning", "throttled", "thermal",
              ailing=(0, 1, 2, 3)),
        Shown("nvlink-saturated", ("communicating over NVLink",), "warning",
              "communicating", "nvlink", edge="0 1: full",
              saturated=("nvlink gpu0 transmit", "nvlink gpu3 receive")),
        Shown("gpu-slow", ("GPU 1 cannot be judged",), "warning",
              ailing=(1,)),
        Shown("nvlink-errors", ("GPU 0: NVLink 1 had", "errors"), "warning", "busy",
              ailing=(0,)),
        Shown("driver-hang", ("driver has not responded",), "critical", "unknown", ""),
    )),
    "dgx1": PageMachine("dgx-1-v100", 8, (
        Shown("starved-network", ("8 GPUs starved by the network",), "warning", "starved",
              "network", saturated=("network eno1 receive",)),
        Shown("starved-host-thread", ("8 GPUs starved, each by its launching thread",), "warning",
              "starved", "host_thread"),
        Shown("starved-disk", ("8 GPUs starved by disk",), "warning", "starved", "disk",
              saturated=("disk md0 read",)),
        Shown("infiniband-saturated", ("communicating over InfiniBand",), "warning",
              "communicating", "infiniband", saturated=("infiniband mlx5_0:1 transmit",)),
        Shown("nvlink-down", ("1 NVLink is down",), "critical", "busy", ailing=(0, 3),
              edge="0 3: down", note="GPU 0, link 2 is down"),
        Shown("gpu-lost", ("GPU 2 lost", "7 of 8 answer"), "critical", "lost", "", judged=(2,)),
    )),
    "a100": PageMachine("dgx-a100", 8, (
        Shown("starved-peer", ("GPUs 1-7 waiting for GPU 0",), "warning", "starved", "peer",
              judged=tuple(range(1, 8))),
        Shown("hang", ("8 GPUs hung",), "critical", "hung"),
        Shown("late-rank", ("waiting for GPU 1",), "warning", "busy"),
        Shown("port-degraded", ("InfiniBand port mlx5_0:1 runs at",), "warning", "busy",
              port="mlx5_0:1"),
        Shown("row-remap", ("GPU 0: a memory row could not be remapped",), "critical", "busy",
              ailing=(0,)),
    )),
    "sixteen": PageMachine("sixteen", 16, (
        Shown("training", ("16 GPUs busy",), "good", "busy", finding="All expected hardware"),
        Shown("exposed-communication", ("16 GPUs only communicating",), "info", "busy"),
        Shown("checkpoint", ("16 GPUs starved by disk",), "warning", "starved", "disk"),
        Shown("idle", ("16 GPUs idle",), "good", "idle"),
        Shown("pcie-degraded", ("GPU 0: its PCIe link has lost lanes: x8",), "warning", "busy",
              ailing=(0,)),
        Shown("ecc", ("GPU 0:", "uncorrected ECC error"), "critical", "busy", ailing=(0,)),
    )),
    "titan": PageMachine("titan-x-pascal", 1, (
        Shown("held", ("occupied by an idle process",), "info", "held"),
        Shown("starved-pcie", ("starved by PCIe",), "warning", "starved", "pcie",
              saturated=("pcie gpu0 receive",)),
        Shown("gpu-hot", ("GPU 0: ", "temperature limit"), "critical", "busy", ailing=(0,)),
        Shown("threads", ("starved by the CPU",), "warning", "starved", "cpu"),
        Shown("no-demand", ("waiting for requests",), "good", "idle", "requests"),
        Shown("xid", ("GPU 0: XID 62",), "critical", "busy", ailing=(0,)),
    )),
    "h100": PageMachine("dgx-h100", 8, (
        Shown("starved-pcie", ("GPU 0 starved by PCIe", "GPUs 1-7 idle"), "warning", "starved",
              "pcie", judged=(0,), saturated=("pcie gpu0 receive",)),
        Shown("nvlink-saturated", ("communicating over NVLink",), "warning", "communicating",
              "nvlink", edge="5: full"),
    )),
}  # fmt: skip
"""DESIGN's scenarios over machines with 1, 4, 8 and 16 GPUs."""
