"""Notebook 04's exercises: right answers written differently pass, mistakes are named however written."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from course_utils.feedback import check


def headline(name, function):
    verdict = check(name, function)
    return verdict.status if verdict.status == "right" else verdict.headline


# The gradient through a head


def by_jacobians(h, first, second, gradient_z):
    rows = []
    for row, gradient in zip(h, gradient_z, strict=True):
        slope = torch.diag((first @ row > 0).to(h.dtype))
        rows.append(gradient @ (second @ slope @ first))
    return torch.stack(rows)


def by_einsum(h, first, second, gradient_z):
    passes = torch.heaviside(torch.einsum("bd,kd->bk", h, first), torch.zeros((), dtype=h.dtype))
    return torch.einsum("bm,mk,bk,kd->bd", gradient_z, second, passes, first)


def by_torch(h, first, second, gradient_z):
    h = h.detach().requires_grad_()
    (torch.relu(h @ first.T) @ second.T).backward(gradient_z)
    return h.grad


@pytest.mark.parametrize("function", [by_jacobians, by_einsum, by_torch])
def test_right_gradients(function):
    assert headline("head_gradient", function) == "right"


def test_a_stop_gradient_is_named():
    def stopped(h, first, second, gradient_z):
        return h * 0

    def mean_of_the_batch(h, first, second, gradient_z):
        return by_torch(h, first, second, gradient_z / len(gradient_z))

    def masked_late(h, first, second, gradient_z):
        return torch.where(gradient_z @ second > 0, gradient_z @ second, 0) @ first

    assert "nothing passes the head" in headline("head_gradient", stopped)
    assert "divided by the batch" in headline("head_gradient", mean_of_the_batch)
    assert "the ReLU is applied to the gradient" in headline("head_gradient", masked_late)


# The scale of a readout


def by_scikit_learn(features, test_features):
    scaler = StandardScaler().fit(features.double().numpy())
    return tuple(torch.from_numpy(scaler.transform(x.double().numpy())) for x in (features, test_features))


def column_by_column(features, test_features):
    out = torch.zeros_like(features), torch.zeros_like(test_features)
    for column in range(features.shape[1]):
        values = features[:, column]
        mean, spread = values.mean(), values.std()
        for target, source in zip(out, (features, test_features), strict=True):
            target[:, column] = (source[:, column] - mean) / (spread if spread > 0 else 1)
    return out


def as_a_list(features, test_features):
    mean = features.mean(0)
    spread = ((features - mean) ** 2).mean(0).sqrt()
    spread[spread == 0] = 1
    return [(features - mean) / spread, (test_features - mean) / spread]


@pytest.mark.parametrize("function", [by_scikit_learn, column_by_column, as_a_list])
def test_right_scales(function):
    assert headline("scale_for_readout", function) == "right"


def test_a_leak_is_named_however_it_is_written():
    def fit_transform_twice(features, test_features):
        return tuple(
            torch.from_numpy(StandardScaler().fit_transform(x.double().numpy()))
            for x in (features, test_features)
        )

    def fitted_on_everything(features, test_features):
        both = np.concatenate([features.double().numpy(), test_features.double().numpy()])
        scaler = StandardScaler().fit(both)
        return tuple(
            torch.from_numpy(scaler.transform(x.double().numpy())) for x in (features, test_features)
        )

    def without_a_guard(features, test_features):
        mean, spread = features.mean(0), features.std(0)
        return (features - mean) / spread, (test_features - mean) / spread

    assert "each part with its own mean and spread" in headline("scale_for_readout", fit_transform_twice)
    assert "fitted on both parts together" in headline("scale_for_readout", fitted_on_everything)
    assert "a silent feature gives NaN" in headline("scale_for_readout", without_a_guard)
