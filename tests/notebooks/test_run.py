"""Each notebook reproduces its outputs alone and offline, in a minute and 2 GiB; it leaves nothing behind."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
import stored
import torch

from course_utils.environment import ROOT
from course_utils.runtime import data_dir

HERE = Path(__file__).parent
# About a minute is wanted, two at most are allowed. These train and take more than half a minute, and the
# speed of a machine can drift by half, so they have the two. They run and are timed with nothing beside them;
# of the others `make test` runs two at a time: one that keeps its limit so keeps it alone as well.
ALONE = ("04_projection_head", "05_moco", "06_clip", "08_evaluation", "09_without_negatives")
# Without AVX-512 two cores train at half the speed (one thread in data/benchmarks: 1,623 pictures a second in
# training.md, 3,096 in training_xeon.md), so there they have four.
SECONDS = dict.fromkeys(ALONE, 120 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 240)
BYTES = 2 * 2**30
NOWHERE = (
    "http://127.0.0.1:9"  # programs that are no Python (git, curl) find a proxy here that does not answer
)


@dataclass(frozen=True)
class Run:
    """What nbval and the operating system say about one notebook."""

    notebook: Path
    code: int
    seconds: float
    peak: int
    report: str
    left_behind: tuple[str, ...]
    data_read: frozenset[str]  # names of the files that it opened in the data folder
    budget: int


def run(notebook, folder, data):
    """nbval on a copy of one notebook in a folder that holds nothing else, below course_utils as at home."""
    home, budget = folder / "notebooks", SECONDS.get(notebook.stem, 60)
    home.mkdir()
    (folder / "course_utils").symlink_to(ROOT / "course_utils")
    copy = Path(shutil.copy(notebook, home))
    predictions, report, notes = folder / "predictions", folder / "report.json", folder / "data_read"
    predictions.mkdir()
    notes.touch()
    settings = {
        "PYTHONPATH": str(HERE / "offline"),
        "COURSE_BUDGET": "quick",
        "COURSE_PREDICTIONS_DIR": str(predictions),
        "COURSE_DATA_DIR": str(data),
        "NOTE_DATA_IN": str(notes),
        "IPYTHONDIR": str(folder / "ipython"),
        **dict.fromkeys(["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"], NOWHERE),
    }
    command = [
        *[sys.executable, "-m", "pytest", "--nbval", f"--nbval-sanitize-with={HERE / 'sanitize.cfg'}"],
        *[
            "--nbval-current-env",
            f"--nbval-cell-timeout={3 * budget}",
            "-p",
            "no:cacheprovider",
            "--color=no",
            copy.name,
        ],
    ]
    done = subprocess.run(
        [sys.executable, str(HERE / "measured.py"), str(report), *command],
        cwd=home,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    if not report.exists():
        raise RuntimeError(f"measured.py stopped with {done.returncode}: {done.stderr}")
    changed = [] if copy.read_bytes() == notebook.read_bytes() else [f"{copy.name} was changed"]
    left = [str(path.relative_to(home)) for path in home.rglob("*") if path != copy]
    left += [f"predictions/{path.name}" for path in predictions.iterdir()]
    lines = [
        line[:300] for line in (done.stdout + done.stderr).splitlines()
    ]  # a picture's base64 is one line
    return Run(
        notebook=notebook,
        **json.loads(report.read_text()),
        report="\n".join(lines[-150:]),
        left_behind=tuple(changed + left),
        data_read=frozenset(Path(line).name for line in notes.read_text().splitlines()),
        budget=budget,
    )


def test_the_first_three_notebooks_are_there():
    names = [path.name for path in stored.NOTEBOOKS]
    assert [name[:2] for name in names][:3] == ["00", "01", "02"], (
        f"notebooks/ holds {names}; `make notebooks` builds them"
    )


def run_of(path):
    return pytest.param(path, id=path.stem, marks=[pytest.mark.alone] if path.stem in ALONE else [])


@pytest.fixture(scope="module", params=[run_of(path) for path in stored.NOTEBOOKS])
def done(request, tmp_path_factory):
    result = run(request.param, tmp_path_factory.mktemp(request.param.stem), data_dir())
    print(f"{request.param.stem}: {result.seconds:.1f} s, {result.peak / 2**20:.0f} MiB")
    return result


def test_reproduces_its_outputs_offline(done):
    assert done.code == 0, f"nbval ended with {done.code}:\n{done.report}"


def test_takes_no_longer_than_it_may(done):
    assert done.seconds <= done.budget, (
        f"it took {done.seconds:.1f} s; the quick budget is {done.budget} s on 2 cores"
    )


def test_needs_at_most_two_gibibytes(done):
    assert done.peak <= BYTES, (
        f"it needed {done.peak / 2**30:.2f} GiB; the quick budget is {BYTES / 2**30:.0f} GiB"
    )


def test_leaves_nothing_behind(done):
    assert not done.left_behind, f"beside the notebook afterwards: {done.left_behind}"


def test_runs_without_cifar_too(done, tmp_path):
    if not done.data_read:
        pytest.skip(f"it read nothing from {data_dir()}, so the run above was without CIFAR-10 already")
    (tmp_path / "data").mkdir()
    result = run(done.notebook, tmp_path, tmp_path / "data")
    assert result.code == 0, f"without CIFAR-10 nbval ended with {result.code}:\n{result.report}"
    assert result.seconds <= result.budget, (
        f"without CIFAR-10 it took {result.seconds:.1f} s, more than {result.budget} s"
    )
    assert not any((tmp_path / "data").iterdir()), "it wrote into the data folder"


# The checks themselves can fail.


def run_made(tmp_path, *cells, data="no-data"):
    """The same for a made notebook of code cells (source, output printed)."""
    notebook = tmp_path / "made.ipynb"
    nbformat.write(stored.made(*cells), notebook)
    (tmp_path / "run").mkdir()
    return run(notebook, tmp_path / "run", tmp_path / data)


def test_another_output_than_the_stored_one_is_reported(tmp_path):
    result = run_made(tmp_path, ("print('loss 0.5599')", "loss 0.5598\n"))
    assert result.code == 1 and "loss 0.5598" in result.report and "loss 0.5599" in result.report


def test_memory_of_the_kernel_counts_and_files_are_seen(tmp_path):
    result = run_made(
        tmp_path,
        ("size = len(b'x' * (5 * 2**29))",),
        ("import pathlib\n_ = pathlib.Path('left.txt').write_text('')",),
    )
    assert result.code == 0, result.report
    assert 2.5 * 2**30 < result.peak < 2.8 * 2**30
    assert result.left_behind == ("left.txt",)


NETWORK = """
import socket, subprocess, sys, urllib.request

def attempt(call, *arguments):
    try:
        call(*arguments)
        print("went through")
    except OSError as error:
        print("network is off in this test" in str(error))

attempt(urllib.request.build_opener(urllib.request.ProxyHandler({})).open, "https://example.org")
attempt(socket.getaddrinfo, "example.org", 443)
attempt(socket.gethostbyname, "example.org")
attempt(socket.create_connection, ("192.0.2.1", 80))
attempt(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b"", ("192.0.2.1", 53))
attempt(socket.socket(socket.AF_INET6).connect_ex, ("2001:db8::1", 80))
child = [sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 80))"]
print("network is off in this test" in subprocess.run(child, capture_output=True, text=True).stderr)

with socket.create_server(("127.0.0.1", 0)) as server:
    attempt(socket.create_connection, server.getsockname())
    attempt(socket.create_connection, ("localhost", server.getsockname()[1]))
"""


def test_the_kernel_has_no_network_but_its_own_machine(tmp_path):
    result = run_made(tmp_path, (NETWORK, "True\n" * 7 + "went through\n" * 2))
    assert result.code == 0, result.report


READ = """
import os, pathlib, subprocess, sys

data = pathlib.Path(os.environ["COURSE_DATA_DIR"])
open(__import__("json").__file__).close()
assert (data / "one").exists() and not (data / "none").exists()
data.joinpath("two").read_text()
_ = subprocess.run([sys.executable, "-c", f"open({str(data / 'three')!r})"], check=True)
"""


def test_what_is_read_from_the_data_folder_is_seen(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("one", "two", "three"):
        (tmp_path / "data" / name).touch()
    result = run_made(tmp_path, (READ,), data="data")
    assert result.code == 0, result.report
    assert result.data_read == {"two", "three"}


def test_a_notebook_runs_on_the_python_of_the_tests(tmp_path):
    result = run_made(tmp_path, ("import sys\nprint(sys.executable)", f"{sys.executable}\n"))
    assert result.code == 0, result.report
