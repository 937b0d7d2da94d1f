"""Notebook 09's exercises: right answers written differently pass, mistakes are named however written."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from course_utils.exercises import find
from course_utils.feedback import check


def headline(name, function):
    verdict = check(name, function)
    return verdict.status if verdict.status == "right" else verdict.headline


# SimSiam's loss


def by_loops(p_a, p_b, z_a, z_b):
    total = 0
    for p, z in ((p_a, z_b), (p_b, z_a)):
        for row, other in zip(p, z.detach(), strict=True):
            total = total - row @ other / (row.norm() * other.norm())
    return total / (2 * len(p_a))


def by_one_batch(p_a, p_b, z_a, z_b):
    p, z = F.normalize(torch.cat([p_a, p_b]), dim=1), F.normalize(torch.cat([z_b, z_a]), dim=1)
    return -(p * z.detach()).sum(dim=1).mean()


def by_squared_distances(p_a, p_b, z_a, z_b):
    with torch.no_grad():
        z = F.normalize(torch.cat([z_b, z_a]), dim=1)
    distance = (F.normalize(torch.cat([p_a, p_b]), dim=1) - z).square().sum(dim=1)
    return distance.mean() / 2 - 1


@pytest.mark.parametrize("function", [by_loops, by_one_batch, by_squared_distances])
def test_right_losses(function):
    assert headline("simsiam_loss", function) == "right"


def test_the_stop_gradient_has_to_be_there_and_on_the_right_side():
    def nothing_stopped(p_a, p_b, z_a, z_b):
        return -(F.cosine_similarity(p_a, z_b) + F.cosine_similarity(p_b, z_a)).mean() / 2

    def stopped_on_the_wrong_side(p_a, p_b, z_a, z_b):
        return nothing_stopped(p_a.detach(), p_b.detach(), z_a, z_b)

    def stopped_on_both(p_a, p_b, z_a, z_b):
        return nothing_stopped(p_a.detach(), p_b.detach(), z_a.detach(), z_b.detach())

    def stopped_in_one_direction(p_a, p_b, z_a, z_b):
        return nothing_stopped(p_a, p_b, z_a, z_b.detach())

    assert "gradient into z_a and z_b" in headline("simsiam_loss", nothing_stopped)
    assert "gradient into z_a." in headline("simsiam_loss", stopped_in_one_direction)
    for function in (stopped_on_the_wrong_side, stopped_on_both):
        assert "no gradient comes through" in headline("simsiam_loss", function)


def test_mistakes_of_the_loss_however_written():
    def own_view(p_a, p_b, z_a, z_b):
        return by_one_batch(p_a, p_b, z_b, z_a)

    def over_the_batch(p_a, p_b, z_a, z_b):
        p, z = F.normalize(p_a, dim=0), F.normalize(z_b, dim=0)
        q, y = F.normalize(p_b, dim=0), F.normalize(z_a, dim=0)
        return -0.5 * ((p * z).sum(0).mean() + (q * y).sum(0).mean())

    assert "each view predicts itself" in headline("simsiam_loss", own_view)
    assert "the cosine runs over the batch" in headline("simsiam_loss", over_the_batch)


# Where the linear toy ends


def by_integration(w0, p0, noise, step=2e-3, steps=40_000):
    """The flow itself, in small midpoint steps."""

    def slope(w, p):
        push = 1 - (1 + noise) * p
        return p * w * push, w * w * push

    w, p = w0, p0
    for _ in range(steps):
        dw, dp = slope(w, p)
        dw, dp = slope(w + step / 2 * dw, p + step / 2 * dp)
        w, p = w + step * dw, p + step * dp
    return w


@pytest.mark.parametrize("start", [(1.0, 0.0, 1.0), (0.3, 1.0, 1.0), (0.2, 0.9, 0.5), (2.0, 1.5, 0.1)])
def test_the_formula_is_where_the_flow_ends(start):
    assert by_integration(*start) == pytest.approx(find("final_weight").reference(*start).item(), abs=1e-3)


def with_python_numbers(w0, p0, noise):
    square = w0 * w0 - p0 * p0 + (1 / (1 + noise)) ** 2
    return math.sqrt(square) if square > 0 else 0.0


def with_numpy(w0, p0, noise):
    return torch.tensor(np.sqrt(np.clip(w0**2 - p0**2 + (1 + noise) ** -2, 0, None)))


@pytest.mark.parametrize("function", [with_python_numbers, with_numpy])
def test_right_weights(function):
    assert headline("final_weight", function) == "right"


def test_mistakes_of_the_weight_however_written():
    def nan_where_it_collapses(w0, p0, noise):
        return torch.tensor(w0**2 - p0**2 + (1 + noise) ** -2).sqrt()

    def no_noise(w0, p0, noise):
        return math.sqrt(max(w0**2 - p0**2 + 1, 0))

    assert "collapse gives NaN" in headline("final_weight", nan_where_it_collapses)
    assert "the noise is left out of p*" in headline("final_weight", no_noise)


# Barlow Twins' loss


def by_corrcoef(z_a, z_b, weight):
    width = z_a.shape[1]
    c = torch.corrcoef(torch.cat([z_a, z_b], dim=1).T)[:width, width:]
    eye = torch.eye(width, dtype=c.dtype)
    return ((c - eye).square() * (eye + weight * (1 - eye))).sum()


def by_cosines_of_columns(z_a, z_b, weight):
    loss = 0
    for i in range(z_a.shape[1]):
        for j in range(z_b.shape[1]):
            a, b = z_a[:, i] - z_a[:, i].mean(), z_b[:, j] - z_b[:, j].mean()
            cosine = F.cosine_similarity(a, b, dim=0)
            loss = loss + ((1 - cosine) ** 2 if i == j else weight * cosine**2)
    return loss


def as_in_the_authors_code(z_a, z_b, weight):
    a, b = (F.batch_norm(z, None, None, training=True, eps=1e-30) for z in (z_a, z_b))
    c = a.T @ b / len(a)
    on = torch.diagonal(c).add(-1).pow(2).sum()
    off = c.flatten()[:-1].view(len(c) - 1, len(c) + 1)[:, 1:].pow(2).sum()
    return on + weight * off


@pytest.mark.parametrize("function", [by_corrcoef, by_cosines_of_columns, as_in_the_authors_code])
def test_right_barlow_losses(function):
    assert headline("barlow_twins_loss", function) == "right"


def test_mistakes_of_barlow_s_loss_however_written():
    def wrong_std(z_a, z_b, weight):
        a, b = ((z - z.mean(0)) / z.std(0) for z in (z_a, z_b))
        c = torch.einsum("ni,nj->ij", a, b) / len(a)
        eye = torch.eye(len(c), dtype=c.dtype)
        return ((c - eye) ** 2 * torch.where(eye > 0, 1, weight)).sum()

    def of_pictures(z_a, z_b, weight):
        c = F.cosine_similarity(z_a[:, None], z_b[None], dim=2)
        eye = torch.eye(len(c), dtype=c.dtype)
        return ((c - eye) ** 2 * torch.where(eye > 0, 1, weight)).sum()

    def detached(z_a, z_b, weight):
        return by_corrcoef(z_a, z_b.detach(), weight)

    assert "divided by N and by N - 1" in headline("barlow_twins_loss", wrong_std)
    assert "pictures are compared" in headline("barlow_twins_loss", of_pictures)
    assert "the gradient that reaches z_b is not" in headline("barlow_twins_loss", detached)
