"""podman in a machine that has neither CAP_SYS_RESOURCE nor overlays below overlays."""

from tests.service.container import Container

PACKAGES = ("podman", "crun", "uidmap", "catatonit")

FILES = {
    "containers.conf": """
[containers]
keyring = false
default_ulimits = ["memlock=65536:65536", "nofile=1024:1024", "nproc=1024:1024"]
[engine]
cgroup_manager = "cgroupfs"
""",
    "storage.conf": """
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
""",
    "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
}


def prepare(container: Container) -> None:
    """Let podman run there; its control groups must be of version 1."""
    for name, text in FILES.items():
        container.write(f"/etc/containers/{name}", text)
    container.run("rm -rf /var/lib/containers")  # what the package left is of another driver
    make_writable(container)


def make_writable(container: Container) -> None:
    """systemd-nspawn shows control groups of version 1 read-only."""
    writable = "mount -o remount,bind,rw $at || true"
    container.run(f"for at in /sys/fs/cgroup/*/; do {writable}; done 2>/dev/null")
