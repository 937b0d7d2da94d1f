"""Notebook 07's exercises: answers written differently pass, and the numbers are those of the definitions."""

import math

import pytest
import torch

from course_utils.exercises import mutual_information
from course_utils.feedback import check


def information_in_a_loop(joint):
    total = 0.0
    for i, row in enumerate(joint):
        for j, p in enumerate(row):
            if p > 0:
                total = total + p * torch.log(p / (joint[i].sum() * joint[:, j].sum()))
    return total


def information_by_nansum(joint):
    ratio = joint / (joint.sum(1, keepdim=True) @ joint.sum(0, keepdim=True))
    return torch.nansum(joint * torch.log(ratio))


def information_by_xlogy(joint):
    rows, columns = joint.sum(1), joint.sum(0)
    return torch.xlogy(joint, joint / torch.outer(rows, columns)).sum()


def information_with_a_guard(joint):
    ratio = joint / torch.outer(joint.sum(1), joint.sum(0))
    return (joint * torch.log(ratio + 1e-12)).sum()


@pytest.mark.parametrize(
    "function",
    [information_in_a_loop, information_by_nansum, information_by_xlogy, information_with_a_guard],
    ids=lambda function: function.__name__,
)
def test_right_information(function):
    assert check("mutual_information", function).status == "right"


def weighted_by_chance_where_pairs_come(joint):
    by_chance = torch.outer(joint.sum(1), joint.sum(0))
    return by_chance[joint > 0].dot((joint / by_chance)[joint > 0].log())


def test_a_mistake_with_information_written_differently():
    verdict = check("mutual_information", weighted_by_chance_where_pairs_come)
    assert verdict.headline.startswith("Misconception: weighted by chance, not by the joint table.")


def test_a_guard_that_shows_is_wrong():
    verdict = check("mutual_information", lambda joint: information_by_nansum(joint + 1e-6))
    assert verdict.status == "wrong"


def test_two_fair_coins_that_always_agree_share_log_2():
    joint = torch.tensor([[0.5, 0.0], [0.0, 0.5]], dtype=torch.float64)
    assert mutual_information.MUTUAL_INFORMATION.reference(joint).item() == pytest.approx(math.log(2), 1e-12)


def bound_in_a_loop(scores):
    losses = [torch.logsumexp(row, dim=0) - row[0] for row in scores]
    return math.log(len(scores[0])) - torch.stack(losses).mean()


def bound_against_the_mean_weight(scores):
    mean_weight = scores.logsumexp(dim=1) - torch.log(torch.tensor(float(scores.shape[1])))
    return (scores[:, 0] - mean_weight).mean()


@pytest.mark.parametrize(
    "function", [bound_in_a_loop, bound_against_the_mean_weight], ids=lambda function: function.__name__
)
def test_right_bounds(function):
    assert check("information_bound", function).status == "right"


def test_a_bound_that_is_cut_off_its_scores_trains_no_critic():
    verdict = check("information_bound", lambda scores: bound_in_a_loop(scores.detach()))
    assert verdict.status == "wrong" and "detached" in str(verdict)
