"""Files of spec sheets: a user's own, bad ones, and that the shipped ones are all read."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.specs.machine import load
from agent.specs.sheets import SpecError

H100 = "NVIDIA H100 80GB HBM3"
SHIPPED_SYSTEMS = set(load().systems)


OWN_SYSTEM = """
[system]
title = "Our box"
gpu = "our-gpu"
products = { names = ["SYS-821GE*"], source = "its maker" }
gpu_count = { value = 2, unit = "GPUs", source = "counted" }
tdp = { value = 900, unit = "W", source = "the label" }

[[system.bandwidth]]
path = "disk"
per = "array"
direction = "each"
value = 500
unit = "MB/s"
source = "fio"
"""
OWN_GPU = """
[gpu]
title = "Our GPU"
models = { names = ["Engineering Sample"], source = "nvidia-smi" }
pcie_generation = { value = 9, unit = "PCIe generation", source = "hearsay" }
pcie_lanes = { value = 8, unit = "lanes", source = "hearsay" }
"""


def own(directory: Path, **sheets: str) -> Path:
    for name, text in sheets.items():
        (directory / f"{name.replace('_', '-')}.toml").write_text(text)
    return directory


def test_a_users_own_sheets(tmp_path: Path) -> None:
    specs = load(own(tmp_path, our_box=OWN_SYSTEM, our_gpu=OWN_GPU))
    assert set(specs.systems) == SHIPPED_SYSTEMS | {"our-box"}
    box = specs.recognise(["Engineering Sample"], "SYS-821GE-TNHR")
    assert box is specs.systems["our-box"]
    assert (box.gpus, box.values["tdp"].base, box.nvlink_links) == (2, 900, None)
    for direction in ("read", "write"):
        assert box.bandwidths["disk", direction].bytes_per_second == 500e6
    assert specs.gpus["our-gpu"].bandwidths == {}


def test_one_source_holds_for_the_figures_that_name_none(tmp_path: Path) -> None:
    text = OWN_GPU.replace(', source = "hearsay" }', " }", 1)
    head = 'source = "the label"\ncard = true'
    specs = load(own(tmp_path, our_gpu=text.replace("models", f"{head}\nmodels", 1)))
    values = specs.gpus["our-gpu"].values
    assert values["pcie_generation"].source == "the label"
    assert values["pcie_lanes"].source == "hearsay"
    alone = specs.recognise(["Engineering Sample"], "")
    assert alone is specs.systems["our-gpu"]
    assert (alone.gpus, alone.title) == (1, "Our GPU")


def test_a_users_sheet_replaces_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    text = OWN_SYSTEM.replace("our-gpu", "h100-sxm5-80gb")
    specs = load(own(tmp_path, dgx_h100=text))
    assert specs.systems["dgx-h100"].title == "Our box"
    assert set(specs.systems) == SHIPPED_SYSTEMS
    assert specs.recognise([H100] * 8, "DGXH100") is None


def test_a_users_sheet_is_preferred_to_a_shipped_one_for_the_same_machine(tmp_path: Path) -> None:
    text = OWN_SYSTEM.replace("our-gpu", "h100-sxm5-80gb").replace("SYS-821GE*", "DGXH100")
    found = load(own(tmp_path, a_box=text)).recognise([H100] * 2, "DGXH100")
    assert found is not None
    assert found.name == "a-box"


def test_a_users_threshold_leaves_the_others(tmp_path: Path) -> None:
    text = '[thresholds]\ndisk = { value = 0.5, unit = "ratio", source = "our own" }\n'
    specs = load(own(tmp_path, thresholds=text))
    assert specs.thresholds == {**load().thresholds, "disk": 0.5}


@pytest.mark.parametrize("name", ["\0", "\n", "a" * 5000, "half \udc80 a character"])
def test_a_directory_that_cannot_be_is_reported(name: str) -> None:
    with pytest.raises(SpecError, match="expected a directory of TOML files") as shown:
        load(Path(name))
    assert str(shown.value).isprintable()


def test_what_a_users_directory_holds_is_bounded(tmp_path: Path) -> None:
    """A pipe would wait for a writer, and the parser may take a gigabyte for a megabyte."""
    os.mkfifo(tmp_path / "a.toml")
    with pytest.raises(SpecError, match=r"a\.toml: cannot be read: it is not a regular file"):
        load(tmp_path)
    (tmp_path / "a.toml").unlink()
    (tmp_path / "a.toml").write_text("#" * 70_000)
    with pytest.raises(SpecError, match=r"a\.toml: cannot be read: it has more than 65536 bytes"):
        load(tmp_path)
    for number in range(300):
        (tmp_path / f"{number}.toml").touch()
    with pytest.raises(SpecError, match=r"holds 301 \*\.toml, expected spec sheets, 256 at most"):
        load(tmp_path)


def test_other_files_in_a_users_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no TOML")
    (tmp_path / ".half-written.toml").write_text("no TOML")
    with pytest.raises(SpecError, match=r"holds no \*.toml, expected spec sheets"):
        load(tmp_path)
    (tmp_path / "thresholds.toml").write_text(
        "[thresholds]\npcie = { value = 0.7, unit = 'ratio', source = 'x' }\n"
    )
    assert set(load(tmp_path).systems) == SHIPPED_SYSTEMS


GRAPH = """
nvlink_links_per_gpu = { value = 1, unit = "links", source = "counted" }
[system.nvlink_graph]
kind = "fully-connected"
pairs = [[0, 1, 1]]
source = "seen"
"""
SYSTEM = '[system]\ntitle = "A box"\ngpu = "k40"\n'
TWO = 'gpu_count = { value = 2, unit = "GPUs", source = "counted" }\n'
WITH_GRAPH = SYSTEM + TWO + GRAPH
DISK = OWN_SYSTEM.replace("our-gpu", "k40")
GPU = OWN_GPU

BAD = (
    ("title = ", "is not valid TOML"),
    ("", "is empty, expected a table of system, gpu, thresholds"),
    ('[sytem]\ntitle = "A box"', "sytem is not a known key, expected one of system, gpu"),
    ("system = 1", "system is 1, expected a table"),
    (SYSTEM, "system.gpu_count is missing, expected a table"),
    (TWO, "gpu_count is not a known key"),
    (SYSTEM.replace('"k40"', '"k41"') + TWO, "system.gpu is 'k41', expected one of a10"),
    (SYSTEM + 'gpu_alternatives = ["k42"]\n' + TWO, "system.gpu_alternatives is 'k42'"),
    (SYSTEM + "gpu_alternatives = [1]\n" + TWO, "system.gpu_alternatives is [1], expected a list"),
    (SYSTEM + "speed = 1\n" + TWO, "system.speed is not a known key, expected one of source"),
    (SYSTEM + TWO.replace("2", "'two'"), "gpu_count.value is 'two', expected a whole number"),
    (SYSTEM + TWO.replace("2", "2.5"), "gpu_count.value is 2.5, expected a whole number above 0"),
    (SYSTEM + TWO.replace("2", "nan"), "gpu_count.value is nan"),
    (SYSTEM + TWO.replace("2", "9" * 400), "gpu_count.value is 9999"),
    (SYSTEM + TWO.replace('"GPUs"', '"furlongs"'), "unit is 'furlongs', expected GPUs"),
    (SYSTEM + TWO.replace(', source = "counted"', ""), "gpu_count.source is missing"),
    (DISK.replace('"W"', '"PS"'), "system.tdp.unit is 'PS', expected one of W, kW"),
    (DISK.replace("[[system", "[system").replace("]]", "]"), "bandwidth is a table, expected an"),
    (DISK.replace('"disk"', '"disc"'), "bandwidth[0].path is 'disc', expected one of disk"),
    (DISK.replace('"disk"', '"nvlink"'), "bandwidth[0].path is 'nvlink', expected one of disk"),
    (DISK.replace('"each"', '"up"'), "direction is 'up', expected one of each, read, write"),
    (DISK.replace('"array"', '"disk"'), "bandwidth[0].per is 'disk', expected array"),
    (DISK.replace("500", "-1"), "bandwidth[0].value is -1, expected a number above 0"),
    (DISK.replace('"MB/s"', '"MB"'), "bandwidth[0].unit is 'MB', expected one of GB/s"),
    (DISK + DISK[DISK.index("[[") :], "direction is disk read for the second time"),
    (DISK.replace('names = ["SYS-821GE*"]', "names = []"), "products.names is [], expected a list"),
    (WITH_GRAPH.replace("fully-connected", "ring"), "nvlink_graph.kind is 'ring', expected one of"),
    (WITH_GRAPH.replace("fully-connected", "nvswitch"), "nvlink_graph.pairs is given"),
    (WITH_GRAPH.replace("= 2", "= 9"), "pairs is given for 9 GPUs, expected at most 8"),
    (WITH_GRAPH.replace("nvlink_links_per_gpu", "#"), "system.nvlink_links_per_gpu is missing"),
    (
        WITH_GRAPH.replace("[[0, 1, 1]]", "[[0, 2, 1]]"),
        "[0, 2, 1], expected [GPU, higher GPU below 2",
    ),
    (WITH_GRAPH.replace("[[0, 1, 1]]", "[[1, 0, 1]]"), "pairs[0] is [1, 0, 1], expected [GPU"),
    (WITH_GRAPH.replace("[[0, 1, 1]]", "[[0, 1, true]]"), "pairs[0] is [0, 1, True]"),
    (WITH_GRAPH.replace("[[0, 1, 1]]", "[[0, 1, 1], [0, 1, 1]]"), "with [0, 1] 2 times"),
    (WITH_GRAPH.replace("[[0, 1, 1]]", "[[0, 1, 2]]"), "2 links at GPU 0, expected 1"),
    (WITH_GRAPH.replace("pairs", "#"), "nvlink_graph.pairs is missing"),
    (GPU.replace('["Engineering Sample"]', '"one"'), "gpu.models.names is 'one', expected a list"),
    (GPU.replace("title", "card = 1\ntitle"), "gpu.card is 1, expected"),
    (
        '[thresholds]\ndisk = { value = 1.5, unit = "ratio", source = "x" }',
        "thresholds.disk.value is 1.5, expected a number above 0 and at most 1",
    ),
)


def one_sentence(shown: str) -> bool:
    return "\n" not in shown and shown.endswith(".") and ", expected " in shown


@pytest.mark.parametrize(("text", "error"), BAD)
def test_a_bad_file_is_reported_in_one_sentence(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(SpecError) as shown:
        load(own(tmp_path, bad=text))
    assert str(shown.value).startswith(f"{tmp_path}/bad.toml: ")
    assert error in str(shown.value)
    assert one_sentence(str(shown.value))


def test_a_file_or_directory_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(SpecError) as shown:
            load(directory)
        assert str(directory) in str(shown.value)
        assert one_sentence(str(shown.value))


SHIPPED = sorted(Path(load.__code__.co_filename).parent.glob("*.toml"))


def test_every_shipped_file_is_loaded() -> None:
    specs = load()
    assert {path.stem for path in SHIPPED} == {*specs.systems, *specs.gpus, "thresholds"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_is_fit_to_be_a_users_own(path: Path, tmp_path: Path) -> None:
    (tmp_path / path.name).write_bytes(path.read_bytes())
    assert load(tmp_path) == load()


def error_of(directory: Path) -> str:
    try:
        load(directory)
    except SpecError as shown:
        return str(shown)
    return ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_sheet_loads_or_is_reported_in_one_sentence(
    tmp_path: Path, data: st.DataObject
) -> None:
    text = data.draw(st.sampled_from(SHIPPED)).read_text()
    at = data.draw(st.integers(0, len(text)))
    size = data.draw(st.integers(0, 30))
    patch = data.draw(st.sampled_from(["", "x", "-1", '"', "]", "{", "\n", "nan", "[system]", "0"]))
    (tmp_path / "damaged.toml").write_text(text[:at] + patch + text[at + size :])
    shown = error_of(tmp_path)
    assert not shown or one_sentence(shown)
