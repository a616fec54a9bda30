"""File systems that are mounted from elsewhere. A mount is never touched: a dead server hangs who
asks it anything."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from agent.hardware.files import FileTree, read_text, text_or_nothing
from agent.hardware.host import Host
from agent.model import ReadKey, internal
from agent.polling import intervals
from agent.polling.reads import Read, ReadOutput, fixed
from agent.sources.context import HostOptions

MOUNTS = internal(
    "dgx_workload_mounts",
    "File systems that are mounted, of any kind: where this is known, so are those of the network.",
    "/proc/1/mounts, or /proc/mounts if that is hidden",
)
NETWORK_MOUNTS = internal(
    "dgx_workload_network_mounts",
    "Mounts of a kind of network file system; none of a kind that is not mounted.",
    "/proc/1/mounts, or /proc/mounts if that is hidden",
    ("kind",),
)

KINDS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "coda"),
    *("lustre", "gpfs", "ceph", "beegfs", "wekafs", "glusterfs", "pvfs2", "orangefs", "panfs"),
}
"""Kinds of file systems whose data comes over a network, as the kernel calls them."""

FUSE_KINDS = {
    *("sshfs", "s3fs", "goofys", "gcsfuse", "rclone", "mountpoint-s3", "geesefs", "blobfuse"),
    *("blobfuse2", "juicefs", "ceph-fuse", "glusterfs", "mfs", "alluxio-fuse", "seaweedfs"),
    *("fuse_dfs", "dfuse", "curlftpfs", "cvmfs2"),
}
"""The same through FUSE: `fuse.sshfs`, or plain `fuse` with the program as the device."""


def over_network(device: str, kind: str) -> bool:
    """Return whether a line of /proc/mounts with these first and third fields is of a network."""
    fuse, _, program = kind.partition(".")
    return kind in KINDS or (fuse == "fuse" and (program or device) in FUSE_KINDS)


TABLES = ("/proc/1/mounts", "/proc/mounts")
"""The mounts of the host, then those that the agent itself sees: a service that must not look into
/home has none below it, and no data set of anybody's there."""


def _read(files: FileTree, out: ReadOutput) -> None:
    host, own = TABLES  # the first is hidden by hidepid, or in another namespace of pids
    lines = (text_or_nothing(files, host) or read_text(files, own)).splitlines()
    mounts = [fields for line in lines if len(fields := line.split()) > 2]
    out.add(MOUNTS, len(mounts))
    remote = Counter(kind for device, _, kind, *_ in mounts if over_network(device, kind))
    for kind, number in sorted(remote.items()):
        out.add(NETWORK_MOUNTS, number, kind)


def reads(host: Host, _options: HostOptions) -> Iterator[Read]:
    run, metrics = partial(_read, host.files), (MOUNTS, NETWORK_MOUNTS)
    yield Read(ReadKey("filesystem", "mounts"), metrics, run, fixed(intervals.MOUNTS))
