"""Make `.venv` with what the course needs: `python3 -m course_utils.environment --extras lab,test`.

It runs before anything is installed, so it uses the standard library only, and its syntax is old enough for
the Pythons that it turns away (3.6 and later). The stamp, `.venv/course.json`, says what is installed: it is
removed before an install begins and written after everything in it could be imported. Whatever stops an
install, even a power cut, the next call finds no stamp and starts afresh.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 10))  # the supported ones, the tested one first
MODULES = {
    "scikit-learn": "sklearn",
    "scikit-image": "skimage",
    "pytest-xdist": "xdist",
    "ipython": "IPython",
    "pillow": "PIL",
    "info-nce-pytorch": "info_nce",
    "open_clip_torch": "open_clip",
}

# What pip writes when the machine, not the course, is at fault, and what to say then.
CAUSES = (
    (
        r"Errno 28|No space left on device|Disk quota exceeded",
        "the disk is full; make room on the one of the folder .venv and on that of pip's cache "
        "(in the home folder), which may be another",
    ),
    (r"CERTIFICATE_VERIFY_FAILED|SSLError", "pip does not trust the package index; see pip's --cert option"),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
        r"|Network is unreachable|Connection aborted|Connection reset|Max retries exceeded",
        "the package index cannot be reached; check the network",
    ),
)

# No question about news at the first start; and explorers that still show something in a notebook that a
# reader saved and reopened without its kernel (without their state: "model not found").
LAB_SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false"},
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
}


class SetupError(Exception):
    """What stands in the way and what to do about it, in one line."""


# --- What the course needs: pyproject.toml ------------------------------------------------------------------


def table_text(table, root=ROOT):
    """The lines of one table of pyproject.toml (tomllib begins with Python 3.11)."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    return re.search(rf"^\[{re.escape(table)}\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S).group(1)


def setting(table, key, root=ROOT):
    """One value of pyproject.toml, a string or a list of strings."""
    pattern = rf"^{re.escape(key)} = (\[\n.*?^\]|[^\n]*)"
    return ast.literal_eval(re.search(pattern, table_text(table, root), re.M | re.S).group(1))


def check_extras(extras, root=ROOT):
    """Raise SetupError for an extra that pyproject.toml does not have; "" stands for none."""
    there = re.findall(r"^([\w-]+) = ", table_text("project.optional-dependencies", root), re.M)
    unknown = [extra for extra in extras if extra not in ["", *there]]
    if unknown:
        raise SetupError(f"there is no extra {', '.join(map(repr, unknown))}; choose from {', '.join(there)}")


def requirements(group="", root=ROOT):
    """The requirement strings of the package itself (""), or of one of its extras ("lab", "test")."""
    if group:
        return setting("project.optional-dependencies", group, root)
    return setting("project", "dependencies", root)


def distribution(requirement):
    """The name in a requirement: "torch>=2.6,<3" -> "torch"."""
    return re.match(r"[\w.-]+", requirement).group()


def module(requirement):
    """The module that a requirement brings: "scikit-learn>=1.3,<2" -> "sklearn"."""
    name = distribution(requirement)
    return MODULES.get(name, name.replace("-", "_"))


def digests(groups, root=ROOT):
    """A short text for each group that changes with its requirements."""
    texts = {group: "\n".join(sorted(requirements(group, root))) for group in groups}
    return {group: hashlib.sha256(text.encode()).hexdigest()[:16] for group, text in texts.items()}


# --- What is there: the stamp -------------------------------------------------------------------------------

LOOK = "import sys, importlib.metadata as m; [m.version(name) for name in sys.argv[1:]]"


def stamp(root):
    """The file that says what .venv holds: {"folder": the course's, "groups": {group: digest}}.

    A moved .venv still runs, but its scripts point to the old place; so the stamp names the folder.
    """
    return root / ".venv" / "course.json"


def venv_python(root):
    """The interpreter of the course's .venv."""
    return str(root / ".venv" / "bin" / "python")


def installed(root=ROOT):
    """The digests by group of a .venv that is whole and works; an empty dictionary if there is none."""
    try:
        content = json.loads(stamp(root).read_text(encoding="utf-8"))
        names = [distribution(text) for group in content["groups"] for text in requirements(group, root)]
        subprocess.check_output([venv_python(root), "-c", LOOK, *names], stderr=subprocess.DEVNULL)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    return content["groups"] if content["folder"] == str(root) else {}


def replace_file(path, text):
    """Write a text file whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(str(temporary), str(path))
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


# --- What to make it with -----------------------------------------------------------------------------------


def unsuitable(python):
    """What keeps an interpreter from making .venv, as a phrase; None if nothing, "" if it does not run."""
    code = "import sys; print(*sys.version_info[:2]); sys.stdout.flush(); import ensurepip, venv"
    process = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    version = tuple(int(part) for part in process.stdout.split())
    if len(version) != 2:
        return ""  # a shim of a version manager, say
    name = "{}.{}".format(*version)
    if version not in PYTHONS:
        return f"{python} is Python {name}"
    return f"{python} lacks venv (on Debian: apt install python{name}-venv)" if process.returncode else None


def find_python():
    """The interpreter to make .venv with: the running one if it will do, else one on the PATH."""
    names = [sys.executable] + ["python{}.{}".format(*version) for version in PYTHONS]
    paths = [path for path in map(shutil.which, names) if path]
    problems = [unsuitable(path) for path in paths]
    if None in problems:
        return paths[problems.index(None)]
    raise SetupError(
        "the course needs Python 3.10 to 3.13; install one (" + ", ".join(filter(None, problems)) + ")"
    )


def gigabytes_needed():
    """The free disk that a first install takes at its peak, in GB; COURSE_DISK_GB overrides the estimate.

    On Linux torch comes with its GPU libraries; pip holds the packed and the unpacked files at once.
    """
    value = os.environ.get("COURSE_DISK_GB") or (10 if platform.system() == "Linux" else 3)
    try:
        return float(value)
    except ValueError:
        raise SetupError(f"COURSE_DISK_GB is {value!r}; expected a number of GB, such as 8") from None


# --- Making it ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(root):
    """Let one call at a time work on .venv; yields the lock's file descriptor."""
    import fcntl

    with open(str(root / ".venv.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work on .venv; waiting for it to end.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def clear(folder):
    """Empty a folder, or make it; one that is a link to another disk stays one."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(str(path))
        else:
            path.unlink()


def check_disk(folder):
    """Raise SetupError where a first install would fill the disk."""
    free, needed = shutil.disk_usage(str(folder)).free / 1e9, gigabytes_needed()
    if free < needed:
        raise SetupError(
            f"the first install takes up to {needed:.0f} GB and the disk of {folder} has {free:.1f} GB free; "
            "make room, or set COURSE_DISK_GB to try with less (part of it goes into pip's cache in the home "
            "folder, which may lie on another disk)"
        )


def run(command, root, lock):
    """Run a command with its output in .venv.log; raise SetupError with the cause if it fails.

    The command keeps the lock: should this call be killed, the next one waits until the command is gone.
    """
    temporary = root / ".venv" / "tmp"  # goes with .venv, while /tmp would keep what a killed pip leaves
    clear(temporary)
    lines, start = [], time.time()
    with open(str(root / ".venv.log"), "a", buffering=1, encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            cwd=str(root / ".venv"),  # not the course's folder: an import must find what was installed
            env=dict(os.environ, TMPDIR=str(temporary)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            pass_fds=[lock],
        )
        try:
            for line in process.stdout:
                lines.append(line)
                log.write(line)
                if re.match(r"\s*(Collecting|Downloading|Installing)", line):
                    show(f"  {(time.time() - start) / 60:.0f} min: {line.strip()}")
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
            show("")
    clear(temporary)
    if process.returncode:
        raise SetupError(f"{explain(''.join(lines))} (all that was said is in {root / '.venv.log'})")


def show(text):
    """Make this the last line of the terminal, if there is one."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)


def explain(output):
    """The cause of a failed command in one phrase, from its output."""
    for pattern, phrase in CAUSES:
        if re.search(pattern, output):
            return phrase
    lines = (
        re.findall(r"^\s*ERROR: (?!Exception:)(.*)", output, re.M)
        or output.strip().splitlines()
        or ["it ended without a word"]
    )
    return lines[-1].rstrip(".")


def start_afresh(root, lock):
    """Make a .venv that holds pip and nothing else."""
    python = find_python()
    clear(root / ".venv")
    check_disk(root / ".venv")
    run([python, "-m", "venv", str(root / ".venv")], root, lock)


def install(groups, root, lock):
    """Install the course with these groups into .venv, and let JupyterLab open without a question."""
    extras = ",".join(filter(None, groups))
    pip = [venv_python(root), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    run([*pip, "--editable", f"{root}[{extras}]" if extras else str(root)], root, lock)
    if "lab" in groups:
        kernel = ["--sys-prefix", "--name", "python3", "--display-name", "Python 3 (Two Views)"]
        run([venv_python(root), "-m", "ipykernel", "install", *kernel], root, lock)
        settings = root / ".venv" / "share" / "jupyter" / "lab" / "settings"
        settings.mkdir(parents=True, exist_ok=True)
        replace_file(settings / "overrides.json", json.dumps(LAB_SETTINGS))


def confirm(groups, root, lock):
    """Write the stamp, after every package of these groups could be imported."""
    modules = ["course_utils"] + [module(text) for group in groups for text in requirements(group, root)]
    run([venv_python(root), "-c", "; ".join(f"import {name}" for name in modules)], root, lock)
    replace_file(stamp(root), json.dumps({"folder": str(root), "groups": groups}))


def make(extras, root=ROOT):
    """Bring .venv to what these extras need; silent and at once where that is there already.

    A first install that fails leaves nothing. One that was to add to a working .venv leaves it as it was.
    """
    check_extras(extras, root)
    with locked(root) as lock:
        found, wanted = installed(root), digests(["", *extras], root)
        if wanted.items() <= found.items():
            return
        print(
            "Installing what the course needs into .venv; the first time takes 3 to 15 minutes.", flush=True
        )
        replace_file(root / ".venv.log", "")
        if found:
            stamp(root).unlink()
        else:
            start_afresh(root, lock)
        try:
            groups = dict(found, **wanted)
            install(groups, root, lock)
            confirm(groups, root, lock)
        except (SetupError, OSError):
            if found:
                confirm(found, root, lock)
            else:
                clear(root / ".venv")
            raise


def main(arguments=None):
    """Make .venv; on anything foreseeable that stops it, print one line and return a failing status."""
    parser = argparse.ArgumentParser(prog="python3 -m course_utils.environment", description="Make .venv.")
    parser.add_argument("--extras", default="lab", help="lab, or lab,test (default: lab)")
    extras = parser.parse_args(arguments).extras.split(",")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        if os.name == "nt":
            raise SetupError("on Windows use WSL, or conda with environment.yml")
        make(extras)
    except KeyboardInterrupt:
        reason, status = "it was interrupted", 130
    except SetupError as error:
        reason, status = str(error), 1
    except OSError as error:
        reason = explain(str(error))
        status = 1
    else:
        return 0
    print(f"Set-up stopped: {reason}. To go on, run the command again.", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
