"""The composition root: from configuration and hardware to an agent that can tick."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
from agent.observers import Guarded
from agent.poller import Poller
from agent.probe import Probe
from agent.reads import Ledger, Read
from agent.sources import system, xid
from agent.sources.options import HostOptions
from agent.sources.table import gpu_reads, host_reads
from agent.specs import Specs, SystemSpec
from agent.specs import load as load_specs
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

    config: Config
    clock: Clock
    poller: Poller
    gpus: Gpus
    specs: Specs
    recognise: Callable[[Fleet], SystemSpec | None]
    watch: xid.XidWatch


def build_agent(
    config: Config, hardware: Hardware, clock: Clock | None = None, *, inline: bool = False
) -> Agent:
    """Join hardware, sources and poller. `inline` lanes run on the caller's thread, for tests.

    Raises SpecError where the configured system or spec directory is wrong.
    """
    clock = clock or SystemClock()
    sheets = load_specs(Path(config.specs) if config.specs else None)
    specs = sheets.overruled(config.saturation.configured)
    system_of = _recogniser(config, hardware.host, specs)

    def recognise(fleet: Fleet) -> SystemSpec | None:
        return system_of(fleet.gpus)

    recognise(Fleet())  # a configured system that does not exist is told at once
    occupants = Occupants(config.diagnosis.busy)
    build = _gpu_builder(config, hardware.host, clock, system_of, occupants)
    gpus = Gpus(hardware.library, build, clock, Ledger(), occupants)
    counts = xid.XidCounts(lambda: ((str(i.index), i.uuid) for i in gpus.fleet.gpus))
    whole = system.System(lambda: gpus.fleet, recognise, hardware.host.files)
    configured = {(c.path, c.device, c.direction): c.bytes_per_second for c in config.limit}
    agenda = Agenda(_host_reads(config, hardware.host, clock, occupants), clock, Ledger())
    known = Agenda([*system.reads(whole), *xid.reads(counts)], clock, Ledger())
    bandwidths = Bandwidths(specs, lambda: recognise(gpus.fleet), configured)
    diagnosis = Diagnosis(lambda: gpus.fleet, bandwidths.bandwidth, config.diagnosis)
    lane = InlineLane if inline else Lane
    poller = Poller(
        lanes=(
            lane("nvml", gpus.run, gpus.complete, clock),
            lane("host", agenda.run, agenda.complete, clock),
            InlineLane("memory", known.run, known.complete, clock),  # no call that could hang
        ),
        ledgers=(gpus.ledger, agenda.ledger, known.ledger),
        clock=clock,
        observers=(Guarded("bandwidth", bandwidths), Guarded("diagnosis", diagnosis)),
    )
    watch = xid.XidWatch(gpus.listener, counts)
    return Agent(config, clock, poller, gpus, specs, recognise, watch)


def _recogniser(
    config: Config, host: Host, specs: Specs
) -> Callable[[Sequence[Identity]], SystemSpec | None]:
    """Which system these GPUs make of this machine. Asked each tick, and they seldom change."""
    product = system.product_name(host.files)

    @cache
    def system_with(models: tuple[str, ...]) -> SystemSpec | None:
        return specs.recognise(models, product, config.system)

    return lambda identities: system_with(tuple(i.model for i in identities))


def _host_reads(config: Config, host: Host, clock: Clock, occupants: Occupants) -> Iterator[Read]:
    options = HostOptions(
        ignore_disks=config.disk.ignore,
        ignore_networks=config.network.ignore,
        job_info=config.job.info,
        every=lambda: beats.HOST_AT_REST if occupants.at_rest else beats.TICK,
    )
    return host_reads(host, clock, options, occupants)


def _gpu_builder(
    config: Config,
    host: Host,
    clock: Clock,
    system_of: Callable[[Sequence[Identity]], SystemSpec | None],
    occupants: Occupants,
) -> Callable[[Device, Sequence[Identity]], Iterator[Read]]:
    def build(device: Device, identities: Sequence[Identity]) -> Iterator[Read]:
        spec = system_of(identities)
        probe = Probe(
            device=device,
            clock=clock,
            gpus=len(identities),
            gpm=gpm_of(device, clock),
            host=host,
            nvlink_links_expected=spec.nvlink_links if spec else None,
            process_series=config.process.series,
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
        return None
