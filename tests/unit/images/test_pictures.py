import dataclasses

import numpy as np
import pytest
import torch

from course_utils.images import Pictures


def four_pictures():
    images = torch.arange(4 * 3 * 2 * 2, dtype=torch.uint8).view(4, 3, 2, 2)
    return Pictures(images, {"class": torch.tensor([0, 1, 2, 1])}, {"class": ("cat", "cup", "car")}, "a test")


@pytest.mark.parametrize(
    "index, rows",
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]),
        (torch.tensor([3, 0, 3]), [3, 0, 3]),
        (torch.tensor([True, False, False, True]), [0, 3]),
        (slice(0, 0), []),
    ],
)
def test_selecting_keeps_pictures_labels_names_and_source_together(index, rows):
    pictures = four_pictures()
    chosen = pictures[index]
    assert len(chosen) == len(rows)
    for place, row in enumerate(rows):
        assert torch.equal(chosen.images[place], pictures.images[row])
        assert chosen.labels["class"][place] == pictures.labels["class"][row]
    assert chosen.names == pictures.names and chosen.source == "a test"


def test_labels_in_words():
    assert four_pictures().named("class") == ("cat", "cup", "car", "cup")


@pytest.mark.parametrize("index", [2, torch.tensor(2), [0, 1], torch.zeros(2, 2, dtype=torch.int64)])
def test_an_index_that_would_lose_the_batch_axis_is_refused(index):
    with pytest.raises(TypeError, match="slice or a tensor"):
        four_pictures()[index]


@pytest.mark.parametrize(
    "images, what",
    [
        (torch.zeros(2, 3, 4, 4), r"float32 \[2, 3, 4, 4\]"),
        (torch.zeros(2, 4, 4, 3, dtype=torch.uint8), r"uint8 \[2, 4, 4, 3\]"),
        (torch.zeros(3, 4, 4, dtype=torch.uint8), r"uint8 \[3, 4, 4\]"),
    ],
)
def test_wrong_images_are_repeated_in_the_error(images, what):
    with pytest.raises(ValueError, match=what):
        Pictures(images)


@pytest.mark.parametrize(
    "images, kind", [(np.zeros((2, 3, 4, 4), np.uint8), "numpy.ndarray"), ([[0]], "builtins.list")]
)
def test_images_that_are_no_tensor_are_named(images, kind):
    with pytest.raises(TypeError, match=f"must be a torch.Tensor, got a {kind}"):
        Pictures(images)


@pytest.mark.parametrize(
    "labels, names, what",
    [
        ({"class": torch.tensor([0, 1])}, {}, "same kinds"),
        ({"class": torch.tensor([0, 1, 1])}, {"class": ("a", "b")}, r"int64 \[3\]"),
        ({"class": torch.tensor([0, 1], dtype=torch.uint8)}, {"class": ("a", "b")}, r"uint8 \[2\]"),
        ({"class": torch.tensor([0, 7])}, {"class": ("a", "b")}, r"0\.\.1, got \[7\]"),
        ({"class": torch.tensor([-1, 0])}, {"class": ("a", "b")}, r"0\.\.1, got \[-1\]"),
    ],
)
def test_labels_that_do_not_fit_are_repeated_in_the_error(labels, names, what):
    with pytest.raises(ValueError, match=what):
        Pictures(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), labels, names)


def test_pictures_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        four_pictures().source = "another"
