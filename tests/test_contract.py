"""The names that users, boards and rules rely on: once released they do not change.

Typed by hand, so that a rename in the code is caught; G stands for the labels gpu and uuid.
"""

import json
import tomllib

from agent.catalogue import METRICS, NAME
from agent.model import Kind
from tests.support.repository import ROOT

CONTRACT = """
dgx_system_info system title product driver_version nvml_version
dgx_system_gpus
dgx_cost_gpu_hour
dgx_cost_info currency
dgx_system_gpus_expected
dgx_agent_build_info version python
dgx_gpu_info G model architecture pci_bus_id serial vbios_version
dgx_gpu_utilization_ratio G
dgx_gpu_memory_utilization_ratio G
dgx_gpu_activity_ratio G
dgx_gpu_active_seconds_total G
dgx_gpu_step_seconds G
dgx_gpu_steps_total G
dgx_gpu_step_confidence_ratio G
dgx_gpu_step_reference_seconds G
dgx_gpu_hung_info G rank pid host
dgx_gpu_allocated G
dgx_gpu_job_info G job_id user runtime partition account namespace pod container
dgx_gpu_job_share_ratio G job_id namespace pod
dgx_gpu_job_seconds_total G job_id user partition account state cause
dgx_gpu_job_joules_total G job_id user partition account
dgx_gpu_decoder_utilization_ratio G
dgx_gpu_encoder_utilization_ratio G
dgx_gpu_fan_ratio G fan
dgx_gpu_performance_state G
dgx_gpu_sm_active_ratio G
dgx_gpu_sm_occupancy_ratio G
dgx_gpu_tensor_active_ratio G
dgx_gpu_tensor_throughput_ratio G
dgx_gpu_tensor_throughput_seconds_total G
dgx_gpu_memory_used_bytes G
dgx_gpu_memory_total_bytes G
dgx_gpu_power_watts G
dgx_gpu_power_limit_watts G
dgx_gpu_energy_joules_total G
dgx_gpu_state_joules_total G state cause
dgx_gpu_temperature_celsius G
dgx_gpu_memory_temperature_celsius G
dgx_gpu_temperature_limit_celsius G limit
dgx_gpu_temperature_margin_celsius G
dgx_gpu_clock_hertz G clock
dgx_gpu_clock_limit_hertz G clock
dgx_gpu_throttle_seconds_total G reason
dgx_gpu_processes G
dgx_gpu_persistence_mode G
dgx_gpu_recovery_action G
dgx_gpu_read_seconds G
dgx_gpu_read_failures_total G
dgx_gpu_xid_errors_total G xid
dgx_gpu_ecc_errors_total G severity lifetime
dgx_gpu_remapped_rows_total G severity
dgx_gpu_row_remap_pending G
dgx_gpu_row_remap_failure G
dgx_gpu_retired_pages_total G cause
dgx_nvlink_transmitted_bytes_total G
dgx_nvlink_received_bytes_total G
dgx_nvlink_wire_transmitted_bytes_total G
dgx_nvlink_wire_received_bytes_total G
dgx_nvlink_link_transmitted_bytes_total G link
dgx_nvlink_link_received_bytes_total G link
dgx_nvlink_link_up G link
dgx_nvlink_links G
dgx_nvlink_links_expected G
dgx_nvlink_errors_total G link kind
dgx_nvlink_fabric_state G
dgx_pcie_transmitted_bytes_total G
dgx_pcie_received_bytes_total G
dgx_pcie_generation G
dgx_pcie_generation_limit G
dgx_pcie_width G
dgx_pcie_width_limit G
dgx_pcie_replays_total G
dgx_disk_read_bytes_total device
dgx_disk_written_bytes_total device
dgx_disk_busy_seconds_total device
dgx_network_received_bytes_total device
dgx_network_transmitted_bytes_total device
dgx_network_link_up device
dgx_infiniband_received_bytes_total device port
dgx_infiniband_transmitted_bytes_total device port
dgx_infiniband_wait_ticks_total device port
dgx_infiniband_errors_total device port kind
dgx_cpu_busy_ratio
dgx_pressure_seconds_total resource kind
dgx_agent_source_up source
dgx_agent_read_seconds_total source
dgx_agent_read_cpu_seconds_total source
dgx_agent_absent_values metric reason
dgx_agent_last_tick_timestamp_seconds
dgx_agent_config_last_reload_successful
dgx_agent_tls_certificate_expiry_timestamp_seconds
dgx_bandwidth_limit_bytes_per_second path device G direction
dgx_bandwidth_limit_info path device G direction origin source
dgx_bandwidth_ratio path device G direction
dgx_bandwidth_saturated_seconds_total path device G direction
dgx_bandwidth_observed_seconds_total path device G direction
dgx_gpu_power_default_limit_watts G
dgx_gpu_process_memory_bytes G pid name
dgx_gpu_instance_info G gpu_instance compute_instance profile mig_uuid
dgx_gpu_instance_memory_used_bytes G gpu_instance
dgx_gpu_instance_memory_total_bytes G gpu_instance
dgx_gpu_instance_processes G gpu_instance
dgx_gpu_instance_active_seconds_total G gpu_instance
dgx_gpu_instance_activity_ratio G gpu_instance
dgx_gpu_instance_sm_active_ratio G gpu_instance
dgx_gpu_instance_tensor_active_ratio G gpu_instance
dgx_gpu_instance_memory_bandwidth_ratio G gpu_instance
dgx_nvlink_link_wire_transmitted_bytes_total G link
dgx_nvlink_link_wire_received_bytes_total G link
dgx_nvlink_link_info G link remote remote_pci_bus_id
dgx_nvlink_fabric_health G kind
dgx_gpu_retired_pages_pending G
dgx_gpu_nvlink_faults_total G xid unit action
dgx_kernel_log_readable
dgx_nvswitch_errors_total switch severity sxid
dgx_disk_info device model kind array
dgx_raid_members device state
dgx_raid_member_failed device member
dgx_disk_fault device kind
dgx_infiniband_link_up device port
dgx_chassis_fault sensor kind
dgx_dimm_errors_total dimm severity
dgx_fabric_manager_running
dgx_bandwidth_spec_bytes_per_second path device G direction
dgx_gpu_state G state cause
dgx_gpu_state_confidence_ratio G
dgx_gpu_state_seconds_total G state cause
dgx_gpu_unobserved_seconds_total G
dgx_gpu_waits_for_seconds_total G culprit
dgx_agent_clock_steps_total
dgx_agent_processor_wait_seconds_total
"""
NAMES = [line.split() for line in CONTRACT.strip().splitlines()]


def test_every_metric_that_leaves_the_agent_keeps_its_name_and_labels() -> None:
    exported = {
        name: metric.labels for name, metric in METRICS.items() if metric.kind is not Kind.INTERNAL
    }
    assert exported == {
        name: tuple(" ".join(labels).replace("G", "gpu uuid").split()) for name, *labels in NAMES
    }


def test_every_declared_metric_is_named_by_the_module_beside_it() -> None:
    for path in (ROOT / "agent").rglob("*.toml"):
        names = (name for name in tomllib.loads(path.read_text("utf-8")) if NAME.fullmatch(name))
        unread = sorted(set(names) - METRICS.keys())
        assert not unread, f"{path.name} declares {unread}, which {path.stem}.py does not name"


STATUS = ["at", "headline", "groups", "findings", "paths", "jobs", "links", "absences", "events"]


def test_the_status_keeps_its_keys() -> None:
    schema = json.loads((ROOT / "exporters/status.schema.json").read_text())
    assert set(STATUS) <= set(schema["$defs"]["Status"]["required"])
