"""A wheel of a few text files, written with the standard library alone."""

import zipfile
from pathlib import Path


def wheel(folder, name, files, metadata=()):
    """Write a wheel of version 1 with these files."""
    info = f"{name}-1.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *metadata]
    files = {
        **files,
        f"{info}/METADATA": "\n".join(head) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = Path(folder) / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(file, text)
    return path.name
