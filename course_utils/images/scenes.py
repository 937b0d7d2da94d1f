"""Scenes of up to four rendered shapes, with captions that say where, how many, and what is not so.

A scene is a grid of 2 x 2 small pictures of `images.shapes`, some of them empty, on one ground under flat
light. Each function returns Scenes: the pictures, a true caption for each, and a false one that differs from
it in the one thing that is asked for.

>>> scenes = relations(2, seed=0)
>>> scenes.captions[0], scenes.wrong[0]
('a yellow triangle left of a blue circle', 'a blue circle left of a yellow triangle')
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from course_utils.images import shapes
from course_utils.images.pictures import Pictures
from course_utils.images.shapes import HUE_NAMES, SHAPE_NAMES
from course_utils.runtime import generator

NUMBERS = ("one", "two", "three", "four")
PLURALS = {"cross": "crosses", **{name: f"{name}s" for name in SHAPE_NAMES if name != "cross"}}
# What training can be kept from, to ask whether the words are understood or the sentences known.
NEW_SHAPES = ("star", "ring")
NEW_HUES = ("red", "purple")
PANEL = 16  # pixels; four of them make a picture of 32 x 32


class Scenes(NamedTuple):
    """Pictures with a true caption each, and a wrong one."""

    pictures: Pictures
    captions: list[str]
    wrong: list[str]


def relations(count: int, seed: int) -> Scenes:
    """Two shapes side by side: "a red star left of a blue ring"; the wrong caption exchanges the two."""
    random = generator(seed)
    shape, hue = _two_different(count, random)
    row = torch.randint(2, (count, 1), generator=random)
    panels = torch.stack([2 * row, 2 * row + 1], dim=1)[:, :, 0]
    named = [
        [f"a {HUE_NAMES[h]} {SHAPE_NAMES[s]}" for s, h in zip(*pair, strict=True)]
        for pair in zip(shape.tolist(), hue.tolist(), strict=True)
    ]
    return Scenes(
        _paint(panels, shape, hue, seed, "two shapes side by side"),
        [f"{left} left of {right}" for left, right in named],
        [f"{right} left of {left}" for left, right in named],
    )


def objects(count: int, seed: int) -> Scenes:
    """As `relations`, but the wrong caption gives one of the two shapes another colour."""
    scenes = relations(count, seed)
    random = generator(seed + 1)
    wrong = []
    for caption in scenes.captions:
        words = caption.split()
        place = (1, 6)[torch.randint(2, (), generator=random)]
        others = [hue for hue in HUE_NAMES if hue != words[place]]
        words[place] = others[torch.randint(len(others), (), generator=random)]
        wrong.append(" ".join(words))
    return Scenes(scenes.pictures, scenes.captions, wrong)


def numbers(count: int, seed: int, new: bool | None = None) -> Scenes:
    """One to four equal shapes: "three red rings"; the wrong caption gives another number.

    new: False leaves out three or four stars or rings, True has nothing else, None has all.
    """
    random = generator(seed)
    drawn = 12 * count  # a sixth of them is new
    number = torch.randint(4, (drawn,), generator=random)
    shape = torch.randint(len(SHAPE_NAMES), (drawn,), generator=random)
    is_new = (number >= 2) & _any_of(shape, SHAPE_NAMES, NEW_SHAPES)
    kept = _kept(is_new, new, count)
    number, shape = number[kept], shape[kept, None].expand(-1, 4)
    hue = torch.randint(len(HUE_NAMES), (count, 1), generator=random).expand(-1, 4)
    panels = torch.rand(count, 4, generator=random).argsort(dim=1)
    panels = panels.masked_fill(torch.arange(4) > number[:, None], -1)
    other = (number + torch.randint(1, 4, (count,), generator=random)) % 4

    def caption(n, s, h):
        return f"{NUMBERS[n]} {HUE_NAMES[h]} {PLURALS[SHAPE_NAMES[s]] if n else SHAPE_NAMES[s]}"

    said = [shape[:, 0].tolist(), hue[:, 0].tolist()]
    return Scenes(
        _paint(panels, shape, hue, seed, "one to four equal shapes"),
        list(map(caption, number.tolist(), *said)),
        list(map(caption, other.tolist(), *said)),
    )


def negations(count: int, seed: int, new: bool | None = None) -> Scenes:
    """One shape: "a ring that is red", or "... not red"; the wrong caption has a "not" more or less.

    new: False never denies red or purple, True affirms or denies nothing else, None has all.
    """
    random = generator(seed)
    drawn = 12 * count  # a third of them names red or purple
    hue = torch.randint(len(HUE_NAMES), (drawn,), generator=random)
    denied = torch.randint(2, (drawn,), generator=random)
    turn = torch.randint(1, len(HUE_NAMES), (drawn,), generator=random)
    named = (hue + denied * turn) % len(HUE_NAMES)
    is_new = _any_of(named, HUE_NAMES, NEW_HUES)
    kept = _kept(is_new if new else is_new & (denied > 0), new, count)
    hue, denied, named = hue[kept, None], denied[kept], named[kept]
    shape = torch.randint(len(SHAPE_NAMES), (count, 1), generator=random)
    panels = torch.randint(4, (count, 1), generator=random)

    def caption(s, h, no):
        return f"a {SHAPE_NAMES[s]} that is {'not ' if no else ''}{HUE_NAMES[h]}"

    said = [shape[:, 0].tolist(), named.tolist()]
    return Scenes(
        _paint(panels, shape, hue, seed, "one shape"),
        list(map(caption, *said, denied.tolist())),
        list(map(caption, *said, (1 - denied).tolist())),
    )


def _any_of(values, names, wanted):
    return torch.isin(values, torch.tensor([names.index(name) for name in wanted]))


def _kept(is_new, new, count):
    """The places of the first `count` that are wanted."""
    wanted = is_new if new else ~is_new if new is False else torch.ones_like(is_new)
    return wanted.nonzero()[:count, 0]


def _two_different(count, random):
    """Two shapes and two hues for each scene, int64 [count, 2]; the two differ in both."""
    drawn = []
    for names in (SHAPE_NAMES, HUE_NAMES):
        first = torch.randint(len(names), (count,), generator=random)
        turn = torch.randint(1, len(names), (count,), generator=random)
        drawn.append(torch.stack([first, (first + turn) % len(names)], dim=1))
    return drawn


def _paint(panels, shape, hue, seed, what):
    """Pictures of 32 x 32; panels: the panel of each shape, 0 to 3, or -1 for none, int64 [count, K]."""
    count = len(panels)
    drawn = shapes.draw_factors(4 * count, seed)
    scene = torch.arange(count).repeat_interleave(4) * 4  # all panels of a scene have its first one's ground
    placed_shape, placed_hue, there = (torch.zeros(count, 5, dtype=torch.int64) for _ in range(3))
    places = panels.where(panels >= 0, 4)  # what is not there goes into a fifth panel that is not painted
    for placed, values in ((placed_shape, shape), (placed_hue, hue), (there, torch.ones_like(shape))):
        placed.scatter_(1, places, values)
    there = there[:, :4].flatten() > 0
    size = torch.where(there, drawn.size.clamp(min=0.5), 0.01)  # large, or too small to be seen
    near = (1 - size).where(there, 0)
    factors = replace(
        drawn,
        shape=placed_shape[:, :4].flatten(),
        hue=placed_hue[:, :4].flatten(),
        size=size,
        x=drawn.x.clamp(-near, near),
        y=drawn.y.clamp(-near, near),
        background=drawn.background[scene],
        tint=drawn.tint[scene],
        noise=drawn.noise[scene],
        light_strength=torch.zeros(4 * count),
    )
    images = shapes.render(factors, PANEL).images.view(count, 2, 2, 3, PANEL, PANEL)
    images = images.permute(0, 3, 1, 4, 2, 5).reshape(count, 3, 2 * PANEL, 2 * PANEL)
    return Pictures(images.contiguous(), source=f"rendered scenes of {what}, 32 x 32 pixels")
