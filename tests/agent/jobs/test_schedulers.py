"""What schedulers answer: Slurm's commands, into which users may write, and ResourceSlices, from a
server that speaks TLS and asks for the token."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.hardware import schedulers
from agent.jobs import allocation
from agent.model import Absent
from tests.support.certificates import Authority

EVIL = "x UserId=root(0) Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7) Socks/Node=* MinCPUsNode=1"
TEXT = (
    "JobId={0} ArrayJobId=2 ArrayTaskId=5 JobName={name} UserId=eve(1001) GroupId=eve(1001) "
    "Account=nlp QOS=(null) Partition=gpu NodeList=node1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* "
    "CoreSpec=* JOB_GRES=gpu:1   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:{place}) "
    "MinCPUsNode=1 MinMemoryNode=0 Features=(null) Command=(null) WorkDir=/ Comment={name}"
)
"""As Slurm 22.05 and 24.11 write it. Slurm lets a name have blanks and ends of lines."""
SQUEUE = """#!/bin/sh
echo squeue "$@" >>"$0.asked"
case "$*" in
*--job=1*) printf '%s\\n' "$EVIL" ;;
*--job=*) printf 'a\\n   UserId=root(0)\\n' ;;
*) printf '1|1|eve|nlp|gpu\\n3|2_5|ada|bio|gpu\\n2|2_7|ada|bio|gpu\\n' ;;
esac
"""
SCONTROL = """#!/bin/sh
for last; do :; done
echo "$@" >>"$0.asked"
cat "$0.$last" 2>/dev/null
"""


class FakeSlurm:
    """Programs that answer as Slurm's do, by files beside them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("EVIL", EVIL)
        self.slurm = schedulers.RealSchedulers()

    def says(self, job: str, text: str) -> None:
        (self.folder / f"scontrol.{job}").write_text(text)

    def asked(self) -> list[str]:
        return (self.folder / "scontrol.asked").read_text().splitlines()

    def jobs(self) -> list[tuple[str, str, str, list[int] | Absent]]:
        found = [allocation.slurm_job(line, "node1") for line in self.slurm.slurm("node1")]
        return [(job.job_id, job.user, job.account, places) for job, places in found]


def test_what_users_write_charges_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without scontrol's JSON, text that users write charges no other user."""
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", TEXT.format(1, name=EVIL, place=0))
    fake.says("2_5", TEXT.format(3, name="a\n   UserId=root(0)", place=1))
    fake.says("2_7", TEXT.format(2, name="a\n   UserId=root(0)", place=2))
    for _ in range(2):
        assert fake.jobs() == [
            ("1", "eve", "nlp", [0]),
            ("3", "ada", "bio", [1]),
            ("2", "ada", "bio", [2]),
        ]
    assert len(fake.asked()) == 6, "each is asked for once, in JSON and as text"
    assert "--nodelist=node1" in (tmp_path / "squeue.asked").read_text()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(OSError, match="squeue fails: exit status 1"):
        fake.slurm.slurm("node1")
    (tmp_path / "squeue").unlink()
    with pytest.raises(OSError, match="squeue is not installed"):
        fake.slurm.slurm("node1")


def test_an_empty_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", "")
    assert fake.slurm.slurm("node1") == ["JobId=1", "JobId=3", "JobId=2"]
    fake.says("1", TEXT.format(1, name=EVIL, place=0))
    assert fake.jobs()[0] == ("1", "eve", "nlp", [0])


def test_jobs_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm 24.11 writes them."""
    nodes = {"list": "node[1-2]", "allocation": [{"name": "node2"}, {"name": "node1"}]}
    job = {
        "job_id": 1, "name": EVIL, "user_name": "eve", "account": "nlp", "partition": "gpu",
        "gres_detail": ["gpu:2(IDX:0-1)", "gpu:1(IDX:3)"], "job_resources": {"nodes": nodes},
    }  # fmt: skip
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", json.dumps({"jobs": [job]}))
    other = {"job_id": 3, "gres_detail": [], "step_id": {"sluid": "s5K1KKYAYG5D00"}}
    fake.says("3", json.dumps({"jobs": [job | other]}))
    fake.says("2", json.dumps({"jobs": []}))
    *known, (number, *_, places) = fake.jobs()
    assert known == [("1", "eve", "nlp", [3]), ("3", "eve", "nlp", [])]
    assert (number, isinstance(places, Absent)) == ("2", True)
    assert "SLUID=s5K1KKYAYG5D00" in fake.slurm.slurm("node1")[1].split()


GPU = "GPU-5f1c7a52-0f0e-4d0b-9f4e-2d3c4b5a6978"
MIG = "MIG-5f1c7a52-0f0e-4d0b-9f4e-2d3c4b5a6979"
ATTRIBUTES = {"type": {"string": "gpu"}, "uuid": {"string": GPU}, "index": {"int": 3}}


def listed(device: dict[str, Any]) -> dict[str, Any]:
    """A ResourceSliceList of one slice with one device."""
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "node-1"}, "nodeName": "node-1"}
    return {"kind": "ResourceSliceList", "items": [{"spec": {**spec, "devices": [device]}}]}


FORMS = {
    "v1": listed({"name": "gpu-0", "attributes": ATTRIBUTES}),
    "v1beta1": listed({"name": "gpu-0", "basic": {"attributes": ATTRIBUTES}}),
}
WHOLE = json.dumps(FORMS["v1"]).encode()


class ApiServer(BaseHTTPRequestHandler):
    """Has one version of the API, for the bearer of a token."""

    version, content = "v1", WHOLE
    asked: list[str] = []  # noqa: RUF012 - each server has a class of its own

    def do_GET(self) -> None:
        self.asked.append(self.path)
        status = 200 if f"/apis/resource.k8s.io/{self.version}/" in self.path else 404
        if self.headers["Authorization"] != "Bearer secret":
            status = 403
        answer = self.content if status == 200 else b"{}"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(
    account: Path, monkeypatch: pytest.MonkeyPatch, version: str, content: bytes = WHOLE
) -> Iterator[list[str]]:
    """The paths that are asked for while this server is the pod's API server."""
    paths: list[str] = []
    handler = type("_", (ApiServer,), {"version": version, "content": content, "asked": paths})
    authority = Authority(account, "ca")
    pair = authority.sign("server")
    (account / "token").write_text("secret\n")
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        monkeypatch.setenv("NODE_NAME", "node-1")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield paths
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("version", FORMS)
def test_a_device_has_its_uuid(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, monkeypatch, version, json.dumps(FORMS[version]).encode()) as asked:
        found = schedulers.resource_slices(5.0, str(tmp_path))
    assert found == {"gpu.nvidia.com/node-1/gpu-0": (GPU,)}
    assert asked[-1] == (
        f"/apis/resource.k8s.io/{version}/resourceslices?fieldSelector=spec.nodeName%3Dnode-1"
    )


@pytest.mark.parametrize(
    ("fault", "version", "content"),
    [
        ("answers 403", "v1", WHOLE),
        ("CERTIFICATE_VERIFY_FAILED", "v1", WHOLE),
        ("No such file", "v1", WHOLE),
        ("'NODE_NAME' is not set", "v1", WHOLE),
        ("Expecting value", "v1", b"<html>"),
        ("Kubernetes 1.32", "v2", WHOLE),
    ],
)
def test_no_answer_is_an_error_that_says_why(
    fault: str, version: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, monkeypatch, version, content):
        if "403" in fault:
            (tmp_path / "token").write_text("stale")
        if "CERTIFICATE" in fault:
            Authority(tmp_path, "other").pair.cert.rename(tmp_path / "ca.crt")
        if "file" in fault:
            (tmp_path / "token").unlink()
        if "NODE_NAME" in fault:
            monkeypatch.delenv("NODE_NAME")
        with pytest.raises(OSError, match=fault):
            schedulers.resource_slices(5.0, str(tmp_path))


KEYS = ("spec", "driver", "pool", "name", "devices", "attributes", "basic")
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_odd_items_are_left_out(item: object) -> None:
    good = listed({"name": "mig", "attributes": {"uuid": {"string": MIG}}})["items"]
    found = schedulers.uuids({"items": [item, *good]})
    assert found["gpu.nvidia.com/node-1/mig"] == (MIG,)


@pytest.mark.parametrize("answer", [None, [], {}, {"items": None}, {"items": 3}])
def test_an_answer_without_items_has_no_devices(answer: object) -> None:
    assert schedulers.uuids(answer) == {}
