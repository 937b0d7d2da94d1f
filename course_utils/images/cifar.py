"""CIFAR-10 from one cache file that is either whole or not there.

`data_dir() / "cifar10.npz"` holds x_train uint8 [50000, 32, 32, 3], y_train uint8 [50000], x_test, y_test,
names and `source`, a sentence that says what the pixels are. `download()` makes it; nothing else here needs
the network.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch

from course_utils.images import shapes
from course_utils.images.pictures import Pictures
from course_utils.runtime import CIFAR_FILE, data_dir

ROWS = {"train": 50_000, "test": 10_000}
SOURCE = "CIFAR-10, original pixels (Krizhevsky 2009)"
ARCHIVE = "cifar-10-python.tar.gz"
BLOCK = 1000  # pictures read at a time


class CifarMissing(RuntimeError):
    """There is no usable CIFAR-10 cache file; the message is one line that says what to do."""


class CifarDamaged(CifarMissing):
    """The cache file is there, but it is not a whole one."""


def cache_file() -> Path:
    """Where the cache file is or will be; COURSE_DATA_DIR moves it."""
    return data_dir() / CIFAR_FILE


def load(split: str = "train", count: int | None = None, *, rows: dict[str, int] = ROWS) -> Pictures:
    """The first `count` pictures of a split (all when None), read from the cache file alone.

    Returns Pictures of uint8 [count, 3, 32, 32] with the label "class"; `source` is the file's own sentence.
    Only the wanted rows are read. `rows` is the number of pictures that a whole file holds in each split.
    Raises CifarMissing when there is no file, CifarDamaged when it is not a whole one, ValueError for a wrong
    split or count.
    """
    if split not in rows:
        raise ValueError(f"split must be one of {list(rows)}, got {split!r}")
    count = rows[split] if count is None else count
    if not 0 <= count <= rows[split]:
        raise ValueError(f"count must lie in 0..{rows[split]} for split {split!r}, got {count}")

    with _open_cache() as archive:
        for name, size in rows.items():
            _expect_header(archive, f"x_{name}", (size, 32, 32, 3))
            _expect_header(archive, f"y_{name}", (size,))
        names = tuple(str(name) for name in _read_array(archive, "names"))
        classes = torch.from_numpy(_read_array(archive, f"y_{split}")[:count].astype(np.int64))
        largest = max(classes.tolist(), default=0)
        if len(names) != 10 or largest >= 10:
            raise ValueError(f"{len(names)} class names, labels up to {largest}; expected 10 classes")
        source = str(_read_array(archive, "source"))
        return Pictures(
            _read_pictures(archive, f"x_{split}", count), {"class": classes}, {"class": names}, source
        )


def load_or_shapes(count: int, seed: int = 0) -> Pictures:
    """The first `count` CIFAR-10 training pictures, or as many rendered ones where there is no cache file.

    Both have the label "class"; for rendered pictures it is the shape. Prints one line when it falls back.
    """
    try:
        return load("train", count)
    except CifarMissing as missing:
        print(f"Going on with {count} rendered pictures. {missing}")
    rendered = shapes.make(count, seed)
    return replace(
        rendered,
        labels={"class": rendered.labels["shape"], **rendered.labels},
        names={"class": rendered.names["shape"], **rendered.names},
    )


def download(*, rows: dict[str, int] = ROWS) -> Path:
    """Make the cache file with torchvision's download, checksum verified; a whole file stays as it is.

    Everything happens in a temporary folder beside the file, which then appears in one step: an interrupted
    download leaves no file. An archive put by hand into `data_dir()` is used instead of the network when its
    checksum is right. Returns the file's path. Raises CifarMissing with one line that says what to do.
    """
    path = cache_file()
    try:
        load("train", 0, rows=rows)
        return path
    except CifarMissing:
        pass
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="cifar10-", dir=path.parent) as folder:
            if (path.parent / ARCHIVE).is_file():
                shutil.copy(path.parent / ARCHIVE, folder)
            partial = Path(folder) / "cifar10.npz"
            np.savez(partial, **_fetch(folder, rows))
            os.replace(partial, path)
    except (OSError, EOFError, HTTPException, RuntimeError, ValueError) as error:
        raise CifarMissing(
            f"CIFAR-10 was not downloaded ({_one_line(error)}). Try again with a network, or put {ARCHIVE} "
            f"from https://www.cs.toronto.edu/~kriz/cifar.html, or a whole cifar10.npz, into {path.parent}."
        ) from error
    return path


def _fetch(folder: str, rows: dict[str, int]) -> dict[str, np.ndarray]:
    """The arrays of the cache file, from torchvision's data set downloaded into `folder`."""
    from torchvision.datasets import CIFAR10

    arrays = {"source": np.array(SOURCE)}
    waiting = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)  # torchvision sets none: a mirror that stalls would hang for ever
    try:
        for split, size in rows.items():
            dataset = CIFAR10(folder, train=split == "train", download=True)
            if dataset.data.shape != (size, 32, 32, 3):
                raise ValueError(f"{split} has shape {dataset.data.shape}, expected {(size, 32, 32, 3)}")
            arrays[f"x_{split}"] = dataset.data
            arrays[f"y_{split}"] = np.array(dataset.targets, np.uint8)
            arrays["names"] = np.array(dataset.classes)
    finally:
        socket.setdefaulttimeout(waiting)
    return arrays


@contextmanager
def _open_cache():
    """The cache file as an open zip archive; whatever is wrong with it becomes one line that names it."""
    path = cache_file()
    if not path.is_file():
        raise CifarMissing(
            f"There is no CIFAR-10 at {path}: run course_utils.images.cifar.download() once, with a network."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, OSError) as error:
        raise CifarDamaged(
            f"{path} is not a whole CIFAR-10 file ({_one_line(error)}): "
            "delete it and run course_utils.images.cifar.download() once, with a network."
        ) from error


def _read_header(stream) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the array that starts here; what follows in the stream are its values."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, column_major, dtype = read(stream)
    if column_major:
        raise ValueError("an array is stored column by column")
    return shape, dtype


def _expect_header(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...]) -> None:
    with archive.open(f"{name}.npy") as stream:
        found, dtype = _read_header(stream)
    if found != shape or dtype != np.uint8:
        raise ValueError(f"{name} is {dtype} {list(found)}, expected uint8 {list(shape)}")


def _read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _read_pictures(archive: zipfile.ZipFile, name: str, count: int) -> torch.Tensor:
    """The first `count` pictures as uint8 [count, 3, 32, 32], block by block: never a second whole copy."""
    images = torch.empty(count, 3, 32, 32, dtype=torch.uint8)
    with archive.open(f"{name}.npy") as stream:
        _read_header(stream)
        for start in range(0, count, BLOCK):
            block = images[start : start + BLOCK]
            pixels = bytearray(stream.read(block.numel()))
            if len(pixels) != block.numel():
                raise ValueError(f"{name} ends early")
            block.copy_(torch.frombuffer(pixels, dtype=torch.uint8).view(-1, 32, 32, 3).permute(0, 3, 1, 2))
    return images


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
