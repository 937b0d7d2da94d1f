"""Notebook 03's exercises: answers written differently pass, and the numbers are those of the definitions."""

import statistics

import pytest
import torch

from course_utils.exercises import temperature
from course_utils.feedback import check


def by_autograd(similarities, positive, temperature):
    tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    loss = -(similarities.double() / tau).log_softmax(dim=0)[positive]
    return torch.autograd.grad(loss, tau)[0]


def by_gaps(similarities, positive, temperature):
    p = (similarities / temperature).softmax(dim=0)
    return (p * (similarities[positive] - similarities)).sum() / temperature / temperature


def in_a_loop(similarities, positive, temperature):
    weights = [torch.exp(s / temperature) for s in similarities]
    expected = sum(w / sum(weights) * s for w, s in zip(weights, similarities, strict=True))
    return (similarities[positive] - expected) * temperature**-2


@pytest.mark.parametrize("function", [by_autograd, by_gaps, in_a_loop])
def test_right_gradients(function):
    assert check("temperature_gradient", function).status == "right"


def test_the_gradients_of_the_table():
    s = torch.tensor([0.8, 0.4, 0.2], dtype=torch.float64)
    for tau, value in {1.0: 0.2692, 0.5: 0.8236, 0.2: 1.7721, 0.1: 0.8634, 0.07: 0.2914}.items():
        assert by_autograd(s, 0, tau).item() == pytest.approx(value, abs=5e-5)
        found = temperature.TEMPERATURE_GRADIENT.reference(s, 0, tau).item()
        assert found == pytest.approx(value, abs=5e-5)


def sweep_by_table(train_one, temperatures, seeds):
    table = torch.tensor([[train_one(tau, seed)[1] for tau in temperatures] for seed in seeds])
    return table.mean(dim=0)


def sweep_with_losses_aside(train_one, temperatures, seeds):
    means = []
    for tau in temperatures:
        losses, accuracies = zip(*(train_one(tau, seed) for seed in seeds), strict=True)
        means.append(sum(accuracies) / len(losses))
    return torch.tensor(means, dtype=torch.float64)


@pytest.mark.parametrize("function", [sweep_by_table, sweep_with_losses_aside])
def test_right_sweeps(function):
    assert check("temperature_sweep", function).status == "right"


def test_a_sweep_that_keeps_the_lowest_loss_is_told_so():
    def by_loss(train_one, temperatures, seeds):
        return torch.tensor([sum(train_one(t, s)[0] for s in seeds) / len(seeds) for t in temperatures])

    verdict = check("temperature_sweep", by_loss)
    assert verdict.headline.startswith("Misconception: the losses are compared.")
    assert "train_one = a stand-in for training" in verdict.lines[0]


@pytest.mark.parametrize(
    ("choose", "mistake"),
    [
        (lambda runs: min(runs)[1], "the seed with the lowest loss is kept"),
        (lambda runs: max(accuracy for _, accuracy in runs), "the best seed is kept"),
        (lambda runs: min(accuracy for _, accuracy in runs), "the worst seed is kept"),
        (lambda runs: statistics.median(accuracy for _, accuracy in runs), "the median seed is kept"),
        (lambda runs: min(runs)[0], "the losses are compared"),
        (lambda runs: runs[0][0], "the losses are compared"),
    ],
)
def test_a_sweep_that_keeps_one_run_is_told_which(choose, mistake):
    def function(train_one, temperatures, seeds):
        return torch.tensor([choose([train_one(tau, seed) for seed in seeds]) for tau in temperatures])

    assert check("temperature_sweep", function).headline.startswith(f"Misconception: {mistake}.")


def test_a_sweep_that_changes_its_lists_is_told_so_and_changes_no_other_check():
    def sorts(train_one, temperatures, seeds):
        temperatures.sort(reverse=True)
        return sweep_by_table(train_one, temperatures, seeds)

    def uses_up(train_one, temperatures, seeds):
        accuracies = [train_one(temperatures[0], seeds.pop())[1] for _ in range(len(seeds))]
        return torch.tensor([sum(accuracies) / len(accuracies)] * len(temperatures))

    for function, name in ((sorts, "temperatures"), (uses_up, "seeds")):
        for _ in range(2):  # the second check meets the lists as the first one did
            verdict = check("temperature_sweep", function)
            assert verdict.status == "wrong" and f"changes its input {name} in place" in verdict.headline
    assert check("temperature_sweep", sweep_by_table).status == "right"


def test_the_stand_ins_do_what_training_does():
    """The lowest loss is at the lowest temperature, the best readout is not."""
    for case in temperature.TEMPERATURE_SWEEP.cases[1:]:
        train_one, temperatures, seeds = case.arguments.values()
        results = {tau: [train_one(tau, seed) for seed in seeds] for tau in temperatures}
        loss = {tau: sum(loss for loss, _ in runs) for tau, runs in results.items()}
        accuracy = {tau: sum(accuracy for _, accuracy in runs) for tau, runs in results.items()}
        assert min(loss, key=loss.get) == min(temperatures)
        assert max(accuracy, key=accuracy.get) == train_one.best
