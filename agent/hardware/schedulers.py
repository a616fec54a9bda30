"""Queries schedulers for the GPUs of jobs, through Slurm commands and the kubelet's socket. A query
may take seconds or hang, so it must run on a separate thread."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

import msgspec

ANSWER_BYTES = 16 << 20  # Maximum bytes of the kubelet's response
SECONDS = 5.0  # Timeout for a command or a kubelet call

# The parts of HTTP/2 that a unary gRPC call requires (RFC 9113, RFC 7541). The agent ignores
# response headers, so it does not have to decompress them.
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS, PADDED = 1, 1, 4, 8
PATH = b"/v1.PodResourcesLister/List"


class SlurmJob(NamedTuple):
    """A Slurm job, without the names that its owner chooses. `gres` contains pairs: a node list,
    and the job's resources on each of these nodes. It is None if Slurm does not describe it."""

    job_id: str
    user: str = ""
    account: str = ""
    partition: str = ""
    gres: Sequence[tuple[str, str]] | None = None
    sluid: str = ""


class Schedulers:
    """The interface to schedulers. All methods raise OSError if there is no response. This class
    represents a machine without any, such as a recording. If `slow`, calls may take seconds."""

    slow = False

    def slurm(self, host: str) -> list[SlurmJob]:
        """Return the running, suspended, and completing Slurm jobs on the node `host`."""
        raise FileNotFoundError(f"no Slurm on {host}")

    def kubelet(self, path: str) -> bytes:
        """Return the kubelet's ListPodResourcesResponse as a serialized protocol buffer."""
        raise FileNotFoundError(path)


class RealSchedulers(Schedulers):
    """Queries Slurm with `squeue` and `scontrol`, and the kubelet through its socket. Each job is
    described only once, because its resources do not change while it runs."""

    slow = True

    def __init__(self) -> None:
        self._known: dict[str, SlurmJob] = {}

    def slurm(self, host: str) -> list[SlurmJob]:
        columns = "--noheader", "--states=RUNNING,SUSPENDED,COMPLETING", "--format=%A|%i|%u|%a|%P"
        shown = _run_command("squeue", f"--nodelist={host}", *columns)
        rows = [line.strip().split("|", 4) for line in shown.splitlines()]
        jobs = {row[0]: [*row, *[""] * 4][:5] for row in rows if row[0].isdecimal()}
        self._known = {one: job for one, job in self._known.items() if one in jobs}
        for new in [one for one in jobs if one not in self._known][:64]:
            try:
                job = _of_json(new) or _of_text(*jobs[new])
            except TimeoutError:  # the queries for all other jobs would also time out
                raise
            except OSError:  # the job has ended
                continue
            if job:  # otherwise, the next call tries again
                self._known[new] = job
        return [self._known.get(one, SlurmJob(one)) for one in jobs]

    def kubelet(self, path: str) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SECONDS)
            connection.connect(path)
            connection.sendall(_request())
            return _message(connection)


def _of_json(job: str) -> SlurmJob | None:
    """Return a job from the JSON output of scontrol (Slurm 23.02 and later), or None without it."""
    try:
        answer = json.loads(_run_command("scontrol", "--details", "--json", "show", "job", job))
        found = next(one for one in answer["jobs"] if one["job_id"] == int(job))
        nodes = [one["name"] for one in found["job_resources"]["nodes"]["allocation"]]
        details = zip(nodes, found["gres_detail"] or [""] * len(nodes), strict=True)
        gres = [(str(node), str(detail)) for node, detail in details]
        people = (str(found[name] or "") for name in ("user_name", "account", "partition"))
        step = found.get("step_id")
        sluid = str(step.get("sluid") or "") if isinstance(step, dict) else ""
        return SlurmJob._make((job, *people, gres, sluid))
    except TimeoutError:
        raise
    except Exception:  # no JSON, or an unsupported version of it
        return None


def _of_text(job: str, shown: str, *people: str) -> SlurmJob | None:
    """Parse the text output of an older scontrol, which users can forge through job names, paths,
    and comments. The user, account, and partition in `people` come from squeue. The GPUs are parsed
    only from the text between the job name, which squeue also reports, and the command. Return None
    if this text is ambiguous."""
    name = _run_command("squeue", "--noheader", f"--job={shown}", "--format=%j").removesuffix("\n")
    text = _run_command("scontrol", "--details", "--oneliner", "show", "job", shown)
    head, _, rest = text.partition(f" JobName={name} UserId=")
    rest = rest.partition(" Command=")[0]
    between = re.fullmatch(r".*? Socks/Node=\S* (.*) MinCPUsNode=.*", rest, re.DOTALL)
    once = rest.count(" Socks/Node=") == rest.count(" MinCPUsNode=") == 1
    if head.partition(" ")[0] != f"JobId={job}" or between is None or not once:
        return None
    gres = re.findall(r" Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", between[1])
    return SlurmJob._make((job, *people, gres, ""))


class SlurmNode(msgspec.Struct):
    """A node in Slurm's JSON output."""

    name: str
    state: list[str]
    address: str = ""
    gres: str | None = ""
    reason: str | None = ""


def all_nodes() -> list[SlurmNode]:
    """Return all nodes of the Slurm cluster. Raise OSError if Slurm is older than 23.02."""
    answer = _run_command("scontrol", "--json", "--all", "show", "nodes")
    try:
        return msgspec.convert(json.loads(answer)["nodes"], list[SlurmNode])
    except (ValueError, LookupError, TypeError) as error:
        raise OSError(f"scontrol answers with other JSON: {error}") from error


def _run_command(program: str, *arguments: str) -> str:
    """Return the output of a program. Raise OSError if the program fails."""
    found = shutil.which(program)
    if found is None:
        raise FileNotFoundError(f"{program} is not installed")
    words = [found, *arguments]  # fixed words, a host name, and job numbers
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(  # noqa: S603
        words, stdin=null, stdout=pipe, stderr=null, start_new_session=True
    ) as running:
        try:
            answer, _ = running.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):  # the group, as children of a wrapper keep the pipe
                os.killpg(running.pid, signal.SIGKILL)
            raise TimeoutError(f"{program} does not answer in {SECONDS:g} s") from None
    if running.returncode:  # exclude the error output, which contains the job number
        raise OSError(f"{program} fails: exit status {running.returncode}")
    return decoded(answer)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    head = struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream)
    return head + content


def _request() -> bytes:
    """Return the bytes of a gRPC request: HTTP/2 settings, headers, and an empty message."""
    headers = b"\x83\x86" + bytes((4, len(PATH))) + PATH + b"\x01\x09localhost"
    for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers")):
        headers += bytes((0, len(name))) + name + bytes((len(value),)) + value  # without indexing
    window = struct.pack(">I", ANSWER_BYTES)
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + _frame(SETTINGS, 0, 0, b"\0\x04" + window)
        + _frame(WINDOW, 0, 0, window)
        + _frame(HEADERS, END_HEADERS, 1, headers)
        + _frame(DATA, END_STREAM, 1, bytes(5))
    )


def _message(connection: socket.socket) -> bytes:
    """Return the single message of a gRPC response. Raise OSError if there is none."""
    content = bytearray()
    with connection.makefile("rb") as incoming:
        while True:
            head = incoming.read(9)
            if len(head) < 9:
                raise ConnectionError("the kubelet closed the connection")
            length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
            frame = incoming.read(length)
            if kind in (SETTINGS, PING) and not flags & ACK:
                connection.sendall(_frame(kind, ACK, 0, frame if kind == PING else b""))
            elif kind in (RESET, GOAWAY):
                raise ConnectionError("the kubelet refused the call")
            elif kind == DATA:
                content += frame[1 : length - frame[0]] if flags & PADDED else frame
            if len(content) > ANSWER_BYTES:
                raise ConnectionError("the kubelet's answer is too long")
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                break
    if len(content) < 5 or content[0] or len(content) - 5 < int.from_bytes(content[1:5], "big"):
        raise ConnectionError("the kubelet answered with an error")
    return bytes(content[5 : 5 + int.from_bytes(content[1:5], "big")])


def pods(response: bytes) -> Iterator[tuple[str, str, str, Sequence[tuple[str, str]]]]:
    """Yield the namespace, pod, name, and devices of each container in a kubelet response
    (k8s.io/kubelet/pkg/apis/podresources/v1/api.proto). A device is a pair of a resource and an ID.
    For dynamic resource allocation (DRA), the resource is the name of the driver. Raise ValueError
    if the response is malformed."""
    for pod in _fields(response).get(1, []):
        of_pod = _fields(pod)
        for container in of_pod.get(3, []):
            inside = _fields(container)
            devices = [_fields(one) for one in inside.get(2, [])]
            ids = [(_text(one, 1), decoded(n)) for one in devices for n in one.get(2, [])]
            claims = (_fields(one).get(4, []) for one in inside.get(5, []))
            for resource in map(_fields, chain.from_iterable(claims)):
                driver = _text(resource, 2)
                of_gpus = re.match(r"(?:v?gpu|mig)\.|nvidia\.com$", driver)  # or of NVIDIA's others
                kind = f"{driver}/gpu" if of_gpus else driver
                ids.append((kind, _text(resource, 4)))
            yield _text(of_pod, 2), _text(of_pod, 1), _text(inside, 1), ids


def _text(fields: dict[int, list[bytes]], number: int) -> str:
    return decoded(fields.get(number, [b""])[-1])


def decoded(text: bytes) -> str:
    """Decode the output of another program, which may contain invalid UTF-8."""
    return text.decode(errors="replace")


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """Return the length-delimited fields of a protocol buffer message, by field number."""
    found: dict[int, list[bytes]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if key & 7 == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a field is longer than its message")
            found.setdefault(key >> 3, []).append(message[at : at + length])
            at += length
        elif key & 7 == 0:
            _, at = _varint(message, at)
        elif key & 7 in (1, 5):
            at += 8 if key & 7 == 1 else 4
        else:
            raise ValueError(f"a field has the wire type {key & 7}")
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(message) and shift < 64:
        number |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not message[at - 1] & 0x80:
            return number, at
    raise ValueError("a number ends in the middle")
