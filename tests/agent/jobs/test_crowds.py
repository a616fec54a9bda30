"""A process with thousands of threads, or with a thousand children a second, costs no more than
others."""

import pytest

from agent import bounds
from agent.hardware.files import FileTree
from agent.jobs import process_times
from agent.jobs.process_times import GpuTimes, ProcessTimes
from tests.support.process_tree import GPU, pids_asked

MAIN = 100


class Crowd(FileTree):
    """A process with so many threads and so many children, none of which outlives a second: its
    files are made up as they are read."""

    def __init__(self, threads: int = 0, children: int = 0) -> None:
        self.threads, self.children = range(1000, 1000 + threads), children
        self.second = 0
        self.asked: list[str] = []

    def read(self, path: str) -> str:
        self.asked.append(path)
        pid, file = path.split("/")[2], path.rpartition("/")[2]
        if file == "children" and path == f"/proc/{MAIN}/task/{MAIN}/children":
            return " ".join(str(pid) for pid in self._alive())
        if int(pid) != MAIN and int(pid) not in self._alive():
            raise FileNotFoundError(2, "ended", path)
        if file == "stat":
            used = 50 * self.second if path == f"/proc/{MAIN}/stat" else 0
            ended = round(0.1 * self.children) * self.second if int(pid) == MAIN else 0
            tid = path.split("/")[-2]
            return f"{tid} (x) R 1 1 1 0 -1 0 0 0 0 0 {used} 0 {ended} 0 20 0 1 0 7 {'0 ' * 30}"
        if file == "schedstat":
            return f"{self.second * 250_000_000 if path.endswith(f'{MAIN}/schedstat') else 0} 0 1"
        return ""

    def names(self, path: str) -> list[str]:
        return [str(MAIN), *map(str, self.threads)] if path == f"/proc/{MAIN}/task" else []

    def link(self, path: str) -> str:
        raise FileNotFoundError(2, "no link", path)

    def _alive(self) -> range:
        first = 10_000 + self.children * self.second
        return range(first, first + self.children)


def crowded(files: Crowd, seconds: int) -> list[GpuTimes]:
    """Readings of its main process; `files.asked` has the files of the one that took most."""
    times, found, most = ProcessTimes(files), [], list[str]()
    for second in range(seconds):
        files.second = second
        files.asked.clear()
        reading = times.read(GPU, (MAIN,), {MAIN}, float(second))
        times.forget([GPU], float(second))
        assert reading is not None
        found.append(reading)
        most = max(most, [*files.asked], key=len)
    files.asked = most
    return found


def test_a_thousand_processes_that_come_and_go_in_a_second() -> None:
    """None of them lives long enough to be read twice; the kernel adds up what they used."""
    files = Crowd(children=1000)
    found = crowded(files, 8)
    assert [one.working.running for one in found[2:]] == pytest.approx([1.0 + 0.25] * 6)
    assert len(pids_asked(files.asked)) <= 2 * bounds.MOST_DESCENDANTS + 2


def test_a_process_with_five_thousand_threads() -> None:
    files = Crowd(threads=6000)
    found = crowded(files, 40)
    assert len(files.asked) <= bounds.MOST_LISTED + bounds.MOST_ASKED + 2 * bounds.MOST_FOLLOWED + 9
    assert (found[-1].launching or process_times.NONE).running == pytest.approx(0.25)
    assert found[-1].working.running == pytest.approx(0.25), "of threads that are not read, too"
