"""The service as `dgx-telemetry install` puts it there, in order."""

import functools

import pytest

from tests.service.container import Container
from tests.service.service import CONFIGURATION, PYTHON, STATE, UNIT, Service, lasting

pytestmark = pytest.mark.systemd


@functools.cache
def environment(container: Container, home: str, owner: str) -> str:
    """A virtual environment with the wheel, made without a network; its command."""
    wheels = "/mnt/unpacked/usr/lib/dgx-telemetry/wheels"
    container.run(
        f"$({PYTHON}) -m venv --without-pip {home} && "
        f"{home}/bin/python $(echo {wheels}/pip-*.whl)/pip install --quiet --no-compile --no-index "
        f"--root-user-action ignore --find-links {wheels} dgx-telemetry && chown -R {owner} {home}"
    )
    return f"{home}/bin/dgx-telemetry"


def test_install_from_a_user_s_environment_makes_its_own(service: Service) -> None:
    command = environment(service.container, "/srv/user", "4242")
    status, said = service.container.status(f"setpriv --reuid 4242 {command} install")
    assert (status, said.count("\n")) == (2, 0)
    assert "needs root" in said
    planned = service.run(f"{command} install --dry-run").splitlines()
    assert service.container.status("test -e /opt/dgx-telemetry")[0] != 0
    assert "make-environment" in planned[0]
    *done, last = service.run(f"{command} install").splitlines()
    begins = f"dgx-telemetry: address 127.0.0.1:9935, settings {CONFIGURATION}"
    assert done.pop(1).startswith(begins)
    assert done == planned
    assert "is active" in last
    assert service.show("ActiveState") == "active"
    assert service.metric("dgx_agent_config_last_reload_successful") == 1.0
    assert "is active" in service.run("dgx-telemetry install")
    assert len(service.run(f"cat {CONFIGURATION}").splitlines()) > 100
    folder = "/etc/systemd/system"
    said = service.run(f"systemd-analyze verify --man=no {folder}/dgx-telemetry*.service")
    assert said == ""


def test_install_mends_what_has_changed_and_restarts(service: Service) -> None:
    command = environment(service.container, "/srv/user", "4242")
    service.run(f"echo '# other' >>/etc/systemd/system/{UNIT}; echo '# mine' >>{CONFIGURATION}")
    before = service.pid
    service.run(f"{command} install")
    assert "# other" not in service.run(f"cat /etc/systemd/system/{UNIT}")
    assert service.pid != before
    assert service.run(f"tail -1 {CONFIGURATION}") == "# mine"


def test_uninstall_keeps_settings_and_purge_leaves_nothing(
    service: Service, untouched: set[str]
) -> None:
    command = environment(service.container, "/srv/user", "4242")
    said = service.run("dgx-telemetry uninstall")
    assert said.splitlines()[-1] == "/etc/dgx-telemetry stays: --purge removes its config.toml too"
    left = {file for file in service.container.files() if not file.startswith("/srv/")}
    stays = {file for file in lasting(left - untouched) if not file.startswith(STATE)}
    assert stays == {CONFIGURATION}
    assert service.show("LoadState") == "not-found"
    key = "/etc/dgx-telemetry/server.key"
    service.container.write(key, "mine\n")
    said = service.run(f"{command} uninstall --purge")
    assert f"kept, not of this program: {key}" in said.splitlines()
    left = {file for file in service.container.files() if not file.startswith("/srv/")}
    assert lasting(left ^ untouched) == {key}
    service.run(f"rm {key}; rmdir /etc/dgx-telemetry")
    assert "nothing to do" in service.run(f"{command} uninstall --purge")
    service.run("rm -rf /srv/user")  # other files find the machine as it was
