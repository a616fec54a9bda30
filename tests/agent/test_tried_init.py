"""`nvmlInit` tried in a child process: what is made of each end of the child."""

import itertools

import pytest

from agent.hardware import nvml
from agent.hardware.nvml import FIRST_PAUSE, LONGEST_PAUSE, TriedInit
from agent.model import Absent, Reason

SURVIVES = "print('survived', flush=True); input()"


class Library:
    """Counts its initialisations."""

    def __init__(self) -> None:
        self.inits = 0

    def init(self) -> None:
        self.inits += 1


@pytest.fixture
def library() -> Library:
    return Library()


def child(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(nvml, "TRIAL", program)


def test_what_survived_once_is_not_tried_again(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(monkeypatch, SURVIVES)
    tried = TriedInit(library.init)
    tried()
    child(monkeypatch, "import os; os.abort()")
    tried()
    assert library.inits == 2


@pytest.mark.parametrize(
    ("program", "how"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("raise SystemExit(3)", "status 3"),
    ],
)
def test_a_child_that_ends_spares_the_agent(
    library: Library, monkeypatch: pytest.MonkeyPatch, program: str, how: str
) -> None:
    child(monkeypatch, program)
    with pytest.raises(Absent, match=rf"nvmlInit ended a process that tried it \({how}\)") as end:
        TriedInit(library.init)()
    assert end.value.reason is Reason.CRASHED
    assert library.inits == 0


def test_it_is_tried_again_at_growing_intervals(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, trials = [1000.0], []
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    child(monkeypatch, "import os; os.abort()")
    tried = TriedInit(library.init)
    for _ in range(600):  # every ten seconds, as a missing driver is looked for
        before = tried._again
        with pytest.raises(Absent):
            tried()
        if tried._again != before:
            trials.append(now[0])
        now[0] += 10.0
    pauses = [b - a for a, b in itertools.pairwise(trials)]
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses[-1] == LONGEST_PAUSE
    child(monkeypatch, SURVIVES)
    now[0] += LONGEST_PAUSE
    tried()
    assert library.inits == 1


def test_without_a_process_to_spare_it_is_looked_for_later(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent")
    with pytest.raises(Absent, match="nvmlInit cannot be tried"):
        TriedInit(library.init)()
    assert library.inits == 0
