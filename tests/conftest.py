"""Options of all tests, and the order in which they run."""

import asyncio
import gc
import inspect
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browser.chromium import NAMES as BROWSERS
from tests.support.patience import PATIENCE

LONG = "nightly: only the long form tries it, --nightly"
NEEDS = "needs(*programs): needs these programs"
EXAMPLES = {False: 30, True: 300}
"""Examples of a property, in the short form and in the long one. They have no deadline: how long
one takes says how busy the machine is."""

PROGRAMS = {
    "browser": ("|".join(BROWSERS),),
    "promtool": ("promtool",),
    "prometheus": ("prometheus", "promtool"),
    "root": ("root", "fio", "ip", "tc"),
    "stack": ("prometheus", "prometheus-alertmanager|alertmanager", "amtool", "promtool"),
    "systemd": ("root", "systemd-nspawn", "mmdebstrap", "dpkg-deb", "ip"),
    "victoria": ("victoria-metrics", "vmagent", "vmalert"),
}
"""Programs by the mark of the tests that need them: one of the names, or to be root."""

WHOLES = {"stack": "stack", "systemd": "machine", "root": "machine"}
"""Marks of tests that share the machine with their like, and what they run in turn with."""

ALONE = "tests/service/test_jobs.py"
"""A file with a machine of its own, in control groups of its own: beside the others it is over
sooner."""

PLAYED = "played"
"""Group of the files that read machines which are played once in a process."""

FIRST = (
    *("machine", "stack", ALONE),
    *(f"tests/agent/cli/test_{name}.py" for name in ("starts", "commands", "doctor")),
    *("tests/exporters/test_hostile_clients.py", PLAYED),
    *("tests/alerts/test_rules.py", "tests/test_implausible.py", "tests/test_soak.py"),
)
"""Groups that begin first: those that mostly wait, while others want the processor, then the
longest. No worker is left alone with one of them at the end."""

SERVERS = ("/usr/sbin", "/sbin")
"""Folders of programs that are not in the path of each user."""

REQUIRED = "DGX_REQUIRE_TESTS"
"""Set by `tests/run --require-all-but-gpu`: a test that is skipped has failed then."""

PERMITTED = ("systemd runs this machine", "this kubectl is older than 1.21")
"""Reasons that no package for this machine ends."""

NOT_PURE = re.compile(
    r"^(?:from|import) .*\b(?:subprocess|socket|import simulator|served|\w*machines?"
    r"|support\.(?:alert_replay|board_data|prometheus)"
    r"|tests\.(?:browser|stack|service|hardware|benchmarks))\b|\bmark\.promtool\b",
    re.MULTILINE,
)
"""Imports and a mark of files that start programs, listen, or play whole machines."""

CHOICES = ("markexpr", "keyword", "nightly", "update_golden", "lf", "failedfirst", "pure")
"""Options that choose tests: beside one of them all files are looked at."""

Committed = Callable[[Path, str], None]


@pytest.fixture
def committed(request: pytest.FixtureRequest) -> Committed:
    """Compares a committed file with what the code says, or writes it."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        follows = path.read_text(encoding="utf-8") == text
        assert follows, f"{path} differs from the code: run tests/update, and read the diff"

    return compare


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pure",
        action="store_true",
        help="leave out files that start programs, listen or play whole machines, as plain pytest",
    )
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite golden files; the diff is the review"
    )
    parser.addoption(
        "--nightly", action="store_true", help="the long form: every system in every scenario"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile(
        "here",
        deadline=None,
        max_examples=EXAMPLES[config.getoption("--nightly")],
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("here")
    plain = config.args_source is not config.ArgsSource.ARGS
    if plain and not any(config.getoption(name, None) for name in CHOICES):
        config.option.pure = True  # workers of xdist receive the option
    needs = (f"{mark}: needs {', '.join(names)}" for mark, names in PROGRAMS.items())
    for mark in (LONG, NEEDS, *needs):
        config.addinivalue_line("markers", mark)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` has it ignored
    gc.disable()  # each test is searched for garbage once, at its end
    os.environ.setdefault("GOGC", "400")  # programs in Go spent a fifth of their time on garbage
    os.environ["PATH"] = os.pathsep.join((f"{sys.prefix}/bin", os.environ["PATH"], *SERVERS))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    ignored = config.getoption("--pure") and is_test
    return bool(ignored and NOT_PURE.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.config.getoption("--pure"):
        terminalreporter.write_line(
            "Left out: files that start programs, listen or play machines. tests/run runs all."
        )


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in this hook as well
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long form; keep files together, and what shares more than a file out of each
    other's way: two stacks at once starve their agents of the processor, which is an alert of its
    own; booted machines share control groups, and mounts with those who make namespaces."""
    places = {}
    for item in items:
        whole = [group for mark, group in WHOLES.items() if item.get_closest_marker(mark)]
        file = item.nodeid.split("::")[0]
        group = whole[0] if whole and file != ALONE else file
        shared = getattr(getattr(item, "module", None), "played", None)
        if getattr(shared, "__module__", "") == "tests.support.machines":
            group = PLAYED
        item.add_marker(pytest.mark.xdist_group(group))
        places[item] = FIRST.index(group) if group in FIRST else len(FIRST)
    items.sort(key=places.__getitem__)
    if config.getoption("--nightly") or config.getoption("--update-golden"):
        return
    left = [item for item in items if item.get_closest_marker("nightly")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to scatter files over workers: then each makes all shared machines once more."""
    grouped = getattr(session.config.option, "loadgroup", False)
    if grouped and session.items and "@" not in session.items[0].nodeid:
        raise pytest.UsageError("pytest-xdist keeps no groups with this pytest; take pytest < 9.2")
    gc.freeze()  # seven thousand tests stay: looking through them again and again took a sixth


def pytest_runtest_logfinish() -> None:
    gc.collect()
    gc.freeze()  # what stays is not looked through again, nor twice at the end
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine on a loop of its own, for a bounded time (s)."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments})
    asyncio.run(asyncio.wait_for(test, PATIENCE))
    return True


def is_there(names: str) -> bool:
    """Return whether there is a program of one of these names."""
    return os.getuid() == 0 if names == "root" else any(map(shutil.which, names.split("|")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program that is not there."""
    wanted = (
        names
        for mark in item.iter_markers()
        for names in (mark.args if mark.name == "needs" else PROGRAMS.get(mark.name, ()))
    )
    if missing := [names for names in dict.fromkeys(wanted) if not is_there(names)]:
        pytest.skip(f"needs {' and '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what has started a program that is not there; fail what is skipped where every test
    must run."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if call.excinfo and isinstance(error, FileNotFoundError) and error.filename is not None:
        name, frames = str(error.filename), call.excinfo.traceback
        if frames[-1].name == "_execute_child" and not is_there(name):
            report.outcome = "skipped"
            report.longrepr = (str(frames[0].path), 0, f"Skipped: needs {name}")
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if os.environ.get(REQUIRED) and reason and not any(one in reason for one in PERMITTED):
        report.outcome = "failed"
        report.longrepr = f"{reason}, and every test is required here"
    return report
