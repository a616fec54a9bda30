"""The composition root: from configuration and hardware to an agent that can tick."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent import beats
from agent.agenda import Agenda
from agent.backends.device import Device, Identity
from agent.backends.gpm import Gpm
from agent.backends.host import Host, real_host
from agent.backends.nvml import real_library
from agent.bandwidth import Bandwidths
from agent.clock import Clock, SystemClock
from agent.config import Config
from agent.diagnosis.accounting import Diagnosis
from agent.gpus import Fleet, Gpus
from agent.lane import InlineLane, Lane
from agent.model import FINAL, Absent
from agent.observers import Guarded, Observer
from agent.poller import Poller
from agent.probe import Probe
from agent.reads import PERMANENT, Ledger, Read
from agent.settings import Current, Settings
from agent.sources import system, xid
from agent.sources.options import HostOptions
from agent.sources.table import gpu_reads, host_reads
from agent.specs import Specs, SystemSpec
from agent.workload.occupants import Occupants

if TYPE_CHECKING:  # tapes and simulated machines are loaded only by who needs them
    from agent.backends.tape import Recorder


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the agent watches: a source of NVML libraries and a host."""

    library: Callable[[], Any]
    host: Host
    simulated: bool = False


def real_hardware() -> Hardware:
    """This machine."""
    return Hardware(library=real_library, host=real_host())


def simulated_hardware(machine: str, clock: Clock) -> Hardware:
    """A machine of `SYSTEM[@DRIVER][:SCENARIO]`; raises SimulationError."""
    from agent.backends import simulated

    built = simulated.build(simulated.parse(machine), clock)
    return Hardware(library=lambda: built.nvml, host=built.host, simulated=True)


def taped_hardware(path: Path, clock: Clock) -> Hardware:
    """The machine that a tape recorded; raises TapeError."""
    from agent.backends.tape import Player, Tape

    player = Player(Tape.load(path), clock)
    return Hardware(library=lambda: player.nvml, host=player.host)


def recorded(hardware: Hardware, clock: Clock) -> "tuple[Hardware, Recorder]":
    """The same hardware with a recorder between it and the sources."""
    from agent.backends.tape import Recorder

    recorder = Recorder(hardware.library(), hardware.host, clock)
    return Hardware(lambda: recorder.nvml, recorder.host, hardware.simulated), recorder


@dataclass(slots=True, eq=False)
class Agent:
    """An agent ready to tick."""

    current: Current
    clock: Clock
    poller: Poller
    gpus: Gpus
    diagnosis: Diagnosis
    watch: xid.XidWatch
    options: HostOptions
    occupants: Occupants
    product: str  # the maker's name of this machine

    @property
    def config(self) -> Config:
        return self.current.settings.config

    @property
    def specs(self) -> Specs:
        return self.current.settings.specs

    def recognise(self, fleet: Fleet) -> SystemSpec | None:
        """Which system this is, by the GPUs that are there."""
        return self.current.settings.system_of(fleet.gpus)

    def follow(self, settings: Settings) -> None:
        """Put other settings in force; whatever counts goes on counting."""
        self.current.settings = settings
        config = settings.config
        self.occupants.fed = config.diagnosis.busy
        self.options.ignore_disks = config.disk.ignore
        self.options.ignore_networks = config.network.ignore
        self.options.job_info = config.job.info


def build_agent(
    config: Config, hardware: Hardware, clock: Clock | None = None, *, inline: bool = False
) -> Agent:
    """Join hardware, sources and poller. `inline` lanes run on the caller's thread, for tests.

    Raises SpecError where the configured system or spec directory is wrong.
    """
    clock = clock or SystemClock()
    product = system.product_name(hardware.host.files)
    settings = Settings.of(config, product)
    current, occupants = Current(settings), Occupants()
    options = HostOptions(every=lambda: beats.HOST_AT_REST if occupants.at_rest else beats.TICK)
    build = _gpu_builder(current, hardware.host, clock, occupants)
    gpus = Gpus(hardware.library, build, clock, Ledger(), occupants)
    counts = xid.XidCounts(lambda: ((str(i.index), i.uuid) for i in gpus.fleet.gpus))
    bandwidths, diagnosis = _observers(current, gpus)
    observers = Guarded("bandwidth", bandwidths), Guarded("diagnosis", diagnosis)
    agent = Agent(
        current=current,
        clock=clock,
        poller=_poller(
            current, hardware.host, gpus, counts, options, observers=observers, inline=inline
        ),
        gpus=gpus,
        diagnosis=diagnosis,
        watch=xid.XidWatch(gpus.listener, counts),
        options=options,
        occupants=occupants,
        product=product,
    )
    agent.follow(settings)
    return agent


def _observers(current: Current, gpus: Gpus) -> tuple[Bandwidths, Diagnosis]:
    bandwidths = Bandwidths(
        specs=lambda: current.settings.specs,
        system=lambda: current.settings.system_of(gpus.fleet.gpus),
        configured=lambda: current.settings.limits,
    )
    diagnosis = Diagnosis(
        fleet=lambda: gpus.fleet,
        bandwidth=bandwidths.bandwidth,
        thresholds=lambda: current.settings.config.diagnosis,
    )
    return bandwidths, diagnosis


def _poller(
    current: Current,
    host: Host,
    gpus: Gpus,
    counts: xid.XidCounts,
    options: HostOptions,
    *,
    observers: Sequence[Observer],
    inline: bool,
) -> Poller:
    clock, lane = gpus.clock, InlineLane if inline else Lane

    def recognise(fleet: Fleet) -> SystemSpec | None:
        return current.settings.system_of(fleet.gpus)

    whole = system.System(lambda: gpus.fleet, recognise, host.files)
    agenda = Agenda(host_reads(host, clock, options, gpus.occupants), clock, Ledger())
    known = Agenda([*system.reads(whole), *xid.reads(counts)], clock, Ledger())
    return Poller(
        lanes=(
            lane("nvml", gpus.run, gpus.complete, clock),
            lane("host", agenda.run, agenda.complete, clock),
            InlineLane("memory", known.run, known.complete, clock),  # no call that could hang
        ),
        ledgers=(gpus.ledger, agenda.ledger, known.ledger),
        clock=clock,
        observers=observers,
    )


def _gpu_builder(
    current: Current, host: Host, clock: Clock, occupants: Occupants
) -> Callable[[Device, Sequence[Identity]], Iterator[Read]]:
    def build(device: Device, identities: Sequence[Identity]) -> Iterator[Read]:
        def links_expected() -> int | None:
            spec = current.settings.system_of(identities)
            return spec.nvlink_links if spec else None

        probe = Probe(
            device=device,
            clock=clock,
            gpus=len(identities),
            gpm=gpm_of(device, clock),
            host=host,
            nvlink_links_expected=links_expected,
            process_series=lambda: current.settings.config.process.series,
            occupants=occupants,
        )
        return gpu_reads(probe)

    return build


def gpm_of(device: Device, clock: Clock) -> Gpm | None:
    """The GPU's performance monitor, or None where it has none that answers."""
    try:
        return Gpm(device, clock)
    except Absent as absent:
        if absent.reason in FINAL:
            raise
        device.unsure = device.unsure or absent.reason not in PERMANENT
        return None
