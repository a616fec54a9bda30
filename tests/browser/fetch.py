"""Chromium for machines whose packages have none: `python -m tests.browser.fetch FOLDER`.

One file of npm's registry, checked against its hash: a Chromium without a window for x86-64, with
the libraries that small systems do not have. Needs `brotli`, in which its parts are packed.
"""

import hashlib
import io
import shutil
import sys
import tarfile
import urllib.request
from base64 import b64encode
from pathlib import Path

VERSION = "153.0.0"
ADDRESS = f"https://registry.npmjs.org/@sparticuz/chromium/-/chromium-{VERSION}.tgz"
INTEGRITY = (
    "jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
)
"""SHA-512 of the file, as the registry reports it."""

SCRIPT = """#!/bin/sh
folder=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder/lib"
exec "$folder/browser" "$@"
"""


def main(folder: Path) -> None:
    """Write it beside `folder` first, then take its place."""
    import brotli  # only here: it is no dependency of the tests

    with urllib.request.urlopen(ADDRESS, timeout=60) as page:
        packed = page.read()
    if b64encode(hashlib.sha512(packed).digest()).decode() != INTEGRITY:
        sys.exit(f"{ADDRESS} is not what was expected: its hash differs")
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name in ("al2023", "swiftshader"):
            inner = brotli.decompress(_content(archive, f"package/bin/{name}.tar.br"))
            with tarfile.open(fileobj=io.BytesIO(inner)) as libraries:
                libraries.extractall(part)  # as trusted as its hash
        (part / "browser").write_bytes(
            brotli.decompress(_content(archive, "package/bin/chromium.br"))
        )
    (part / "chromium").write_text(SCRIPT)
    for program in ("browser", "chromium"):
        (part / program).chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None, name
    return file.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
