"""Where a notebook runs: its device, seeds, budget and folders, and what the doctor says about them.

Importing this module costs nothing, and it works before torch is there: `ready` may have to fetch it.
"""

import contextlib
import ctypes
import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.environment import PYTHONS, ROOT, distribution, explain, module, requirements, setting

if TYPE_CHECKING:
    import pandas
    import torch

BUDGETS = ("quick", "full")
TESTED = ("torch", "torchvision", "jupyterlab", "ipywidgets")
CPUINFO = Path("/proc/cpuinfo")
PHOTOGRAPHS = ("coffee.png", "chelsea.png", "astronaut.png", "rocket.jpg")
CIFAR_FILE = "cifar10.npz"
CIFAR_MEMBERS = {f"{name}.npy" for name in ("x_train", "y_train", "x_test", "y_test", "names", "source")}


def device() -> "torch.device":
    """The torch.device to compute on: COURSE_DEVICE if it is set, else cuda, else mps, else cpu.

    A GPU that fails a small sum (too old for this torch, say) is passed over. Raises ValueError where
    COURSE_DEVICE names no device that can compute here.
    """
    import torch

    wanted = os.environ.get("COURSE_DEVICE")
    if wanted and computes(wanted):
        return torch.device(wanted)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    here = [kind for kind, there in available.items() if there and computes(kind)] + ["cpu"]
    if wanted:
        raise ValueError(
            f'COURSE_DEVICE is "{wanted}", and torch cannot compute there; '
            f"expected one of {', '.join(here)}: set it to that, or leave it unset"
        )
    return torch.device(here[0])


def computes(kind):
    """Whether torch can add numbers on this kind of device; False too where there is no such kind."""
    import torch

    try:
        return torch.ones(2, device=kind).sum().item() == 2
    except Exception:  # torch has an error of its own for each way in which a device can be missing
        return False


def device_name(kind) -> str:
    """The GPU's name, or the processor's: its model where Linux knows it, else its architecture."""
    import torch

    if kind.type == "cuda":
        return torch.cuda.get_device_name(kind)
    lines = CPUINFO.read_text(errors="replace").splitlines() if CPUINFO.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, models), platform.machine())


def generator(seed: int) -> "torch.Generator":
    """A CPU torch.Generator with this seed: what it draws is the same whatever device computes with it."""
    import torch

    return torch.Generator().manual_seed(seed)


def keep_memory() -> None:
    """Let this process keep what memory it frees, up to half a gigabyte, for what it needs next.

    Left alone, glibc gives large blocks back to the system, and every page of a fresh block costs a fault:
    a tenth to a fifth of a training step of the small encoder. Where there is another C library, nothing
    happens.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, at its most: smaller blocks come from the heap
        libc.mallopt(-1, 512 << 20)  # M_TRIM_THRESHOLD: bytes that may lie unused at the heap's end


def budget() -> str:
    """The size of the experiments: "quick" (about a minute on two cores) or "full", from COURSE_BUDGET."""
    value = os.environ.get("COURSE_BUDGET") or "quick"
    if value not in BUDGETS:
        raise ValueError(f'COURSE_BUDGET is "{value}"; set it to "quick" or "full", or leave it unset')
    return value


def where() -> str:
    """The host of this process: "colab", "deepnote", "jupyter" or "terminal"."""
    if "google.colab" in sys.modules:
        return "colab"
    if "DEEPNOTE_PROJECT_ID" in os.environ:
        return "deepnote"
    return "jupyter" if "ipykernel" in sys.modules else "terminal"


def data_dir() -> Path:
    """The folder of cached data sets: COURSE_DATA_DIR if it is set, else data/cache beside course_utils."""
    return Path(os.environ.get("COURSE_DATA_DIR") or ROOT / "data" / "cache").expanduser()


def version(name: str) -> str | None:
    """The installed version of a distribution as text, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def ready() -> None:
    """Make this process ready for the course: install the packages that are missing; silent where none is.

    Every version that the host brings is held where it is, torch and numpy above all. If pip cannot do that,
    one line says so and the notebook goes on: the doctor names what is red.
    """
    # Before torch is imported: its threads are to sleep while they wait for work. On two idle cores that
    # makes the views half as fast, and notebook 01 a sixth slower; but left to spin, one other program beside
    # them makes the views forty times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if not (ROOT / "pyproject.toml").is_file():
        print(f"{ROOT} holds course_utils without pyproject.toml: copy all files of the course there.")
        return
    missing = [text for text in requirements() if version(distribution(text)) is None]
    if not missing:
        return
    print(f"Installing once: {', '.join(map(distribution, missing))}.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / "held.txt"
        held.write_text("\n".join(host_versions()))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        done = subprocess.run([*pip, "--constraint", str(held), *missing], capture_output=True, text=True)
    importlib.invalidate_caches()
    if done.returncode:
        reason = explain(done.stdout + done.stderr)
        print(f"Not installed: {reason}. Then run this cell again; runtime.doctor() shows what is missing.")


def host_versions():
    """A pip constraint for each installed distribution, but for those with a version that pip cannot read."""
    names = {found.name for found in metadata.distributions() if found.name}
    versions = {name: metadata.version(name) for name in sorted(names)}
    readable = re.compile(r"(\d+!)?\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*(\+[\w.]+)?")
    return [f"{name}=={found}" for name, found in versions.items() if readable.fullmatch(str(found))]


def doctor() -> "pandas.DataFrame | None":
    """What this notebook runs on, as a DataFrame with a row for each check: check, found, ok, fix.

    `fix` says in one line what to do where `ok` is False, and is empty elsewhere. Whatever is broken becomes
    a row. Only without pandas there is no table: then one line is printed, and None returned.
    """
    try:
        import pandas as pd
    except Exception as error:
        print(f"The doctor needs pandas ({one_line(error)}): pip install pandas, then restart the kernel.")
        return None
    checks = {
        "tested set": tested_set,
        "device": compute,
        "widgets": widgets,
        "CIFAR-10": cifar,
        "photographs": photographs,
        "free disk": disk,
    }
    rows = [python(), *packages(), *(examined(check, look) for check, look in checks.items())]
    frame = pd.DataFrame(rows, columns=["check", "found", "ok", "fix"])
    return frame.assign(fix=frame["fix"].where(~frame["ok"], ""))


def one_line(error):
    """An exception as one line of text."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def examined(check, look):
    """The row of a check; a red one if the check itself breaks, as it does on a package that is broken."""
    try:
        return look()
    except Exception as error:
        return check, one_line(error), False, "mend the red rows above, then restart the kernel"


def python():
    found = platform.python_version()
    return "Python", found, sys.version_info[:2] in PYTHONS, "install Python 3.10 to 3.13, then `make lab`"


def packages():
    """A row for each package: is it there, in a version of pyproject.toml's range, and does it import?"""
    for text in requirements():
        name, found = distribution(text), version(distribution(text))
        if found is None:
            yield name, "missing", False, f'pip install "{text}", then restart the kernel'
        elif error := import_error(module(text)):
            fix = f'pip install --force-reinstall --no-deps "{text}", then restart the kernel'
            yield name, f"{found}, but it does not import ({error})", False, fix
        else:
            yield name, found, in_range(text, found), f'pip install "{text}", then restart the kernel'


def import_error(name):
    """Why a module does not import, in one line; None if it does."""
    try:
        importlib.import_module(name)
    except Exception as error:  # a missing library of the system is an OSError, the wrong numpy a ValueError
        return one_line(error)


def in_range(text, found):
    """Whether a version satisfies a requirement; True where packaging (a row of its own) is broken."""
    try:
        from packaging.requirements import Requirement
    except Exception:
        return True
    return Requirement(text).specifier.contains(found, prereleases=True)


def tested_set():
    """What differs from the versions that the course was tested with; a difference is no fault."""
    pairs = [(name, version(name), setting("tool.course.tested", name)) for name in TESTED]
    other = [
        f"{name} {found} (tested {tested})"
        for name, found, tested in pairs
        if found and not found.startswith(tested)
    ]
    return "tested set", ", ".join(other) or "as tested", True, ""


def compute():
    import torch

    fix = "unset COURSE_DEVICE, or set it to cpu"
    try:
        chosen = device()
    except ValueError as error:
        return "device", str(error), False, fix
    found = f"{chosen} ({device_name(chosen)}), {torch.get_num_threads()} CPU threads"
    return "device", found, computes(chosen), fix


def widgets():
    """Colab and Deepnote bring what draws widgets; JupyterLab needs a jupyterlab_widgets that fits."""
    found, series = version("ipywidgets"), version("jupyterlab_widgets")
    if where() in ("colab", "deepnote"):
        return "widgets", f"ipywidgets {found} on {where().title()}", found is not None, "run the set-up cell"
    needed = "1" if found and found.startswith("7.") else "3"
    ok = found is not None and series is not None and series.split(".")[0] == needed
    fix = f'pip install "jupyterlab_widgets=={needed}.*" where JupyterLab runs, then reload the page'
    return "widgets", f"ipywidgets {found}, jupyterlab_widgets {series}", ok, fix


def cifar():
    """Is the cache file a zip archive with all members? Its index comes last, so a file cut short is none."""
    path, ok = data_dir() / CIFAR_FILE, False
    with contextlib.suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        ok = set(archive.namelist()) >= CIFAR_MEMBERS
    found = "here" if ok else "damaged" if path.exists() else "not here"
    fix = (
        "from course_utils.images import cifar; cifar.download()  (till then notebooks use rendered pictures)"
    )
    return "CIFAR-10", found, ok, fix


def photographs():
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    missing = [name for name in PHOTOGRAPHS if not (folder / name).is_file()]
    found = f"{', '.join(missing)} missing" if missing else "in scikit-image"
    return "photographs", found, not missing, "pip install --force-reinstall --no-deps scikit-image"


def disk():
    free = shutil.disk_usage(ROOT).free / 1e9
    return "free disk", f"{free:.0f} GB", free > 1, "free 1 GB on the disk that holds the course"
