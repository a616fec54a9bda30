"""Systems with git, ca-certificates and nothing else, made once by mmdebstrap and kept."""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("apt", "git", "ca-certificates")
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
OWN_CERTIFICATES = Path("usr/local/share/ca-certificates")
HOME = Path("home/ada")
USER, NUMBER = "ada", 1000
RIGHTS = ("root", "sudo", "none")
"""Rights of the user who starts the commands: root, a user who may use sudo, a user who may not."""

UBUNTU = "deb [trusted=yes] http://archive.ubuntu.com/ubuntu"
"""Trusted, for Debian does not know the keys of Ubuntu. Only `main`, as debootstrap leaves it."""


@dataclass(frozen=True, slots=True)
class BareSystem:
    """A release, and where its packages come from."""

    suite: str
    mirror: str


SYSTEMS = {
    "debian-12": BareSystem("bookworm", "http://deb.debian.org/debian"),
    "ubuntu-24.04": BareSystem("noble", f"{UBUNTU} noble main"),
    "ubuntu-22.04": BareSystem("jammy", f"{UBUNTU} jammy main"),
}


def bare_root(system: BareSystem, rights: str) -> Path:
    """The root folder of such a system, from the cache or made now; it must not change."""
    packages = ",".join((*PACKAGES, "sudo") if rights == "sudo" else PACKAGES)
    key = hashlib.sha256(f"{system.mirror} {packages}".encode()).hexdigest()[:12]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = home / "dgx-telemetry-tests" / f"bare-{system.suite}-{key}"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        part.parent.mkdir(parents=True, exist_ok=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages}"]
        try:
            subprocess.run(
                [*command, system.suite, str(part), system.mirror], check=True, timeout=600
            )
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder


def furnish(root: Path, rights: str) -> None:
    """Add what no package installs: proxies for the registries, and a user."""
    shutil.copyfile(f"/{CERTIFICATES}", root / CERTIFICATES)
    (root / OWN_CERTIFICATES).mkdir(parents=True, exist_ok=True)
    for file in Path("/", OWN_CERTIFICATES).glob("*.crt"):  # kept when packages renew the others
        shutil.copyfile(file, root / OWN_CERTIFICATES / file.name)
    settings = subprocess.run(
        ["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True
    ).stdout
    reaching = [line for line in settings.splitlines() if "::Proxy" in line or "::Check-" in line]
    (root / "etc/apt/apt.conf.d/90reaching").write_text("\n".join(reaching) + "\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")  # an installer writes it
    if Path("/etc/pip.conf").exists():
        shutil.copyfile("/etc/pip.conf", root / "etc/pip.conf")
    with (root / "etc/passwd").open("a") as passwd:
        passwd.write(f"{USER}:x:{NUMBER}:{NUMBER}::/{HOME}:/bin/bash\n")
    with (root / "etc/shadow").open("a") as shadow:  # sudo asks whether the account is locked
        shadow.write(f"{USER}:*:20000:0:99999:7:::\n")
    with (root / "etc/group").open("a") as group:
        group.write(f"{USER}:x:{NUMBER}:\n")
    (root / HOME).mkdir(mode=0o755)
    os.chown(root / HOME, NUMBER, NUMBER)
    if rights == "sudo":
        rule = root / "etc/sudoers.d/ada"
        rule.write_text(f"{USER} ALL=(ALL) NOPASSWD: ALL\n")
        rule.chmod(0o440)
