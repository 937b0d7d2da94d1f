import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from course_utils.images import cifar

ROWS = {"train": 40, "test": 20}
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def arrays(rows=ROWS, seed=0):
    random = np.random.default_rng(seed)
    made = {"names": np.array(NAMES), "source": np.array("made up for a test")}
    for split, size in rows.items():
        made[f"x_{split}"] = random.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        made[f"y_{split}"] = random.integers(0, 10, size, dtype=np.uint8)
    return made


def write(folder, save=np.savez, **changes):
    made = {**arrays(), **changes}
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "cifar10.npz", **{name: value for name, value in made.items() if value is not None})
    return made


def fake_torchvision(monkeypatch, made, fail_at=None):
    """A CIFAR10 that leaves files in its folder as the real one does, and may fail on its n-th call."""
    calls = []

    class CIFAR10:
        classes = NAMES

        def __init__(self, root, train, download):
            assert download
            calls.append("train" if train else "test")
            with open(os.path.join(root, "cifar-10-python.tar.gz"), "ab") as archive:
                archive.write(b"half an archive")
            if len(calls) == fail_at:
                raise ConnectionResetError("connection lost\nhalf-way")
            self.data = made[f"x_{calls[-1]}"]
            self.targets = made[f"y_{calls[-1]}"].tolist()

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", CIFAR10)
    return calls


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "split, count", [("train", None), ("train", 0), ("train", 7), ("test", None), ("test", 20)]
)
def test_load_gives_the_first_pictures_channels_first(folder, save, split, count, monkeypatch):
    monkeypatch.setattr(cifar, "BLOCK", 6)  # several blocks, the last one not full
    made = write(folder, save)
    pictures = cifar.load(split, count, rows=ROWS)
    wanted = made[f"x_{split}"][: ROWS[split] if count is None else count]
    assert np.array_equal(pictures.images.numpy(), wanted.transpose(0, 3, 1, 2))
    assert pictures.labels["class"].tolist() == made[f"y_{split}"][: len(wanted)].tolist()
    assert pictures.names["class"] == tuple(NAMES) and pictures.source == "made up for a test"


def test_a_whole_file_has_the_rows_of_cifar_10(folder):
    write(folder)
    with pytest.raises(cifar.CifarDamaged, match=r"x_train is uint8 \[40, 32, 32, 3\].*50000"):
        cifar.load()

    write(folder, np.savez_compressed, **arrays({"train": 50_000, "test": 10_000}) | flat(50_000, 10_000))
    assert cifar.load("train", 2).images.shape == (2, 3, 32, 32) and len(cifar.load("test")) == 10_000


def flat(train, test):
    return {
        "x_train": np.zeros((train, 32, 32, 3), np.uint8),
        "x_test": np.zeros((test, 32, 32, 3), np.uint8),
    }


def test_no_file_is_one_line_that_names_it_and_says_what_to_do(folder):
    with pytest.raises(cifar.CifarMissing) as caught:
        cifar.load()
    message = str(caught.value)
    assert "\n" not in message and str(folder / "cifar10.npz") in message and "download()" in message
    assert not isinstance(caught.value, cifar.CifarDamaged)


@pytest.mark.parametrize("keep", [0, 10, 0.3, 0.9, -1])
def test_a_truncated_file_is_never_taken_for_a_whole_one(folder, keep):
    write(folder)
    path = folder / "cifar10.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    damaged(path)


def test_a_flipped_byte_is_noticed_when_its_pictures_are_read(folder):
    made = write(folder)
    path = folder / "cifar10.npz"
    content = bytearray(path.read_bytes())
    place = content.find(made["x_train"][30].tobytes())
    assert place > 0
    content[place] ^= 255
    path.write_bytes(content)
    damaged(path)


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"x_test": None}, "x_test"),
        ({"y_train": None}, "y_train"),
        ({"names": None}, "names"),
        ({"source": None}, "source"),
        ({"x_train": np.zeros((40, 3, 32, 32), np.uint8)}, r"x_train is uint8 \[40, 3, 32, 32\]"),
        ({"x_train": np.zeros((39, 32, 32, 3), np.uint8)}, r"x_train is uint8 \[39, 32, 32, 3\]"),
        ({"x_train": np.zeros((40, 32, 32, 3), np.float32)}, "x_train is float32"),
        ({"x_train": np.asfortranarray(np.zeros((40, 32, 32, 3), np.uint8))}, "column by column"),
        ({"y_test": np.zeros(19, np.uint8)}, r"y_test is uint8 \[19\]"),
        ({"y_train": np.full(40, 10, np.uint8)}, "labels up to 10"),
        ({"names": np.array(NAMES[:9])}, "9 class names"),
        ({"source": np.array({"pickled": "object"}, dtype=object)}, "allow_pickle"),
    ],
)
def test_a_file_with_other_contents_is_refused(folder, changes, what):
    write(folder, **changes)
    damaged(folder / "cifar10.npz", what)


def damaged(path, what=None):
    with pytest.raises(cifar.CifarDamaged, match=what) as caught:
        cifar.load("train", rows=ROWS)
    message = str(caught.value)
    assert "\n" not in message and str(path) in message and "download()" in message


@pytest.mark.parametrize(
    "split, count, what", [("val", None, "'val'"), ("train", 41, "41"), ("test", -1, "-1")]
)
def test_a_wrong_request_is_not_blamed_on_the_file(folder, split, count, what):
    write(folder)
    with pytest.raises(ValueError, match=what):
        cifar.load(split, count, rows=ROWS)


def test_download_writes_a_file_that_load_reads_and_leaves_nothing_else(folder, monkeypatch):
    made = arrays(seed=1)
    calls = fake_torchvision(monkeypatch, made)
    path = cifar.download(rows=ROWS)
    assert path == folder / "cifar10.npz" and list(folder.iterdir()) == [path]
    loaded = cifar.load("test", rows=ROWS)
    assert np.array_equal(loaded.images.numpy(), made["x_test"].transpose(0, 3, 1, 2))
    assert "original pixels" in loaded.source

    cifar.download(rows=ROWS)
    assert calls == ["train", "test"], "a second call downloads nothing"


@pytest.mark.parametrize("fail_at", [1, 2])
def test_a_download_that_fails_midway_leaves_no_file_and_says_what_to_do(folder, monkeypatch, fail_at):
    fake_torchvision(monkeypatch, arrays(), fail_at)
    with pytest.raises(cifar.CifarMissing) as caught:
        cifar.download(rows=ROWS)
    message = str(caught.value)
    assert "\n" not in message and "connection lost half-way" in message and str(folder) in message
    assert list(folder.iterdir()) == []

    fake_torchvision(monkeypatch, arrays())
    assert cifar.download(rows=ROWS).is_file(), "the next call recovers"


def test_a_write_that_fails_keeps_the_file_of_before(folder, monkeypatch):
    write(folder, x_train=None)
    before = (folder / "cifar10.npz").read_bytes()
    fake_torchvision(monkeypatch, arrays())

    def full_disk(path, **_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(cifar.CifarMissing, match="No space left"):
        cifar.download(rows=ROWS)
    assert (folder / "cifar10.npz").read_bytes() == before and len(list(folder.iterdir())) == 1


def test_a_damaged_file_is_replaced_by_download(folder, monkeypatch):
    write(folder, y_test=None)
    fake_torchvision(monkeypatch, arrays())
    cifar.download(rows=ROWS)
    assert len(cifar.load("test", rows=ROWS)) == 20


def test_too_few_downloaded_pictures_are_refused(folder, monkeypatch):
    fake_torchvision(monkeypatch, arrays({"train": 39, "test": 20}))
    with pytest.raises(cifar.CifarMissing, match="39"):
        cifar.download(rows=ROWS)
    assert list(folder.iterdir()) == []


def test_an_archive_put_there_by_hand_is_given_to_torchvision(folder, monkeypatch):
    folder.mkdir()
    (folder / cifar.ARCHIVE).write_bytes(b"by hand, ")
    seen = []

    class CIFAR10:
        def __init__(self, root, train, download):
            seen.append(Path(root, cifar.ARCHIVE).read_bytes())
            raise RuntimeError("File not found or corrupted.")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", CIFAR10)
    with pytest.raises(cifar.CifarMissing, match="corrupted"):
        cifar.download(rows=ROWS)
    assert seen == [b"by hand, "] and (folder / cifar.ARCHIVE).is_file()


def test_two_downloads_at_once_end_in_one_whole_file(folder, monkeypatch):
    made = arrays(seed=2)
    both_have_fetched = threading.Barrier(2, timeout=20)

    class CIFAR10:
        classes = NAMES

        def __init__(self, root, train, download):
            split = "train" if train else "test"
            if split == "test":
                both_have_fetched.wait()
            self.data, self.targets = made[f"x_{split}"], made[f"y_{split}"].tolist()

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", CIFAR10)
    threads = [threading.Thread(target=cifar.download, kwargs={"rows": ROWS}) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(folder.iterdir()) == [folder / "cifar10.npz"]
    assert np.array_equal(
        cifar.load("train", rows=ROWS).images.numpy(), made["x_train"].transpose(0, 3, 1, 2)
    )


def test_fallback_says_so_in_one_line(folder, capsys):
    pictures = cifar.load_or_shapes(12, seed=3)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1 and "12 rendered pictures" in printed and str(folder) in printed
    assert len(pictures) == 12 and "rendered" in pictures.source
    assert torch.equal(pictures.labels["class"], pictures.labels["shape"])
    assert torch.equal(pictures.images, cifar.shapes.make(12, 3).images)


def test_no_fallback_where_the_file_is_whole(folder, capsys, monkeypatch):
    made = write(folder)
    monkeypatch.setattr(cifar, "load", lambda split, count, load=cifar.load: load(split, count, rows=ROWS))
    pictures = cifar.load_or_shapes(5)
    assert capsys.readouterr().out == ""
    assert np.array_equal(pictures.images.numpy(), made["x_train"][:5].transpose(0, 3, 1, 2))
