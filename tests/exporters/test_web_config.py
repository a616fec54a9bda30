"""The web configuration: what is read, and one sentence for all that is wrong with it."""

import sys
import tomllib
from pathlib import Path

import pytest

from agent.config.configuration import ConfigError
from exporters.web_file import WebConfig, WebFile, content, parse
from tests.stack.running import run_to_end

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS_FILES = "cert_file: server.crt\n  key_file: server.key\n  "


@pytest.fixture
def file(folder: Path) -> Path:
    return folder / "web.yml"


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def read(file: Path) -> WebConfig:
    return parse(content(str(file)), str(file))


def test_nothing_is_asked_of_an_empty_file(file: Path) -> None:
    assert read(written(file, "")) == WebConfig()
    assert read(written(file, "tls_server_config:\nbasic_auth_users:\n")) == WebConfig()
    assert WebFile("").now.context is None


EVERYTHING = f"""\
tls_server_config:
  {TLS_FILES}
basic_auth_users:
  alice: {HASH}
"""


def test_every_key_is_read(file: Path, folder: Path) -> None:
    web = WebFile(str(written(file, EVERYTHING))).now
    assert web.is_guarded
    assert web.context is not None
    assert web.users == {"alice": HASH}
    assert [*web.files] == [str(folder / name) for name in ("web.yml", "server.crt", "server.key")]


@pytest.mark.parametrize(("least", "name"), [("TLS12", "TLSv1_2"), ("TLS13", "TLSv1_3")])
def test_the_least_version_of_tls_is_that_of_the_file(file: Path, least: str, name: str) -> None:
    context = WebFile(
        str(written(file, f"tls_server_config:\n  {TLS_FILES}min_version: {least}"))
    ).context
    assert context is not None
    assert context.minimum_version.name == name


@pytest.mark.promtool
def test_promtool_agrees_with_what_is_accepted(file: Path) -> None:
    check = ["promtool", "check", "web-config", str(written(file, EVERYTHING))]
    done = run_to_end(check)
    assert done.returncode == 0, done.stderr
    assert WebFile(str(file)).now.is_guarded


def test_secrets_do_not_show(file: Path) -> None:
    assert HASH not in repr(WebFile(str(written(file, EVERYTHING))).now)
    for odd in (f"basic_auth_users: [{HASH}", f"basic_auth_users: {HASH}", f"a: {HASH}\n b: {{"):
        with pytest.raises(ConfigError) as caught:
            read(written(file, odd))
        assert "DUmpZ" not in str(caught.value)


WRONG = tomllib.loads(Path(__file__).with_name("web_config.toml").read_text("utf-8"))["wrong"]


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_reported_in_one_sentence(case: str, file: Path) -> None:
    text, said = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        WebFile(str(written(file, text)))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        WebFile(str(tmp_path / "none.yml"))
    (tmp_path / "latin.yml").write_bytes(b"\xe4: 1")
    with pytest.raises(ConfigError, match="is not YAML in UTF-8"):
        WebFile(str(tmp_path / "latin.yml"))


def test_passwords_without_bcrypt_are_refused_in_one_sentence(file: Path) -> None:
    written(file, f"basic_auth_users: {{alice: {HASH}}}")
    code = (
        "import sys; sys.modules['bcrypt'] = None; from agent.cli.parser import run_command; "
        f"sys.exit(run_command(['run', '--simulate', 'k40', '--web.config.file', {str(file)!r}]))"
    )
    done = run_to_end([sys.executable, "-c", code])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "basic_auth_users needs bcrypt, which is the extra `auth`" in done.stderr
