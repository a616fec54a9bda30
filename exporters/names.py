"""Guards against web pages: which host names are answered on loopback, who may open the stream.

A web page can give its own name the address 127.0.0.1 once it is loaded (DNS rebinding); to a
browser the agent then belongs to that page, which may read all of it. What such a request cannot
change is the name in its Host header, and which page sent it.
"""

import os
from functools import lru_cache
from ipaddress import ip_address

from aiohttp import hdrs, web

STREAM = "/api/v1/stream"
OUR_OWN = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site of the agent's own page, and of a user who typed the address."""


OURS = ("localhost", os.uname().nodename)
SEEN = 256
"""Names of which the answer is kept: the same few are asked for in every request."""


def is_misdirected(request: web.Request, names: tuple[str, ...]) -> bool:
    """Whether a request that came over loopback asks for a name that is not known to be ours:
    `names`, this machine's own, localhost or an address of loopback. One without a Host header
    comes from no browser."""
    here = request.get_extra_info("sockname")
    if not here or not _is_loopback(here[0]):
        return False
    hosts = list(request.headers.getall(hdrs.HOST, ()))
    if not request.raw_path.startswith("/"):  # a whole URL, which goes before the header
        hosts.append(request.host)
    return any(not _is_ours(host, names) for host in hosts)


def is_cross_site(request: web.Request) -> bool:
    """Whether a page of another origin asks for the stream: 32 of these would shut all others
    out, though it could not read them."""
    if request.path != STREAM:
        return False
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site.lower() not in OUR_OWN
    origin = request.headers.get(hdrs.ORIGIN)  # of browsers of before 2023
    return origin is not None and origin.partition("://")[2] != request.headers.get(hdrs.HOST, "")


@lru_cache(SEEN)
def _is_ours(host: str, names: tuple[str, ...]) -> bool:
    name = _name(host)
    return _is_loopback(name) or name in {_name(known) for known in (*names, *OURS)}


def _name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


@lru_cache(SEEN)
def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
