"""Notebook 08: an interval over seeds, a readout that does not leak, and the course's exit ticket."""

from functools import wraps

import numpy as np
import torch
from scipy import stats
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from course_utils import readout
from course_utils.exercises.exercise import Case, Exercise, Misconception, Questions

# --- An interval over seeds ---------------------------------------------------------------------------------


def _seed_interval(accuracies):
    _, low, high, _ = readout.interval(accuracies.double())
    return torch.tensor([low, high], dtype=torch.float64)


def _around_the_mean(reach):
    """A function accuracies -> [mean - reach, mean + reach]."""

    def function(accuracies):
        x = accuracies.double()
        half = float(reach(x.numpy()))
        return torch.stack([x.mean() - half, x.mean() + half])

    return function


def _t(count, level=0.975, freedom=None):
    return stats.t.ppf(level, freedom or count - 1)


def _standard_error(x, ddof=1):
    return x.std(ddof=ddof) / len(x) ** 0.5


def _accuracies(*values, dtype=torch.float64):
    return Case({"accuracies": torch.tensor(values, dtype=dtype)})


SEED_INTERVAL = Exercise(
    name="seed_interval",
    reference=_seed_interval,
    cases=(
        _accuracies(0.5, 0.6),
        _accuracies(0.50, 0.52, 0.54),
        _accuracies(0.71, 0.69, 0.75, 0.62, 0.70),
        _accuracies(0.33, 0.31, 0.36, 0.35, 0.30, 0.34, 0.32, 0.33, 0.35, 0.31),
        _accuracies(0.912, 0.905, 0.921, 0.934, dtype=torch.float32),
    ),
    misconceptions=(
        Misconception(
            "1.96 in place of Student's t",
            "1.96 is right if the spread is known. Here it is estimated from a few seeds, and is often too "
            "small by chance. With three seeds the factor is 4.3: scipy.stats.t.ppf(0.975, n - 1).",
            _around_the_mean(lambda x: stats.norm.ppf(0.975) * _standard_error(x)),
            also=(
                _around_the_mean(lambda x: 1.96 * _standard_error(x)),
                _around_the_mean(lambda x: 2 * _standard_error(x)),
                _around_the_mean(lambda x: 1.96 * _standard_error(x, ddof=0)),
            ),
        ),
        Misconception(
            "the spread of the seeds in place of their mean's",
            "The standard deviation says where single seeds lie. The mean of n seeds is steadier: divide by "
            "the square root of n.",
            _around_the_mean(lambda x: _t(len(x)) * x.std(ddof=1)),
            also=(
                _around_the_mean(lambda x: x.std(ddof=1)),
                _around_the_mean(lambda x: 1.96 * x.std(ddof=1)),
                _around_the_mean(lambda x: 2 * x.std(ddof=1)),
                _around_the_mean(lambda x: x.std(ddof=0)),
            ),
        ),
        Misconception(
            "divided by n, not by n - 1",
            "The spread is measured around the mean of these very seeds, which lies closer to them than the "
            "true one. Divide the squares by n - 1: ddof=1 in numpy, the default in torch.",
            _around_the_mean(lambda x: _t(len(x)) * _standard_error(x, ddof=0)),
        ),
        Misconception(
            "n degrees of freedom",
            "One number was used up by the mean: Student's t has n - 1 degrees of freedom.",
            _around_the_mean(lambda x: _t(len(x), freedom=len(x)) * _standard_error(x)),
        ),
        Misconception(
            "one side only",
            "The quantile 0.95 leaves 5 % above it, and as much below: that is an interval of 90 %. For 95 % "
            "leave 2.5 % on either side.",
            _around_the_mean(lambda x: _t(len(x), level=0.95) * _standard_error(x)),
        ),
        Misconception(
            "one standard error",
            "Mean plus or minus one standard error covers about two cases of three, and fewer with few "
            "seeds. Multiply it by Student's t.",
            _around_the_mean(_standard_error),
        ),
        Misconception(
            "the smallest and the largest seed",
            "The range of the seeds grows with their number. An interval for the mean shrinks.",
            lambda accuracies: torch.stack([accuracies.min(), accuracies.max()]).double(),
        ),
        Misconception(
            "the variance in place of its root",
            "The standard error is the root of variance / n.",
            _around_the_mean(lambda x: _t(len(x)) * x.var(ddof=1) / len(x)),
            also=(_around_the_mean(lambda x: _t(len(x)) * x.var(ddof=1) / len(x) ** 0.5),),
        ),
    ),
    guarantees=(
        "For 2 to 10 seeds your interval is Student's, and covers the true mean in 95 of 100 experiments if "
        "seeds are independent and nearly normal."
    ),
    hints=(
        "How far may the mean of n seeds lie from the true mean, if all you know of the spread are these n "
        "numbers?",
        "The standard error is the standard deviation (with n - 1) by the square root of n. Reach to both "
        "sides by Student's t with n - 1 degrees of freedom times that.",
        "reach = stats.t.ppf(0.975, n - 1) * accuracies.std() / n**0.5; return torch.stack([mean - reach, "
        "mean + reach]).",
    ),
)


# --- A readout that does not leak ---------------------------------------------------------------------------

PARTS = ("train_x", "train_y", "validation_x", "validation_y", "test_x", "test_y")


def model(penalty):
    """A linear readout that is fast on few pictures: a scaler, then least squares with a penalty."""
    return make_pipeline(StandardScaler(), RidgeClassifier(alpha=penalty))


def _as_tensor(function):
    """The same function with its accuracy as a 0-d tensor, what `check` compares."""

    @wraps(function)
    def with_tensor(*arguments):
        return torch.tensor(float(function(*arguments)), dtype=torch.float64)

    return with_tensor


def _best(penalties, accuracy):
    """The first of the penalties with the highest accuracy."""
    return max(penalties, key=accuracy)


@_as_tensor
def _honest(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    fitted = {penalty: model(penalty).fit(train_x, train_y) for penalty in penalties}
    chosen = _best(penalties, lambda penalty: fitted[penalty].score(validation_x, validation_y))
    return fitted[chosen].score(test_x, test_y)


@_as_tensor
def _refitted(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    """Honest as well: after the choice, both parts that are not the test part are fitted."""
    chosen = _best(penalties, lambda p: model(p).fit(train_x, train_y).score(validation_x, validation_y))
    both = np.concatenate([train_x, validation_x]), np.concatenate([train_y, validation_y])
    return model(chosen).fit(*both).score(test_x, test_y)


def _scaled_by(*parts):
    """The readout whose scaler is fitted on these parts together, numbered as in PARTS."""

    @_as_tensor
    def function(*arguments):
        *data, penalties = map(np.asarray, arguments)
        scaler = StandardScaler().fit(np.concatenate([data[2 * part] for part in parts]))
        x, y = [scaler.transform(part) for part in data[::2]], data[1::2]
        fitted = {p: RidgeClassifier(alpha=p).fit(x[0], y[0]) for p in penalties.tolist()}
        chosen = _best(fitted, lambda penalty: fitted[penalty].score(x[1], y[1]))
        return fitted[chosen].score(x[2], y[2])

    return function


@_as_tensor
def _chosen_on_test(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    return max(model(penalty).fit(train_x, train_y).score(test_x, test_y) for penalty in penalties)


@_as_tensor
def _chosen_on_test_and_refitted(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
    both = np.concatenate([train_x, validation_x]), np.concatenate([train_y, validation_y])
    return max(model(penalty).fit(*both).score(test_x, test_y) for penalty in penalties)


def _fitted_on(*parts):
    """The readout that is fitted on these parts together once the penalty is chosen."""

    @_as_tensor
    def function(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
        data = (train_x, validation_x, test_x), (train_y, validation_y, test_y)
        chosen = _best(penalties, lambda p: model(p).fit(train_x, train_y).score(validation_x, validation_y))
        x, y = (np.concatenate([kind[part] for part in parts]) for kind in data)
        return model(chosen).fit(x, y).score(test_x, test_y)

    return function


def _judged_by(part):
    """The readout of the chosen penalty, judged by another part than the test part."""

    @_as_tensor
    def function(*arguments):
        *data, penalties = arguments
        fitted = {p: model(p).fit(data[0], data[1]) for p in penalties}
        chosen = _best(penalties, lambda penalty: fitted[penalty].score(data[2], data[3]))
        return fitted[chosen].score(data[2 * part], data[2 * part + 1])

    return function


def _with_one(take):
    """The readout of one penalty, whichever `take` takes."""

    @_as_tensor
    def function(train_x, train_y, validation_x, validation_y, test_x, test_y, penalties):
        return model(take(penalties)).fit(train_x, train_y).score(test_x, test_y)

    return function


def _split_case(seed, width, counts, penalties, shift=0.0):
    """Three parts of vectors whose class can be told from a few coordinates; the test part may lie apart."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(sum(counts)) % 3
    x = torch.randn(len(labels), width, generator=draws, dtype=torch.float64)
    x[:, :3] += torch.nn.functional.one_hot(labels, 3)
    x = x * (1 + 4 * torch.rand(width, generator=draws, dtype=torch.float64))  # units of their own
    x[-counts[2] :] += shift * torch.randn(width, generator=draws, dtype=torch.float64)
    parts = zip(x.split(counts), labels.split(counts), strict=True)
    arguments = [part for pair in parts for part in pair]
    return Case({**dict(zip(PARTS, arguments, strict=True)), "penalties": penalties}, 1e-6)


HONEST_READOUT = Exercise(
    name="honest_readout",
    reference=_honest,
    cases=(
        _split_case(38, 6, [24, 18, 30], [1.0, 100.0, 10_000.0]),
        _split_case(3, 20, [30, 30, 60], [10_000.0, 10.0, 1000.0, 100.0, 0.1], shift=3.0),
        _split_case(0, 60, [40, 30, 80], [0.01, 10_000.0, 1000.0, 100.0, 10.0], shift=6.0),
        _split_case(13, 120, [60, 40, 90], [3000.0, 10.0, 100.0, 1000.0, 10_000.0], shift=2.0),
    ),
    misconceptions=(
        Misconception(
            "the scaler sees the test part",
            "Means and standard deviations were taken over all pictures. Small as it looks, the test part "
            "has a say in how it is judged. Fit the scaler on the training part, as make_pipeline does.",
            _scaled_by(0, 1, 2),
            also=(_scaled_by(0, 2), _scaled_by(2)),
        ),
        Misconception(
            "the penalty is chosen on the test part",
            "The best of several accuracies on the test part is the best by luck as well. Choose on the "
            "validation part, and look at the test part once.",
            _chosen_on_test,
            also=(_chosen_on_test_and_refitted,),
        ),
        Misconception(
            "fitted on the test part",
            "The readout has seen the pictures that judge it, with their labels. Fit it on the training "
            "part.",
            _fitted_on(0, 1, 2),
            also=(_fitted_on(0, 2), _fitted_on(2)),
        ),
        Misconception(
            "judged by the validation part",
            "The penalty was chosen to do well there. What is reported is the accuracy on the test part.",
            _judged_by(1),
        ),
        Misconception(
            "judged by the training part",
            "How well it repeats what it was fitted on says little about other pictures. Report the accuracy "
            "on the test part.",
            _judged_by(0),
        ),
        Misconception(
            "no penalty is chosen",
            "The first penalty is taken as it comes. Fit one readout for each, and take the one that does "
            "best on the validation part.",
            _with_one(lambda penalties: penalties[0]),
            also=(_with_one(lambda penalties: penalties[-1]), _with_one(lambda penalties: 1.0)),
        ),
    ),
    guarantees=(
        "For 6 to 120 features your readout looks at the test part once, at the end. Nothing else knows it."
    ),
    hints=(
        "What may the test part decide before the very last line? Nothing: not a mean, not a penalty.",
        "For each penalty fit a pipeline of scaler and readout on the training part; compare them on the "
        "validation part; score the best one on the test part.",
        "fitted = {p: model(p).fit(train_x, train_y) for p in penalties}; chosen = max(penalties, key=lambda "
        "p: fitted[p].score(validation_x, validation_y)); then fitted[chosen].score(test_x, test_y).",
    ),
    also_right=(_refitted,),
)


# --- The exit ticket ----------------------------------------------------------------------------------------

CHANGED = ("pictures", "query network", "key network", "queue", "readout")

TICKET = Questions(
    name="course_ticket",
    choices={
        "the encoder's input": ("a picture", "a view", "h", "z"),
        "the loss compares": ("pictures", "views", "h", "z"),
        "candidates of a view in SimCLR": ("N", "N - 1", "2N - 2", "2N - 1", "2N"),
        "candidates of a query in MoCo": ("B", "Q", "Q + 1", "Q + B"),
        "changed by the gradient": CHANGED,
        "changed by the EMA": CHANGED,
        "overwritten, oldest first": CHANGED,
        "fitting the readout changes": CHANGED,
        "the readout's input": ("a picture", "a view", "h", "z"),
        "whether the run was useful is said by": (
            "the loss, which fell",
            "log N - L, which rose",
            "the readout of h alone",
            "the readout of h beside that of a random encoder",
        ),
        "the penalty is chosen on": ("the training part", "the validation part", "the test part"),
        "an interval over three seeds uses": ("1.96", "Student's t", "the smallest and the largest"),
    },
    right={
        "the encoder's input": "a view",
        "the loss compares": "z",
        "candidates of a view in SimCLR": "2N - 1",
        "candidates of a query in MoCo": "Q + 1",
        "changed by the gradient": "query network",
        "changed by the EMA": "key network",
        "overwritten, oldest first": "queue",
        "fitting the readout changes": "readout",
        "the readout's input": "h",
        "whether the run was useful is said by": "the readout of h beside that of a random encoder",
        "the penalty is chosen on": "the validation part",
        "an interval over three seeds uses": "Student's t",
    },
    misconceptions=(
        Misconception(
            "the loss is the judge",
            "The loss and log N - L depend on temperature, candidates and negatives. A readout beside a "
            "random encoder's says whether training added anything.",
            lambda given: bool(
                given["whether the run was useful is said by"]
                & {"the loss, which fell", "log N - L, which rose"}
            ),
        ),
        Misconception(
            "no control",
            "An accuracy alone says little: a random encoder has one too, and often not a low one.",
            lambda given: given["whether the run was useful is said by"] == {"the readout of h alone"},
        ),
        Misconception(
            "the gradient reaches the key network",
            "Keys and queue are constants. The gradient changes the query network, the EMA the key network.",
            lambda given: bool(given["changed by the gradient"] & {"key network", "queue"}),
        ),
        Misconception(
            "the EMA changes the query network",
            "The key network follows the query network, not the other way round.",
            lambda given: "query network" in given["changed by the EMA"],
        ),
        Misconception(
            "the encoder is trained during the readout",
            "A readout changes its own scaler and classifier. The encoder is frozen.",
            lambda given: bool(given["fitting the readout changes"] & {"query network", "key network"}),
        ),
        Misconception(
            "negatives counted in place of candidates",
            "The positive is a candidate too: 2N - 1 in SimCLR's batch, Q + 1 with MoCo's queue.",
            lambda given: (
                given["candidates of a view in SimCLR"] == {"2N - 2"}
                or given["candidates of a query in MoCo"] == {"Q"}
            ),
        ),
        Misconception(
            "z is read where h is asked",
            "The loss looks at z. What is kept for other tasks, and read out, is h.",
            lambda given: given["the readout's input"] == {"z"} or given["the loss compares"] == {"h"},
        ),
        Misconception(
            "the test part chooses",
            "A choice made on the test part makes its accuracy too good.",
            lambda given: given["the penalty is chosen on"] == {"the test part"},
        ),
    ),
    guarantees=(
        "Two kinds of update, gradient and moving average; one queue that is overwritten; and a judge that "
        "took no part."
    ),
    graded=False,
)

EXERCISES = (SEED_INTERVAL, HONEST_READOUT, TICKET)
