"""Where a notebook runs: device, seeds, budget, folders; the set-up cell's `ready` and the doctor."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_wheel import wheel

from course_utils import runtime
from course_utils.environment import ROOT, distribution, module, requirements
from course_utils.images import cifar


def test_the_device_can_be_chosen(monkeypatch):
    monkeypatch.setenv("COURSE_DEVICE", "cpu:0")
    assert runtime.device() == torch.device("cpu:0")
    monkeypatch.setenv("COURSE_DEVICE", "")
    assert runtime.device().type in ("cuda", "mps", "cpu")


@pytest.mark.parametrize("wanted", ["foo", "cuda:99", "xpu:99", "meta"])
def test_a_device_that_is_not_there_is_repeated_and_the_others_are_named(monkeypatch, wanted):
    monkeypatch.setenv("COURSE_DEVICE", wanted)
    with pytest.raises(
        ValueError, match=rf'^COURSE_DEVICE is "{wanted}", .*expected one of .*cpu: set it to'
    ):
        runtime.device()
    assert (row("device")["ok"], row("device")["fix"]) == (False, "unset COURSE_DEVICE, or set it to cpu")
    assert f'"{wanted}"' in row("device")["found"]


def test_a_gpu_that_cannot_add_is_passed_over(monkeypatch):
    monkeypatch.delenv("COURSE_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    for works, expected in ((("cuda", "mps"), "cuda"), (("mps",), "mps"), ((), "cpu")):
        monkeypatch.setattr(runtime, "computes", lambda kind, works=works: kind in works)
        assert runtime.device().type == expected


def test_a_processor_has_its_models_name_or_its_architectures(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "CPUINFO", tmp_path / "cpuinfo")
    cpu = torch.device("cpu")
    assert runtime.device_name(cpu) == platform.machine()
    runtime.CPUINFO.write_text("processor : 0\nBogoMIPS : 48.00\n")  # so on ARM
    assert runtime.device_name(cpu) == platform.machine()
    runtime.CPUINFO.write_text("processor\t: 0\nmodel name\t: Chip (TM): 2\nmodel name\t: Other\n")
    assert runtime.device_name(cpu) == "Chip (TM): 2"


def test_a_generator_repeats_its_draws():
    first, again, other = (torch.rand(4, generator=runtime.generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert runtime.generator(0).device.type == "cpu"


def test_the_budget_is_quick_or_full(monkeypatch):
    monkeypatch.delenv("COURSE_BUDGET", raising=False)
    assert runtime.budget() == "quick"
    monkeypatch.setenv("COURSE_BUDGET", "")
    assert runtime.budget() == "quick"
    monkeypatch.setenv("COURSE_BUDGET", "full")
    assert runtime.budget() == "full"
    monkeypatch.setenv("COURSE_BUDGET", "Full")
    with pytest.raises(ValueError, match='COURSE_BUDGET is "Full"; set it to "quick" or "full"'):
        runtime.budget()


def test_the_host_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert runtime.where() == "terminal"
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    assert runtime.where() == "jupyter"
    monkeypatch.setenv("DEEPNOTE_PROJECT_ID", "1")
    assert runtime.where() == "deepnote"
    monkeypatch.setitem(sys.modules, "google.colab", None)
    assert runtime.where() == "colab"


def test_the_data_folder_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.delenv("COURSE_DATA_DIR", raising=False)
    assert runtime.data_dir() == ROOT / "data" / "cache"
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path))
    assert runtime.data_dir() == tmp_path
    monkeypatch.setenv("COURSE_DATA_DIR", "~/pictures")
    assert runtime.data_dir() == Path.home() / "pictures"


def test_its_import_brings_nothing_heavy():
    code = "import sys, course_utils.runtime; print({'torch', 'pandas', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# keep_memory


def test_what_is_freed_is_kept_for_what_comes_next():
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("no glibc here: nothing to set")
    code = (
        "import resource, torch; from course_utils import runtime; runtime.keep_memory()\n"
        "for _ in range(4):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    blocks = [torch.ones(5 * 2**20) for _ in range(4)]\n"
        "    del blocks\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert int(done.stdout) < 2000, done.stderr  # 80 MiB are 20,480 pages


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(runtime.ctypes, "CDLL", None)
    runtime.keep_memory()


# ready


def test_ready_is_silent_and_calls_nobody_where_nothing_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", None)
    runtime.ready()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("chosen, expected", [(None, "passive"), ("active", "active")])
def test_ready_lets_threads_sleep_before_torch_starts_them(chosen, expected):
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen:
        environment["OMP_WAIT_POLICY"] = chosen
    code = "import os, sys; from course_utils import runtime; runtime.ready(); "
    code += "print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == [expected, "False"], done.stderr


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A pip that knows the wheels of one folder, and installs into another that this Python imports from."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_TARGET": str(tmp_path / "installed"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setattr(runtime, "requirements", lambda: [*requirements(), "newcomer>=1"])
    return folder


def test_ready_installs_what_is_missing_and_nothing_else(shelf, capsys):
    wheel(shelf, "newcomer", {"newcomer.py": ""})
    runtime.ready()
    assert capsys.readouterr().out == "Installing once: newcomer.\n"
    assert runtime.version("newcomer") == "1"
    runtime.ready()
    assert capsys.readouterr().out == ""


def test_ready_moves_nothing_that_the_host_brings(shelf, capsys):
    before = runtime.version("torch")
    wheel(shelf, "newcomer", {"newcomer.py": ""}, ["Requires-Dist: torch==1"])
    wheel(shelf, "torch", {"torch.py": ""})
    runtime.ready()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("Not installed: ")
    assert runtime.version("torch") == before and runtime.version("newcomer") is None


def test_ready_says_in_one_line_what_it_cannot_do(shelf, capsys):
    runtime.ready()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "No matching distribution found for newcomer>=1" in lines[1] and "run this cell again" in lines[1]


def test_half_a_copy_of_the_course_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runtime, "ROOT", tmp_path)
    runtime.ready()
    assert capsys.readouterr().out.count("without pyproject.toml: copy all files") == 1


def test_versions_that_pip_cannot_read_are_not_held(monkeypatch):
    versions = {"good": "2.6.0+cu124", "odd": "1.0-local-build", "early": "3.0rc1", "gone": None}

    class Found:
        def __init__(self, name):
            self.name = name

    monkeypatch.setattr(runtime.metadata, "distributions", lambda: map(Found, [*versions, None]))
    monkeypatch.setattr(runtime.metadata, "version", versions.get)
    assert runtime.host_versions() == ["early==3.0rc1", "good==2.6.0+cu124"]


# The doctor


def row(check):
    return runtime.doctor().set_index("check").loc[check]


def test_the_doctor_looks_at_everything(monkeypatch):
    frame = runtime.doctor()
    assert list(frame.columns) == ["check", "found", "ok", "fix"]
    names = [text.split(">")[0] for text in requirements()]
    others = ["tested set", "device", "widgets", "CIFAR-10", "photographs", "free disk"]
    assert list(frame["check"]) == ["Python", *names, *others]
    assert all((fix == "") == ok for fix, ok in zip(frame["fix"], frame["ok"], strict=True))
    assert not frame["fix"].str.contains("\n").any()


@pytest.mark.parametrize(
    ("found", "ok"), [("2.5.1", False), ("2.6.0", True), ("2.9.0.dev1+cu130", True), ("3.0", False)]
)
def test_a_version_outside_the_range_is_red_and_has_its_fix(monkeypatch, found, ok):
    real = runtime.version
    monkeypatch.setattr(runtime, "version", lambda name: found if name == "torch" else real(name))
    torch_row = row("torch")
    assert (torch_row["found"], torch_row["ok"]) == (found, ok)
    assert torch_row["fix"] == ("" if ok else 'pip install "torch>=2.6,<3", then restart the kernel')
    assert row("tested set")["ok"] and f"torch {found} (tested" in row("tested set")["found"]


@pytest.mark.parametrize(
    ("ipywidgets", "manager", "ok"),
    [
        ("8.1.9", "3.0.17", True),
        ("7.7.1", "1.1.5", True),
        ("7.7.1", "3.0.17", False),
        ("8.1.9", None, False),
        (None, "3", False),
    ],
)
def test_widgets_need_the_page_part_of_their_own_series(monkeypatch, ipywidgets, manager, ok):
    monkeypatch.setattr(runtime, "where", lambda: "jupyter")
    monkeypatch.setattr(runtime, "version", {"ipywidgets": ipywidgets, "jupyterlab_widgets": manager}.get)
    assert runtime.widgets()[2] == ok
    monkeypatch.setattr(runtime, "where", lambda: "colab")
    assert runtime.widgets()[2] == (ipywidgets is not None)


def test_a_missing_cache_is_red_and_says_how_to_go_on(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path))
    assert not row("CIFAR-10")["ok"] and "cifar.download()" in row("CIFAR-10")["fix"]


def test_a_cache_that_is_not_whole_is_red(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path))
    cache = cifar.cache_file()
    arrays = {name: np.zeros(3) for name in ("x_train", "y_train", "x_test", "y_test", "names", "source")}
    np.savez(cache, **arrays)
    assert (row("CIFAR-10")["found"], row("CIFAR-10")["ok"]) == ("here", True)
    whole = cache.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], whole[:-30]):
        cache.write_bytes(damaged)
        assert (row("CIFAR-10")["found"], row("CIFAR-10")["ok"]) == ("damaged", False)
    del arrays["y_test"]
    np.savez(cache, **arrays)
    assert (row("CIFAR-10")["found"], row("CIFAR-10")["ok"]) == ("damaged", False)


BROKEN = ("torch", "skimage", "packaging")


def test_the_doctor_survives_packages_that_do_not_import(tmp_path):
    for name in BROKEN:
        (tmp_path / f"{name}.py").write_text('raise OSError("libgone.so:\\n cannot open")')
    code = "from course_utils import runtime; print(runtime.doctor().to_json(orient='records'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    rows = {found["check"]: found for found in json.loads(done.stdout)}
    for text in requirements():
        if module(text) in BROKEN:
            red = rows[distribution(text)]
            assert not red["ok"] and "does not import (OSError: libgone.so: cannot open)" in red["found"]
            assert red["fix"] == f'pip install --force-reinstall --no-deps "{text}", then restart the kernel'
    for check in ("device", "photographs"):
        assert not rows[check]["ok"] and rows[check]["found"] == "OSError: libgone.so: cannot open"
        assert rows[check]["fix"] == "mend the red rows above, then restart the kernel"
    assert rows["numpy"]["ok"] and rows["free disk"]["ok"]


@pytest.mark.parametrize("text", [text for text in requirements() if not text.startswith("pandas")])
def test_a_package_that_is_not_there_is_red(monkeypatch, text):
    real = runtime.version
    monkeypatch.setattr(runtime, "version", lambda name: None if name == distribution(text) else real(name))
    monkeypatch.setitem(sys.modules, module(text), None)
    red = row(distribution(text))
    assert (red["found"], red["ok"]) == ("missing", False)
    assert red["fix"] == f'pip install "{text}", then restart the kernel'


def test_missing_photographs_are_named(monkeypatch):
    monkeypatch.setattr(runtime, "PHOTOGRAPHS", ("coffee.png", "unknown.png"))
    assert (row("photographs")["found"], row("photographs")["ok"]) == ("unknown.png missing", False)


def test_without_pandas_the_doctor_prints_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert runtime.doctor() is None
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and "pip install pandas, then restart the kernel" in printed


# The set-up cell


CELL = (ROOT / "notebooks" / "source" / "setup_cell.py").read_text(encoding="utf-8")
REPORT = "\nimport course_utils; print(course_utils.__file__)"


def run_cell(folder, repository="", **settings):
    """Run the set-up cell as a notebook in this folder would, in a Python without the course."""
    cell = CELL.replace('REPOSITORY = ""', f'REPOSITORY = "{repository}"') + REPORT
    # -I: neither the working folder nor PYTHONPATH is on the path; a .venv may hold the course, so forget it.
    forget = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
    command = [sys.executable, "-I", "-c", forget + cell]
    environment = {**os.environ, **settings}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_cell_finds_the_course_above_the_notebook():
    done = run_cell(ROOT / "notebooks")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ROOT}/course_utils/__init__.py\n", "")


def test_the_cell_stops_with_one_line_where_there_is_no_course(tmp_path):
    done = run_cell(tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "The course is not here. Get its whole folder from where you got this notebook, "
        "and open the notebook in it.\n"
    )


def git(folder, *arguments):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_cell_fetches_the_published_course_once(tmp_path):
    published = tmp_path / "published"
    (published / "course_utils").mkdir(parents=True)
    for name in ("__init__.py", "runtime.py", "environment.py"):
        (published / "course_utils" / name).write_bytes((ROOT / "course_utils" / name).read_bytes())
    (published / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    git(published, "init", "-q")
    git(published, "add", ".")
    git(published, "commit", "-q", "-m", "course")
    notebook = tmp_path / "notebook"
    notebook.mkdir()
    expected = f"{notebook}/two-views/course_utils/__init__.py\n"
    first = run_cell(notebook, published.as_uri())
    assert (first.returncode, first.stdout) == (0, expected), first.stderr
    published.rename(tmp_path / "gone")
    again = run_cell(notebook, published.as_uri())
    assert (again.returncode, again.stdout) == (0, expected), again.stderr


def test_the_cell_names_the_address_it_could_not_reach(tmp_path):
    done = run_cell(tmp_path, (tmp_path / "nowhere").as_uri())
    assert done.returncode == 1 and not Path(tmp_path / "two-views").exists()
    assert f" from {tmp_path.as_uri()}/nowhere, and open " in done.stderr.splitlines()[-1]


def test_the_cell_ends_in_the_same_line_where_there_is_no_git(tmp_path):
    done = run_cell(tmp_path, "https://example.org/two-views", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        "The course is not here. Get its whole folder from https://example.org/two-views, "
        "and open the notebook in it.\n"
    )
