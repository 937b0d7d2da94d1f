"""Notebook 04: the gradient that passes through a head, and the scale of a frozen readout."""

import torch

from course_utils.exercises.exercise import Case, Exercise, Misconception

# --- Through the head ---------------------------------------------------------------------------------------


def _before_relu(h, first):
    return h @ first.T


def _head_gradient(h, first, second, gradient_z):
    passes = (_before_relu(h, first) > 0).to(h.dtype)
    return ((gradient_z @ second) * passes) @ first


def _by_autograd(h, first, second, gradient_z):
    h = h.clone().requires_grad_()
    z = _before_relu(h, first).relu() @ second.T
    return torch.autograd.grad(z, h, gradient_z)[0]


def _relu_turned_round(h, first, second, gradient_z):
    return ((gradient_z @ second) * (_before_relu(h, first) <= 0).to(h.dtype)) @ first


def _head_case(batch, width_h, hidden, width_z, seed, dtype=torch.float64):
    """Random numbers on a grid of quarters: small ones can be checked by hand."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randint(-6, 7, shape, generator=generator).to(dtype) / 4

    return Case(
        {
            "h": draw(batch, width_h),
            "first": draw(hidden, width_h),
            "second": draw(width_z, hidden),
            "gradient_z": draw(batch, width_z),
        }
    )


HEAD_GRADIENT = Exercise(
    name="head_gradient",
    reference=_head_gradient,
    cases=(
        _head_case(1, 2, 3, 2, seed=8),
        _head_case(3, 2, 4, 2, seed=2),
        _head_case(4, 3, 3, 3, seed=3),
        _head_case(5, 6, 2, 4, seed=4),
        _head_case(7, 4, 9, 1, seed=5, dtype=torch.float32),
    ),
    misconceptions=(
        Misconception(
            "the ReLU is left out",
            "Where the first layer gives a number below 0, the ReLU passes nothing on, and no gradient comes "
            "back either. Multiply by 1 where h @ first.T is above 0, by 0 elsewhere.",
            lambda h, first, second, gradient_z: gradient_z @ second @ first,
        ),
        Misconception(
            "the ReLU is applied to the gradient",
            "The ReLU cuts off what is negative on the way up. On the way down it looks at its input h @ "
            "first.T, not at the gradient: a negative gradient passes where that input was positive.",
            lambda h, first, second, gradient_z: (gradient_z @ second).relu() @ first,
        ),
        Misconception(
            "the ReLU's output in place of its slope",
            "The gradient is multiplied by relu(h @ first.T). The chain rule asks for the slope of the ReLU: "
            "1 above 0, 0 below.",
            lambda h, first, second, gradient_z: (
                ((gradient_z @ second) * _before_relu(h, first).relu()) @ first
            ),
        ),
        Misconception(
            "the ReLU's mask is turned round",
            "The gradient passes where h @ first.T is below 0. It passes where it is above.",
            _relu_turned_round,
        ),
        Misconception(
            "divided by the batch",
            "Each row of dL/dz belongs to its own picture, and so does each row of dL/dh. A mean over the "
            "batch, if the loss takes one, is in dL/dz already.",
            lambda h, first, second, gradient_z: _head_gradient(h, first, second, gradient_z) / len(h),
        ),
        Misconception(
            "nothing passes the head",
            "The result is 0: that is a stop-gradient on h. Without one, the head hands dL/dz on to h, and "
            "the encoder learns from it.",
            lambda h, first, second, gradient_z: torch.zeros_like(h),
        ),
    ),
    guarantees=(
        "For heads of any width and any batch your function hands back what autograd does: this is all that "
        "an encoder ever hears of the loss."
    ),
    hints=(
        "Walk from z back to h. Which three steps made z from h, and what does each do to a small change?",
        "Backwards: the second layer's weights, then the ReLU's slope (1 or 0, from its input), then the "
        "first layer's weights. gradient_z @ second has the ReLU's shape.",
        "passes = (h @ first.T > 0).to(h.dtype); the answer is ((gradient_z @ second) * passes) @ first.",
    ),
    also_right=(_by_autograd,),
)


# --- The scale of a frozen readout --------------------------------------------------------------------------


def _scaled(part, mean, spread):
    return (part - mean) / torch.where(spread > 0, spread, 1)


def _fitted_on(choose, correction=0):
    """A function that takes mean and spread from the part that `choose` picks, for both parts."""

    def scale(features, test_features):
        fit = choose(features, test_features)
        mean, spread = fit.mean(dim=0), fit.std(dim=0, correction=correction)
        return _scaled(features, mean, spread), _scaled(test_features, mean, spread)

    return scale


def _each_by_itself(correction=0):
    def scale(features, test_features):
        return tuple(
            _scaled(part, part.mean(dim=0), part.std(dim=0, correction=correction))
            for part in (features, test_features)
        )

    return scale


def _one_for_all_columns(features, test_features):
    mean, spread = features.mean(), features.std(correction=0)
    return _scaled(features, mean, spread), _scaled(test_features, mean, spread)


def _mean_alone(features, test_features):
    mean = features.mean(dim=0)
    return features - mean, test_features - mean


def _by_the_variance(features, test_features):
    mean, variance = features.mean(dim=0), features.var(dim=0, correction=0)
    return _scaled(features, mean, variance), _scaled(test_features, mean, variance)


def _by_zero(correction=0):
    def scale(features, test_features):
        mean, spread = features.mean(dim=0), features.std(dim=0, correction=correction)
        return (features - mean) / spread, (test_features - mean) / spread

    return scale


def _training(features, test_features):
    return features


def _test(features, test_features):
    return test_features


def _both(features, test_features):
    return torch.cat([features, test_features])


def _scale_case(count, test_count, width, seed, silent=None, dtype=torch.float64):
    """Features whose two parts differ in mean and spread; the column `silent` is 0 for every picture."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows, shift):
        drawn = torch.randn(rows, width, generator=generator, dtype=torch.float64)
        drawn = drawn * torch.arange(1, width + 1) + shift
        if silent is not None:
            drawn[:, silent] = 0
        return drawn.to(dtype)

    return Case({"features": draw(count, 1.0), "test_features": draw(test_count, 3.0)})


SCALE_FOR_READOUT = Exercise(
    name="scale_for_readout",
    reference=_fitted_on(_training),
    cases=(
        Case(
            {
                "features": torch.tensor([[0.0, 10.0], [2.0, 30.0]], dtype=torch.float64),
                "test_features": torch.tensor([[4.0, 20.0], [6.0, 60.0]], dtype=torch.float64),
            }
        ),
        _scale_case(4, 3, 2, seed=1),
        _scale_case(6, 6, 3, seed=2),
        _scale_case(9, 5, 4, seed=3, silent=1),
        _scale_case(12, 7, 5, seed=4, dtype=torch.float32),
    ),
    misconceptions=(
        Misconception(
            "fitted on the test part",
            "Mean and spread come from the pictures that judge. Take them from the training part, and use "
            "the same two for both.",
            _fitted_on(_test),
            also=(_fitted_on(_test, correction=1),),
        ),
        Misconception(
            "fitted on both parts together",
            "Mean and spread know the test part. Then the test is no longer of pictures never seen: take "
            "them from the training part alone.",
            _fitted_on(_both),
            also=(_fitted_on(_both, correction=1),),
        ),
        Misconception(
            "each part with its own mean and spread",
            "The same feature then means something else in each part, and whatever sets the two apart is "
            "hidden. Use the training part's mean and spread for both.",
            _each_by_itself(),
            also=(_each_by_itself(correction=1),),
        ),
        Misconception(
            "one mean for all columns",
            "Each feature has a scale of its own: take mean and spread along dim=0, one number a column.",
            _one_for_all_columns,
        ),
        Misconception(
            "the mean alone",
            "The columns are centred, but their scales still differ. Divide by the spread.",
            _mean_alone,
        ),
        Misconception(
            "divided by the variance",
            "The spread is the standard deviation, the root of the variance.",
            _by_the_variance,
        ),
        Misconception(
            "a silent feature gives NaN",
            "A feature that is the same for every training picture has a spread of 0, and networks with a "
            "ReLU have such features. Divide by 1 there.",
            _by_zero(),
            also=(_by_zero(correction=1),),
        ),
    ),
    guarantees=(
        "Mean and spread come from the training part alone, column by column, also where a feature is "
        "silent: the test part stays unseen until it judges."
    ),
    hints=(
        "Which pictures may decide about the scale, if the others are to stand for pictures never seen?",
        "One mean and one standard deviation a column, from `features`; subtract and divide in both parts. "
        "What if a standard deviation is 0?",
        "mean, spread = features.mean(dim=0), features.std(dim=0, correction=0); spread = "
        "torch.where(spread > 0, spread, 1.0); return (features - mean) / spread and the same for "
        "test_features.",
    ),
    also_right=(_fitted_on(_training, correction=1),),
)

EXERCISES = (HEAD_GRADIENT, SCALE_FOR_READOUT)
