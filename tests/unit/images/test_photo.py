import socket

import pytest
import torch
from skimage import data

from course_utils.images import photo


# An evening sky varies less than a coffee cup, and on 8 pixels the rocket in it is averaged away.
@pytest.mark.parametrize(
    "take, contrast", [(photo.cup, 30), (photo.cat, 30), (photo.astronaut, 30), (photo.rocket, 25)]
)
@pytest.mark.parametrize("size", [8, 64, 224])
def test_one_square_photograph_without_the_network(take, contrast, size, monkeypatch):
    def refuse(*_):
        raise AssertionError("a photograph asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    picture = take(size)
    assert picture.images.shape == (1, 3, size, size) and picture.images.dtype == torch.uint8
    assert picture.images.float().std() > contrast  # a photograph, not a flat field


@pytest.mark.parametrize(
    "take, pixels, left, edge",
    [
        (photo.cup, data.coffee, 80, 400),
        (photo.cat, data.chelsea, 105, 300),
        (photo.astronaut, data.astronaut, 0, 512),
        (photo.rocket, data.rocket, 110, 427),
    ],
)
def test_at_its_own_size_a_photograph_is_the_cropped_original(take, pixels, left, edge):
    original = torch.from_numpy(pixels()[:edge, left : left + edge].copy()).permute(2, 0, 1)
    assert torch.equal(take(edge).images[0], original)


def test_resizing_averages_instead_of_picking_pixels():
    whole, small = photo.cat(300).images.float(), photo.cat(30).images.float()
    blocks = torch.nn.functional.avg_pool2d(whole, 10)
    # The resize weighs with a triangle over two blocks, so it is near the block mean, in the whiskers too.
    assert (small - blocks).abs().mean() < 4
    assert (whole[:, :, 5::10, 5::10] - blocks).abs().mean() > 6  # what picking pixels would give


@pytest.mark.parametrize(
    "take, words",
    [
        (photo.cup, ["Rachel Michetti", "CC0"]),
        (photo.cat, ["Stefan van der Walt", "CC0"]),
        (photo.astronaut, ["NASA", "public domain"]),
        (photo.rocket, ["SpaceX", "public domain"]),
    ],
)
def test_the_source_names_photographer_and_licence(take, words):
    assert all(word in take().source for word in words)


@pytest.mark.parametrize("size", [0, -1, 7, 64.5, "big"])
def test_a_size_that_no_photograph_can_have_is_refused(size):
    with pytest.raises(ValueError, match=f"got {size!r}"):
        photo.cup(size)
