"""Builds an agent from its parts, its configuration, and the hardware."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.driver_release import DriverConfig, asked_by
from agent.clock import Clock, TapeClock
from agent.config.settings import Configuration, Settings
from agent.diagnosis.disclosure import Disclosure
from agent.diagnosis.hours import STATE, state_folder
from agent.diagnosis.tick_analysis import TickAnalysis
from agent.errors import BadInput
from agent.faults.findings import Search
from agent.faults.watch import LOOK_EVERY, READER_EVERY, FaultWatch
from agent.faults.windows import FaultSamples
from agent.hardware.device import NvmlDevice
from agent.hardware.files import text_or_nothing
from agent.hardware.gpm import Gpm
from agent.hardware.host import Host, real_host
from agent.hardware.nvml import real_library
from agent.jobs.allocation import Allocations, driver_gpus
from agent.model import FINAL, PERMANENT, Absent
from agent.polling import intervals
from agent.polling.gpu_state import GpuProcesses, GpuState
from agent.polling.gpu_watch import GpuWatch
from agent.polling.poller import Poller
from agent.polling.reads import Read, ReadCosts, ReadSchedule
from agent.polling.worker import InlineWorker, Worker
from agent.sources import agent_health, allocation, kernel_log, system, workload, xid
from agent.sources.context import GpuContext, HostOptions
from agent.sources.system import ExpectedGpus
from agent.sources.table import SourcesConfig, gpu_reads, host_reads, unless_off
from agent.specs.sheets import MachineSpecs, SystemSpec
from agent.threads import at_once, on_a_thread

if TYPE_CHECKING:  # imported at run time only by the commands that need it
    from agent.replay.recorder import TapeRecorder


@dataclass(frozen=True, slots=True)
class Hardware:
    """A real, simulated, or recorded machine: its NVML library and its host."""

    library: Callable[[], Any]
    host: Host
    simulated: bool = False
    playing: Callable[[float], str] = lambda _: ""
    """Returns the name of the simulated scenario at a clock time (s), or of the recording."""
    finished: Callable[[], bool] = lambda: False  # whether the recording has ended
    releasable: bool = True  # false for recordings, which do not load the driver


def real_hardware(history: float = 0.0, kept: Path | None = None) -> Hardware:
    """Return the hardware of this machine. For the arguments, see `real_host`."""
    return Hardware(library=real_library, host=real_host(history, kept))


def simulated_hardware(machine: str, clock: Clock) -> Hardware:
    """Return the simulated machine for a specification `SYSTEM[@DRIVER][:SCENARIO]`. Raise
    BadInput if the specification is invalid."""
    from agent import simulator

    built = simulator.SimulatedSystem(simulator.parse(machine), clock)
    return Hardware(
        library=lambda: built.nvml,
        host=built.host,
        simulated=True,
        playing=built.playing,
    )


def taped_hardware(path: Path, clock: Clock) -> Hardware:
    """Return the machine in a recording. Raise BadInput if unreadable or, on a TapeClock, cut."""
    from agent.replay.player import Tape, TapePlayer

    player = TapePlayer(Tape(path), clock)
    if player.tape.cut and isinstance(clock, TapeClock):
        raise BadInput(f"{path} is {player.tape.cut}, expected a whole recording to judge")

    def playing(_: float) -> str:
        notes = ", ".join(filter(None, (player.tape.cut, "ended" if player.finished else "")))
        return f"Recording {path.name}{f' ({notes})' if notes else ''}"

    return Hardware(
        lambda: player.nvml,
        player.host,
        playing=playing,
        finished=lambda: player.finished,
        releasable=False,
    )


def recorded(hardware: Hardware, clock: Clock) -> "tuple[Hardware, TapeRecorder]":
    """Return the hardware with a recorder around it, and the recorder of its responses."""
    from agent.replay.recorder import TapeRecorder

    recorder = TapeRecorder(hardware.library(), hardware.host, clock)
    parts = recorder.host, hardware.simulated, hardware.playing
    return Hardware(lambda: recorder.nvml, *parts), recorder


class Agent:
    """An agent that is ready to run, with its hardware, sources, diagnosis, and poller. If `inline`
    is true, all reads run on the caller's thread, as tests require.

    The constructor raises ConfigError if the configured system does not exist.
    """

    def __init__(
        self, settings: Settings, hardware: Hardware, clock: Clock, *, inline: bool = False
    ) -> None:
        self.clock, self.finished = clock, hardware.finished
        self._host, self._inline = hardware.host, inline
        self.product = text_or_nothing(self._host.files, "/sys/class/dmi/id/product_name")
        self.configuration = Configuration(self.complete(settings))
        self.gpu_processes, self._read_costs = GpuProcesses(), ReadCosts()
        self.gpus = GpuWatch(
            hardware.library, self._gpu_reads, self.clock, self._read_costs, self.gpu_processes
        )
        if hardware.releasable:
            self.gpus.asked_back = lambda: asked_by(self.settings[DriverConfig])
        self._counts = xid.XidCounts(
            lambda: self.gpus.inventory,
            lambda: {pci: uuid for pci, _, uuid in driver_gpus(self._host.files)},
        )
        off = "xid" in self.settings[SourcesConfig].disable
        self.watch = xid.XidWatch((lambda: None) if off else self.gpus.events, self._counts)
        self._analysis = TickAnalysis(self.configuration, lambda: self.gpus.inventory, clock.speed)
        self.diagnosis, self.jobs = self._analysis.diagnosis, self._analysis.jobs
        own = state_folder()  # of the service; only the service writes the number of GPUs to disk
        folder = (own or STATE) if hardware.library is real_library else None
        expected = ExpectedGpus(hardware.host.files, folder, keeps=own is not None)
        self.poller = self._poller(expected)
        search = Search(FaultSamples(self.poller.samples))
        self.faults = FaultWatch(
            self.configuration, lambda: self.gpus.inventory, self.system, search
        )
        self.poller.listeners.append(lambda _: self.look_for_faults(LOOK_EVERY))

    @property
    def settings(self) -> Settings:
        return self.configuration.current

    def look_for_faults(self, every: float = READER_EVERY) -> None:
        """Check the latest tick for faults, unless a check ran within the last `every` seconds or
        not all reads have run yet."""
        if self.poller.complete and self.faults.due(self.poller.samples.now, every):
            self.faults.observe(self.poller.latest)

    def system(self) -> SystemSpec | None:
        """Return the spec sheet of the system with these GPUs, or None if it is unknown."""
        return self.settings[MachineSpecs].system_of(self.gpus.inventory.gpus)

    def complete(self, settings: Settings) -> Settings:
        """Return `settings` and the spec sheets of the configured or detected system. Raise
        ConfigError if the configured system has no spec sheet."""
        return settings.including(MachineSpecs.of(settings, self.product))

    def _poller(self, expected: ExpectedGpus) -> Poller:
        settings, clock, gpus = self.settings, self.clock, self.gpus
        inline = self._inline and not isinstance(clock, TapeClock)
        worker = InlineWorker if inline else Worker
        in_memory = (
            *system.reads(lambda: self.gpus.inventory, self.configuration, self.product, expected),
            agent_health.answers(gpus),
            *unless_off(xid, settings, xid.reads(self._counts)),
        )
        known = ReadSchedule(in_memory, clock, self._read_costs)
        apart = self._host_schedules()
        poller = Poller(
            workers=(
                worker(
                    "nvml",
                    gpus.run,
                    gpus.complete,
                    clock,
                    gpus.threads.leave,
                    is_pending=lambda: gpus.is_pending,
                ),
                *(worker(n, of.run, of.complete, clock, due=of.due) for n, of in apart.items()),
                InlineWorker("memory", known.run, known.complete, clock),  # these reads never block
            ),
            read_costs=self._read_costs,
            clock=clock,
            observers=(self._analysis,),
            disclose=Disclosure(self.configuration).snapshot,
            report_health=agent_health.reading,
        )

        if isinstance(clock, TapeClock):
            of, its = poller.workers, gpus.threads
            clock.busy = lambda: sum(w.busy for w in of) + sum(g.busy for g in its.left.values())
        return poller

    def _host_schedules(self) -> dict[str, ReadSchedule]:
        """Return the schedules of the host's reads, by worker name. A read may block, for example
        because device firmware hangs. It delays only the reads on the same worker."""
        clock, host, settings, there = self.clock, self._host, self.settings, self.gpu_processes
        options = HostOptions(
            self.configuration,
            every=lambda: intervals.HOST_AT_REST if there.at_rest else intervals.TICK,
        )
        allocations, spawn = Allocations(), at_once if self._inline else on_a_thread
        counts = self._counts
        log_reads = kernel_log.reads(host.kernel_log, counts.note_line, counts.log_answers)
        of_processes = workload.reads(host, clock, options, there, allocations, spawn=spawn)
        of_jobs = allocation.reads(host, options, there, allocations)
        reads = {
            "host": [*unless_off(kernel_log, settings, log_reads)],
            "processes": [*unless_off(workload, settings, of_processes)],
            "allocation": [*unless_off(allocation, settings, of_jobs)],
        }
        for name, read in host_reads(host, options):
            reads.setdefault(name, []).append(read)
        return {name: ReadSchedule(its, clock, self._read_costs) for name, its in reads.items()}

    def _gpu_reads(self, device: NvmlDevice, state: GpuState, count: int) -> Iterator[Read]:
        gpu_context = GpuContext(
            device=device,
            state=state,
            clock=self.clock,
            gpus=count,
            gpm=gpm_of(device, state, self.clock),
            host=self._host,
            identities=lambda: self.gpus.inventory.gpus,
            configuration=self.configuration,
            gpu_processes=self.gpu_processes,
        )
        return gpu_reads(gpu_context)


def gpm_of(device: NvmlDevice, state: GpuState, clock: Clock) -> Gpm | None:
    """Return the GPM reader of a GPU, or None if the GPU does not support GPM. Raise Absent if the
    GPU is lost or the driver is unavailable."""
    try:
        return Gpm(device, clock.monotonic)
    except Absent as absent:
        if absent.reason in FINAL:
            raise
        if absent.reason not in PERMANENT:
            state.doubtful = True
        return None
