"""Notebook 06: the gradient of CLIP's picture -> caption loss, by hand."""

import math
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch.nn.functional import cross_entropy, normalize

from course_utils.exercises.exercise import Case, Exercise, Misconception


def _by_autograd(image, text, t):
    """What autograd finds: (dL/d image, dL/d text, dL/dt) of the picture -> caption loss."""
    with torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() for x in (image, text, t)]
        logits = leaves[2].exp() * normalize(leaves[0], dim=1) @ normalize(leaves[1], dim=1).T
        loss = cross_entropy(logits, torch.arange(len(image)))
        return torch.autograd.grad(loss, leaves)


@dataclass(frozen=True)
class _ByHand:
    """The formulas, each term of which can be left out or changed: (image, text, t) -> three gradients.

    pull, push: the partner's term, and the sum over all candidates. only_itself: a caption is pushed and
    pulled by its own picture alone. softmax: over rows (1) or columns (0). normalised, projected, divided: on
    the way there, and the two steps of the way back. exp, scale, mean, sign: as alpha, factor and sign say.
    """

    pull: bool = True
    push: bool = True
    only_itself: bool = False
    softmax: int = 1
    projected: bool = True
    divided: bool = True
    normalised: bool = True
    exp: bool = True
    scale: bool = True
    mean: bool = True
    sign: int = 1

    def __call__(self, image, text, t):
        unit_image, unit_text = (normalize(x, dim=1) if self.normalised else x for x in (image, text))
        alpha = t.exp() if self.exp else t
        similarities = unit_image @ unit_text.T
        p = (alpha * similarities).softmax(dim=self.softmax)
        itself = torch.eye(len(p), dtype=p.dtype)
        error = self.push * p - self.pull * itself  # dL/d logits, times N
        factor = self.sign * (alpha if self.scale else 1) / (len(p) if self.mean else 1)
        by_text = error * itself if self.only_itself else error
        return (
            self._raw(image, factor * error @ unit_text),
            self._raw(text, factor * by_text.T @ unit_image),
            factor * (error * similarities).sum(),
        )

    def _raw(self, x, gradient):
        """From the unit vector back to the vector itself."""
        if not self.normalised:
            return gradient
        unit = normalize(x, dim=1)
        if self.projected:
            gradient = gradient - (gradient * unit).sum(dim=1, keepdim=True) * unit
        return gradient / x.norm(dim=1, keepdim=True) if self.divided else gradient


RIGHT = _ByHand()


def _in(places, variant):
    """The mistake in these of the three answers: 0 for pictures, 1 for captions, 2 for t."""

    def function(image, text, t):
        answers = RIGHT(image, text, t), variant(image, text, t)
        return tuple(answers[place in places][place] for place in range(3))

    return function


def _mistake(name, explanation, places=(0, 1, 2), **changes):
    """A mistake made in all of these answers, or in some of them only."""
    variant = replace(RIGHT, **changes)
    parts = [part for count in range(1, len(places)) for part in combinations(places, count)]
    return Misconception(
        name, explanation, _in(places, variant), also=tuple(_in(part, variant) for part in parts)
    )


def _both_directions(image, text, t):
    caption, picture, scale = RIGHT(text, image, t)
    return tuple((a + b) / 2 for a, b in zip(RIGHT(image, text, t), (picture, caption, scale), strict=True))


def _case(count, width, t, seed, dtype=torch.float64, lengths=1.0):
    """Rows of random directions and lengths, rounded so that an input that is shown can be typed again."""
    drawn = torch.Generator().manual_seed(seed)
    image, text = (lengths * torch.randn(2, count, width, generator=drawn)).round(decimals=1).to(dtype)
    return Case({"image": image, "text": text, "t": torch.tensor(t, dtype=dtype)})


CLIP_GRADIENT = Exercise(
    name="clip_gradient",
    reference=_by_autograd,
    cases=(
        _case(2, 2, math.log(2), seed=5),
        _case(3, 2, 0.0, seed=1),
        _case(3, 4, math.log(10), seed=2),
        _case(5, 3, -1.0, seed=3, lengths=3.0),
        _case(6, 8, math.log(1 / 0.07), seed=4, dtype=torch.float32),
    ),
    misconceptions=(
        _mistake(
            "the partner's term is missing",
            "The sum over all candidates is there, but nothing is subtracted for the partner: - T_i in "
            "dL/dI, - I_j in dL/dT, - tr S in dL/dt. Without it nothing pulls a pair together.",
            pull=False,
        ),
        _mistake(
            "the sum over the candidates is missing",
            "Only the partner's term is there. Each candidate pushes with its probability: sum_j P_ij T_j in"
            " dL/dI, sum_i P_ij I_i in dL/dT, sum_ij P_ij S_ij in dL/dt.",
            push=False,
        ),
        _mistake(
            "the other pictures' pushes are missing in dL/dT",
            "Caption j is a candidate for every picture, not for its own alone: its gradient sums column j "
            "of P, sum_i P_ij I_i.",
            places=(1,),
            only_itself=True,
        ),
        _mistake(
            "the factor alpha is missing",
            "The logits are alpha S, so each gradient has a factor alpha = exp(t) from the chain rule. In "
            "dL/dt it comes from d exp(t) / dt = exp(t).",
            scale=False,
        ),
        _mistake(
            "the mean over the N pictures is missing",
            "The loss is the mean over N pictures, so every gradient is divided by N.",
            mean=False,
        ),
        _mistake(
            "the sign is turned round",
            "Probability minus one for the partner, probability for all others: dL/d logit is P - identity. "
            "The gradient points uphill; training takes the step against it.",
            sign=-1,
        ),
        _mistake(
            "normalisation is missing on the way back",
            "These are the gradients on the unit vectors. The vectors that came in have their own lengths: "
            "take the part along the vector off (the tangent projection), then divide by the length.",
            places=(0, 1),
            projected=False,
            divided=False,
        ),
        _mistake(
            "the tangent projection is missing",
            "A longer vector has the same cosines, so the gradient has no part along the vector: subtract "
            "(gradient . unit vector) times the unit vector, row by row.",
            places=(0, 1),
            projected=False,
        ),
        _mistake(
            "the division by the length is missing",
            "The unit vector is the vector over its length; the way back divides by that length once more.",
            places=(0, 1),
            divided=False,
        ),
        _mistake(
            "the softmax runs over the columns",
            "In the direction picture -> caption each row of alpha S is one question, and its probabilities "
            "sum to 1. Columns are the other direction's questions.",
            softmax=0,
        ),
        Misconception(
            "the gradient of both directions",
            "This is the gradient of CLIP's whole loss, the mean of both directions. Here only the pictures "
            "ask.",
            _both_directions,
        ),
        _mistake(
            "exp is forgotten",
            "t itself stands where exp(t) belongs. With t below 0 the most similar caption becomes the least"
            " probable one.",
            exp=False,
        ),
        Misconception(
            "the vectors are not normalised",
            "The similarities are dot products of the vectors as they came. CLIP compares directions: divide"
            " each row by its length first.",
            replace(RIGHT, normalised=False),
        ),
    ),
    guarantees=(
        "For 2 to 6 pairs, vectors of any length and scales from 0.4 to 14 your three gradients are those of"
        " autograd. CLIP's own gradient is the mean of this one and the same formulas with pictures and "
        "captions exchanged."
    ),
    hints=(
        "Start at the logits: of the mean cross-entropy, what is the gradient on row i of alpha S? Then "
        "follow the chain rule back, to S, to the unit vectors, to the vectors.",
        "G = (P - identity) / N is the gradient on the logits. On the unit vectors: alpha G T and alpha G^T "
        "I. On t: alpha times the sum of G * S. From unit vectors to vectors: project, then divide by the "
        "length.",
        "back = lambda x, unit, g: (g - (g * unit).sum(dim=1, keepdim=True) * unit) / x.norm(dim=1, "
        "keepdim=True), with g = alpha * G @ T for the pictures and alpha * G.T @ I for the captions.",
    ),
)

EXERCISES = (CLIP_GRADIENT,)
