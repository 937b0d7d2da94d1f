"""The set-up: what it asks for, what it refuses in one line, and that every way it can break mends itself."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tiny_wheel import wheel

from course_utils import environment
from course_utils.environment import ROOT, SetupError, requirements

SOURCES = sorted((ROOT / "course_utils").rglob("*.py"))


def imported(path):
    """The top-level modules that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


# The two lists of requirements and the code


def test_conda_gets_the_ranges_of_pyproject():
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    *conda, pip = dependencies
    assert conda == [f"python{environment.setting('project', 'requires-python')}", "pip"]
    assert sorted(pip["pip"]) == sorted(
        ["-e .", *requirements(), *requirements("lab"), *requirements("test"), *requirements("grade")]
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_the_package_imports_is_a_dependency(path):
    declared = {environment.module(text) for text in requirements()} | {"course_utils"}
    if path.name in ("notebooks.py", "build.py"):  # the authors' tools
        declared |= {environment.module(text) for text in requirements("lab")}
    if path.name == "build.py":  # traitlets and nbgrader's other parts come with it
        declared |= {environment.module(text) for text in requirements("grade")} | {"traitlets"}
    if path.name == "zero_shot.py":  # imports it where a pretrained model is asked for
        declared |= {environment.module(text) for text in requirements("clip")}
    if path.name == "triton_kernels.py":  # torch brings triton where it can use it
        declared.add("triton")
    assert imported(path) - set(sys.stdlib_module_names) <= declared


def test_pyproject_is_read_as_tomllib_reads_it():
    tomllib = pytest.importorskip("tomllib", reason="tomllib begins with Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert requirements() == project["project"]["dependencies"]
    extras = project["project"]["optional-dependencies"]
    assert {name: requirements(name) for name in ("lab", "test", "clip", "grade", "bench")} == extras
    assert environment.setting("tool.course", "repository") == project["tool"]["course"]["repository"]
    tested = project["tool"]["course"]["tested"]
    assert {name: environment.setting("tool.course.tested", name) for name in tested} == tested


def test_supported_pythons_are_those_of_pyproject():
    assert environment.setting("project", "requires-python") == ">=3.10,<3.14"
    assert sorted(environment.PYTHONS) == [(3, minor) for minor in range(10, 14)]


def test_it_runs_on_a_bare_and_old_python():
    text = Path(environment.__file__).read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 6))
    assert imported(Path(environment.__file__)) <= set(sys.stdlib_module_names)
    assert not imported(ROOT / "course_utils" / "__init__.py")


# What it refuses


@pytest.mark.parametrize(
    ("output", "phrase"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            "disk is full",
        ),
        ("OSError: [Errno 122] Disk quota exceeded: 'x'", "disk is full"),
        (
            "Retrying after NewConnectionError(...)\nERROR: No matching distribution found for x",
            "network",
        ),
        ("ProxyError('Cannot connect to proxy.')", "network"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "--cert"),
        (
            "   ERROR: first\n    ERROR: No matching distribution found for torch>=2.6\nnote: an end",
            "for torch>=2.6",
        ),
        ("Traceback ...\nModuleNotFoundError: No module named 'torch'\n", "No module named 'torch'"),
        ("", "without a word"),
    ],
)
def test_a_failed_command_is_explained_in_one_line(output, phrase):
    explanation = environment.explain(output)
    assert phrase in explanation and "\n" not in explanation


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def pythons(tmp_path, monkeypatch):
    """A PATH that holds nothing, and a running Python that is too old."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", script(tmp_path / "python3", "echo 3 8"))
    return tmp_path


def test_an_old_python_is_turned_away(pythons):
    script(pythons / "python3.11", "echo not here >&2; exit 127")  # a version manager's stand-in
    script(pythons / "python3.12", "echo 3 12; exit 1")  # no venv
    with pytest.raises(SetupError, match=r"3\.10 to 3\.13.*python3 is Python 3\.8.*python3\.12-venv"):
        environment.find_python()


def test_another_python_on_the_path_will_do(pythons):
    script(pythons / "python3.11", "echo not here >&2; exit 127")
    good = script(pythons / "python3.13", "echo 3 13")
    assert environment.find_python() == good


def test_a_disk_that_is_too_small_is_seen_before(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DISK_GB", "1000000")
    message = (
        rf"takes up to 1000000 GB .*{re.escape(str(tmp_path))} has [\d.]+ GB free.*pip's cache in the home"
    )
    with pytest.raises(SetupError, match=message):
        environment.check_disk(tmp_path)
    monkeypatch.setenv("COURSE_DISK_GB", "0.000001")
    environment.check_disk(tmp_path)


def test_a_full_disk_may_be_that_of_the_venv_or_that_of_pips_cache(monkeypatch):
    monkeypatch.setenv("COURSE_DISK_GB", "foo")  # only a first install looks at it
    explanation = environment.explain("OSError: [Errno 28] No space left on device")
    assert ".venv" in explanation and "pip's cache (in the home folder)" in explanation


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "kept.txt"
    environment.replace_file(path, "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        environment.replace_file(path, "new")
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("kept.txt", "old")]


# A real .venv, for a course that needs two tiny packages


PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "tiny"
version = "1"
dependencies = ["ground>=1"]

[project.optional-dependencies]
test = [
    "tester>=1",
]
"""

BACKEND = """
import sys
sys.path.insert(0, {tests!r})
from tiny_wheel import wheel

def build_editable(folder, *_):
    extra = ["Provides-Extra: test", 'Requires-Dist: tester>=1; extra == "test"', "Requires-Dist: ground>=1"]
    return wheel(folder, "tiny", {{"tiny.pth": {root!r}}}, extra)
"""


class Course:
    """A tiny course in a folder of its own, set up by the command that the Makefile calls."""

    def __init__(self, folder):
        self.root, self.wheels = folder / "course", folder / "wheels"
        self.wheels.mkdir()
        self.offer("ground")
        self.offer("tester")
        (self.root / "course_utils").mkdir(parents=True)
        for name in ("__init__.py", "environment.py"):
            shutil.copy(ROOT / "course_utils" / name, self.root / "course_utils")
        (self.root / "pyproject.toml").write_text(PYPROJECT)
        self.write_backend()
        self.settings = {
            **os.environ,
            **{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull},
            **{"PIP_CONSTRAINT": "", "COURSE_DISK_GB": "0.01"},
        }

    def write_backend(self):
        text = BACKEND.format(tests=str(Path(__file__).parent), root=str(self.root))
        (self.root / "backend.py").write_text(text)

    def offer(self, name, text=""):
        wheel(self.wheels, name, {f"{name}.py": text})

    def start(self, extras="", **settings):
        command = [sys.executable, "-m", "course_utils.environment", "--extras", extras]
        return subprocess.Popen(
            command,
            cwd=self.root,
            env={**self.settings, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def make(self, extras="", **settings):
        process = self.start(extras, **settings)
        return process.communicate(timeout=120)[0].splitlines(), process.returncode

    def imports(self, *names):
        code = "; ".join(f"import {name}" for name in names)
        return (
            subprocess.run(
                [self.root / ".venv/bin/python", "-c", code], cwd="/", capture_output=True
            ).returncode
            == 0
        )

    @property
    def stamp(self):
        return self.root / ".venv" / "course.json"


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path)


def test_from_nothing_to_the_tests_and_through_a_move(course):
    lines, status = course.make()
    assert status == 0 and len(lines) == 1, lines
    assert course.imports("course_utils", "ground") and not course.imports("tester")
    pip_log = course.root / ".venv.log"
    first = pip_log.read_text()

    begin = time.perf_counter()
    assert course.make() == ([], 0)
    assert time.perf_counter() - begin < 5  # the course's promise for a second call
    assert pip_log.read_text() == first

    assert course.make("test")[1] == 0
    assert course.imports("ground", "tester")
    assert "Uninstalling ground" not in pip_log.read_text()
    assert course.make() == ([], 0)  # the larger set is enough for the smaller

    course.root = course.root.rename(course.root.with_name("moved"))
    course.write_backend()
    assert course.make()[1] == 0
    assert course.imports("course_utils", "ground") and not course.imports(
        "tester"
    )  # made anew, for what was asked


def test_an_interpreter_that_is_gone_and_a_package_that_is_gone_are_seen(course):
    course.make()
    (course.root / ".venv/bin/python").unlink()
    assert course.make()[1] == 0 and course.imports("ground")
    subprocess.run([course.root / ".venv/bin/python", "-m", "pip", "uninstall", "-qy", "ground"], check=True)
    assert course.make()[1] == 0 and course.imports("ground")


def interrupted(course, number):
    """Start an install, and send it a signal when all files are there and nothing is confirmed yet."""
    course.offer("ground", "import time; time.sleep(3)")  # so that to confirm it takes a while
    log = course.root / ".venv.log"
    log.unlink(missing_ok=True)
    # A child inherits that SIGINT is ignored, as it is where a shell runs the tests in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = course.start()
    while not (log.exists() and "Successfully installed" in log.read_text()):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    return process.communicate(timeout=60)[0].splitlines(), process.returncode


def test_an_interrupted_install_starts_afresh(course):
    lines, status = interrupted(course, signal.SIGINT)
    assert status == 130 and "Set-up stopped: it was interrupted" in lines[-1] and len(lines) == 2
    half_made = course.root / ".venv" / "half-made"
    half_made.touch()
    lines, status = interrupted(course, signal.SIGKILL)
    assert status == -signal.SIGKILL and not course.stamp.exists()
    assert not half_made.exists()
    half_made.touch()
    course.offer("ground")
    assert course.make()[1] == 0
    assert course.imports("ground") and not half_made.exists()


def test_sigterm_and_a_closed_terminal_interrupt_too(monkeypatch, capsys):
    for number in (signal.SIGTERM, signal.SIGHUP):
        monkeypatch.setattr(environment, "make", lambda extras, number=number: os.kill(os.getpid(), number))
        before = signal.getsignal(number)
        try:
            assert environment.main([]) == 130
        finally:
            signal.signal(number, before)
        assert "it was interrupted" in capsys.readouterr().err


def test_no_network_is_one_line_and_harms_nothing(course):
    nowhere = {
        "PIP_NO_INDEX": "",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "1",
    }
    lines, status = course.make(**nowhere)
    assert status == 1 and len(lines) == 2, lines
    assert re.match("Set-up stopped: the package index cannot be reached; check the network", lines[1])
    assert not list((course.root / ".venv").iterdir())

    course.make()
    lines, status = course.make("test", **nowhere)
    assert status == 1 and "check the network" in lines[1]
    assert course.imports("ground") and course.make() == ([], 0)  # what worked still does


@pytest.mark.parametrize(
    ("extras", "settings", "reason"),
    [
        ("", {"COURSE_DISK_GB": "foo"}, "COURSE_DISK_GB is 'foo'; expected a number of GB, such as 8"),
        ("testt", {}, "there is no extra 'testt'; choose from test"),
    ],
)
def test_a_setting_that_is_wrong_is_one_line(course, extras, settings, reason):
    lines, status = course.make(extras, **settings)
    assert status == 1 and lines[-1] == f"Set-up stopped: {reason}. To go on, run the command again."
    assert not any("Traceback" in line for line in lines) and not course.stamp.exists()


def test_the_extras_there_are_are_named():
    with pytest.raises(SetupError, match=r"no extra 'labb'; choose from lab, test, clip, grade, bench$"):
        environment.check_extras(["lab", "labb"])
    environment.check_extras(["", "lab", "test", "clip", "grade", "bench"])


def test_what_cannot_be_imported_does_not_count_as_installed(course):
    course.offer("ground", "raise ImportError('a library of the system is missing')")
    lines, status = course.make()
    assert status == 1 and "ImportError: a library of the system is missing" in lines[-1]
    assert not course.stamp.exists()


def test_two_calls_at_once_do_not_meet(course):
    calls = [course.start(), course.start()]
    outputs = [call.communicate(timeout=120)[0] for call in calls]
    assert [call.returncode for call in calls] == [0, 0]
    assert sorted("Installing" in output for output in outputs) == [False, True]
    assert sorted("waiting for it" in output for output in outputs) == [False, True]


# The Makefile


def test_an_apt_that_fails_leaves_one_line_about_chromium(tmp_path):
    script(tmp_path / "id", "echo 0")
    script(tmp_path / "uname", "echo Linux")
    script(tmp_path / "apt-get", "exit 100")
    command = [shutil.which("make"), "chromium"]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [
            "Installing chromium for the browser tests.",
            "The browser tests will be skipped: chromium is missing and could not be installed.",
        ],
    ), done.stderr


def test_lint_looks_at_the_notebooks_too():
    command = ["make", "--no-print-directory", "-n", "lint"]  # below `make test` it would name its folder
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    commands = [line.split("/")[-1] for line in done.stdout.splitlines()[-3:]]
    assert commands == ["ruff check .", "ruff format --check .", "python -m course_utils.notebooks check"]
