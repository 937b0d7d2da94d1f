"""What a benchmark ran on, for its table."""

import os
import platform
import time

import torch

from course_utils.runtime import device_name, version


def facts(*packages):
    """Processor, threads and the packages' versions, as plain JSON values."""
    return {
        "processor": device_name(torch.device("cpu")),
        "cores": os.cpu_count(),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "not set"),
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "versions": {package: version(package) or "not installed" for package in packages},
    }


def in_words(facts):
    """The same as the first lines of a Markdown table's page."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{facts['processor']}, {facts['cores']} cores, OMP_WAIT_POLICY {facts['OMP_WAIT_POLICY']}, "
        f"{facts['date']}; Python {facts['python']}, {versions}."
    )
