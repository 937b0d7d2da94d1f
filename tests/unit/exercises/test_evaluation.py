"""Notebook 08's exercises: answers written differently pass, leaks are called by their names."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import RidgeClassifier
from sklearn.preprocessing import StandardScaler

from course_utils.exercises import evaluation
from course_utils.exercises.evaluation import TICKET, model
from course_utils.feedback import check


def interval_by_scipy(accuracies):
    x = accuracies.double().numpy()
    return torch.tensor(stats.t.interval(0.95, len(x) - 1, loc=x.mean(), scale=stats.sem(x)))


def interval_by_hand(accuracies):
    n, mean = len(accuracies), sum(accuracies) / len(accuracies)
    spread = (sum((a - mean) ** 2 for a in accuracies) / (n - 1)) ** 0.5
    reach = float(stats.t.ppf(0.975, n - 1)) * spread / n**0.5
    return torch.stack([mean - reach, mean + reach])


@pytest.mark.parametrize("function", [interval_by_scipy, interval_by_hand])
def test_right_intervals(function):
    assert check("seed_interval", function).status == "right"


def two_standard_deviations(accuracies):
    return torch.stack([accuracies.mean() - 2 * accuracies.std(), accuracies.mean() + 2 * accuracies.std()])


def test_two_standard_deviations_are_no_interval_of_the_mean():
    verdict = check("seed_interval", two_standard_deviations)
    assert verdict.headline.startswith("Misconception: the spread of the seeds in place of their mean's.")


def readout_by_hand(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    scaler = StandardScaler().fit(train_x)
    best, best_accuracy = None, -1.0
    for penalty in penalties:
        fitted = RidgeClassifier(alpha=penalty).fit(scaler.transform(train_x), train_y)
        accuracy = (fitted.predict(scaler.transform(validation_x)) == validation_y.numpy()).mean()
        if accuracy > best_accuracy:
            best, best_accuracy = fitted, accuracy
    return torch.tensor((best.predict(scaler.transform(test_x)) == test_y.numpy()).mean())


def readout_refitted(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    scores = [model(p).fit(train_x, train_y).score(validation_x, validation_y) for p in penalties]
    chosen = penalties[int(np.argmax(scores))]
    x, y = torch.cat([train_x, validation_x]), torch.cat([train_y, validation_y])
    return model(chosen).fit(x, y).score(test_x, test_y)


@pytest.mark.parametrize("function", [readout_by_hand, readout_refitted])
def test_right_readouts(function):
    assert check("honest_readout", function).status == "right"


def scaled_all_at_once(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    everything = torch.cat([train_x, validation_x, test_x])
    mean, spread = everything.mean(dim=0), everything.std(dim=0, correction=0)
    train_x, validation_x, test_x = ((x - mean) / spread for x in (train_x, validation_x, test_x))
    fitted = [RidgeClassifier(alpha=penalty).fit(train_x, train_y) for penalty in penalties]
    return max(fitted, key=lambda one: one.score(validation_x, validation_y)).score(test_x, test_y)


def the_best_on_test(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    best = 0.0
    for penalty in penalties:
        best = max(best, model(penalty).fit(train_x, train_y).score(test_x, test_y))
    return best


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (scaled_all_at_once, "the scaler sees the test part"),
        (the_best_on_test, "the penalty is chosen on the test part"),
    ],
)
def test_a_leak_written_differently_has_its_name(function, name):
    verdict = check("honest_readout", function)
    assert verdict.status == "wrong" and verdict.headline.startswith(f"Misconception: {name}.")


def test_labels_that_say_nothing_cannot_be_read():
    case = evaluation.HONEST_READOUT.cases[-1].arguments
    drawn = torch.Generator().manual_seed(0)
    shuffled = {
        name: value[torch.randperm(len(value), generator=drawn)] if name.endswith("_y") else value
        for name, value in case.items()
    }
    assert evaluation.HONEST_READOUT.reference(*shuffled.values()) < 0.55


def test_the_right_ticket_is_right_and_every_mistake_on_it_is_called_by_its_name():
    assert check("course_ticket", TICKET.right).status == "right"
    wrong = {
        "the loss is the judge": ("whether the run was useful is said by", "the loss, which fell"),
        "no control": ("whether the run was useful is said by", "the readout of h alone"),
        "the gradient reaches the key network": (
            "changed by the gradient",
            ["query network", "key network"],
        ),
        "the EMA changes the query network": ("changed by the EMA", "query network"),
        "the encoder is trained during the readout": (
            "fitting the readout changes",
            ["readout", "query network"],
        ),
        "negatives counted in place of candidates": ("candidates of a query in MoCo", "Q"),
        "z is read where h is asked": ("the readout's input", "z"),
        "the test part chooses": ("the penalty is chosen on", "the test part"),
    }
    assert list(wrong) == [mistake.name for mistake in TICKET.misconceptions]
    for name, (question, answer) in wrong.items():
        verdict = check("course_ticket", {**TICKET.right, question: answer})
        assert verdict.headline.startswith(f"Misconception: {name}."), verdict
