"""The configuration: precedence, errors that name place, key and what was expected, and decoding,
whose error names the innermost wrong value."""

import os
import re
import shlex
import stat
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

from agent.cli.options import SECTIONS
from agent.config.atomic_file import atomic_write, check_target
from agent.config.configuration import ConfigError, keys_of, load
from agent.config.decoding import Mismatch, decode
from agent.config.settings import Settings
from agent.errors import BadInput
from agent.faults.thresholds import AlertPatch, AlertPatches
from agent.limits.resolution import LimitConfig, LimitsConfig
from agent.service.journal import LogConfig
from agent.specs.sheets import SaturationConfig, SpecConfig
from agent.threads import in_time
from exporters.settings import HttpConfig, parse_listen
from tests.stack.running import run_to_end
from tests.support.repository import DEPLOY


def written(kind: Any) -> type:
    """The type of a key's value in the file."""
    if type(None) in get_args(kind):
        return written(get_args(kind)[0])
    if get_origin(kind) is Annotated:
        return written(get_args(kind)[0])
    if get_origin(kind) in (Literal, re.Pattern):
        return str
    assert isinstance(kind, type)
    return kind


TYPES = {key: field.type for key, (_, field) in keys_of(SECTIONS).items()}
LISTS = {key for key, kind in TYPES.items() if get_origin(kind) in (tuple, dict)}
"""Every key that holds several values, which only a file can give."""
KEYS = {key: written(kind) for key, kind in TYPES.items() if key not in LISTS}
"""Every key that holds one value."""


def value_of(settings: Settings, key: str) -> Any:
    """Return the value of a key; of an expression its text."""
    section, field = keys_of(SECTIONS)[key]
    value = getattr(settings[section], field.name)
    return value.pattern if isinstance(value, re.Pattern) else value


CASES = tomllib.loads(Path(__file__).with_name("configuration.toml").read_text("utf-8"))

EXAMPLE = DEPLOY / "config.toml"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_without_anything_the_defaults_hold() -> None:
    settings = load(SECTIONS, None, {})
    assert settings.sections == {}
    assert settings[HttpConfig].address == ("127.0.0.1", 9935)


def test_flags_go_before_the_environment_and_that_before_the_file(file: Path) -> None:
    file.write_text('listen = ":1"\nsystem = "dgx-h100"\n[log]\nlevel = "debug"\nformat = "json"\n')
    environment = {"DGX_TELEMETRY_LOG_LEVEL": "error", "DGX_TELEMETRY_LISTEN": ":2", "HOME": "/"}
    config = load(SECTIONS, file, environment, {"listen": ":3", "log.level": None})
    assert config[HttpConfig].listen == ":3"
    assert config[LogConfig] == LogConfig("error", "json")
    assert config[SpecConfig].system == "dgx-h100"


def test_every_key_has_a_variable() -> None:
    values = {str: "^x$", int: "7", float: "0.5", bool: "true"}
    named = {
        "listen": "[::1]:80",
        "allowed_hosts": "a.b, c",
        "log.level": "warning",
        "log.format": "json",
        "metrics.set": "small",
        "dcgm.names": "4.9",
    }
    named |= {"diagnosis.held_after": "30.0", "alerts.silent_for": "5m"}
    spans = ("_window", "starved_hours", "starved_day")
    named |= {key: "20m" for key in KEYS if key.endswith(spans)}
    named |= {key: "http://host/x" for key in KEYS if key.endswith("_url")}
    named |= {"alerts.grafana": "http://host:3000"}
    named |= {key: "/run/secrets/x" for key in KEYS if key.endswith("_file")}
    named |= {"alertmanager.email_to": "a@host", "alertmanager.email_from": "b@host"}
    named |= {"alertmanager.email_smarthost": "mail:25", "cost.currency": "EUR"}
    texts = {key: named.get(key, values[kind]) for key, kind in KEYS.items()}
    environment = {f"DGX_TELEMETRY_{k.replace('.', '_').upper()}": t for k, t in texts.items()}
    config = load(SECTIONS, None, environment)
    assert {k: _written(value_of(config, k)) for k in KEYS} == texts


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        *(("job", "nccl", value) for value in ("true", '"hang"', "[]")),
        *(("diagnosis", "thread_least", "2.0"), ("", "specs", '"/etc/sheets"')),
        ("", "cluster", '[{name = "a", sheet = "dgx-1-124", bytes_per_second = 1.0}]'),
    ],
)
def test_a_key_of_an_earlier_version_is_taken_with_a_warning(
    file: Path, table: str, key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    head, name = (f"[{table}]", f"{table}.{key}") if table else ("", key)
    file.write_text(f"{head}\n{key} = {value}\n[log]\nlevel = 'debug'\n")
    assert load(SECTIONS, file, {})[LogConfig].level == "debug"
    load(SECTIONS, None, {f"DGX_TELEMETRY_{name.replace('.', '_').upper()}": value})
    warnings = [str(record.msg) for record in caplog.records]
    assert len(warnings) == 2
    assert all("retired_setting" in text and f"key={name}" in text for text in warnings)


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


WRONG = {
    **{case: (file.encode(), *said) for case, (file, *said) in CASES["wrong"].items()},
    "no float holds it": (
        b"[saturation]\npcie = " + b"9" * 400,
        "saturation.pcie: number out of range (a number above 0",
    ),
    "a number that Python does not print": (
        b"[process]\nseries = 0x" + b"f" * 5000,
        "process.series: expected `int` <= 1000 (a whole number from 0",
    ),
    "a duration without end": (
        b'[alerts]\nsilent_for = "' + b"9" * 3000 + b'd"',
        "... is not a duration from 1m to 1d",
    ),
    "deep expression": (
        b'[network]\nignore = "' + b"(" * 8000 + b'"',
        "network.ignore: it is no regular expression",
    ),
    "not UTF-8": (b"\xff\xfe", "is not UTF-8 text", "expected a TOML file"),
    "deep TOML": (b"x = " + b"[" * 9000, "is not valid TOML"),
    "long number": (b"x = " + b"9" * 5000, "is not valid TOML"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_the_file_is_reported_in_one_sentence(case: str, file: Path) -> None:
    content, *said = WRONG[case]
    assert isinstance(content, bytes)
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(SECTIONS, file, {})
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert all(str(part) in message for part in said), message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_reported_with_the_reason(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{file}: cannot be read: No such file")):
        load(SECTIONS, file, {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(SECTIONS, tmp_path, {})


@pytest.mark.parametrize(("name", "text", "said"), CASES["variables"])
def test_a_bad_variable_is_named(name: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name}: {said}")):
        load(SECTIONS, None, {name: text})


def test_a_bad_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^--log\.level: invalid enum value 'loud'"):
        load(SECTIONS, None, {}, {"log.level": "loud"})


@pytest.mark.parametrize(("text", "address"), CASES["addresses"])
def test_addresses(text: str, address: list[str | int]) -> None:
    assert [*parse_listen(text)] == address


@pytest.mark.parametrize(
    "text", ["", "9935", "a:b", "::1:80", "[::g]:80", "[x]:1", ":-1", ":1e3", ":٣"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_listen(text)


def uncommented(text: str) -> str:
    """The example with its keys switched on: a comment that is an assignment is a key."""
    return re.sub(r"^# (?=\w+ = |\[)", "", text, flags=re.MULTILINE)


def test_the_example_loads_as_it_is_and_means_the_defaults() -> None:
    assert load(SECTIONS, EXAMPLE, {}).sections == {}


@pytest.mark.parametrize("key", [key for key in (*KEYS, *LISTS) if "." not in key])
def test_a_key_of_no_section_that_is_appended_is_told_its_place(key: str, file: Path) -> None:
    file.write_text(f"{EXAMPLE.read_text()}\n{key} = 1\n")
    expected = f"alertmanager.{key} is not a known key, expected one of {key} (before the first"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        load(SECTIONS, file, {})


OF_0_2_0 = [
    *("alertmanager", "alerts", "allocation", "cost", "dcgm", "diagnosis", "disk", "job", "log"),
    *("metrics", "network", "nvlink", "process", "saturation"),
]
"""Sections that version 0.2.0 (cced224) knows, and no others."""


def test_version_0_2_0_takes_the_shipped_file() -> None:
    shipped = tomllib.loads(EXAMPLE.read_text())
    assert shipped.keys() <= {*OF_0_2_0}
    assert not any(shipped.values())


def test_the_command_of_the_manual_leaves_what_version_0_2_0_knows(file: Path) -> None:
    manual = (DEPLOY / "README.md").read_text()
    (line,) = re.findall(r"^sudo (sed .*) /etc/dgx-telemetry/config\.toml$", manual, re.MULTILINE)
    text = re.sub(
        r"^\[alerts\.Dgx.*?\n\n",
        "",
        uncommented(EXAMPLE.read_text()),
        flags=re.MULTILINE | re.DOTALL,
    )
    file.write_text(text)
    subprocess.run([*shlex.split(line), file], check=True)
    left = tomllib.loads(file.read_text())
    assert {name for name, value in left.items() if isinstance(value, dict)} == {*OF_0_2_0}
    newer = ("gpus", "driver.release_file", "cost.currency", "sources.disable", "metrics.keep")
    gone = {*flat(tomllib.loads(text))} - {*flat(left)}
    assert gone == {*newer, "metrics.set", "alerts.exposed_share"}


LIMIT = "[[limit]]\npath='disk'\ndevice='md0'\ndirection='write'\nbytes_per_second=1.5e9"


def test_the_example_shows_every_key_with_its_default(file: Path) -> None:
    text = uncommented(EXAMPLE.read_text())
    file.write_text(text)
    config = load(SECTIONS, file, {})
    assert config.sections.keys() == {LimitsConfig, AlertPatches}
    patch = AlertPatch(hold="5m", severity="info", labels={"team": "training"})
    assert config[AlertPatches].patches == {"DgxGpuStarved": patch}
    assert config[SaturationConfig] == SaturationConfig()
    assert config[LimitsConfig].limit == (LimitConfig("disk", "md0", "write", 1.5e9),)
    keys = {re.sub(r"^alerts\.Dgx.*", "alerts.NAME", key) for key in flat(tomllib.loads(text))}
    assert keys == {*KEYS, *LISTS}


BAD_LIMITS = {
    "limit = 3": "limit: expected `array`, got `int`",
    "[[limit]]\npath = 'disk'": "limit[0]: object missing required field `device`",
    LIMIT.replace("disk", "floppy"): "limit[0].path: invalid enum value 'floppy' (one of",
    LIMIT.replace("write", "transmit"): "limit[0]: direction: 'transmit' is none of read, write",
    LIMIT.replace("'md0'", "7"): "limit[0].device: expected `str`, got `int` (a name such",
    LIMIT.replace("1.5e9", "-1"): "limit[0].bytes_per_second: ",
    LIMIT.replace("1.5e9", "9" * 400): "limit[0].bytes_per_second: ",
    LIMIT.replace("1.5e9", "true"): "limit[0].bytes_per_second: ",
    LIMIT.replace("1.5e9", "nan"): "limit[0].bytes_per_second: ",
}


@pytest.mark.parametrize("text", BAD_LIMITS)
def test_a_bad_limit_is_one_sentence(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(SECTIONS, file, {})
    assert f"{file}: {BAD_LIMITS[text]}" in str(caught.value)


def flat(table: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in table.items():
        inside = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [prefix + key]
        found.extend(inside)
    return found


def test_of_two_limits_of_one_path_the_last_counts(file: Path) -> None:
    file.write_text(f"{LIMIT}\n{LIMIT.replace('1.5e9', '2e9')}")
    assert load(SECTIONS, file, {})[LimitsConfig].by_path == {("disk", "md0", "write"): 2e9}


def test_what_only_a_file_can_give_is_not_passed_over() -> None:
    with pytest.raises(ConfigError, match=r"DGX_TELEMETRY_LIMIT: limit is a list, which"):
        load(SECTIONS, None, {"DGX_TELEMETRY_LIMIT": "disk=5"})


def test_text_is_taken_for_numbers_only_where_it_may() -> None:
    assert decode("7", int, "n", strict=False) == 7
    with pytest.raises(Mismatch, match=r"^n: expected `int`, got `str`$"):
        decode("7", int, "n")


OF_FILES = tomllib.loads(Path(__file__).with_name("files.toml").read_text("utf-8"))


def test_a_file_is_written_whole_into_folders_that_are_made(tmp_path: Path) -> None:
    atomic_write(tmp_path / "new" / "er" / "x", b"x", 0o644, make=True)
    written = tmp_path / "new" / "er" / "x"
    assert (written.read_bytes(), stat.S_IMODE(written.stat().st_mode)) == (b"x", 0o644)
    assert check_target(written) == written.lstat()
    assert check_target(tmp_path / "free") is None
    assert not [*tmp_path.rglob(".*")], "nothing is left beside"


@pytest.mark.parametrize("name", ["fifo", "link", "folder"])
def test_a_place_that_is_no_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    """A link would lead root to any file, as /dev/stdout does; what it names stays."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(precious)
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match=f"{name}: is not a regular file, expected one or a free"):
        atomic_write(tmp_path / name, b"x")
    assert precious.read_text() == "precious"


def test_a_dash_is_no_name_of_a_file() -> None:
    """`check --bundle -` left a file called "-"."""
    with pytest.raises(BadInput, match="- stands for no file here"):
        atomic_write(Path("-"), b"x")
    assert not Path("-").exists()


@pytest.mark.parametrize(("text", "without"), OF_FILES["loaded"])
def test_openssl_is_loaded_where_a_file_asks_for_it(
    tmp_path: Path, text: str, without: bool
) -> None:
    (tmp_path / "c.toml").write_text(text)
    code = "import sys, pathlib; from agent.cli.small_process import leave_tls_out; "
    code += f"leave_tls_out(None, pathlib.Path({str(tmp_path / 'c.toml')!r})); "
    code += "print('ssl' in sys.modules and sys.modules['ssl'] is None)"
    assert run_to_end([sys.executable, "-c", code]).stdout == f"{without}\n"


def test_what_work_returns_or_raises_comes_back() -> None:
    assert in_time(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0)


def test_who_takes_too_long_is_left_behind() -> None:
    released = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        in_time(released.wait, 0.05)
    released.set()


def test_what_hangs_does_not_keep_the_process() -> None:
    code = (
        "import threading\nfrom agent.threads import in_time\n"
        "try:\n    in_time(threading.Event().wait, 0.05)\nexcept TimeoutError:\n    print('late')"
    )
    done = run_to_end([sys.executable, "-W", "error", "-c", code])
    assert (done.returncode, done.stdout) == (0, "late\n")
