"""Scenes show what their true captions say and not what their wrong ones say."""

import pytest
import torch

from course_utils.images import scenes
from course_utils.images.scenes import NUMBERS, PANEL, PLURALS
from course_utils.images.shapes import HUE_NAMES, HUES, SHAPE_NAMES

MAKERS = (scenes.relations, scenes.objects, scenes.numbers, scenes.negations)


def panels(pictures):
    """[B, 4, 3, 16, 16]: upper left, upper right, lower left, lower right."""
    images = pictures.images.float() / 255
    parts = images.view(len(images), 3, 2, PANEL, 2, PANEL).permute(0, 2, 4, 1, 3, 5)
    return parts.reshape(len(images), 4, 3, PANEL, PANEL)


def hues_in(pictures):
    """For each panel the number of the hue that its most saturated pixels have, or -1 for a bare one."""
    parts = panels(pictures).flatten(3)  # [B, 4, 3, pixels]
    saturation = parts.amax(dim=2) - parts.amin(dim=2)
    strongest = saturation.topk(12, dim=2).indices[:, :, None].expand(-1, -1, 3, -1)
    colour = parts.gather(3, strongest).mean(dim=3)
    distance = (colour[:, :, None] - torch.tensor(list(HUES.values()))).norm(dim=3)
    there = saturation.topk(12, dim=2).values.amin(dim=2) > 0.35
    return torch.where(there, distance.argmin(dim=2), -1)


@pytest.mark.parametrize("make", MAKERS)
def test_a_caption_and_a_wrong_one_for_each_picture(make):
    made = make(50, seed=3)
    assert made.pictures.images.shape == (50, 3, 32, 32) and made.pictures.images.dtype == torch.uint8
    assert len(made.captions) == len(made.wrong) == 50
    assert all(right != wrong for right, wrong in zip(made.captions, made.wrong, strict=True))
    again, other = make(50, seed=3), make(50, seed=4)
    assert torch.equal(made.pictures.images, again.pictures.images) and made.captions == again.captions
    assert made.captions != other.captions


def test_left_is_left():
    made = scenes.relations(60, seed=0)
    for row, caption, wrong in zip(hues_in(made.pictures), made.captions, made.wrong, strict=True):
        left, right = (part.split()[1] for part in caption.split(" left of "))
        found = row.view(2, 2)[row.view(2, 2).amax(dim=1).argmax()]
        assert [HUE_NAMES[k] for k in found] == [left, right], caption
        assert wrong.split(" left of ") == caption.split(" left of ")[::-1]


def test_the_wrong_object_has_another_colour():
    made = scenes.objects(60, seed=0)
    for caption, wrong in zip(made.captions, made.wrong, strict=True):
        changed = [(a, b) for a, b in zip(caption.split(), wrong.split(), strict=True) if a != b]
        assert len(changed) == 1 and set(changed[0]) <= set(HUE_NAMES)


def test_there_are_as_many_as_the_caption_says():
    made = scenes.numbers(60, seed=0)
    for row, caption, wrong in zip(hues_in(made.pictures), made.captions, made.wrong, strict=True):
        number, hue, shape = caption.split()
        there = row[row >= 0].tolist()
        assert len(there) == NUMBERS.index(number) + 1, caption
        assert {HUE_NAMES[k] for k in there} == {hue}
        assert shape in (SHAPE_NAMES if number == "one" else PLURALS.values())
        assert wrong.split()[0] != number


def test_not_is_said_where_it_is_so():
    made = scenes.negations(60, seed=0)
    denied = ["not" in caption.split() for caption in made.captions]
    assert 15 < sum(denied) < 45
    for row, no, caption in zip(hues_in(made.pictures), denied, made.captions, strict=True):
        is_so = HUE_NAMES[row.amax()] == caption.split()[-1]
        assert is_so != no, caption


def test_what_is_new_is_kept_apart():
    def many_of(made):
        return [
            caption.split()[0] in ("three", "four") and caption.split()[2] in ("stars", "rings")
            for caption in made.captions
        ]

    def denies(made):
        return [caption.split()[-2:] in (["not", "red"], ["not", "purple"]) for caption in made.captions]

    assert not any(many_of(scenes.numbers(200, seed=1, new=False)))
    assert all(many_of(scenes.numbers(200, seed=1, new=True)))
    assert 10 < sum(many_of(scenes.numbers(200, seed=1))) < 60
    assert not any(denies(scenes.negations(200, seed=1, new=False)))
    named = scenes.negations(200, seed=1, new=True)
    assert {caption.split()[-1] for caption in named.captions} == {"red", "purple"}
    assert 60 < sum(denies(named)) < 140
    assert len(named.captions) == 200
