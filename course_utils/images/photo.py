"""Four real photographs that scikit-image carries in its wheel: nothing is downloaded.

>>> cup(size=64).images.shape
torch.Size([1, 3, 64, 64])
"""

from __future__ import annotations

from numbers import Integral

import torch
from skimage import data
from torchvision.transforms.v2 import functional

from course_utils.images.pictures import Pictures


def cup(size: int = 224) -> Pictures:
    """A red coffee cup on a wooden table: Pictures of uint8 [1, 3, size, size]."""
    source = "photograph of a coffee cup: Rachel Michetti, Pikolo Espresso Bar, CC0 (skimage.data.coffee)"
    return _photograph(data.coffee(), left=80, top=0, edge=400, size=size, source=source)


def cat(size: int = 224) -> Pictures:
    """Chelsea the cat: Pictures of uint8 [1, 3, size, size]."""
    source = "photograph of Chelsea the cat: Stefan van der Walt, CC0 (skimage.data.chelsea)"
    return _photograph(data.chelsea(), left=105, top=0, edge=300, size=size, source=source)


def astronaut(size: int = 224) -> Pictures:
    """The astronaut Eileen Collins: Pictures of uint8 [1, 3, size, size]."""
    source = "photograph of Eileen Collins: NASA Great Images, public domain (skimage.data.astronaut)"
    return _photograph(data.astronaut(), left=0, top=0, edge=512, size=size, source=source)


def rocket(size: int = 224) -> Pictures:
    """A Falcon 9 rocket on its launch pad: Pictures of uint8 [1, 3, size, size]."""
    source = "photograph of a Falcon 9 rocket: SpaceX, public domain (skimage.data.rocket)"
    return _photograph(data.rocket(), left=110, top=0, edge=427, size=size, source=source)


def _photograph(pixels, left: int, top: int, edge: int, size: int, source: str) -> Pictures:
    """Cut the square that starts at (left, top), and resize it with antialiasing."""
    if not isinstance(size, Integral) or size < 8:
        raise ValueError(f"size must be a whole number of pixels, 8 or more, got {size!r}")
    square = torch.from_numpy(pixels[top : top + edge, left : left + edge].copy()).permute(2, 0, 1)
    return Pictures(functional.resize(square, [size, size], antialias=True)[None].contiguous(), source=source)
