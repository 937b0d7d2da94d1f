"""Where a notebook runs: its device, seeds, budget and folders, and what the doctor says about them.

Importing this module costs nothing, and it works before torch is there: `ready` may have to fetch it.
"""

import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.environment import PYTHONS, ROOT, distribution, explain, requirements, setting

if TYPE_CHECKING:
    import pandas
    import torch

BUDGETS = ("quick", "full")
TESTED = ("torch", "torchvision", "jupyterlab", "ipywidgets")
PHOTOGRAPHS = ("coffee.png", "chelsea.png", "astronaut.png")


def device() -> "torch.device":
    """The torch.device to compute on: COURSE_DEVICE if it is set, else cuda, else mps, else cpu.

    A GPU that fails a small sum (too old for this torch, say) is passed over.
    """
    import torch

    if wanted := os.environ.get("COURSE_DEVICE"):
        return torch.device(wanted)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return torch.device(next((kind for kind, there in available.items() if there and computes(kind)), "cpu"))


def computes(kind):
    """Whether torch can add numbers on this kind of device."""
    import torch

    try:
        return torch.ones(2, device=kind).sum().item() == 2
    except RuntimeError:
        return False


def generator(seed: int) -> "torch.Generator":
    """A CPU torch.Generator with this seed: what it draws is the same whatever device computes with it."""
    import torch

    return torch.Generator().manual_seed(seed)


def budget() -> str:
    """The size of the experiments: "quick" (about a minute on two cores) or "full", from COURSE_BUDGET."""
    value = os.environ.get("COURSE_BUDGET", "quick")
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
    return Path(os.environ.get("COURSE_DATA_DIR") or ROOT / "data" / "cache")


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
    # Before torch is imported: its threads are to sleep while they wait for work. Left to spin, they keep two
    # cores so busy that one other program makes the views forty times slower; asleep they cost a tenth.
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


def doctor() -> "pandas.DataFrame":
    """What this notebook runs on, as a DataFrame with a row for each check: check, found, ok, fix.

    `fix` says in one line what to do where `ok` is False, and is empty elsewhere.
    """
    import pandas as pd

    rows = [python(), *packages(), tested_set(), compute(), widgets(), cifar(), photographs(), disk()]
    frame = pd.DataFrame(rows, columns=["check", "found", "ok", "fix"])
    return frame.assign(fix=frame["fix"].where(~frame["ok"], ""))


def python():
    found = platform.python_version()
    return "Python", found, sys.version_info[:2] in PYTHONS, "install Python 3.10 to 3.13, then `make lab`"


def packages():
    """A row for each package: is it there, in a version of the range in pyproject.toml?"""
    from packaging.requirements import Requirement

    for text in requirements():
        found = version(distribution(text))
        ok = found is not None and Requirement(text).specifier.contains(found, prereleases=True)
        yield distribution(text), found or "missing", ok, f'pip install "{text}", then restart the kernel'


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

    chosen = device()
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else platform.machine()
    found = f"{chosen} ({name}), {torch.get_num_threads()} CPU threads"
    return "device", found, computes(chosen), "unset COURSE_DEVICE, or set it to cpu"


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
    cache = data_dir() / "cifar10.npz"
    fix = (
        "from course_utils.images import cifar; cifar.download()  (till then notebooks use rendered pictures)"
    )
    return "CIFAR-10", "here" if cache.is_file() else "not here", cache.is_file(), fix


def photographs():
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    missing = [name for name in PHOTOGRAPHS if not (folder / name).is_file()]
    found = f"{', '.join(missing)} missing" if missing else "in scikit-image"
    return "photographs", found, not missing, "pip install --force-reinstall --no-deps scikit-image"


def disk():
    free = shutil.disk_usage(ROOT).free / 1e9
    return "free disk", f"{free:.0f} GB", free > 1, "free 1 GB on the disk that holds the course"
