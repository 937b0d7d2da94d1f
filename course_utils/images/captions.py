"""Captions of rendered pictures: several wordings of what is in them, and their words as numbers.

    labels of a picture --a template, a word for each label--> caption --tokens--> int64 [L]

A template names both the colour and the shape, or only one of the two; `alone` says how often. All words are
known beforehand, so a text with any other word can be refused in place of being scored without it.

>>> from course_utils.images import shapes
>>> write(shapes.make(3, seed=0), seed=0)
['a big purple wedge on a gray background', 'a small golden triangle', 'the cross is cyan']
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from course_utils.images.pictures import Pictures
from course_utils.runtime import generator

# For each value of a label the words that mean it, its own name first.
WORDS = {
    "hue": {
        "red": ("red", "scarlet"),
        "yellow": ("yellow", "golden"),
        "green": ("green", "emerald"),
        "cyan": ("cyan", "turquoise"),
        "blue": ("blue", "cobalt"),
        "purple": ("purple", "violet"),
    },
    "shape": {
        "circle": ("circle", "disc"),
        "square": ("square", "box"),
        "triangle": ("triangle", "wedge"),
        "star": ("star", "asterisk"),
        "cross": ("cross", "plus"),
        "ring": ("ring", "hoop"),
    },
    "size": {"small": ("small", "little"), "large": ("large", "big")},
    "background": {"dark": ("dark",), "grey": ("grey", "gray"), "light": ("light", "pale")},
}

# What a caption names of colour and shape, and how it is put.
TEMPLATES = {
    "both": (
        "a {hue} {shape}",
        "a picture of a {hue} {shape}",
        "a {size} {hue} {shape}",
        "the {shape} is {hue}",
        "a {size} {hue} {shape} on a {background} background",
        "a {background} background and a {size} {hue} {shape}",
    ),
    "hue": (
        "something {hue}",
        "a picture of something {hue}",
        "the colour is {hue}",
        "something {hue} on a {background} background",
    ),
    "shape": (
        "a {shape}",
        "a picture of a {shape}",
        "a {size} {shape}",
        "a {size} {shape} on a {background} background",
    ),
}


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:'[^\W_]+)*", text.lower())


VOCABULARY = tuple(
    sorted(
        {
            *(word for values in WORDS.values() for words in values.values() for word in words),
            *(
                word
                for templates in TEMPLATES.values()
                for template in templates
                for word in _words(re.sub(r"{\w+}", "", template))
            ),
        }
    )
)


class UnknownWords(ValueError):
    """A text with words that no caption holds, so that no text tower learned them; `words` names them."""

    def __init__(self, words, known):
        self.words = tuple(dict.fromkeys(words))
        named = ", ".join(repr(word) for word in self.words)
        super().__init__(f"no caption holds {named}; the words that captions hold: {', '.join(known)}.")


def write(pictures: Pictures, seed: int, alone: float = 0.0) -> list[str]:
    """One caption for each picture, in words that are drawn anew for each.

    pictures: from images.shapes. alone: the share of captions that name only the colour or only the shape,
    half of them each; all others name both. The first n captions are the same for every number of pictures.
    Raises ValueError for a share outside 0 to 1.
    """
    if not 0 <= alone <= 1:
        raise ValueError(f"alone is {alone!r}; expected the share of captions, 0 to 1.")
    draws = torch.rand(len(pictures), 2 + len(WORDS), generator=generator(seed), dtype=torch.float64).tolist()
    named = zip(*(pictures.named(kind) for kind in WORDS), strict=True)
    return [
        _caption(dict(zip(WORDS, values, strict=True)), alone, *row)
        for values, row in zip(named, draws, strict=True)
    ]


def _caption(values, alone, which, template, *words):
    says = "both" if which >= alone else "hue" if which < alone / 2 else "shape"
    chosen = {kind: _pick(WORDS[kind][values[kind]], draw) for kind, draw in zip(WORDS, words, strict=True)}
    return _pick(TEMPLATES[says], template).format(**chosen)


def _pick(options, draw):
    return options[int(draw * len(options))]


def vocabulary(texts: list[str]) -> tuple[str, ...]:
    """The words that texts hold, in alphabetical order."""
    return tuple(sorted({word for text in texts for word in _words(text)}))


def tokens(texts: list[str], known: tuple[str, ...] = VOCABULARY) -> Tensor:
    """The words of texts as numbers, 1 to len(known): int64 [B, L], L the most words; 0 fills up.

    known: the vocabulary. Capital letters and punctuation do not count. Raises UnknownWords for a word that
    is not in it, and ValueError for a text without a word.

    >>> tokens(["a red circle", "Red."]).shape
    torch.Size([2, 3])
    """
    rows = [_words(text) for text in texts]
    if wordless := [text for text, row in zip(texts, rows, strict=True) if not row]:
        raise ValueError(f"{wordless[0]!r} has no word; expected texts such as 'a red circle'.")
    numbers = {word: number for number, word in enumerate(known, start=1)}
    if unknown := [word for row in rows for word in row if word not in numbers]:
        raise UnknownWords(unknown, known)
    filled = torch.zeros(len(rows), max(map(len, rows), default=0), dtype=torch.int64)
    for place, row in enumerate(rows):
        filled[place, : len(row)] = torch.tensor([numbers[word] for word in row])
    return filled
