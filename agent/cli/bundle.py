"""Support bundle: one archive, without anything that identifies the machine or its users."""

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

from agent.cli.assembly import Hardware
from agent.cli.options import SECTIONS
from agent.config.atomic_file import atomic_write
from agent.config.configuration import keys_of, read_toml
from agent.diagnosis.job_watch import CostConfig
from agent.hardware.kernel_log import LogLine
from agent.replay.masks import HOST_NAME_FILES, Masks
from agent.series import SampleStore
from agent.sources import gpu

NAMED = re.compile(r"((?:name|comm)[=: ]+).*")
DRIVERS = re.compile(
    r"NVRM: |nvidia[\w-]*[: ]|mlx5_core |nvme\d* |nvme nvme|md[\d:/]|EXT4-fs error|pcieport |"
    r"\{\d+\}\[Hardware Error\]",
    re.IGNORECASE,
)
"""Prefixes of the drivers' log lines; a program's lines begin with its name."""
HARMLESS = (bool, int, float)
"""Types of settings that name nothing. Text is one of a few words that the agent knows, or left
out, as are tables and lists; so is the price of a GPU."""

CONTENTS = {
    "check.txt": "what `check` printed",
    "check.json": "the same as values, with every sample and every absent value",
    "metrics.prom": "what Prometheus would get",
    "kernel.log": "lines of the kernel about drivers, links and disks, as far as they may be read",
    "config.toml": "the numbers and switches of the configuration",
    "versions.txt": "of the agent, Python, the kernel and the distribution",
}
"""Contents of the archive."""

KEPT = "# Only keys that hold a number, a switch or one of a few known words."
HEAD = "Masked as tapes are: UUIDs, serials, host names; programs and addresses are left out.\n\n"


def masked(texts: Mapping[str, str], hardware: Hardware, samples: SampleStore) -> dict[str, str]:
    masks = Masks()
    for path in sorted(HOST_NAME_FILES):
        try:
            masks.host_name(hardware.host.files.read(path))
        except OSError:
            continue
    for info in samples.labelled(gpu.INFO):
        if info["serial"]:
            masks.serial(info["serial"])
    return {name: masks.text(text) for name, text in texts.items()}


def kernel_lines(lines: Iterable[LogLine]) -> str:
    """Those of drivers, up to where they name a program."""
    found = (
        (line.at, NAMED.sub(r"\1...", line.text)) for line in lines if DRIVERS.match(line.text)
    )
    return "".join(f"[{at:12.6f}] {text}\n" for at, text in found)


def configuration(path: Path | None) -> str:
    """The known keys of the file that name no one and nothing, and no other letter of it."""
    if path is None:
        return "# none: all defaults\n"
    lines = [KEPT]
    content = read_toml(path)
    for key, (section, field) in keys_of(SECTIONS).items():
        table, _, name = key.rpartition(".")
        inside = content.get(table, {}) if table else content
        value = inside.get(name) if isinstance(inside, dict) else None
        word = get_origin(field.type) is Literal and value in get_args(field.type)
        if section is not CostConfig and (isinstance(value, HARMLESS) or word):
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def write(path: Path, texts: Mapping[str, str]) -> list[str]:
    """Write the archive, readable by its owner alone; a line for each file in it."""
    listed = [f"{name}: {CONTENTS[name]}, {len(texts[name])} characters" for name in texts]
    whole = {"README.txt": HEAD + "\n".join(listed) + "\n", **texts}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in whole.items():
            raw = text.encode()
            entry = tarfile.TarInfo(f"dgx-telemetry-bundle/{name}")
            entry.size, entry.mode = len(raw), 0o600
            archive.addfile(entry, io.BytesIO(raw))
    atomic_write(path, packed.getvalue())
    return listed
