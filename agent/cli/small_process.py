"""Settings for a process that runs for months. They precede other imports, and hold for every way
to start the agent."""

import ctypes
import os
import sys
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from agent.config.configuration import DEFAULT_PATH, ENVIRONMENT_PREFIX
from agent.threads import in_time

M_ARENA_MAX = -8
"""M_ARENA_MAX of glibc's malloc.h."""


def take_one_arena() -> None:
    """Use a single arena of glibc for all threads: they seldom allocate at the same time."""
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def leave_tls_out(web_config: str | None, config: Path | None) -> None:
    """Do not load OpenSSL, unless a web configuration may ask for TLS. asyncio and aiohttp do
    without `ssl`, and hashlib without `_hashlib`, if Python was built with hashes of its own."""
    if web_config or os.environ.get(f"{ENVIRONMENT_PREFIX}WEB_CONFIG_FILE"):
        return
    with suppress(OSError, ValueError, RecursionError):  # the start reports what is wrong
        text = in_time((config or DEFAULT_PATH).read_bytes).decode("utf-8-sig")
        if tomllib.loads(text).get("web_config_file"):
            return
    sys.modules["ssl"] = sys.modules["_ssl"] = None  # type: ignore[assignment]
    hashes = ("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")
    if all(map(find_spec, ("_md5", "_sha1", "_sha3", "_blake2", *hashes))):
        sys.modules["_hashlib"] = None  # type: ignore[assignment]
