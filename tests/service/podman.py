"""podman in a machine that has neither CAP_SYS_RESOURCE nor overlays below overlays."""

from pathlib import Path

from tests.service.container import Container


def prepare(container: Container) -> None:
    """Let podman run there; its control groups must be of version 1."""
    for path in Path(__file__).with_name("containers").iterdir():
        container.write(f"/etc/containers/{path.name}", path.read_text())
    container.run("rm -rf /var/lib/containers")  # what the package left is of another driver
    make_writable(container)


def make_writable(container: Container) -> None:
    """systemd-nspawn shows control groups of version 1 read-only."""
    writable = "mount -o remount,bind,rw $at || true"
    container.run(f"for at in /sys/fs/cgroup/*/; do {writable}; done 2>/dev/null")
