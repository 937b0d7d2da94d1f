"""Captions say what is in the picture, in every wording; unknown words are refused by name."""

import re

import pytest
import torch

from course_utils.images import captions, shapes
from course_utils.images.captions import TEMPLATES, VOCABULARY, WORDS, UnknownWords, tokens, write

PICTURES = shapes.make(600, seed=0)


def named_in(caption):
    """kind -> value of everything that a caption names."""
    words = caption.split()
    return {
        kind: value
        for kind, values in WORDS.items()
        for value, synonyms in values.items()
        if any(word in synonyms for word in words)
    }


def kinds(caption):
    return named_in(caption).keys() & {"hue", "shape"}


def test_a_word_means_one_thing():
    words = [word for values in WORDS.values() for synonyms in values.values() for word in synonyms]
    fillers = {
        word for those in TEMPLATES.values() for t in those for word in re.sub(r"{\w+}", "", t).split()
    }
    assert len(words) == len(set(words)) and not fillers & set(words)
    assert set(words) | fillers == set(VOCABULARY)


def test_the_words_cover_the_labels_of_rendered_pictures():
    for kind, values in WORDS.items():
        assert tuple(values) == PICTURES.names[kind]
        assert all(synonyms[0] == value for value, synonyms in values.items())


@pytest.mark.parametrize("alone", [0.0, 0.4, 1.0])
def test_a_caption_is_true_of_its_picture(alone):
    for place, caption in enumerate(write(PICTURES, seed=1, alone=alone)):
        said = named_in(caption)
        assert said and all(PICTURES.named(kind)[place] == value for kind, value in said.items()), caption


@pytest.mark.parametrize("alone", [0.0, 0.4, 1.0])
def test_the_share_that_names_one_of_the_two(alone):
    found = [kinds(caption) for caption in write(PICTURES, seed=2, alone=alone)]
    only = {kind: found.count({kind}) / len(found) for kind in ("hue", "shape")}
    assert found.count({"hue", "shape"}) / len(found) == pytest.approx(1 - alone, abs=0.07)
    assert only["hue"] == pytest.approx(alone / 2, abs=0.07) == pytest.approx(only["shape"], abs=0.07)


def test_every_word_and_template_is_used():
    text = " ".join(write(shapes.make(3000, seed=3), seed=3, alone=0.5))
    assert set(text.split()) == set(VOCABULARY)


def test_seeds_and_counts():
    assert write(PICTURES, seed=4) == write(PICTURES, seed=4) != write(PICTURES, seed=5)
    assert write(PICTURES[:10], seed=4) == write(PICTURES, seed=4)[:10]


@pytest.mark.parametrize("alone", [-0.1, 1.1])
def test_a_share_is_between_0_and_1(alone):
    with pytest.raises(ValueError, match=f"alone is {alone}"):
        write(PICTURES, seed=0, alone=alone)


def test_tokens_are_the_words_numbers_filled_up_with_zeros():
    rows = tokens(["a red circle", "Something, GREEN!"])
    assert rows.dtype == torch.int64
    numbers = [
        [VOCABULARY.index(word) + 1 for word in text.split()] for text in ("a red circle", "something green")
    ]
    assert rows.tolist() == [numbers[0], [*numbers[1], 0]]


def test_a_vocabulary_of_ones_own():
    known = captions.vocabulary(["A ring, a ring", "left of a ring"])
    assert known == ("a", "left", "of", "ring")
    assert tokens(["ring left"], known).tolist() == [[4, 2]]
    with pytest.raises(UnknownWords, match="holds 'right'; the words that captions hold: a, left, of, ring"):
        tokens(["right of a ring"], known)


def test_unknown_words_are_named_once_each():
    with pytest.raises(UnknownWords, match="no caption holds 'hexagon', 'pink'; the words") as caught:
        tokens(["a red hexagon", "a pink hexagon"])
    assert caught.value.words == ("hexagon", "pink")


@pytest.mark.parametrize("text", ["", "?!"])
def test_a_text_without_a_word_is_refused(text):
    with pytest.raises(ValueError, match="has no word") as caught:
        tokens(["a red circle", text])
    assert not isinstance(caught.value, UnknownWords)


def test_no_texts_make_no_rows():
    assert captions.tokens([]).shape == (0, 0)
