"""What a supporter needs, in one archive, without what names the machine or its people."""

import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent.cli.assembly import Hardware
from agent.config.whole_file import write_whole
from agent.hardware.kernel_log import LogLine
from agent.replay.masks import HOST_NAME_FILES, Masks
from agent.series import SampleStore
from agent.sources import gpu

SECRETS = re.compile(
    r"^(\s*\w*(?:url|email|smarthost|file|listen|names|channel|username)\w*\s*=).*", re.MULTILINE
)
PROCESS = re.compile(r"(name=)[^,\s]+")
DRIVERS = re.compile(r"NVRM|nvidia|Xid|mlx5|nvme|md\d+|EXT4-fs error|AER", re.IGNORECASE)

CONTENTS = {
    "check.txt": "what `check` printed",
    "check.json": "the same as values, with every sample and what is absent",
    "metrics.prom": "what Prometheus would get",
    "kernel.log": "lines of the kernel about drivers, links and disks, as far as they may be read",
    "config.toml": "the configuration, without addresses, names and files",
    "versions.txt": "of the agent, Python, the kernel and the distribution",
}
"""What lies in the archive."""

HEAD = "Masked as tapes are: UUIDs, serials, host names; programs and addresses are left out.\n\n"


def masked(texts: Mapping[str, str], hardware: Hardware, samples: SampleStore) -> dict[str, str]:
    """The same texts without what identifies the machine."""
    masks = Masks()
    for path in sorted(HOST_NAME_FILES):
        try:
            masks.host_name(hardware.host.files.read(path))
        except OSError:
            continue
    for info in samples.labelled(gpu.INFO):
        if info["serial"]:
            masks.serial(info["serial"])
    return {name: masks.text(PROCESS.sub(r"\1...", text)) for name, text in texts.items()}


def kernel_lines(lines: Iterable[LogLine]) -> str:
    """Those that concern the hardware."""
    found = (line for line in lines if DRIVERS.search(line.text))
    return "".join(f"[{line.at:12.6f}] {line.text}\n" for line in found)


def configuration(path: Path | None) -> str:
    """The file without what is nobody's business."""
    if path is None:
        return "# none: all defaults\n"
    return SECRETS.sub(r'\1 "..."', path.read_text(encoding="utf-8", errors="replace"))


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
    write_whole(path, packed.getvalue())
    return listed
