"""How much a frozen representation tells: linear and nearest-neighbour accuracy, and intervals over seeds.

    pictures --frozen encoder--> features --classifier fitted on the training part--> accuracy on a test part

A readout tells what a representation makes easy to find, and only beside controls read in the same way.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from course_utils.networks import fingerprint

PENALTIES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)


@torch.no_grad()
def features(network, images, batch=1000):
    """What a frozen network makes of pictures, in evaluation mode: float32 [B, D] on the CPU.

    network: a module, images -> [B, D]; for z, nn.Sequential(encoder, head). images: uint8 [B, 3, H, W].
    Afterwards every part is in the mode that it was in before. Raises RuntimeError if a weight or a buffer
    changed on the way: then it was not frozen.

    >>> features(torch.nn.Flatten(), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)).shape
    torch.Size([2, 48])
    """
    before = fingerprint(network)
    modes = {module: module.training for module in network.modules()}
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    network.eval()
    try:
        rows = [network(as_views(part.to(device))).float().cpu() for part in images.split(batch)]
    finally:
        for module, mode in modes.items():
            module.training = mode
    if (after := fingerprint(network)) != before:
        raise RuntimeError(f"the network changed while it was read ({before} -> {after}): it is not frozen.")
    return torch.cat(rows)


def pixels(images):
    """The control: each picture's own values in [0, 1] as its features, float32 [B, 3 * H * W]."""
    return as_views(images).flatten(1)


def as_views(images):
    return (images.float() / 255).contiguous(memory_format=torch.channels_last)


class Split(NamedTuple):
    """Features [B, D] and labels int64 [B] of the part to fit on, then of the part to be judged by."""

    features: torch.Tensor
    labels: torch.Tensor
    test_features: torch.Tensor
    test_labels: torch.Tensor


def linear(split, penalties=PENALTIES):
    """Test accuracy of the linear readout that `fitted` makes of the training part.

    split: Split. penalties: those that `fitted` chooses from.
    """
    return fitted(split, penalties).score(split.test_features.numpy(), split.test_labels.numpy())


def fitted(split, penalties=PENALTIES):
    """A multinomial logistic regression on standardised features, fitted on the training part of a split.

    penalties: what the squared length of the coefficients may weigh beside the mean loss. Of several one is
    chosen on a fifth of the training part: from the largest down, as long as the accuracy there does not
    fall. Then all of the training part is fitted with it. Means and standard deviations come from the part
    that is fitted, never from the one that judges. Returns a scikit-learn pipeline, for `classify`.
    """
    x, y = split.features.numpy(), split.labels.numpy()
    with threadpool_limits(1):  # the same on any number of cores, and on small features faster
        penalty = penalties[0] if len(penalties) == 1 else chosen(x, y, penalties)
        return classifier(penalty, len(x)).fit(x, y)


def chosen(x, y, penalties):
    """The penalty that is best on a fifth of x, y; weaker ones, slow to fit, are not tried after a fall."""
    x, held_x, y, held_y = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    best, best_accuracy = None, 0.0
    for penalty in sorted(penalties, reverse=True):
        accuracy = classifier(penalty, len(x)).fit(x, y).score(held_x, held_y)
        if accuracy < best_accuracy:
            break
        best, best_accuracy = penalty, accuracy
    return best


def classifier(penalty, count):
    """The linear readout, not fitted yet. scikit-learn's C is one over penalty and number of pictures."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=1 / (2 * penalty * count), max_iter=1000))


def knn(split, neighbours=20):
    """Test accuracy of a vote among the nearest training pictures, nearest by cosine; each has one vote."""
    return voters(split, neighbours).score(split.test_features.numpy(), split.test_labels.numpy())


def voters(split, neighbours=20):
    """The vote of the nearest training pictures as a scikit-learn classifier, for `classify`."""
    model = KNeighborsClassifier(neighbours, metric="cosine")
    return model.fit(split.features.numpy(), split.labels.numpy())


def classify(classifier, features):
    """What a classifier of `fitted` or `voters` takes features [B, D] for: int64 [B]."""
    return torch.from_numpy(classifier.predict(features.numpy()))


class Interval(NamedTuple):
    """A mean with its t interval, over `count` seeds."""

    mean: float
    low: float
    high: float
    count: int


def interval(values, level=0.95) -> Interval:
    """Mean and t interval of one number a seed, taken as independent draws from a normal distribution.

    Raises ValueError for fewer than 2 values: one seed has no spread.

    >>> [round(number, 2) for number in interval([0.50, 0.52, 0.54])]
    [0.52, 0.47, 0.57, 3]
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or len(values) < 2 or not np.isfinite(values).all():
        raise ValueError(f"values is {values.tolist()}; expected at least 2 finite numbers, one a seed.")
    mean = values.mean()
    reach = stats.t.ppf((1 + level) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return Interval(float(mean), float(mean - reach), float(mean + reach), len(values))


def prediction(values, level=0.95) -> Interval:
    """Mean and t interval for one more seed of the same experiment, wider than that for the mean.

    values: one number a seed, at least 2, as `interval` takes them; it raises what `interval` raises. With
    probability `level` the next seed's number falls inside, if seeds are drawn from a normal distribution.

    >>> [round(number, 2) for number in prediction([0.50, 0.52, 0.54])]
    [0.52, 0.42, 0.62, 3]
    """
    mean, low, high, count = interval(values, level)
    reach = (high - low) / 2 * (count + 1) ** 0.5
    return Interval(mean, mean - reach, mean + reach, count)
