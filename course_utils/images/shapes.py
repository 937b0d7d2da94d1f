"""Rendered pictures of one coloured shape, every factor of which is known.

A picture is a function of its factors alone: shape, hue, place, size, turn, background, light and noise. The
same seed gives the same pixels, and a subset of the factors gives a subset of the pixels. To hold this on any
device, sines and cosines are taken once per picture on the CPU in float64; what runs per pixel is additions,
products, roots, minima and maxima, which IEEE arithmetic rounds alike everywhere.

>>> pictures = make(4, seed=0)
>>> pictures.images.shape, pictures.images.dtype
(torch.Size([4, 3, 32, 32]), torch.uint8)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from math import cos, pi, sin, sqrt
from numbers import Integral

import pandas as pd
import torch
from torch import Tensor

from course_utils.images.pictures import Pictures
from course_utils.runtime import generator

# Each hue's colour (red, green, blue in [0, 1]), about 60 degrees apart on the colour wheel.
HUES = {
    "red": (0.86, 0.17, 0.16),
    "yellow": (0.93, 0.79, 0.12),
    "green": (0.18, 0.66, 0.25),
    "cyan": (0.13, 0.72, 0.80),
    "blue": (0.18, 0.30, 0.88),
    "purple": (0.66, 0.22, 0.76),
}
HUE_NAMES = tuple(HUES)

# Size and background are drawn from separate bands, so that a caption can name them without a doubtful case.
SIZES = {"small": (0.32, 0.38), "large": (0.50, 0.58)}
BACKGROUNDS = {"dark": (0.10, 0.26), "grey": (0.42, 0.58), "light": (0.72, 0.86)}


# Signed distances to the edge of each shape, below 0 inside, at points (u, v) right of and below its
# centroid. Every shape has the area of the unit disc, so that area alone does not tell them apart.
def _circle(u: Tensor, v: Tensor) -> Tensor:
    return (u * u + v * v).sqrt() - 1.0


def _square(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs()) - sqrt(pi) / 2


def _edges(u: Tensor, v: Tensor, count: int, inradius: float) -> list[Tensor]:
    """Signed distances to the `count` edges of a regular polygon that stands on an edge."""
    angles = [pi / 2 + 2 * pi * k / count for k in range(count)]
    return [u * cos(angle) + v * sin(angle) - inradius for angle in angles]


def _triangle(u: Tensor, v: Tensor) -> Tensor:
    first, second, third = _edges(u, v, 3, inradius=0.7776)
    return torch.maximum(first, torch.maximum(second, third))


def _star(u: Tensor, v: Tensor) -> Tensor:
    """Five lines make a pentagram; inside it at most one is crossed: the second largest distance decides."""
    largest, *others = _edges(u, v, 5, inradius=0.5169)
    second = torch.full_like(largest, -torch.inf)
    for edge in others:
        second = torch.maximum(second, torch.minimum(largest, edge))
        largest = torch.maximum(largest, edge)
    return second


def _cross(u: Tensor, v: Tensor) -> Tensor:
    a, b = u.abs(), v.abs()
    return torch.maximum(torch.maximum(a, b) - 1.1923, torch.minimum(a, b) - 0.3994)


def _ring(u: Tensor, v: Tensor) -> Tensor:
    return ((u * u + v * v).sqrt() - 0.97).abs() - 0.2577


SHAPES = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "ring": _ring,
}
SHAPE_NAMES = tuple(SHAPES)

# Legal range of every factor (for angles any sensible number); `draw_factors` stays well inside.
LIMITS = {
    "shape": (0, len(SHAPES) - 1),
    "hue": (0, len(HUES) - 1),
    "x": (-1.0, 1.0),
    "y": (-1.0, 1.0),
    "size": (0.01, 2.0),
    "turn": (-1000.0, 1000.0),
    "background": (0.0, 1.0),
    "tint": (-1.0, 1.0),
    "light_direction": (-1000.0, 1000.0),
    "light_strength": (0.0, 1.0),
    "noise": (0.0, 1.0),
    "noise_start": (0, 2**20 - 1),
}


@dataclass(frozen=True)
class Factors:
    """Everything that decides the pixels of a batch of pictures: CPU tensors of shape [B].

    shape, hue: int64, index into SHAPE_NAMES and HUE_NAMES.
    x, y: centre, -1 (left, top edge) to 1 (right, bottom edge).
    size: radius of the disc with the shape's area, where half the picture's edge is 1.
    turn: clockwise turn in radians.
    background, tint: grey level 0 to 1; tint from -1 (cool) to 1 (warm).
    light_direction, light_strength: side of the light, radians clockwise from the right; 0 is flat light.
    noise, noise_start: standard deviation as a share of 255; int64 place on the noise tape.

    All float factors are float32. `factors[index]` selects pictures; `dataclasses.replace(factors, hue=...)`
    changes one factor and leaves the others, noise included. Raises ValueError that repeats the values out of
    range.

    >>> draw_factors(100, seed=0)[:3].table()[["shape", "hue"]].shape
    (3, 2)
    """

    shape: Tensor
    hue: Tensor
    x: Tensor
    y: Tensor
    size: Tensor
    turn: Tensor
    background: Tensor
    tint: Tensor
    light_direction: Tensor
    light_strength: Tensor
    noise: Tensor
    noise_start: Tensor

    def __post_init__(self):
        count = self.shape.numel()
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            dtype = torch.int64 if isinstance(low, int) else torch.float32
            if value.dtype != dtype or tuple(value.shape) != (count,):
                raise ValueError(
                    f"factor {name!r} must be {dtype} [{count}], got {value.dtype} {list(value.shape)}"
                )
            wrong = value[~((value >= low) & (value <= high))]
            if len(wrong):
                raise ValueError(f"factor {name!r} must lie in {low} to {high}, got {wrong[:5].tolist()}")

    def __len__(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: slice | Tensor) -> Factors:
        return Factors(*(getattr(self, f.name)[index] for f in fields(self)))

    @property
    def size_band(self) -> Tensor:
        """0 for small, 1 for large: int64 [B]."""
        return _band(self.size, SIZES)

    @property
    def background_band(self) -> Tensor:
        """0 for dark, 1 for grey, 2 for light: int64 [B]."""
        return _band(self.background, BACKGROUNDS)

    def table(self, rows: int = 8) -> pd.DataFrame:
        """The first `rows` pictures' factors in words and readable units, one picture a row."""
        head = self[:rows]
        sizes, grounds = list(SIZES), list(BACKGROUNDS)
        return pd.DataFrame(
            {
                "shape": [SHAPE_NAMES[i] for i in head.shape],
                "hue": [HUE_NAMES[i] for i in head.hue],
                "x": head.x.numpy().round(2),
                "y": head.y.numpy().round(2),
                "size": [f"{sizes[i]} {size:.2f}" for i, size in zip(head.size_band, head.size, strict=True)],
                "turn (degrees)": head.turn.rad2deg().round().int().numpy(),
                "background": [
                    f"{grounds[i]} {level:.2f}"
                    for i, level in zip(head.background_band, head.background, strict=True)
                ],
                "tint": head.tint.numpy().round(2),
                "light from (degrees)": head.light_direction.rad2deg().round().int().numpy(),
                "light strength": head.light_strength.numpy().round(2),
                "noise": head.noise.numpy().round(3),
            }
        )


def _band(value: Tensor, bands: dict[str, tuple[float, float]]) -> Tensor:
    """Index of each value's band; a value in a gap goes to the nearer one."""
    splits = torch.tensor([(below[1] + above[0]) / 2 for below, above in pairwise(bands.values())])
    return torch.bucketize(value, splits)


def draw_factors(count: int, seed: int) -> Factors:
    """Draw the factors of `count` pictures; the first n are the same for every count.

    All factors are independent but one: the disc of the shape's area stays inside the picture, so small
    shapes wander further than large ones. Raises ValueError for a count that is no whole number or below 0.
    """
    if not isinstance(count, Integral) or count < 0:
        raise ValueError(f"count must be a whole number, 0 or more, got {count!r}")
    random = generator(seed)
    # One row a picture: a longer draw starts with the shorter one. In float64 u * n never rounds up to n.
    draws = iter(torch.rand(count, 14, dtype=torch.float64, generator=random).unbind(1))

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * next(draws)

    def choice(n: int) -> Tensor:
        return (next(draws) * n).long()

    def from_bands(bands: dict[str, tuple[float, float]]) -> Tensor:
        low, high = torch.tensor(list(bands.values()), dtype=torch.float64)[choice(len(bands))].unbind(1)
        return low + (high - low) * next(draws)

    size = from_bands(SIZES)
    drawn = {
        "shape": choice(len(SHAPES)),
        "hue": choice(len(HUES)),
        "x": (1 - size) * between(-1, 1),
        "y": (1 - size) * between(-1, 1),
        "size": size,
        "turn": between(0, 2 * pi),
        "background": from_bands(BACKGROUNDS),
        "tint": between(-1, 1),
        "light_direction": between(0, 2 * pi),
        "light_strength": between(0.0, 0.4),
        "noise": between(0.0, 0.05),
        "noise_start": choice(2**20),
    }
    return Factors(**{name: v if v.dtype == torch.int64 else v.float() for name, v in drawn.items()})


@lru_cache(maxsize=2)
def _noise_tape(length: int, device: str) -> Tensor:
    """Nearly Gaussian numbers of deviation 1, sums of eight uniform integers; they repeat after 2**20."""
    steps = torch.randint(-128, 128, (8, 2**20), generator=generator(0)).sum(0)
    tape = (steps + 4).float() * (1 / sqrt(8 * (256**2 - 1) / 12))
    return tape.repeat(1 + -(-length // 2**20))[: 2**20 + length - 1].to(device)


def render(factors: Factors, size: int = 32, device: torch.device | str = "cpu") -> Pictures:
    """Draw the pictures that the factors describe.

    Returns Pictures of uint8 [B, 3, size, size] on `device`; labels "shape", "hue", "size", "background".
    Shapes are signed distance functions, so their edges are smooth at every size. Raises ValueError for a
    size that is no whole number or below 8.
    """
    if not isinstance(size, Integral) or size < 8:
        raise ValueError(f"size must be a whole number of pixels, 8 or more, got {size!r}")
    images = torch.empty(len(factors), 3, size, size, dtype=torch.uint8, device=device)
    # A chunk's pixels stay in the processor's cache; a GPU wants more of them at a time.
    chunk = max(1, (2**17 if images.device.type == "cpu" else 2**22) // size**2)
    for shape, distance in enumerate(SHAPES.values()):
        for rows in (factors.shape == shape).nonzero()[:, 0].split(chunk):
            if len(rows):
                images[rows.to(device)] = _paint(factors[rows], distance, size, images.device)
    labels = {
        "shape": factors.shape,
        "hue": factors.hue,
        "size": factors.size_band,
        "background": factors.background_band,
    }
    names = {"shape": SHAPE_NAMES, "hue": HUE_NAMES, "size": tuple(SIZES), "background": tuple(BACKGROUNDS)}
    source = f"rendered pictures, {len(SHAPES)} shapes x {len(HUES)} hues, {size} x {size} pixels"
    return Pictures(images, {kind: label.to(device) for kind, label in labels.items()}, names, source)


def _paint(
    factors: Factors, distance: Callable[[Tensor, Tensor], Tensor], size: int, device: torch.device
) -> Tensor:
    """Pictures uint8 [B, 3, size, size] of one shape."""

    def per_picture(value: Tensor) -> Tensor:
        return value.float().to(device).view(-1, 1, 1, 1)

    centres = (torch.arange(size, dtype=torch.float64) + 0.5) * (2 / size) - 1
    column, row = centres.float().to(device).view(1, 1, 1, -1), centres.float().to(device).view(1, 1, -1, 1)

    # The shape's own axes: pixel places moved, turned and scaled.
    turn, scale = factors.turn.double(), 1 / factors.size.double()
    cosine, sine = per_picture(turn.cos() * scale), per_picture(turn.sin() * scale)
    across, down = column - per_picture(factors.x), row - per_picture(factors.y)
    u, v = cosine * across + sine * down, cosine * down - sine * across
    # How much of a pixel the shape covers: its distance to the edge, counted in pixels.
    coverage = (0.5 - distance(u, v) * per_picture(factors.size.double() * (size / 2))).clamp(0, 1)

    light = factors.light_direction.double()
    strength = factors.light_strength.double()
    shade = 1 + (per_picture(light.cos() * strength) * column + per_picture(light.sin() * strength) * row)

    colour = torch.tensor(list(HUES.values()))[factors.hue].to(device).view(-1, 3, 1, 1)
    warm = torch.tensor([0.05, 0.0, -0.05]) * factors.tint[:, None] + factors.background[:, None]
    ground = warm.to(device).view(-1, 3, 1, 1)
    painted = (ground + coverage * (colour - ground)) * shade

    tape = _noise_tape(3 * size * size, str(device)).unfold(0, 3 * size * size, 1)
    grain = tape[factors.noise_start.to(device)].view_as(painted)
    painted = painted + per_picture(factors.noise) * grain
    return (painted * 255 + 0.5).clamp(0, 255).to(torch.uint8)


def make(count: int, seed: int = 0, size: int = 32, device: torch.device | str = "cpu") -> Pictures:
    """Draw factors and render them: `render(draw_factors(count, seed), size, device)`."""
    return render(draw_factors(count, seed), size, device)
