"""ResourceSlices of this node, asked of Kubernetes' API server with the pod's own token: the UUIDs
of the devices that claims name (dynamic resource allocation)."""

import http.client
import json
import os
import re
import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
VERSIONS = ("v1", "v1beta2", "v1beta1")
"""Of resource.k8s.io, newest first: Kubernetes 1.34, 1.33 and 1.32 have them first."""

LONGEST = 16 << 20  # bytes of an answer
UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def asked(seconds: float, account: str = ACCOUNT) -> Mapping[str, tuple[str, ...]]:
    """The UUIDs among the attributes of each device of this node, by DRIVER/POOL/DEVICE; `seconds`
    is how long the server may take. Raises OSError where there is no answer."""
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        node = quote(os.environ["NODE_NAME"])
        context = ssl.create_default_context(cafile=f"{account}/ca.crt")
        token = Path(account, "token").read_text().strip()  # a new one each hour
        server = http.client.HTTPSConnection(host, int(port), timeout=seconds, context=context)
        with closing(server):
            for version in VERSIONS:
                path = f"/apis/resource.k8s.io/{version}/resourceslices"
                server.request(
                    "GET",
                    f"{path}?fieldSelector=spec.nodeName%3D{node}",
                    headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
                )
                answer = server.getresponse()
                content = answer.read(LONGEST)
                if answer.status == 200:
                    return uuids(json.loads(content))
                if answer.status != 404:
                    raise OSError(f"the API server answers {answer.status} to {path}")
    except (KeyError, ValueError, http.client.HTTPException) as error:
        why = f"{error} is not set" if isinstance(error, KeyError) else error
        raise OSError(f"no ResourceSlices: {why}") from error
    raise OSError("the API server has no ResourceSlices: Kubernetes 1.32 has them first")


def uuids(answer: Any) -> Mapping[str, tuple[str, ...]]:
    """The same of a ResourceSliceList; what in it is of another form is left out."""
    found: dict[str, tuple[str, ...]] = {}
    items = answer.get("items") if isinstance(answer, dict) else None
    for one in items if isinstance(items, list) else ():
        with suppress(LookupError, TypeError, AttributeError):
            spec = one["spec"]
            for device in spec["devices"]:
                attributes = device.get("attributes") or device["basic"]["attributes"]
                texts = (str(value.get("string")) for value in attributes.values())
                name = "/".join((spec["driver"], spec["pool"]["name"], device["name"]))
                found[name] = tuple(text for text in texts if UUID.fullmatch(text))
    return found
