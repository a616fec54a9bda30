"""Answers of Slurm's commands, into which users may write."""

import json
from pathlib import Path

import pytest

from agent.hardware import schedulers
from agent.jobs import allocation
from agent.model import Absent

EVIL = "x UserId=root(0) Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:8(IDX:0-7) Socks/Node=* MinCPUsNode=1"
TEXT = (
    "JobId={0} ArrayJobId=2 ArrayTaskId=5 JobName={name} UserId=eve(1001) GroupId=eve(1001) "
    "Account=nlp QOS=(null) Partition=gpu NodeList=node1 Socks/Node=* NtasksPerN:B:S:C=0:0:*:* "
    "CoreSpec=* JOB_GRES=gpu:1   Nodes=node1 CPU_IDs=0 Mem=0 GRES=gpu:1(IDX:{place}) "
    "MinCPUsNode=1 MinMemoryNode=0 Features=(null) Command=(null) WorkDir=/ Comment={name}"
)
"""As Slurm 22.05 and 24.11 write it. Slurm lets a name have blanks and ends of lines."""
SQUEUE = Path(__file__).with_name("squeue.sh").read_text(encoding="utf-8")
SCONTROL = """#!/bin/sh
for last; do :; done
echo "$@" >>"$0.asked"
cat "$0.$last" 2>/dev/null
"""


class FakeSlurm:
    """Programs that answer as Slurm's do, by files beside them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name, text in (("squeue", SQUEUE), ("scontrol", SCONTROL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.setenv("EVIL", EVIL)
        self.slurm = schedulers.RealSchedulers()

    def says(self, job: str, text: str) -> None:
        (self.folder / f"scontrol.{job}").write_text(text)

    def asked(self) -> list[str]:
        return (self.folder / "scontrol.asked").read_text().splitlines()

    def jobs(self) -> list[tuple[str, str, str, list[int] | Absent]]:
        found = [allocation.slurm_job(line, "node1") for line in self.slurm.slurm("node1")]
        return [(job.job_id, job.user, job.account, places) for job, places in found]


def test_what_users_write_charges_no_one_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without scontrol's JSON, text that users write charges no other user."""
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", TEXT.format(1, name=EVIL, place=0))
    fake.says("2_5", TEXT.format(3, name="a\n   UserId=root(0)", place=1))
    fake.says("2_7", TEXT.format(2, name="a\n   UserId=root(0)", place=2))
    for _ in range(2):
        assert fake.jobs() == [
            ("1", "eve", "nlp", [0]),
            ("3", "ada", "bio", [1]),
            ("2", "ada", "bio", [2]),
        ]
    assert len(fake.asked()) == 6, "each is asked for once, in JSON and as text"
    assert "--nodelist=node1" in (tmp_path / "squeue.asked").read_text()
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(OSError, match="squeue fails: exit status 1"):
        fake.slurm.slurm("node1")
    (tmp_path / "squeue").unlink()
    with pytest.raises(OSError, match="squeue is not installed"):
        fake.slurm.slurm("node1")


def test_an_empty_answer_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", "")
    assert fake.slurm.slurm("node1") == ["JobId=1", "JobId=3", "JobId=2"]
    fake.says("1", TEXT.format(1, name=EVIL, place=0))
    assert fake.jobs()[0] == ("1", "eve", "nlp", [0])


def test_jobs_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm 24.11 writes them."""
    nodes = {"list": "node[1-2]", "allocation": [{"name": "node2"}, {"name": "node1"}]}
    job = {
        "job_id": 1, "name": EVIL, "user_name": "eve", "account": "nlp", "partition": "gpu",
        "gres_detail": ["gpu:2(IDX:0-1)", "gpu:1(IDX:3)"], "job_resources": {"nodes": nodes},
    }  # fmt: skip
    fake = FakeSlurm(tmp_path, monkeypatch)
    fake.says("1", json.dumps({"jobs": [job]}))
    other = {"job_id": 3, "gres_detail": [], "step_id": {"sluid": "s5K1KKYAYG5D00"}}
    fake.says("3", json.dumps({"jobs": [job | other]}))
    fake.says("2", json.dumps({"jobs": []}))
    *known, (number, *_, places) = fake.jobs()
    assert known == [("1", "eve", "nlp", [3]), ("3", "eve", "nlp", [])]
    assert (number, isinstance(places, Absent)) == ("2", True)
    assert "SLUID=s5K1KKYAYG5D00" in fake.slurm.slurm("node1")[1].split()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("exec cat /dev/zero", "answers more than"),
        ("sleep 1000 & wait", "does not answer"),
        ("printf '1|1|\\377ve|n\\344p|gpu\\n'", ""),
        ("printf '1|1|eve|two words|a|b\\n'", ""),
    ],
)
def test_whatever_a_command_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, why: str
) -> None:
    """Endless, never, no UTF-8, a name with what parts the columns."""
    fake = FakeSlurm(tmp_path, monkeypatch)
    monkeypatch.setattr(schedulers, "SECONDS", 1.0 if "sleep" in answer else 60.0)
    (tmp_path / "squeue").write_text(f"#!/bin/sh\n{answer}\n")
    if why:
        with pytest.raises(OSError, match=why):
            fake.slurm.slurm("node1")
    else:
        assert fake.slurm.slurm("node1") == ["JobId=1"]
