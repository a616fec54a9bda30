"""Every section of the configuration, in the order of `deploy/config.toml`.

A package that is configured declares its section; the section is added here.
"""

from agent.cli.driver_release import DriverConfig
from agent.config.settings import Section
from agent.diagnosis.job_watch import CostConfig
from agent.diagnosis.thresholds import Thresholds
from agent.faults.thresholds import AlertPatches, AlertThresholds
from agent.limits.resolution import LimitsConfig
from agent.service.journal import LogConfig
from agent.sources.allocation import AllocationConfig
from agent.sources.context import NvlinkConfig
from agent.sources.disk import DiskConfig
from agent.sources.network import NetworkConfig
from agent.sources.process import ProcessConfig
from agent.sources.table import SourcesConfig
from agent.sources.workload import JobConfig
from agent.specs.clusters import ClustersConfig
from agent.specs.machine import SaturationConfig, SpecConfig
from alerts.receivers import Receivers
from exporters.selection import MetricsConfig
from exporters.settings import DcgmConfig, HttpConfig

SECTIONS: tuple[type[Section], ...] = (
    HttpConfig,
    SpecConfig,
    LogConfig,
    ProcessConfig,
    JobConfig,
    DriverConfig,
    AllocationConfig,
    SourcesConfig,
    CostConfig,
    DiskConfig,
    NetworkConfig,
    NvlinkConfig,
    MetricsConfig,
    DcgmConfig,
    Thresholds,
    SaturationConfig,
    AlertThresholds,
    AlertPatches,
    Receivers,
    LimitsConfig,
    ClustersConfig,
)
