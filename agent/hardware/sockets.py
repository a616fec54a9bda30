"""The TCP sockets of cgroups, in the agent's network namespace.

The kernel tells them to any user over a netlink socket (`NETLINK_SOCK_DIAG`), without capabilities.
The layouts are those of `struct inet_diag_req`, `inet_diag_msg`, and `inet_diag_bc_op` in
`linux/inet_diag.h`, `struct nlmsghdr` in `linux/netlink.h`, and `struct tcp_info` in `linux/tcp.h`.
"""

import os
import socket
import sys
from collections.abc import Callable, Collection, Iterator
from errno import EMSGSIZE
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import NamedTuple

MOST_SOCKETS = 1024  # of all cgroups in one look, which takes 25 ms of CPU time
MOUNTS = "/sys/fs/cgroup/unified", "/sys/fs/cgroup"  # the first one beside cgroup version 1
LONGEST = 10_000

NETLINK_SOCK_DIAG, TCPDIAG_GETSOCK, NLMSG_ERROR, NLMSG_DONE = 4, 18, 2, 3
TCP_ESTABLISHED, TCP_LISTEN = 1, 10
BYTECODE, INFO, CGROUP_ID = 1, 2, 21  # INET_DIAG_REQ_BYTECODE, INET_DIAG_INFO, and so on
BC_JMP, BC_CGROUP_COND = 1, 13  # INET_DIAG_*, the latter since Linux 5.8
MAPPED = bytes(10) + b"\xff\xff"  # An IPv6 address that begins so is one of IPv4

HEADER, ATTRIBUTE, MESSAGE = Struct("=IHHII"), Struct("=HH"), Struct("=BB2x2s2s16s16s4xQ20x")
REQUEST, CONDITION, JUMP = Struct("=3xB48xI4x"), Struct("=BBHQ"), Struct("=BBH")
COUNTS = Struct("=44xI4xI64xQQ")  # tcpi_last_data_sent, _last_data_recv, _bytes_acked, _received


class TcpSocket(NamedTuple):
    """A TCP socket that listens or is connected. Its `cookie` is unique until the next boot.
    `received` are the bytes that it received, and `acked` those that the other end confirmed.
    `quiet` and `silent` are the milliseconds since it received and sent data, at most LONGEST."""

    cookie: int
    listens: bool
    address: str
    port: int
    remote_address: str
    remote_port: int
    received: int
    acked: int
    quiet: int
    silent: int


Found = dict[str, list[TcpSocket]]
Sockets = Callable[[Collection[str]], Found]
"""Returns the sockets of each of some cgroups, by their paths. Raises OSError."""


def tcp_sockets(cgroups: Collection[str]) -> Found:
    """Return the sockets of each cgroup, by its path below the mount of cgroup version 2. Omit a
    path that does not exist. Raise OSError if the kernel does not tell (before Linux 5.8), if a
    sandbox denies the question, or if there are more than MOST_SOCKETS."""
    paths = {number: path for path in cgroups if (number := _number(path))}
    found: Found = {path: [] for path in paths.values()}
    kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)  # the kernel answers at once
        if found:
            link.send(_question(paths))
            for cgroup, one in islice(_answers(link), MOST_SOCKETS + 1):
                found[paths[cgroup]].append(one)
    if sum(map(len, found.values())) > MOST_SOCKETS:
        raise OSError(EMSGSIZE, f"more than {MOST_SOCKETS} sockets", "NETLINK_SOCK_DIAG")
    return found


def _number(path: str) -> int | None:
    """Return the ID of a cgroup, which is the inode number of its directory."""
    places = (Path(mount + path) for mount in MOUNTS)
    return next((place.stat().st_ino for place in places if place.is_dir()), None)


def _question(cgroups: Collection[int]) -> bytes:
    """Return a request for sockets. The kernel filters by state and by cgroup: after a true
    condition, it goes on to the jump, which ends the program, and after a false one to the next
    condition. After the last one this is beyond the end, and the socket is left out."""
    wanted = 1 << INFO - 1, 1 << TCP_ESTABLISHED | 1 << TCP_LISTEN
    step = CONDITION.size + JUMP.size
    code, left = b"", len(cgroups) * step
    for number in cgroups:
        left -= step
        code += CONDITION.pack(BC_CGROUP_COND, CONDITION.size, step, number)
        code += JUMP.pack(BC_JMP, JUMP.size, left)
    code = code[: -JUMP.size]
    request = REQUEST.pack(*wanted)
    request += ATTRIBUTE.pack(ATTRIBUTE.size + len(code), BYTECODE) + code
    flags = 0x301  # NLM_F_REQUEST, NLM_F_ROOT, and NLM_F_MATCH
    return HEADER.pack(HEADER.size + len(request), TCPDIAG_GETSOCK, flags, 0, 0) + request


def _answers(link: socket.socket) -> Iterator[tuple[int, TcpSocket]]:
    """Yield the ID of the cgroup, and each socket. Raise OSError if the kernel refuses."""
    while True:
        data, start = link.recv(1 << 16), 0
        while start < len(data):
            length, kind, *_ = HEADER.unpack_from(data, start)
            content = data[start + HEADER.size : start + length]
            if kind in (NLMSG_ERROR, NLMSG_DONE):
                number = -int.from_bytes(content[:4], sys.byteorder, signed=True)
                if number > 0:
                    raise OSError(number, os.strerror(number), "NETLINK_SOCK_DIAG")
                return
            yield _socket(content)
            start += max(HEADER.size, length + 3 & ~3)


def _socket(content: bytes) -> tuple[int, TcpSocket]:
    family, state, port, remote_port, address, remote, cookie = MESSAGE.unpack_from(content)
    known, start = {INFO: b"", CGROUP_ID: b""}, MESSAGE.size
    while start < len(content):
        length, name = ATTRIBUTE.unpack_from(content, start)
        known[name] = content[start + ATTRIBUTE.size : start + length]
        start += max(ATTRIBUTE.size, length + 3 & ~3)
    sent, got, acked, received = COUNTS.unpack_from(known[INFO].ljust(COUNTS.size, b"\0"))
    near, far = _text(address, family), _text(remote, family)
    ends = near, int.from_bytes(port, "big"), far, int.from_bytes(remote_port, "big")
    times = min(got, LONGEST), min(sent, LONGEST)
    one = TcpSocket(cookie, state == TCP_LISTEN, *ends, received, acked, *times)
    return int.from_bytes(known[CGROUP_ID], sys.byteorder), one


def _text(address: bytes, family: int) -> str:
    """Return an address. One of IPv4 is the same for a socket of IPv6."""
    if family == socket.AF_INET6 and not address.startswith(MAPPED):
        return socket.inet_ntop(family, address)
    return socket.inet_ntop(socket.AF_INET, address.removeprefix(MAPPED)[:4])
