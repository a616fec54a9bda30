"""Reduces the memory use of long-running processes. Call these functions before other imports."""

import ctypes
import os
import sys
import tomllib
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from agent.config.configuration import DEFAULT_PATH, ENVIRONMENT_PREFIX, file_content
from agent.threads import in_time


def take_one_arena() -> None:
    """Use one malloc arena for all threads, because they rarely allocate at the same time."""
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX in malloc.h


def leave_tls_out(web_config: str | None, config: Path | None) -> None:
    """Prevent the import of OpenSSL, unless a web configuration file may enable TLS. asyncio and
    aiohttp work without the module `ssl`. hashlib needs no `_hashlib` if Python has its hashes."""
    if web_config or os.environ.get(f"{ENVIRONMENT_PREFIX}WEB_CONFIG_FILE"):
        return
    with suppress(OSError, ValueError, RecursionError):  # errors are reported on startup
        if config and in_time(config.is_fifo):  # a pipe can be read only once
            return
        text = in_time(partial(file_content, config or DEFAULT_PATH)).decode("utf-8-sig")
        if tomllib.loads(text).get("web_config_file"):
            return
    sys.modules["ssl"] = sys.modules["_ssl"] = None  # type: ignore[assignment]
    hashes = ("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")
    if all(map(find_spec, ("_md5", "_sha1", "_sha3", "_blake2", *hashes))):
        sys.modules["_hashlib"] = None  # type: ignore[assignment]
