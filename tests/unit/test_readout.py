"""Features come from a network that stays as it was, and no classifier sees the test part."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from course_utils import readout
from course_utils.networks import SmallEncoder, fingerprint
from course_utils.readout import Split, features, interval, knn, linear, pixels, prediction


def pictures(count, seed=0):
    return torch.randint(
        256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def clouds(count, seed, distance=3.0, classes=3):
    """Points around as many corners as there are classes, one unit of noise."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    points = distance * nn.functional.one_hot(labels, classes)[:, -5:].float()
    points = nn.functional.pad(points, (0, 5 - points.shape[1]))
    return points + torch.randn(count, 5, generator=draws), labels


# features


def test_features_are_those_of_evaluation_mode_whatever_the_batch():
    encoder = SmallEncoder()
    encoder(torch.rand(8, 3, 16, 16))  # running statistics that differ from a batch's own
    encoder.train()
    images = pictures(7)
    whole = features(encoder, images)
    one_by_one = torch.cat([features(encoder, images[k : k + 1]) for k in range(7)])
    torch.testing.assert_close(features(encoder, images, batch=3), whole)
    torch.testing.assert_close(one_by_one, whole)
    torch.testing.assert_close(whole, encoder.eval()(images / 255).detach())
    assert whole.shape == (7, 128) and whole.dtype == torch.float32 and not whole.requires_grad


def test_features_leave_weights_buffers_and_modes_as_they_were():
    encoder = SmallEncoder()
    encoder[1].eval()  # one part frozen, the rest training
    modes = [module.training for module in encoder.modules()]
    before = fingerprint(encoder)
    features(encoder, pictures(4))
    assert fingerprint(encoder) == before
    assert [module.training for module in encoder.modules()] == modes
    assert all(p.grad is None for p in encoder.parameters())


def test_a_network_that_changes_while_it_is_read_is_found_out():
    class Learns(nn.Flatten):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, images):
            self.seen += len(images)
            return super().forward(images)

    network = Learns()
    with pytest.raises(RuntimeError, match="it is not frozen"):
        features(network, pictures(2))
    assert network.training


def test_raw_pixels_are_the_picture_itself():
    images = pictures(3)
    rows = pixels(images)
    assert rows.shape == (3, 3 * 16 * 16)
    assert torch.equal((rows * 255).round().to(torch.uint8).view_as(images), images)


# linear


def test_separate_classes_are_told_apart_and_noise_is_not():
    split = Split(*clouds(300, 0, distance=8.0), *clouds(300, 1, distance=8.0))
    assert linear(split) == 1 and knn(split) == 1
    noise = Split(*clouds(300, 0, distance=0.0), *clouds(300, 1, distance=0.0))
    chance, se = 1 / 3, math.sqrt(1 / 3 * 2 / 3 / 300)
    assert abs(linear(noise) - chance) < 4 * se and abs(knn(noise) - chance) < 4 * se


def test_the_scaler_sees_the_training_part_alone():
    """A scaler that saw the test part would be squeezed by one row far away; this one must not care."""
    train, test = clouds(200, 0), clouds(60, 1)
    alone = linear(Split(*train, *test))
    outlier = (
        torch.cat([test[0], torch.full((1, 5), 1e6)]),
        torch.cat([test[1], torch.zeros(1, dtype=torch.int64)]),
    )
    right = linear(Split(*train, *outlier)) * 61
    assert round(right) - round(alone * 60) in (0, 1)

    fitted = readout.classifier(1e-4, 200).fit(train[0].numpy(), train[1].numpy())
    np.testing.assert_allclose(fitted[0].mean_, train[0].double().mean(0), rtol=1e-5)
    one_by_one = np.concatenate([fitted.predict(row[None]) for row in test[0].numpy()])
    assert (one_by_one == test[1].numpy()).mean() == pytest.approx(alone)


def test_the_linear_readout_does_not_care_about_units():
    train, test = clouds(200, 0), clouds(200, 1)
    units = torch.tensor([1e-3, 1.0, 1e3, 5.0, 0.2])
    assert linear(Split(*train, *test)) == linear(Split(train[0] * units, train[1], test[0] * units, test[1]))


def test_the_penalty_is_the_weight_of_the_squared_length_beside_the_mean_loss():
    """At the optimum the gradient of mean loss + penalty * |w|^2 vanishes, computed here by autograd."""
    x, y = clouds(150, 0)
    fitted = readout.classifier(0.01, len(x)).fit(x.numpy(), y.numpy())
    scaled = torch.from_numpy(fitted[0].transform(x.numpy())).double()
    w = torch.from_numpy(fitted[1].coef_).double().requires_grad_()
    b = torch.from_numpy(fitted[1].intercept_).double()
    loss = nn.functional.cross_entropy(scaled @ w.T + b, y) + 0.01 * w.square().sum()
    (gradient,) = torch.autograd.grad(loss, w)
    assert gradient.abs().max() < 1e-3  # the solver stops at a gradient of 1e-4 of the summed loss


def test_a_penalty_is_chosen_without_the_test_part(monkeypatch):
    train, test = clouds(200, 0, classes=10), clouds(100, 1, classes=10)
    # One in ten is of class 1: the largest penalties answer 0 always, and the test part says 1 always.
    train, test = (train[0], train[1] // 9), (test[0], torch.ones_like(test[1]))
    used = []
    original = readout.classifier
    monkeypatch.setattr(readout, "classifier", lambda p, n: used.append((p, n)) or original(p, n))
    linear(Split(*train, *test), penalties=(1e3, 1e-3, 1e2))
    assert used == [(1e3, 160), (1e2, 160), (1e-3, 160), (1e-3, 200)]


def test_no_weaker_penalty_is_tried_once_accuracy_falls(monkeypatch):
    used = []
    accuracies = {1.0: 0.6, 0.1: 0.7, 0.01: 0.65, 0.001: 0.9}

    class Judged:
        def __init__(self, penalty):
            self.penalty = penalty

        def fit(self, *_):
            return self

        def score(self, *_):
            return accuracies[self.penalty]

    monkeypatch.setattr(readout, "classifier", lambda p, n: used.append(p) or Judged(p))
    assert linear(Split(*clouds(30, 0), *clouds(30, 1)), penalties=tuple(accuracies)) == 0.7
    assert used == [1.0, 0.1, 0.01, 0.1]


def test_the_answers_that_are_scored_can_be_had_one_by_one():
    split = Split(*clouds(200, 0, distance=1.5), *clouds(90, 1, distance=1.5))
    for accuracy, classifier in ((linear, readout.fitted), (knn, readout.voters)):
        answers = readout.classify(classifier(split), split.test_features)
        assert answers.dtype == torch.int64
        assert (answers == split.test_labels).double().mean() == accuracy(split) > 0.5


# knn


def test_knn_is_a_vote_among_the_nearest_by_angle():
    split = Split(*clouds(120, 0, distance=1.5), *clouds(80, 1, distance=1.5))
    right = 0
    for row, label in zip(split.test_features, split.test_labels, strict=True):
        cosine = nn.functional.cosine_similarity(row[None], split.features)
        votes = split.labels[cosine.argsort(descending=True)[:7]].bincount(minlength=3)
        right += int(votes.argmax() == label)  # the lowest class wins a tie, here and in scikit-learn
    assert knn(split, neighbours=7) == pytest.approx(right / 80)
    longer = split._replace(test_features=split.test_features * 100)
    assert knn(longer, neighbours=7) == knn(split, neighbours=7)


# interval


def test_the_interval_is_student_s():
    # t with 2 degrees of freedom at 97.5 %: 4.302653 (table)
    found = interval([0.50, 0.52, 0.54])
    reach = 4.302653 * 0.02 / math.sqrt(3)
    assert found == pytest.approx((0.52, 0.52 - reach, 0.52 + reach, 3), rel=1e-6)


def test_the_interval_covers_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    covered = np.mean([low <= 0 <= high for _, low, high, _ in map(interval, draws)])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, math.nan], [[0.5, 0.5]]])
def test_no_interval_from_one_seed(values):
    with pytest.raises(ValueError, match="expected at least 2 finite numbers"):
        interval(values)


def test_the_next_seed_falls_into_the_prediction_interval_as_often_as_it_says():
    drawn = np.random.default_rng(1).normal(0.7, 0.05, size=(4000, 6))
    inside = [low <= row[5] <= high for row in drawn for _, low, high, _ in [prediction(row[:5], 0.9)]]
    assert abs(np.mean(inside) - 0.9) < 0.02  # the share of 4000 has a standard error of 0.005
    assert prediction(drawn[0]).low < interval(drawn[0]).low < interval(drawn[0]).high
