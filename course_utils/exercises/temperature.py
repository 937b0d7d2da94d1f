"""Notebook 03: how the loss changes with the temperature, and a sweep over it."""

import math
from dataclasses import dataclass

import torch

from course_utils.exercises.exercise import Case, Exercise, Misconception

# dL/dtemperature of one comparison


def _expected(similarities, temperature):
    """The mean similarity, each candidate weighing what its probability is."""
    return ((similarities / temperature).softmax(dim=0) * similarities).sum()


def _temperature_gradient(similarities, positive, temperature):
    return (similarities[positive] - _expected(similarities, temperature)) / temperature**2


def _against(mean):
    """(s+ - mean) / temperature squared, with mean(similarities, positive, temperature)."""
    return lambda similarities, positive, temperature: (
        (similarities[positive] - mean(similarities, positive, temperature)) / temperature**2
    )


def _times(factor):
    """The right gradient times factor(temperature)."""
    return lambda similarities, positive, temperature: (
        factor(temperature) * _temperature_gradient(similarities, positive, temperature)
    )


def _over_negatives(similarities, positive, temperature, shared_out=True):
    negatives = torch.arange(len(similarities)) != positive
    p = (similarities / temperature).softmax(dim=0)[negatives]
    total = (p * similarities[negatives]).sum()
    return total / p.sum() if shared_out else total


def _tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


TEMPERATURE_GRADIENT = Exercise(
    name="temperature_gradient",
    reference=_temperature_gradient,
    cases=tuple(
        Case({"similarities": similarities, "positive": positive, "temperature": temperature})
        for similarities, positive, temperature in [
            (_tensor(0.8, 0.4), 0, 1.0),
            (_tensor(0.8, 0.4), 0, 0.5),
            (_tensor(0.8, 0.4), 1, 0.5),
            (_tensor(-0.1, 0.4, -0.6), 2, 0.2),
            (_tensor(0.4, 0.3, 0.2), 1, 0.07),
            (_tensor(0.5, 0.5, 0.5), 1, 0.1),
            (_tensor(0.3, -0.5, 0.9, 0.1).float(), 3, 0.7),
            (_tensor(0.2, -0.7, 0.6, 0.1, -0.3, 0.9, 0.0, 0.4, -1.0), 6, 0.3),
            (_tensor(0.9, 0.7, 0.1, -0.8, 0.5, 0.6), 0, 5.0),
        ]
    ),
    misconceptions=(
        Misconception(
            "the sign is turned round",
            "These numbers say how the loss changes as the temperature falls; a derivative says it for a "
            "rising one. A leading positive loses when the temperature rises: there dL/dtemperature is above "
            "zero.",
            _times(lambda temperature: -1),
        ),
        Misconception(
            "divided by the temperature once only",
            "This is the derivative with respect to the logarithm of the temperature. A logit is "
            "similarity / temperature, and the derivative of 1 / temperature is -1 / temperature squared.",
            _times(lambda temperature: temperature),
        ),
        Misconception(
            "not divided by the temperature",
            "s+ minus the expected similarity decides the sign. Its size is divided by the temperature "
            "squared, the derivative of 1 / temperature.",
            _times(lambda temperature: temperature**2),
        ),
        Misconception(
            "the derivative with respect to 1 / temperature",
            "That is the factor by which similarities are multiplied. The question is about the temperature: "
            "the chain rule brings a factor of -1 / temperature squared.",
            _times(lambda temperature: -(temperature**2)),
        ),
        Misconception(
            "the derivative with respect to log(1 / temperature)",
            "That is what CLIP learns, the logarithm of the logit scale. The question is about the "
            "temperature: the chain rule brings a factor of -1 / temperature.",
            _times(lambda temperature: -temperature),
        ),
        Misconception(
            "logits in place of similarities",
            "The temperature is divided by three times. Similarities are compared, s+ and those in the "
            "expectation; logits are divided by the temperature already.",
            _times(lambda temperature: 1 / temperature),
        ),
        Misconception(
            "only one of the two terms is divided twice",
            "The loss has two terms, -s+ / temperature and the logarithm of the sum. Both hold the "
            "temperature in a quotient, so both derivatives are divided by its square.",
            lambda similarities, positive, temperature: (
                similarities[positive] / temperature**2 - _expected(similarities, temperature) / temperature
            ),
        ),
        Misconception(
            "s+ weighs with its probability",
            "In front of the expectation s+ stands whole: it comes from the term -s+ / temperature, in which "
            "there is no probability.",
            lambda similarities, positive, temperature: (
                _over_negatives(similarities, positive, temperature, False) / -(temperature**2)
            ),
        ),
        Misconception(
            "all candidates weigh the same",
            "s+ is compared with the plain mean of the similarities. Each candidate weighs what its "
            "probability is.",
            _against(lambda similarities, positive, temperature: similarities.mean()),
        ),
        Misconception(
            "the expectation runs over the negatives only",
            "The positive is one of the candidates, and the logarithm of the sum over all of them is what is "
            "differentiated: its similarity counts in the expectation too.",
            _against(_over_negatives),
            also=(
                _against(lambda s, positive, temperature: _over_negatives(s, positive, temperature, False)),
            ),
        ),
        Misconception(
            "the temperature is missing in the softmax",
            "The probabilities are those of temperature 1: softmax is taken over similarity / temperature.",
            _against(lambda similarities, positive, temperature: _expected(similarities, 1.0)),
        ),
        Misconception(
            "the positive is always taken to be candidate 0",
            "The argument `positive` says which candidate is the partner.",
            lambda similarities, positive, temperature: _temperature_gradient(similarities, 0, temperature),
        ),
        Misconception(
            "the most similar candidate is taken to be the positive",
            "The positive is the partner, however similar it is. The argument `positive` says which one.",
            lambda similarities, positive, temperature: _temperature_gradient(
                similarities, int(similarities.argmax()), temperature
            ),
        ),
    ),
    guarantees=(
        "Its sign is that of s+ minus the expected similarity, wherever the positive stands: a lower "
        "temperature lowers the loss of a comparison exactly where the positive is above that expectation."
    ),
    hints=(
        "Write the loss as -s+/temperature plus the logarithm of the sum of exp(s/temperature). "
        "Differentiate each term with respect to the temperature.",
        "The first term gives s+ / temperature squared. The second gives minus the mean of all similarities, "
        "each weighted with its probability, divided by the temperature squared.",
        "dL/dtemperature = (s+ - sum of p_j s_j) / temperature squared, p the softmax over all candidates.",
    ),
)


# A sweep


@dataclass(frozen=True)
class StandIn:
    """Stands in for training: (temperature, seed) -> (final loss, accuracy of the readout), at once.

    As in earnest, a low temperature gives a low loss and no better readout, seeds differ, and the seed with
    the lowest loss need not have the best readout.
    """

    name: str
    best: float  # the temperature with the best readout

    def __call__(self, temperature, seed):
        angle = 12.9898 * seed + 78.233 * temperature
        accuracy = 0.5 + 0.2 * math.exp(-(math.log10(temperature / self.best) ** 2)) + 0.03 * math.sin(angle)
        return 0.1 + 2 * temperature + 0.04 * math.cos(2 * angle), accuracy


def _temperature_sweep(train_one, temperatures, seeds):
    return torch.stack([_accuracies(train_one, temperature, seeds).mean() for temperature in temperatures])


def _accuracies(train_one, temperature, seeds):
    return _tensor(*(train_one(temperature, seed)[1] for seed in seeds))


def _of_losses(summary):
    """summary of the seeds' losses, for every temperature."""
    return lambda train_one, temperatures, seeds: torch.stack(
        [
            summary(_tensor(*(train_one(temperature, seed)[0] for seed in seeds)))
            for temperature in temperatures
        ]
    )


def _at_lowest_loss(train_one, temperatures, seeds):
    return _tensor(*(min(train_one(temperature, seed) for seed in seeds)[1] for temperature in temperatures))


def _never_emptied(train_one, temperatures, seeds):
    rows = torch.stack([_accuracies(train_one, temperature, seeds) for temperature in temperatures])
    return torch.stack([rows[: place + 1].mean() for place in range(len(rows))])


def _of_accuracies(summary):
    """summary of the seeds' accuracies, for every temperature."""
    return lambda train_one, temperatures, seeds: torch.stack(
        [summary(_accuracies(train_one, temperature, seeds)) for temperature in temperatures]
    )


def _own_seeds(first):
    """Seeds counted through all runs, from first(seeds)."""

    def function(train_one, temperatures, seeds):
        count = len(seeds)
        starts = [first(seeds) + count * place for place in range(len(temperatures))]
        return torch.stack(
            [
                _accuracies(train_one, temperature, range(start, start + count)).mean()
                for temperature, start in zip(temperatures, starts, strict=True)
            ]
        )

    return function


def _swapped(train_one, temperatures, seeds):
    # A seed of 0 is no temperature: training would stop there, and so does the stand-in.
    return _temperature_sweep(lambda temperature, seed: train_one(seed, temperature), temperatures, seeds)


TEMPERATURE_SWEEP = Exercise(
    name="temperature_sweep",
    reference=_temperature_sweep,
    cases=tuple(
        Case({"train_one": StandIn(name, best), "temperatures": temperatures, "seeds": seeds})
        for name, best, temperatures, seeds in [
            ("a stand-in for training", 0.1, [0.1, 1.0], [3, 4]),
            ("a stand-in for training", 0.1, [0.01, 0.1, 0.5, 1.0], [1, 2, 3]),
            ("another stand-in", 0.5, [1.0, 0.05, 0.5], [7, 5, 9, 2]),
        ]
    ),
    misconceptions=(
        Misconception(
            "the losses are compared",
            "These are final losses. Each temperature measures with a scale of its own: a lower loss at a "
            "lower temperature says nothing about the encoder. Return the readout's accuracy, the second "
            "number that train_one gives.",
            _of_losses(torch.mean),
            also=(
                _of_losses(lambda values: values[0]),
                _of_losses(lambda values: values[-1]),
                _of_losses(torch.min),
                _of_losses(torch.sum),
                _of_losses(lambda values: -values.mean()),
            ),
        ),
        Misconception(
            "the seed with the lowest loss is kept",
            "At one temperature losses may be compared, but a lower loss promises no better readout, and one "
            "run is one run. Take the mean over all seeds.",
            _at_lowest_loss,
        ),
        Misconception(
            "one seed only",
            "The other seeds were not used. One run tells a temperature from a lucky start as little as one "
            "throw tells a coin's bias: take the mean over all seeds.",
            _of_accuracies(lambda values: values[0]),
            also=(_of_accuracies(lambda values: values[-1]),),
        ),
        Misconception(
            "the best seed is kept",
            "The largest accuracy of several seeds rewards luck, and the more so the more they differ. Take "
            "the mean.",
            _of_accuracies(torch.max),
        ),
        Misconception(
            "the worst seed is kept",
            "The smallest accuracy of several seeds is as much a matter of luck as the largest. Take the "
            "mean.",
            _of_accuracies(torch.min),
        ),
        Misconception(
            "the median seed is kept",
            "The median looks at one or two of the seeds only, and with so few that throws most of the "
            "measurements away. Take the mean.",
            _of_accuracies(torch.median),
            also=(_of_accuracies(lambda values: values.quantile(0.5)),),
        ),
        Misconception(
            "the runs of earlier temperatures are still in the mean",
            "The list of accuracies is not emptied before the next temperature. Begin a new one inside the "
            "loop over the temperatures.",
            _never_emptied,
        ),
        Misconception(
            "every temperature gets other seeds",
            "Then temperatures differ in start weights, order and views as well. Use the same seeds for "
            "each: what is left between two temperatures is then due to them.",
            _own_seeds(lambda seeds: seeds[0]),
            also=(_own_seeds(lambda seeds: 0), _own_seeds(lambda seeds: 1)),
        ),
        Misconception(
            "the seeds that were given are not used",
            "These are the results of seeds 0, 1, ... Use those in `seeds`.",
            lambda train_one, temperatures, seeds: _temperature_sweep(
                train_one, temperatures, range(len(seeds))
            ),
            also=(
                lambda train_one, temperatures, seeds: _temperature_sweep(
                    train_one, temperatures, range(1, len(seeds) + 1)
                ),
            ),
        ),
        Misconception(
            "summed and not averaged",
            "The accuracies of the seeds are added up. Divide by the number of seeds.",
            _of_accuracies(torch.sum),
        ),
        Misconception(
            "temperature and seed are swapped",
            "train_one takes the temperature first, then the seed.",
            _swapped,
        ),
        Misconception(
            "sorted on the way",
            "The results are in the order of the sorted temperatures. Keep the order in which they were "
            "given.",
            lambda train_one, temperatures, seeds: _temperature_sweep(train_one, sorted(temperatures), seeds),
        ),
    ),
    guarantees=(
        "Every temperature is trained from the same seeds and judged by the mean accuracy of its readout, in "
        "the order given; no loss is compared with the loss of another temperature."
    ),
    hints=(
        "What has to be the same for all temperatures, and which of the two numbers may be compared?",
        "Two loops: over the temperatures, and inside over the seeds. Keep the second number of each run.",
        "For each temperature: the mean of [train_one(temperature, seed)[1] for seed in seeds]. Then "
        "torch.tensor of all of them.",
    ),
)

EXERCISES = (TEMPERATURE_GRADIENT, TEMPERATURE_SWEEP)
