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


@pytest.mark.parametrize(
    "function",
    [information_in_a_loop, information_by_nansum, information_by_xlogy],
    ids=lambda function: function.__name__,
)
def test_right_information(function):
    assert check("mutual_information", function).status == "right"


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
