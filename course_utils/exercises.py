"""The exercises that `feedback.check` knows: right answer, wrong ones by name, inputs that tell them apart.

A misconception is a function that makes the mistake. `check` runs it on the same inputs as the reader's
function and compares the numbers; nobody's code is read. Cases go from the smallest to the largest: the first
that differs is the one shown.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import normalize

from course_utils import contrast
from course_utils.views import POLICIES, apply_view, draw_parameters


@dataclass(frozen=True)
class Misconception:
    """A way to be wrong: its name, what is behind it, and a function that makes the mistake."""

    name: str
    explanation: str
    function: Callable


@dataclass(frozen=True)
class Case:
    """One input: argument name -> value, in the order of the function's arguments."""

    arguments: dict[str, object]

    def fresh(self, dtype: torch.dtype | None = None) -> list:
        """The values, tensors and generators as copies, floating tensors in `dtype` if one is given."""
        return [_copy(value, dtype) for value in self.arguments.values()]


def _copy(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(dtype, copy=True) if dtype and value.is_floating_point() else value.clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).manual_seed(value.initial_seed())
    return value


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    reference: the right function. cases: inputs, smallest first. gradient: the names of the arguments through
    which a gradient must reach the result. also_right: other functions whose values are accepted.
    """

    name: str
    reference: Callable
    cases: tuple[Case, ...]
    misconceptions: tuple[Misconception, ...]
    guarantees: str
    hints: tuple[str, str, str]
    gradient: tuple[str, ...] = ()
    also_right: tuple[Callable, ...] = ()


def find(name: str) -> Exercise:
    """The exercise with this name."""
    if name not in EXERCISES:
        raise ValueError(f"There is no exercise {name!r}; there are {sorted(EXERCISES)}.")
    return EXERCISES[name]


# Candidates: similarities -> probability, gradient (notebook 02)


def _similarities(count, seed, dtype=torch.float64):
    """Cosine similarities between -1 and 1."""
    drawn = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=dtype) * 2 - 1
    return drawn.round(decimals=2)  # so that an input that is shown can be typed again


def _candidate_probability(similarities, temperature):
    return (similarities / temperature).softmax(dim=0)


def _candidate_gradient(similarities, positive, temperature):
    gradient = _candidate_probability(similarities, temperature)
    gradient[positive] -= 1
    return gradient / temperature


def _naive_softmax(similarities, temperature):
    weights = (similarities / temperature).exp()
    return weights / weights.sum()


def _without_the_first(similarities, temperature):
    weights = (similarities / temperature).exp()
    return weights / weights[1:].sum()


def _without_the_largest(similarities, temperature):
    weights = (similarities / temperature).exp()
    return weights / (weights.sum() - weights.max())


def _share(similarities, temperature):
    logits = similarities / temperature
    return logits / logits.sum()


def _one_hot_of_the_largest(similarities, temperature):
    return torch.nn.functional.one_hot(similarities.argmax(), len(similarities)).to(similarities)


def _tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


PROBABILITY_CASES = tuple(
    Case({"similarities": similarities, "temperature": temperature})
    for similarities, temperature in [
        (_tensor(0.8, 0.4), 1.0),
        (_tensor(0.8, 0.4), 0.5),
        (_tensor(0.3, 0.4), 0.5),
        (_tensor(-0.1, 0.4, -0.6), 0.2),
        (_tensor(0.5, 0.5, 0.5), 0.07),
        (_similarities(5, seed=1), 2.0),
        (_similarities(9, seed=2, dtype=torch.float32), 0.1),
        (_tensor(1.0, -1.0, 0.9).float(), 0.01),
    ]
)

CANDIDATE_PROBABILITY = Exercise(
    name="candidate_probability",
    reference=_candidate_probability,
    cases=PROBABILITY_CASES,
    misconceptions=(
        Misconception(
            "the temperature multiplies",
            "The similarities are multiplied by the temperature. They are divided by it: a small "
            "temperature makes differences large.",
            lambda similarities, temperature: (similarities * temperature).softmax(dim=0),
        ),
        Misconception(
            "the temperature is not used",
            "The result is the same at every temperature. Divide the similarities by it before the "
            "exponential.",
            lambda similarities, temperature: similarities.softmax(dim=0),
        ),
        Misconception(
            "exp is forgotten",
            "The similarities themselves are divided by their sum. A similarity may be negative, and so "
            "would be its share: exp(similarity / temperature) is what is shared out. At some inputs the "
            "two happen to lie close together.",
            _share,
        ),
        Misconception(
            "the positive is left out of the denominator",
            "The sum below the line runs over the negatives only. Then the shares do not add up to one and "
            "are no probabilities: the positive is one of the candidates.",
            _without_the_first,
        ),
        Misconception(
            "the largest is left out of the denominator",
            "The sum below the line leaves out the most similar candidate. It runs over all candidates.",
            _without_the_largest,
        ),
        Misconception(
            "the winner takes all",
            "All the probability goes to the most similar candidate. That is the limit of a temperature "
            "near zero; at any other temperature each candidate has its share.",
            _one_hot_of_the_largest,
        ),
        Misconception(
            "not divided by the sum",
            "exp(similarity / temperature) is positive, but only its share of the sum over all candidates "
            "is a probability.",
            lambda similarities, temperature: (similarities / temperature).exp(),
        ),
        Misconception(
            "the logarithm of the probability",
            "These are logarithms of probabilities: all are below zero. Take softmax in place of "
            "log_softmax.",
            lambda similarities, temperature: (similarities / temperature).log_softmax(dim=0),
        ),
        Misconception(
            "exp overflows at a small temperature",
            "The formula is right, but exp(1 / 0.01) is larger than any float32 number. Take the largest "
            "logit off all logits first: the shares stay the same. torch.softmax does that.",
            _naive_softmax,
        ),
    ),
    guarantees=(
        "For any number of candidates, any sign and any temperature that was tried (0.01 to 2) your "
        "probabilities are positive, add up to one and keep the order of the similarities; and a gradient "
        "flows back to the similarities."
    ),
    hints=(
        "The question is: if one candidate is drawn, and each has a weight that grows with its similarity, "
        "how likely is each?",
        "Three steps: divide by the temperature, take the exponential, divide by the sum over all "
        "candidates.",
        "softmax over the similarities divided by the temperature does all three, and does not overflow.",
    ),
    gradient=("similarities",),
)


def _gradient_variant(change):
    """The right gradient and probabilities, then a mistake: change(gradient, p, positive, temperature)."""

    def function(similarities, positive, temperature):
        p = _candidate_probability(similarities, temperature)
        return change(_candidate_gradient(similarities, positive, temperature), p, positive, temperature)

    return function


def _with_positive(values, positive, value):
    values = values.clone()
    values[positive] = value
    return values


CANDIDATE_GRADIENT = Exercise(
    name="candidate_gradient",
    reference=_candidate_gradient,
    cases=tuple(
        Case({"similarities": similarities, "positive": positive, "temperature": temperature})
        for similarities, positive, temperature in [
            (_tensor(0.8, 0.4), 0, 1.0),
            (_tensor(0.8, 0.4), 0, 0.5),
            (_tensor(0.3, 0.4), 1, 0.5),
            (_tensor(-0.1, 0.4, -0.6), 2, 0.2),
            (_tensor(0.5, 0.5, 0.5), 1, 0.07),
            (_similarities(5, seed=3), 4, 2.0),
            (_similarities(9, seed=4, dtype=torch.float32), 3, 0.1),
            (_tensor(1.0, -1.0, 0.9).float(), 0, 0.01),
        ]
    ),
    misconceptions=(
        Misconception(
            "the factor 1/temperature is forgotten",
            "This is the gradient with respect to the logits. A logit is similarity / temperature, so the "
            "chain rule divides by the temperature once more.",
            _gradient_variant(lambda gradient, p, positive, temperature: gradient * temperature),
        ),
        Misconception(
            "the sign is turned round",
            "These are the directions in which the loss falls; a gradient points to where it rises. It is "
            "below zero for the positive (a step against it raises that similarity) and above zero for "
            "every negative.",
            _gradient_variant(lambda gradient, p, positive, temperature: -gradient),
        ),
        Misconception(
            "p+ in place of p+ - 1",
            "The positive gets p / temperature like the negatives. The logarithm of the numerator adds -1 "
            "/ temperature for it: (p+ - 1) / temperature.",
            _gradient_variant(lambda gradient, p, positive, temperature: p / temperature),
        ),
        Misconception(
            "1 - p+ in place of p+ - 1",
            "Only the sign of the positive is turned round. The gradients of all candidates add up to "
            "zero: the pull on the positive is as large as all pushes together, and opposite.",
            _gradient_variant(
                lambda gradient, p, positive, temperature: _with_positive(
                    gradient, positive, -gradient[positive]
                )
            ),
        ),
        Misconception(
            "the negatives get no gradient",
            "Every negative stands in the denominator, so each gets p / temperature.",
            _gradient_variant(
                lambda gradient, p, positive, temperature: _with_positive(
                    torch.zeros_like(gradient), positive, gradient[positive]
                )
            ),
        ),
        Misconception(
            "the positive is always taken to be candidate 0",
            "The argument `positive` says which candidate is the partner.",
            lambda similarities, positive, temperature: _candidate_gradient(similarities, 0, temperature),
        ),
        Misconception(
            "multiplied by the temperature",
            "The gradient with respect to the logits is multiplied by the temperature. A logit is "
            "similarity / temperature: the chain rule divides.",
            _gradient_variant(lambda gradient, p, positive, temperature: gradient * temperature**2),
        ),
        Misconception(
            "exp overflows at a small temperature",
            "The formula is right, but exp(1 / 0.01) is larger than any float32 number. Take the largest "
            "logit off all logits first, or use torch.softmax.",
            lambda similarities, positive, temperature: (
                (
                    _naive_softmax(similarities, temperature)
                    - torch.nn.functional.one_hot(torch.tensor(positive), len(similarities))
                )
                / temperature
            ),
        ),
    ),
    guarantees=(
        "Wherever the positive stands, and at every temperature that was tried (0.01 to 2), your gradient "
        "pulls it exactly as strongly as it pushes all negatives together."
    ),
    hints=(
        "Write the loss as two terms: -s+/temperature, and the logarithm of the sum over all candidates. "
        "Differentiate each.",
        "The derivative of the second term with respect to s_j is p_j / temperature. Which candidates does "
        "the first term touch?",
        "dL/ds_j = (p_j - 1 for the positive, p_j for the others) / temperature.",
    ),
)


# NT-Xent over a batch (notebook 02)


def _nt_xent_variant(
    view_a,
    view_b,
    temperature,
    *,
    unit="rows",
    with_itself=False,
    with_positive=True,
    one_direction=False,
    other_view_only=False,
    reduction="mean",
    multiply=False,
    use_exp=True,
    use_temperature=True,
):
    """NT-Xent as the definition reads, with switches for what people get wrong."""
    count = len(view_a)
    views = torch.cat([view_a, view_b])
    if unit == "rows":
        views = normalize(views, dim=1)
    elif unit == "columns":
        views = normalize(views, dim=0)
    elif unit == "whole":
        views = views / views.norm()
    scale = temperature if multiply else 1 / temperature if use_temperature else 1.0
    logits = views @ views.T * scale
    itself = torch.eye(2 * count, dtype=torch.bool)
    partner = itself.roll(count, dims=1)
    candidates = torch.ones_like(itself)
    if not with_itself:
        candidates &= ~itself
    if other_view_only:
        side = torch.arange(2 * count) < count
        candidates &= side[:, None] != side[None, :]
    if not with_positive:
        candidates &= ~partner
    if use_exp:
        per_view = logits.masked_fill(~candidates, -torch.inf).logsumexp(dim=1) - logits[partner]
    else:
        per_view = -(logits[partner] / (logits * candidates).sum(dim=1)).log()
    if one_direction:
        per_view = per_view[:count]
    if reduction == "sum / N":
        return per_view.sum() / count
    return getattr(per_view, reduction)()


def _wrong_partner(view_a, view_b, temperature):
    """The row beside it taken for the partner, as if the views stood a1, b1, a2, b2."""
    views = normalize(torch.cat([view_a, view_b]), dim=1)
    logits = (views @ views.T / temperature).fill_diagonal_(-torch.inf)
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(views)) ^ 1)


def _pair(count, width, seed, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    view_a, noise = torch.randn(2, count, width, generator=generator, dtype=dtype) * scale
    return {"view_a": view_a.round(decimals=2), "view_b": (view_a * 0.5 + noise).round(decimals=2)}


NT_XENT_LOOP = Exercise(
    name="nt_xent_loop",
    reference=contrast.nt_xent,
    cases=(
        Case(
            {
                "view_a": torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64),
                "view_b": torch.tensor([[1.6, 1.2], [-1.0, 0.0]], dtype=torch.float64),
                "temperature": 1.0,
            }
        ),
        Case({**_pair(2, 2, seed=5), "temperature": 0.5}),
        Case({**_pair(3, 2, seed=6, scale=3.0), "temperature": 0.1}),
        Case(
            {
                "view_a": torch.ones(3, 2, dtype=torch.float64),
                "view_b": torch.ones(3, 2, dtype=torch.float64),
                "temperature": 0.5,
            }
        ),
        Case({**_pair(4, 6, seed=7, dtype=torch.float32), "temperature": 0.2}),
        Case({**_pair(5, 3, seed=8, scale=0.1), "temperature": 2.0}),
        Case({**_pair(4, 8, seed=9), "temperature": 0.01}),
    ),
    misconceptions=(
        Misconception(
            "self is left in",
            "Each view stands among its own candidates, with similarity 1, so the loss cannot come near "
            "zero. Skip k = i.",
            partial(_nt_xent_variant, with_itself=True),
        ),
        Misconception(
            "one direction only",
            "Only the rows of view_a look for their partner. Those of view_b do too: the mean runs over 2N "
            "views.",
            partial(_nt_xent_variant, one_direction=True),
        ),
        Misconception(
            "the positive is left out of the denominator",
            "The sum runs over the negatives only. Then exp(-loss) is no probability and the loss may fall "
            "below zero: the partner is one of the candidates.",
            partial(_nt_xent_variant, with_positive=False),
        ),
        Misconception(
            "the rows are not normalised",
            "The dot products are taken of the features as they come, so long features count more. Divide "
            "each row by its length first: similarity is the cosine.",
            partial(_nt_xent_variant, unit="none"),
        ),
        Misconception(
            "normalised over the batch axis",
            "Each column was divided by its length (dim=0). A feature is a row: dim=1.",
            partial(_nt_xent_variant, unit="columns"),
        ),
        Misconception(
            "normalised without an axis",
            "All features together were divided by one number. Each row is divided by its own length: dim=1.",
            partial(_nt_xent_variant, unit="whole"),
        ),
        Misconception(
            "a sum in place of the mean",
            "The losses of the 2N views are added up. Divide by 2N, so that the value does not grow with "
            "the batch.",
            partial(_nt_xent_variant, reduction="sum"),
        ),
        Misconception(
            "divided by N in place of 2N",
            "Both directions are there, but their sum is divided by the number of pairs. There are 2N views.",
            partial(_nt_xent_variant, reduction="sum / N"),
        ),
        Misconception(
            "the temperature multiplies",
            "The similarities are multiplied by the temperature. They are divided by it.",
            partial(_nt_xent_variant, multiply=True),
        ),
        Misconception(
            "the temperature is not used",
            "The result is the same at every temperature. Divide the similarities by it.",
            partial(_nt_xent_variant, use_temperature=False),
        ),
        Misconception(
            "negatives from the other view only",
            "Each view is compared with the N views of the other side. Those of its own side, but for "
            "itself, are candidates too: 2N - 1 candidates, 2N - 2 of them negatives.",
            partial(_nt_xent_variant, other_view_only=True),
        ),
        Misconception(
            "exp is forgotten",
            "The logits themselves are divided by their sum. A negative one has no logarithm: take exp of "
            "each first.",
            partial(_nt_xent_variant, use_exp=False),
        ),
        Misconception(
            "the wrong row is taken for the partner",
            "With view_b below view_a the partner of row i is row i + N (and of row i + N row i), not the "
            "row beside it.",
            _wrong_partner,
        ),
        Misconception(
            "the sign is turned round",
            "This is the mean logarithm of the probability. The loss is minus that.",
            lambda view_a, view_b, temperature: -_nt_xent_variant(view_a, view_b, temperature),
        ),
    ),
    guarantees=(
        "For 2 to 5 pairs, features of any length and temperatures from 0.01 to 2 your loops and the "
        "matrix form are one loss, in value and in gradient: you may read either as the definition of the "
        "other."
    ),
    hints=(
        "Put the two views one below the other: 2N rows. Each row asks one question: which of the other "
        "rows is my partner?",
        "For row i: its partner is row (i + N) mod 2N; its candidates are all rows but i. The row's loss is "
        "-log(exp(s_partner / temperature) / sum of exp(s_k / temperature) over the candidates).",
        "Normalise the rows; loop over i; loop over k, skip k = i and add up; collect -log of the share; "
        "the mean over 2N.",
    ),
    gradient=("view_a", "view_b"),
)

# Two views (notebook 01)


def _draw(images, policy, generator, count=None):
    return draw_parameters(count or len(images), images.shape[-2], images.shape[-1], policy, generator)


def _two_views(images, policy, generator):
    parameters_a = _draw(images, policy, generator)
    parameters_b = _draw(images, policy, generator)
    return apply_view(images, parameters_a), apply_view(images, parameters_b)


def _view_b_drawn_first(images, policy, generator):
    view_b, view_a = _two_views(images, policy, generator)
    return view_a, view_b


def _picture_by_picture(images, policy, generator):
    views = [_two_views(image[None], policy, generator) for image in images]
    return torch.cat([view_a for view_a, _ in views]), torch.cat([view_b for _, view_b in views])


def _same_parameters(images, policy, generator):
    view = apply_view(images, _draw(images, policy, generator))
    return view, view.clone()


def _one_set_for_the_batch(images, policy, generator):
    return tuple(
        torch.cat([apply_view(image[None], parameters) for image in images])
        for parameters in (_draw(images, policy, generator, 1), _draw(images, policy, generator, 1))
    )


def _colour_left_out_of_view_b(images, policy, generator):
    view_a = apply_view(images, _draw(images, policy, generator))
    return view_a, apply_view(images, _draw(images, policy.without("colour"), generator))


def _colour_left_out_of_view_a(images, policy, generator):
    view_a = apply_view(images, _draw(images, policy.without("colour"), generator))
    return view_a, apply_view(images, _draw(images, policy, generator))


def _picture_itself_as_view_b(images, policy, generator):
    return apply_view(images, _draw(images, policy, generator)), images / 255


def _view_of_a_view(images, policy, generator):
    view_a = apply_view(images, _draw(images, policy, generator))
    return view_a, apply_view(view_a, _draw(images, policy, generator))


def _pictures_case(count, edge, policy, seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 3, edge, edge), dtype=torch.uint8, generator=generator)
    return Case(
        {"images": images, "policy": POLICIES[policy], "generator": torch.Generator().manual_seed(seed)}
    )


ONE_COLOUR_ONLY = (
    "One of the two views keeps its colours. Then both still share the picture's own light on one side: "
    "apply the whole policy to each view."
)

TWO_VIEWS = Exercise(
    name="two_views",
    reference=_two_views,
    cases=(
        _pictures_case(2, 16, "simclr_cifar", seed=10),
        _pictures_case(3, 20, "strong", seed=11),
        _pictures_case(5, 16, "simclr_cifar", seed=12),
    ),
    misconceptions=(
        Misconception(
            "the same parameters for both views",
            "Both views are one and the same picture, so finding the partner is trivial. Draw parameters "
            "twice from the generator, and do not seed it in between.",
            _same_parameters,
        ),
        Misconception(
            "one set of parameters for the whole batch",
            "Every picture is cut and coloured alike. Draw as many parameters as there are pictures.",
            _one_set_for_the_batch,
        ),
        Misconception("colour jitter on view_a only", ONE_COLOUR_ONLY, _colour_left_out_of_view_b),
        Misconception("colour jitter on view_b only", ONE_COLOUR_ONLY, _colour_left_out_of_view_a),
        Misconception(
            "the second view is the picture itself",
            "view_b is the picture as it came. Both views are drawn; neither is the original.",
            _picture_itself_as_view_b,
        ),
        Misconception(
            "the second view is made from the first",
            "view_b is a view of view_a: it can hold only what the first crop left. Make both from the "
            "picture.",
            _view_of_a_view,
        ),
    ),
    guarantees=(
        "Each picture has parameters of its own, each of its two views too, and the same generator seed "
        "gives the same views: what the views share comes from the picture."
    ),
    hints=(
        "What has to differ between the two views of one picture, and between two pictures of the batch?",
        "Draw parameters twice, each time for the whole batch, with the generator that was given; apply "
        "each set to the pictures.",
        "draw_parameters(len(images), height, width, policy, generator) twice, then apply_view(images, "
        "parameters) for each.",
    ),
    also_right=(_view_b_drawn_first, _picture_by_picture),
)

EXERCISES = {
    exercise.name: exercise
    for exercise in (TWO_VIEWS, CANDIDATE_PROBABILITY, CANDIDATE_GRADIENT, NT_XENT_LOOP)
}
