"""Notebook 07: mutual information of a table, and the bound that InfoNCE gives."""

import math

import torch
from torch.nn.functional import cross_entropy

from course_utils.exercises.exercise import Case, Exercise, Misconception


def _ratio(joint):
    """joint [A, B] -> p(x, y) / (p(x) p(y)), 1 where a row or a column never comes."""
    by_chance = joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True)
    return torch.where(by_chance > 0, joint / by_chance.where(by_chance > 0, 1), 1)


def _mutual_information(joint):
    ratio = _ratio(joint)
    return (joint * ratio.where(ratio > 0, 1).log()).sum()


def _entropy(p):
    return torch.special.entr(p).sum()


def _by_entropies(joint):
    return _entropy(joint.sum(dim=1)) + _entropy(joint.sum(dim=0)) - _entropy(joint)


def _tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def _table(rows, columns, seed):
    drawn = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.square() / drawn.square().sum()


MUTUAL_INFORMATION = Exercise(
    name="mutual_information",
    reference=_mutual_information,
    cases=tuple(
        Case({"joint": joint}, tolerance)
        for joint, tolerance in [
            (_tensor([0.4, 0.1], [0.1, 0.4]), None),
            (_tensor([0.1, 0.3], [0.4, 0.2]), None),
            (
                _tensor([0.06, 0.14], [0.24, 0.56]),
                1e-9,
            ),  # independent; a guard such as 1e-12 in the log may stay
            (_tensor([0.5, 0.0], [0.0, 0.5]), None),
            (_tensor([0.2, 0.0, 0.1], [0.0, 0.6, 0.1]), None),
            (_table(3, 5, seed=1), None),
            (_table(6, 2, seed=2).float(), None),
        ]
    ),
    misconceptions=(
        Misconception(
            "a cell of zero gives NaN",
            "The formula is right, but 0 * log 0 is NaN on a computer. A pair that never comes adds "
            "nothing: leave its cell out, or put 1 into the logarithm there.",
            lambda joint: (
                joint * (joint / (joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True))).log()
            ).sum(),
            also=(
                lambda joint: (
                    joint
                    * (
                        joint.log()
                        - joint.sum(dim=1, keepdim=True).log()
                        - joint.sum(dim=0, keepdim=True).log()
                    )
                ).sum(),
            ),
            rounding=True,
        ),
        Misconception(
            "counted in bits",
            "The logarithm has base 2. Losses, and so their bounds, are in nats here: take the natural "
            "logarithm.",
            lambda joint: _mutual_information(joint) / math.log(2),
            also=(lambda joint: _by_entropies(joint) / math.log(2),),
        ),
        Misconception(
            "the logarithms are not weighted",
            "Each cell's log ratio counts as often as the cell comes: multiply it by its probability before "
            "you add.",
            lambda joint: _ratio(joint).clamp_min(1e-300).log().mean(),
            also=(lambda joint: _ratio(joint).log().mean(), lambda joint: _ratio(joint).log().sum()),
        ),
        Misconception(
            "weighted by chance, not by the joint table",
            "The average runs over pairs as they come, p(x, y), not over pairs thrown together, p(x) p(y).",
            lambda joint: (
                joint.sum(dim=1, keepdim=True) * joint.sum(dim=0, keepdim=True) * _ratio(joint).log()
            ).sum(),
            also=(
                lambda joint: (
                    torch.outer(joint.sum(dim=1), joint.sum(dim=0))
                    * _ratio(joint).where(joint > 0, torch.ones_like(joint)).log()
                ).sum(),
            ),
        ),
        Misconception(
            "the entropy of the table",
            "This is the entropy of the joint table, -sum of p log p. Compare p(x, y) with "
            "p(x) p(y), what it would be if the two were independent.",
            _entropy,
            also=(lambda joint: -_entropy(joint),),
        ),
        Misconception(
            "one marginal is left out",
            "p(x, y) is divided by one of the two marginals alone; that gives a conditional entropy. "
            "Divide by p(x) p(y).",
            lambda joint: _entropy(joint) - _entropy(joint.sum(dim=1)),
            also=(
                lambda joint: _entropy(joint) - _entropy(joint.sum(dim=0)),
                lambda joint: _entropy(joint.sum(dim=1)) - _entropy(joint),
                lambda joint: _entropy(joint.sum(dim=0)) - _entropy(joint),
            ),
        ),
        Misconception(
            "the sign is turned round",
            "Mutual information is never below zero. The ratio is p(x, y) / (p(x) p(y)), not the other way "
            "up.",
            lambda joint: -_mutual_information(joint),
        ),
    ),
    guarantees=(
        "For tables of 2 to 6 rows and columns, with and without cells of zero, your function gives the "
        "mutual information in nats; it is zero for independent tables."
    ),
    hints=(
        "How much more often does a pair come than it would by chance? By chance it would come p(x) p(y) "
        "often.",
        "Average the logarithm of p(x, y) / (p(x) p(y)) over the pairs as they come: each cell's logarithm "
        "times the cell's probability, all added up. A cell of zero adds nothing.",
        "rows = joint.sum(dim=1, keepdim=True); columns = joint.sum(dim=0, keepdim=True); ratio = joint / "
        "(rows * columns); then sum joint * log(ratio) over the cells where joint > 0.",
    ),
    also_right=(_by_entropies,),
)


def _loss(scores):
    return cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))


def _bound(scores):
    return math.log(scores.shape[1]) - _loss(scores)


def _free(scores):
    """The loss with the positive left out of the denominator."""
    return (scores[:, 1:].logsumexp(dim=1) - scores[:, 0]).mean()


def _scores(runs, candidates, seed, spread=1.0, lead=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(runs, candidates, generator=generator, dtype=torch.float64) * spread
    scores[:, 0] += lead
    return scores.round(decimals=2).to(dtype)


INFORMATION_BOUND = Exercise(
    name="information_bound",
    reference=_bound,
    cases=tuple(
        Case({"scores": scores})
        for scores in [
            _tensor([1.0, 0.0]),
            _tensor([1.0, 0.0], [-0.5, 0.5]),
            _tensor([2.0, 0.0, -1.0], [0.0, 1.0, 1.0]),
            _scores(4, 8, seed=1),
            _scores(5, 3, seed=2, spread=400.0),
            _scores(6, 5, seed=3, lead=-2.0).float(),
        ]
    ),
    misconceptions=(
        Misconception(
            "K counted instead of K + 1",
            "The positive is a candidate too: with K negatives the bound is log(K + 1) - L. Your form is a "
            "bound as well, but a weaker one; with a single negative it is never above zero.",
            lambda scores: math.log(scores.shape[1] - 1) - _loss(scores),
        ),
        Misconception(
            "the positive is left out of the denominator",
            "The sum below the line runs over the negatives only. What comes out is no bound from below any "
            "more: it can lie above the information.",
            lambda scores: math.log(scores.shape[1]) - _free(scores),
            also=(
                lambda scores: math.log(scores.shape[1] - 1) - _free(scores),
                lambda scores: -_free(scores),
            ),
        ),
        Misconception(
            "the loss instead of the bound",
            "This is the loss L. The bound is log(number of candidates) - L.",
            _loss,
        ),
        Misconception(
            "log N is forgotten",
            "This is -L, the mean log probability. A guess without any information has L = log N, so the "
            "bound is log N - L.",
            lambda scores: -_loss(scores),
        ),
        Misconception(
            "the sign is turned round",
            "This is L - log N. Information makes the loss smaller: log N - L.",
            lambda scores: -_bound(scores),
        ),
        Misconception(
            "added up over the comparisons",
            "The sum grows with the number of comparisons. L is their mean.",
            lambda scores: (math.log(scores.shape[1]) + scores.log_softmax(dim=1)[:, 0]).sum(),
            also=(lambda scores: math.log(scores.shape[1]) - _loss(scores) * len(scores),),
        ),
        Misconception(
            "the logarithm of the mean probability",
            "The probabilities are averaged first, then the logarithm is taken. The loss is the mean of the "
            "logarithms; the other order hides the comparisons that went wrong.",
            lambda scores: math.log(scores.shape[1]) + scores.softmax(dim=1)[:, 0].mean().log(),
        ),
        Misconception(
            "softmax over the comparisons",
            "The probabilities are taken down the columns. Each row is one comparison: its candidates stand "
            "side by side.",
            lambda scores: math.log(scores.shape[1]) + scores.log_softmax(dim=0)[:, 0].mean(),
        ),
        Misconception(
            "exp overflows",
            "The formula is right, but exp of a large score is larger than any number the computer has. Take "
            "log_softmax or cross_entropy of the scores.",
            lambda scores: (
                math.log(scores.shape[1]) + (scores[:, 0].exp() / scores.exp().sum(dim=1)).log().mean()
            ),
            rounding=True,
        ),
    ),
    guarantees=(
        "For 2 to 8 candidates and scores of any size your function gives log N - L in nats, and a gradient "
        "flows back to the scores: with it you can train a critic."
    ),
    hints=(
        "What does somebody pay who has no idea which of the N candidates is the partner?",
        "A guess costs log N. The bound is what your scores save on average: log N - L, and L is the mean "
        "over the rows of -log softmax(row)[0].",
        "labels = torch.zeros(len(scores), dtype=torch.long), then math.log(scores.shape[1]) - "
        "F.cross_entropy(scores, labels).",
    ),
    gradient=("scores",),
)

EXERCISES = (MUTUAL_INFORMATION, INFORMATION_BOUND)
