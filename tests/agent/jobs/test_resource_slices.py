"""ResourceSlices, from a server that speaks TLS and asks for the token."""

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
from tests.support.certificates import Authority

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
