"""CLIP's gradient by hand: the cases tell its terms apart, and right answers written differently pass."""

import pytest
import torch
from torch.nn.functional import normalize

from course_utils.exercises import clip
from course_utils.feedback import check

EXERCISE = clip.CLIP_GRADIENT


def unit_and_back(x):
    """Unit rows, and the way back from their gradient."""
    length = x.norm(dim=1, keepdim=True)
    unit = x / length
    return unit, lambda g: (g - (g * unit).sum(dim=1, keepdim=True) * unit) / length


def by_the_formulas(image, text, t):
    (i, image_back), (c, text_back) = unit_and_back(image), unit_and_back(text)
    s, alpha, n = i @ c.T, t.exp(), len(image)
    p = (alpha * s).softmax(dim=1)
    return (
        image_back(alpha / n * (p @ c - c)),
        text_back(alpha / n * (p.T @ i - i)),
        alpha / n * ((p * s).sum() - s.trace()),
    )


def in_loops(image, text, t):
    n, alpha = len(image), t.exp()
    rows, columns = ([row / row.norm() for row in x] for x in (image, text))
    d_image, d_text, d_t = torch.zeros_like(image), torch.zeros_like(text), torch.zeros_like(t)
    for i in range(n):
        s = torch.stack([rows[i] @ column for column in columns])
        error = (alpha * s).softmax(dim=0)
        error[i] -= 1
        d_t += alpha * (error @ s) / n
        for j in range(n):
            projected = columns[j] - (rows[i] @ columns[j]) * rows[i]
            d_image[i] += alpha * error[j] * projected / image[i].norm() / n
            projected = rows[i] - (rows[i] @ columns[j]) * columns[j]
            d_text[j] += alpha * error[j] * projected / text[j].norm() / n
    return d_image, d_text, d_t


def by_a_jacobian(image, text, t):
    def loss(image, text, t):
        logits = t.exp() * normalize(image, dim=1) @ normalize(text, dim=1).T
        return (logits.logsumexp(dim=1) - logits.diagonal()).mean()

    return torch.autograd.functional.jacobian(loss, (image, text, t))


@pytest.mark.parametrize("function", [by_the_formulas, in_loops, by_a_jacobian])
def test_right_answers(function):
    assert check("clip_gradient", function).status == "right"


def without(term):
    """by_the_formulas with a term left out, written as a reader might."""

    def function(image, text, t):
        (i, image_back), (c, text_back) = unit_and_back(image), unit_and_back(text)
        s, alpha, n = i @ c.T, t.exp(), len(image)
        p = (alpha * s).softmax(dim=1)
        d_image, d_text, d_t = p @ c - c, p.T @ i - i, (p * s).sum() - s.trace()
        if term == "pull of dL/dI":
            d_image = p @ c
        if term == "trace":
            d_t = (p * s).sum()
        if term == "other pictures":
            d_text = (p.diagonal() - 1)[:, None] * i
        if term == "alpha of dL/dt":
            d_t = d_t / alpha
        if term == "projection":
            return (
                *(alpha / n * d / x.norm(dim=1, keepdim=True) for d, x in ((d_image, image), (d_text, text))),
                alpha / n * d_t,
            )
        return image_back(alpha / n * d_image), text_back(alpha / n * d_text), alpha / n * d_t

    return function


@pytest.mark.parametrize(
    ("term", "name"),
    [
        ("pull of dL/dI", "the partner's term is missing"),
        ("trace", "the partner's term is missing"),
        ("other pictures", "the other pictures' pushes are missing in dL/dT"),
        ("alpha of dL/dt", "the factor alpha is missing"),
        ("projection", "the tangent projection is missing"),
    ],
)
def test_the_missing_term_is_named(term, name):
    assert check("clip_gradient", without(None)).status == "right"
    verdict = check("clip_gradient", without(term))
    assert verdict.headline.startswith(f"Misconception: {name}.")


def test_two_answers_in_place_of_three_are_told_apart():
    verdict = check("clip_gradient", lambda image, text, t: by_the_formulas(image, text, t)[:2])
    assert verdict.status == "wrong" and "returned a tuple of 2" in verdict.headline


def test_the_fixture_of_the_course():
    """N3: unit rows with the similarities of the fixture, alpha 10."""
    s = torch.tensor([[0.8, 0.4, 0.2], [0.1, 0.7, 0.3], [0.2, 0.0, 0.6]], dtype=torch.float64)
    beyond = (1 - s.square().sum(dim=0)).sqrt().diag()
    image = torch.eye(3, 6, dtype=torch.float64)
    text = torch.cat([s.T, beyond], dim=1)
    *_, d_t = EXERCISE.reference(image, text, torch.tensor(10.0, dtype=torch.float64).log())
    assert d_t.item() == pytest.approx(-0.086340, abs=5e-7)
