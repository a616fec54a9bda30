"""Questions to NCCL's RAS service, kept as they went over the wire. Standard library alone."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ADDRESS = ("127.0.0.1", 28028)
TIMEOUT = 6.0  # s
REPEATS = 8

TEXT = (b"client protocol 2\n", b"timeout 4\n", b"status\n")
VERBOSE = (b"client protocol 2\n", b"timeout 4\n", b"verbose status\n")
JSON = (b"client protocol 2\n", b"timeout 4\n", b"set format json\n", b"verbose status\n")
BRIEF_JSON = (b"client protocol 2\n", b"timeout 4\n", b"set format json\n", b"status\n")
AT_ONCE = (b"client protocol 2\ntimeout 4\nset format json\nverbose status\n",)
QUICK = (b"client protocol 2\n", b"timeout 1\n", b"set format json\n", b"verbose status\n")
UNKNOWN_WORD = (b"client protocol 2\n", b"tell me\n")
OLD_CLIENT = (b"client protocol 1\n", b"status\n")
NO_GREETING = (b"status\n",)

ALL = {
    "text": TEXT,
    "verbose": VERBOSE,
    "json": JSON,
    "brief-json": BRIEF_JSON,
    "at-once": AT_ONCE,
    "unknown-word": UNKNOWN_WORD,
    "old-client": OLD_CLIENT,
    "no-greeting": NO_GREETING,
}


def ask(words: tuple[bytes, ...], timeout: float = TIMEOUT) -> dict[str, Any]:
    """One connection: a line is sent once the one before was answered; the last one's answer ends
    with the connection. `talk` holds direction, seconds since `at`, and the bytes as latin-1."""
    start = time.monotonic()
    talk: list[tuple[str, float, str]] = []
    told: dict[str, Any] = {"at": start, "talk": talk}

    def keep(direction: str, piece: bytes) -> None:
        talk.append((direction, round(time.monotonic() - start, 6), piece.decode("latin-1")))

    try:
        with socket.create_connection(ADDRESS, timeout) as connection:
            keep("connected", b"")
            for word in words[:-1]:
                connection.sendall(word)
                keep("sent", word)
                answer = b""
                while not answer.endswith(b"\n"):
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    answer += piece
                keep("received", answer)
            connection.sendall(words[-1])
            keep("sent", words[-1])
            while piece := connection.recv(65536):
                keep("received", piece)
            keep("closed", b"")
    except OSError as error:
        keep("error", f"{type(error).__name__}: {error}".encode())
    told["seconds"] = round(time.monotonic() - start, 6)
    return told


def listener() -> dict[str, Any]:
    """Who listens on the port: pids that hold the socket. Needs root."""
    wanted = f"0100007F:{ADDRESS[1]:04X}"
    inodes = []
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in table.read().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[1].endswith(wanted[8:]):
                inodes.append((fields[1], fields[9]))
    wanted_sockets = {f"socket:[{node}]": address for address, node in inodes}
    holders = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for file in (process / "fd").iterdir():
                address = wanted_sockets.get(str(file.readlink()))
                if address:
                    holders.append((int(process.name), address))
    return {"at": time.monotonic(), "listening": [a for a, _ in inodes], "pids": holders}


def ask_repeatedly(count: int) -> list[dict[str, Any]]:
    """So many connections, a tenth of a second apart: not all need reach the same process."""

    def later(number: int) -> dict[str, Any]:
        time.sleep(number / 10)
        return {"question": "repeated", **ask(QUICK)}

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(later, range(count)))


def ask_everything(names: tuple[str, ...] = ("text", "verbose", "json")) -> list[dict[str, Any]]:
    """Each of these in turn, and who listens; `repeated` is several connections."""
    talks: list[dict[str, Any]] = [{"question": "listener", **listener()}]
    for name in names:
        repeated = name == "repeated"
        talks += ask_repeatedly(REPEATS) if repeated else [{"question": name, **ask(ALL[name])}]
    return talks
