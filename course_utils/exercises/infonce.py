"""Notebook 02: probability and gradient of the candidates, and NT-Xent over a batch."""

import math
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy, normalize, one_hot

from course_utils import contrast
from course_utils.exercises.exercise import Case, Exercise, Misconception

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


def _naive_softmax(similarities, temperature, added=0.0):
    weights = (similarities / temperature).exp()
    return weights / (weights.sum() + added)


def _shifted_softmax(similarities, temperature, added):
    logits = similarities / temperature
    weights = (logits - logits.max()).exp()
    return weights / (weights.sum() + added)


def _weights_over(denominator):
    """exp(logit) divided by what `denominator` makes of all of them."""

    def function(similarities, temperature):
        weights = (similarities / temperature).exp()
        return weights / denominator(weights)

    return function


def _of_logits(change):
    """softmax over change(similarities, temperature)."""
    return lambda similarities, temperature: change(similarities, temperature).softmax(dim=0)


def _of_probability(change):
    return lambda similarities, temperature: change(_candidate_probability(similarities, temperature))


def _share(similarities, temperature):
    logits = similarities / temperature
    return logits / logits.sum()


def _adds_to_the_denominator(softmax, added):
    return lambda similarities, temperature: softmax(similarities, temperature, added)


def _tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


SMALL = (
    1e-4,
    1e-5,
    1e-6,
    1e-7,
    1e-8,
    1e-9,
    1e-10,
    1e-12,
)  # what people add "so that nothing divides by zero"

OVERFLOW = (
    "The formula is right, but exp(1 / 0.01) is larger than any float32 number and exp(1 / 0.001) than any "
    "float64 number. Take the largest logit off all logits first: the shares stay the same. torch.softmax "
    "does that."
)

CANDIDATE_PROBABILITY = Exercise(
    name="candidate_probability",
    reference=_candidate_probability,
    cases=tuple(
        Case({"similarities": similarities, "temperature": temperature})
        for similarities, temperature in [
            (_tensor(0.8, 0.4), 1.0),
            (_tensor(0.8, 0.4), 0.5),
            (_tensor(0.3, 0.4), 0.5),
            (_tensor(-0.1, 0.4, -0.6), 0.2),
            (_tensor(0.5, 0.5, 0.5), 0.07),
            (_tensor(-0.9, -1.0, -0.7), 0.01),  # probabilities of 2e-9 and 9e-14
            (_tensor(1.0, -1.0, 0.9).float(), 0.01),
            (_tensor(1.0, -1.0, 0.995), 0.001),
            (_similarities(9, seed=2, dtype=torch.float32), 0.1),
            (_similarities(12, seed=1), 5.0),
        ]
    ),
    misconceptions=(
        Misconception(
            "the temperature multiplies",
            "The similarities are multiplied by the temperature. They are divided by it: a small "
            "temperature makes differences large.",
            _of_logits(lambda similarities, temperature: similarities * temperature),
        ),
        Misconception(
            "the temperature is not used",
            "The result is the same at every temperature. Divide the similarities by it before the "
            "exponential.",
            _of_logits(lambda similarities, temperature: similarities),
        ),
        Misconception(
            "the temperature divides the first similarity only",
            "One logit is at another scale than all others. Every similarity is divided by the temperature.",
            _of_logits(lambda s, temperature: torch.cat([s[:1] / temperature, s[1:]])),
        ),
        Misconception(
            "the temperature divides all similarities but the first",
            "The first logit is at another scale than all others. Every similarity is divided by the "
            "temperature.",
            _of_logits(lambda s, temperature: torch.cat([s[:1], s[1:] / temperature])),
        ),
        Misconception(
            "the sign of the logits is turned round",
            "The least similar candidate gets the largest probability. A logit is similarity / "
            "temperature, without a minus.",
            _of_logits(lambda similarities, temperature: -similarities / temperature),
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
            _weights_over(lambda weights: weights[1:].sum()),
        ),
        Misconception(
            "the positive is counted twice",
            "The first candidate stands in the denominator once by itself and once in the sum. Each "
            "candidate stands there once.",
            _weights_over(lambda weights: weights[0] + weights.sum()),
        ),
        Misconception(
            "the largest is left out of the denominator",
            "The sum below the line leaves out the most similar candidate. It runs over all candidates.",
            _weights_over(lambda weights: weights.sum() - weights.max()),
        ),
        Misconception(
            "the winner takes all",
            "All the probability goes to the most similar candidate. That is the limit of a temperature "
            "near zero; at any other temperature each candidate has its share.",
            _of_probability(lambda p: one_hot(p.argmax(), len(p)).to(p)),
        ),
        Misconception(
            "not divided by the sum",
            "exp(similarity / temperature) is positive, but only its share of the sum over all candidates "
            "is a probability.",
            _weights_over(lambda weights: 1),
        ),
        Misconception(
            "the logarithm of the probability",
            "These are logarithms of probabilities: all are below zero. Take softmax in place of "
            "log_softmax.",
            lambda similarities, temperature: (similarities / temperature).log_softmax(dim=0),
        ),
        Misconception(
            "a small number is added to the denominator",
            "The sum over all candidates is never zero, so nothing has to be added. At a low temperature it "
            "can be far smaller than what you add; then the shares no longer add up to one. Take the "
            "largest logit off all logits first: the sum is then at least 1.",
            _adds_to_the_denominator(_naive_softmax, SMALL[0]),
            also=(
                *(_adds_to_the_denominator(_naive_softmax, added) for added in SMALL[1:]),
                *(_adds_to_the_denominator(_shifted_softmax, added) for added in SMALL[:3]),
            ),
        ),
        Misconception(
            "small probabilities are lifted",
            "A small number is added to every probability, or stands in for those below it. A probability "
            "may be as small as it is; the sum is one only if none is touched.",
            _of_probability(lambda p: p + SMALL[0]),
            also=(
                *(_of_probability(lambda p, small=small: p + small) for small in SMALL[1:]),
                *(_of_probability(lambda p, small=small: p.clamp_min(small)) for small in SMALL),
            ),
        ),
        Misconception("exp overflows at a small temperature", OVERFLOW, _naive_softmax),
    ),
    guarantees=(
        "For 2 to 12 candidates, any sign and the temperatures that were tried (0.001 to 5) none of your "
        "probabilities is negative, they add up to one and keep the order of the similarities; and a "
        "gradient flows back to the similarities."
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


def _minus_one_hot(probabilities):
    """p - 1 for the positive, p for the others, with p from probabilities(similarities, temperature)."""

    def function(similarities, positive, temperature):
        p = probabilities(similarities, temperature)
        return _with_positive(p, positive, p[positive] - 1)

    return function


_softmax_without_temperature = _minus_one_hot(_of_logits(lambda similarities, temperature: similarities))
_softmax_of_products = _minus_one_hot(
    _of_logits(lambda similarities, temperature: similarities * temperature)
)


def _times(gradient, power):
    """The gradient multiplied by a power of the temperature."""
    return lambda similarities, positive, temperature: (
        gradient(similarities, positive, temperature) * temperature**power
    )


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
            (_tensor(0.3, 0.4, 0.2), 0, 0.07),
            (_tensor(0.5, 0.5, 0.5), 1, 0.07),
            (_tensor(0.9, 0.7, -0.4, 0.1), 3, 0.01),  # gradients of -100, and of 2e-7
            (_tensor(1.0, -1.0, 0.9).float(), 0, 0.01),
            (_tensor(1.0, -1.0, 0.995), 2, 0.001),
            (_similarities(9, seed=4, dtype=torch.float32), 3, 0.1),
            (_similarities(12, seed=3), 4, 5.0),
        ]
    ),
    misconceptions=(
        Misconception(
            "the factor 1/temperature is forgotten",
            "This is the gradient with respect to the logits. A logit is similarity / temperature, so the "
            "chain rule divides by the temperature once more.",
            _times(_candidate_gradient, 1),
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
            "the most similar candidate is taken to be the positive",
            "The positive is the partner, however similar it is: the loss is there to make it the most "
            "similar. The argument `positive` says which one it is.",
            lambda similarities, positive, temperature: _candidate_gradient(
                similarities, similarities.argmax(), temperature
            ),
        ),
        Misconception(
            "the temperature is not used",
            "The result is the same at every temperature. It stands in two places: the softmax is taken over "
            "similarity / temperature, and the chain rule divides by it once more.",
            _softmax_without_temperature,
        ),
        Misconception(
            "the temperature is missing in the softmax",
            "The division by the temperature is there, but the probabilities are those of temperature 1: "
            "softmax is taken over similarity / temperature.",
            _times(_softmax_without_temperature, -1),
        ),
        Misconception(
            "the temperature multiplies in the softmax",
            "The probabilities are taken over similarity * temperature. A logit is similarity / temperature.",
            _softmax_of_products,
            also=(_times(_softmax_of_products, 1), _times(_softmax_of_products, -1)),
        ),
        Misconception(
            "multiplied by the temperature",
            "The gradient with respect to the logits is multiplied by the temperature. A logit is "
            "similarity / temperature: the chain rule divides.",
            _times(_candidate_gradient, 2),
        ),
        Misconception(
            "exp overflows at a small temperature", OVERFLOW, _times(_minus_one_hot(_naive_softmax), -1)
        ),
    ),
    guarantees=(
        "Wherever the positive stands, and at every temperature that was tried (0.001 to 5), your gradient "
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


def _unit_rows(view_a, view_b):
    return normalize(torch.cat([view_a, view_b]), dim=1)


@dataclass(frozen=True)
class _Batch:
    """2N views and which of them belong together; the mistakes below are made with it.

    similarities: [2N, 2N]. itself, partner, others: bool [2N, 2N]; row i of each marks view i, its partner,
    and the candidates of view i, which are all views but i.
    """

    views: torch.Tensor
    temperature: float

    @property
    def count(self):
        return len(self.views) // 2

    @property
    def similarities(self):
        return self.views @ self.views.T

    @property
    def logits(self):
        return self.similarities / self.temperature

    @property
    def itself(self):
        return torch.eye(len(self.views), dtype=torch.bool)

    @property
    def partner(self):
        return self.itself.roll(self.count, dims=1)

    @property
    def others(self):
        return ~self.itself

    @property
    def other_side(self):
        side = torch.arange(len(self.views)) < self.count
        return side[:, None] != side[None, :]

    @property
    def p(self):
        return self.logits.masked_fill(self.itself, -torch.inf).softmax(dim=1)

    def losses(self, logits=None, candidates=None, partner=None):
        """[2N] losses by the definition, where nothing else is given."""
        logits = self.logits if logits is None else logits
        candidates = self.others if candidates is None else candidates
        partner = self.partner if partner is None else partner
        return logits.masked_fill(~candidates, -torch.inf).logsumexp(dim=1) - logits[partner]

    def losses_with_itself_at(self, logit):
        """[2N] losses where the self-pair is a candidate with this logit."""
        return self.losses(self.logits.masked_fill(self.itself, logit), self.itself | self.others)

    def losses_by_exp(self, added=0.0, shift=0.0):
        """[2N] losses with exp of the logits taken as they come: -log(exp / sum of exp)."""
        weights = (self.logits - shift).exp().masked_fill(self.itself, 0)
        return -(weights[self.partner] / (weights.sum(dim=1) + added)).log()


def _mean_of(losses, views=_unit_rows):
    """The mean of losses(batch), as a function of the two views and the temperature."""
    return lambda view_a, view_b, temperature: losses(_Batch(views(view_a, view_b), temperature)).mean()


def _shares_of_the_logits(batch):
    return -(batch.logits[batch.partner] / (batch.logits * batch.others).sum(dim=1)).log()


def _itself_subtracted(batch):
    weights = batch.logits.exp()
    return (weights.sum(dim=1) - math.exp(1 / batch.temperature)).log() - batch.logits[batch.partner]


def _without_the_diagonal(batch):
    """Logits [2N, 2N - 1]: the self-pair cut out, all that stood behind it one place further left."""
    return batch.logits[batch.others].view(len(batch.views), -1)


def _one_sided(batch):
    """A mask like `partner` that marks view i mod N for row i: labels arange(N) twice."""
    return one_hot(torch.arange(len(batch.views)) % batch.count, len(batch.views)).bool()


def _lengths(view):
    """The rows with lengths from 0.001 to 1000."""
    lengths = torch.logspace(-3, 3, len(view), dtype=view.dtype)[:, None]
    return normalize(view, dim=1) * lengths


def pair(count, width, seed, dtype=torch.float64, scale=1.0, noise=1.0, share=0.5):
    """view_a drawn, view_b = share * view_a + noise: partners are alike, more so the less noise there is."""
    generator = torch.Generator().manual_seed(seed)
    view_a, drawn = torch.randn(2, count, width, generator=generator, dtype=dtype) * scale
    return {"view_a": view_a.round(decimals=2), "view_b": (view_a * share + drawn * noise).round(decimals=2)}


def _views_case(view_a, view_b, temperature):
    return Case({"view_a": _tensor(*view_a), "view_b": _tensor(*view_b), "temperature": temperature})


NT_XENT_LOOP = Exercise(
    name="nt_xent_loop",
    reference=contrast.nt_xent,
    cases=(
        _views_case([[1.0, 0.0], [0.6, 0.8]], [[1.6, 1.2], [-1.0, 0.0]], 1.0),
        Case({**pair(2, 2, seed=5), "temperature": 0.5}),
        # Partners point away from each other: the loss is 400.
        _views_case([[1.0, 0.0], [1.0, 0.0]], [[-1.0, 0.0], [-1.0, 0.0]], 0.005),
        # A regular simplex: all similarities are -1/3, so the loss is log 3, however small every exp is.
        _views_case([[1.0, 1.0, 1.0], [1.0, -1.0, -1.0]], [[-1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]], 0.002),
        Case({**pair(3, 2, seed=6, scale=3.0), "temperature": 0.1}),
        Case({name: _lengths(view) for name, view in pair(4, 3, seed=8).items()} | {"temperature": 0.5}),
        Case({**pair(4, 6, seed=7, dtype=torch.float32), "temperature": 0.2}),
        Case({**pair(4, 8, seed=9), "temperature": 0.01}),
        # Partners almost alike: exp(1 / 0.01) is no float32 number.
        Case({**pair(4, 8, seed=10, dtype=torch.float32, noise=0.05, share=1.0), "temperature": 0.01}),
        Case({**pair(12, 20, seed=11), "temperature": 5.0}),
    ),
    misconceptions=(
        Misconception(
            "self is left in",
            "Each view stands among its own candidates, with similarity 1, so the loss cannot come near "
            "zero. Skip k = i.",
            _mean_of(lambda batch: batch.losses(candidates=batch.itself | batch.others)),
        ),
        Misconception(
            "the diagonal is set to zero",
            "A logit of zero is not excluded: exp(0) = 1 stays in the sum. Setting the diagonal to 0, or "
            "multiplying by (1 - eye), comes after exp, not before. Fill the diagonal of the logits with "
            "minus infinity.",
            _mean_of(lambda batch: batch.losses_with_itself_at(0)),
        ),
        Misconception(
            "the diagonal gets a finite number",
            "The self-pair is made unlikely but stays a candidate, and at a low temperature others are as "
            "unlikely. Fill the diagonal of the logits with minus infinity.",
            _mean_of(lambda batch: batch.losses_with_itself_at(-10)),
            also=(
                *(
                    _mean_of(lambda batch, logit=logit: batch.losses_with_itself_at(logit))
                    for logit in (-1, -5, -20, -25, -30, -50, -100)
                ),
                *(  # filled before the division by the temperature
                    _mean_of(lambda batch, s=s: batch.losses_with_itself_at(s / batch.temperature))
                    for s in (-1, -2, -5, -10, -25, -50)
                ),
            ),
        ),
        Misconception(
            "one direction only",
            "Only the rows of view_a look for their partner. Those of view_b do too: the mean runs over 2N "
            "views.",
            _mean_of(lambda batch: batch.losses()[: batch.count]),
        ),
        Misconception(
            "the positive is left out of the denominator",
            "The sum runs over the negatives only. Then exp(-loss) is no probability and the loss may fall "
            "below zero: the partner is one of the candidates.",
            _mean_of(lambda batch: batch.losses(candidates=batch.others & ~batch.partner)),
        ),
        Misconception(
            "the positive is counted twice",
            "The partner stands in the denominator once by itself and once in the sum. Each candidate stands "
            "there once.",
            _mean_of(lambda batch: batch.losses(batch.logits + batch.partner * math.log(2)) + math.log(2)),
        ),
        Misconception(
            "the rows are not normalised",
            "The dot products are taken of the features as they come, so long features count more. Divide "
            "each row by its length first: similarity is the cosine.",
            _mean_of(_Batch.losses, lambda view_a, view_b: torch.cat([view_a, view_b])),
        ),
        Misconception(
            "normalised over the batch axis",
            "Each column was divided by its length (dim=0). A feature is a row: dim=1.",
            _mean_of(_Batch.losses, lambda view_a, view_b: normalize(torch.cat([view_a, view_b]), dim=0)),
        ),
        Misconception(
            "each view is normalised over its batch axis",
            "Each column of view_a, and of view_b, was divided by its length (dim=0). A feature is a row: "
            "dim=1.",
            _mean_of(
                _Batch.losses,
                lambda view_a, view_b: torch.cat([normalize(view_a, dim=0), normalize(view_b, dim=0)]),
            ),
        ),
        Misconception(
            "normalised without an axis",
            "All features together were divided by one number. Each row is divided by its own length: dim=1.",
            _mean_of(
                _Batch.losses, lambda view_a, view_b: normalize(torch.cat([view_a, view_b]), dim=(0, 1))
            ),
        ),
        Misconception(
            "each view is divided by one number",
            "view_a was divided by the length of all its numbers together, view_b likewise. Each row is "
            "divided by its own length: dim=1.",
            _mean_of(
                _Batch.losses,
                lambda view_a, view_b: torch.cat([view_a / view_a.norm(), view_b / view_b.norm()]),
            ),
        ),
        Misconception(
            "a sum in place of the mean",
            "The losses of the 2N views are added up. Divide by 2N, so that the value does not grow with "
            "the batch.",
            _mean_of(lambda batch: batch.losses().sum()),
        ),
        Misconception(
            "divided by N in place of 2N",
            "Both directions are there, but their sum is divided by the number of pairs. There are 2N views.",
            _mean_of(lambda batch: batch.losses() * 2),
        ),
        Misconception(
            "the temperature multiplies",
            "The similarities are multiplied by the temperature. They are divided by it.",
            _mean_of(lambda batch: batch.losses(batch.similarities * batch.temperature)),
        ),
        Misconception(
            "the temperature is not used",
            "The result is the same at every temperature. Divide the similarities by it.",
            _mean_of(lambda batch: batch.losses(batch.similarities)),
        ),
        Misconception(
            "the temperature divides the positive only",
            "The partner's logit is at another scale than those of the negatives. Every similarity is "
            "divided by the temperature, above the line and below it.",
            _mean_of(
                lambda batch: batch.losses(torch.where(batch.partner, batch.logits, batch.similarities))
            ),
            also=(  # above the line only
                _mean_of(
                    lambda batch: (
                        batch.losses(batch.similarities) + (batch.similarities - batch.logits)[batch.partner]
                    )
                ),
            ),
        ),
        Misconception(
            "the temperature divides the negatives only",
            "The partner's logit is at another scale than those of the negatives. Every similarity is "
            "divided by the temperature, above the line and below it.",
            _mean_of(
                lambda batch: batch.losses(torch.where(batch.partner, batch.similarities, batch.logits))
            ),
            also=(  # below the line only
                _mean_of(lambda batch: batch.losses() + (batch.logits - batch.similarities)[batch.partner]),
            ),
        ),
        Misconception(
            "the sign of the logits is turned round",
            "The least similar view gets the largest probability. A logit is similarity / temperature, "
            "without a minus.",
            _mean_of(lambda batch: batch.losses(-batch.logits)),
        ),
        Misconception(
            "negatives from the other view only",
            "Each view is compared with the N views of the other side. Those of its own side, but for "
            "itself, are candidates too: 2N - 1 candidates, 2N - 2 of them negatives.",
            _mean_of(lambda batch: batch.losses(candidates=batch.other_side)),
        ),
        Misconception(
            "one direction, and negatives from the other view only",
            "This is one half of the CLIP loss: each row of view_a among the rows of view_b. NT-Xent asks "
            "the rows of view_b too, and all other 2N - 1 views are candidates.",
            _mean_of(lambda batch: batch.losses(candidates=batch.other_side)[: batch.count]),
        ),
        Misconception(
            "exp is forgotten",
            "The logits themselves are divided by their sum. A negative one has no logarithm: take exp of "
            "each first.",
            _mean_of(_shares_of_the_logits),
        ),
        Misconception(
            "the wrong row is taken for the partner",
            "With view_b below view_a the partner of row i is row i + N (and of row i + N row i), not the "
            "row beside it, as if the views stood a1, b1, a2, b2.",
            _mean_of(lambda batch: batch.losses(partner=batch.itself[torch.arange(len(batch.views)) ^ 1])),
        ),
        Misconception(
            "the next row is taken for the partner",
            "The partner of row i is row (i + N) mod 2N, not row (i + 1) mod 2N.",
            _mean_of(lambda batch: batch.losses(partner=batch.itself.roll(1, dims=1))),
        ),
        Misconception(
            "each row is its own label",
            "The labels arange(2N) ask each view for itself, and itself is among the candidates. The partner "
            "of row i is row (i + N) mod 2N: arange(2N).roll(N).",
            _mean_of(
                lambda batch: batch.losses(partner=batch.itself, candidates=batch.itself | batch.others)
            ),
        ),
        Misconception(
            "the labels are arange(N) twice",
            "Labels count rows of the whole batch: the partner of row i of view_a is row i + N, only those "
            "of view_b have their partners at 0 to N - 1. Where the self-pair is cut out, what stood behind "
            "it moves one place to the left.",
            _mean_of(
                lambda batch: batch.losses(partner=_one_sided(batch), candidates=batch.itself | batch.others)
            ),
            also=(
                _mean_of(
                    lambda batch: cross_entropy(
                        _without_the_diagonal(batch), torch.arange(batch.count).repeat(2)
                    )
                ),
            ),
        ),
        Misconception(
            "a label names the excluded self-pair",
            "The diagonal is excluded, and then asked for, by labels such as arange(2N) or arange(N) twice: "
            "its probability is zero, the loss infinite. The partner of row i is row (i + N) mod 2N: "
            "arange(2N).roll(N).",
            _mean_of(
                lambda batch: batch.losses(
                    batch.logits.masked_fill(batch.itself, -torch.inf), partner=batch.itself
                )
            ),
        ),
        Misconception(
            "softmax is fed to cross_entropy",
            "cross_entropy takes logits and does the softmax itself; here it is done twice. Give it the "
            "logits.",
            _mean_of(lambda batch: batch.losses(batch.p, batch.itself | batch.others)),
        ),
        Misconception(
            "the sign is turned round",
            "This is the mean logarithm of the probability. The loss is minus that.",
            _mean_of(lambda batch: -batch.losses()),
        ),
        Misconception(
            "a small number is added to the denominator",
            "The sum over the candidates is never zero, so nothing has to be added. At a low temperature it "
            "can be far smaller than what you add, and the loss comes out wrong. Take logsumexp of the "
            "logits: log(sum of exp) without the overflow.",
            _mean_of(lambda batch: batch.losses_by_exp(added=SMALL[0])),
            also=(
                *(_mean_of(lambda batch, added=added: batch.losses_by_exp(added)) for added in SMALL[1:]),
                *(
                    _mean_of(lambda batch, added=added: batch.losses_by_exp(added, 1 / batch.temperature))
                    for added in SMALL
                ),
            ),
        ),
        Misconception(
            "a small number is added to the probability",
            "log(p + 1e-8) can never fall below log(1e-8): where the partner is improbable, the loss stops "
            "growing and no gradient is left. Take log_softmax or logsumexp of the logits.",
            _mean_of(lambda batch: -(batch.p[batch.partner] + SMALL[0]).log()),
            also=(
                *(
                    _mean_of(lambda batch, small=small: -(batch.p[batch.partner] + small).log())
                    for small in SMALL[1:]
                ),
                *(  # p by exp as it comes
                    _mean_of(lambda batch, small=small: -((-batch.losses_by_exp()).exp() + small).log())
                    for small in SMALL
                ),
                *(
                    _mean_of(lambda batch, small=small: -batch.p[batch.partner].clamp_min(small).log())
                    for small in SMALL
                ),
            ),
        ),
        Misconception(
            "exp overflows at a small temperature",
            "The formula is right, but exp(1 / 0.01) is larger than any float32 number. Take logsumexp of "
            "the logits, or the largest logit off all logits first: the shares stay the same.",
            _mean_of(_Batch.losses_by_exp),
            also=(
                _mean_of(
                    lambda batch: (
                        batch.logits.exp().masked_fill(batch.itself, 0).sum(dim=1).log()
                        - batch.logits[batch.partner]
                    )
                ),
            ),
        ),
        Misconception(
            "exp(1 / temperature) is subtracted",
            "The self-pair is added up and then taken off again. On paper that is right; at temperature 0.01 "
            "exp(1 / temperature) is so large that all digits of the other candidates are lost (or, in "
            "float32, that it is infinite). Leave the self-pair out of the sum from the start.",
            _mean_of(_itself_subtracted),
            rounding=True,
        ),
    ),
    guarantees=(
        "For 2 to 12 pairs, features of any length and temperatures from 0.002 to 5 your function is "
        "NT-Xent, in value and in gradient: it may stand wherever contrast.nt_xent stands."
    ),
    hints=(
        "Put the two views one below the other: 2N rows. Each row asks one question: which of the other "
        "rows is my partner?",
        "For row i: its partner is row (i + N) mod 2N; its candidates are all rows but i. The row's loss is "
        "-log(exp(s_partner / temperature) / sum of exp(s_k / temperature) over the candidates).",
        "Normalise the rows; loop over i; collect the logits of all k but i; the row's loss is their "
        "torch.logsumexp minus the partner's logit; the mean over 2N.",
    ),
    gradient=("view_a", "view_b"),
)

EXERCISES = (CANDIDATE_PROBABILITY, CANDIDATE_GRADIENT, NT_XENT_LOOP)
