"""LAB 06: two views, the loss, frozen features and their readout; what a table of accuracies supports.

The lab's check cells see the cases of seed VISIBLE. Its hidden tests redraw them with a seed that stands in
labs/source alone.
"""

import copy
import random
from dataclasses import replace
from itertools import product

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import normalize
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_utils.exercises import infonce, two_views
from course_utils.exercises.exercise import Case, Exercise, Misconception, Questions
from course_utils.networks import ProjectionHead
from course_utils.readout import as_views
from course_utils.runtime import generator
from course_utils.training import SimCLR, seeded
from course_utils.views import POLICIES

VISIBLE = 6

# Two views and the loss: the exercises of notebooks 01 and 02 at other inputs


def _views_cases(seed):
    draw = random.Random(seed)
    policies = [POLICIES["simclr_cifar"], POLICIES["strong"], POLICIES["moco_v1"].without("flip")]
    draw.shuffle(policies)
    return tuple(
        two_views.pictures_case(count, draw.randrange(12, 25), policy, seed=draw.randrange(10**6))
        for count, policy in zip(sorted(draw.sample(range(2, 10), 3)), policies, strict=True)
    )


def _whatever_the_policy(function, cases):
    """Whether two policies give the same views."""
    images, policy, _ = cases[0].fresh()
    other = replace(policy, name="another", crop_scale=(0.1, 0.2), grey=1 - policy.grey)
    pairs = (function(images, one, cases[0].fresh()[2]) for one in (policy, other))
    return all(torch.equal(view, again) for view, again in zip(*pairs, strict=True))


TWO_VIEWS = replace(
    two_views.TWO_VIEWS,
    name="lab06_two_views",
    cases=_views_cases(VISIBLE),
    redraw=_views_cases,
    misconceptions=(
        *two_views.TWO_VIEWS.misconceptions,
        Misconception(
            "the policy that was given is not used",
            "The views come from one fixed policy. The comparison needs two: draw with the argument policy.",
            two_views.with_policy(POLICIES["simclr_cifar"]),
            behaves=_whatever_the_policy,
        ),
    ),
)


def _loss_cases(seed):
    """The fixed edges of notebook 02 (they need no seed), and pairs of other sizes and temperatures."""
    draw = random.Random(seed)
    pairs = (
        {**infonce.pair(draw.randrange(2, 12), draw.randrange(2, 20), seed=draw.randrange(10**6)), **cold}
        for cold in ({"temperature": draw.choice([0.1, 0.2, 0.3])}, {"temperature": draw.uniform(0.4, 2)})
    )
    return infonce.NT_XENT_LOOP.cases + tuple(map(Case, pairs))


LOSS = replace(infonce.NT_XENT_LOOP, name="lab06_loss", cases=_loss_cases(VISIBLE), redraw=_loss_cases)

# Frozen features: pictures -> h or z


def _frozen_features(method, images, which):
    method.eval()
    with torch.no_grad():
        h = method.encoder(as_views(images))
        return {"h": h, "z": method.head(h)}[which]


def _small_method(width):
    encoder = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    )
    # h and z are equally wide: then a mix-up shows in the numbers, not in the shape.
    return SimCLR(encoder, ProjectionHead("mlp", width_in=4 * width, width=4 * width, hidden=16))


def _features_cases(seed):
    draw = random.Random(seed)
    cases = []
    for count, which in zip(sorted(draw.sample(range(3, 12), 4)), ("h", "z", "h", "z"), strict=True):
        method = seeded(lambda: _small_method(draw.randrange(2, 7)), draw.randrange(10**6))
        images = torch.randint(
            256, (count + 20, 3, 12, 12), dtype=torch.uint8, generator=generator(draw.randrange(10**6))
        )
        with torch.no_grad():  # batch-norm statistics as after some training
            for part in images[:20].split(5):
                method.train().project(as_views(part) * 0.8)
        arguments = {"method": method, "images": images[20:], "which": which}
        cases.append(Case(arguments, tolerance=1e-4))  # a network in float64 differs by its rounding
    return tuple(cases)


def _always(which):
    return lambda method, images, _: _frozen_features(method, images, which)


def _other(method, images, which):
    return _frozen_features(method, images, "z" if which == "h" else "h")


def _in_training_mode(method, images, which):
    method = copy.deepcopy(
        method
    ).train()  # so that nothing else is wrong: the statistics stay what they were
    with torch.no_grad():
        h = method.encoder(as_views(images))
        return h if which == "h" else method.head(h)


def _pixels_to_255(method, images, which):
    return _frozen_features(method, images * 255.0, which)


def _z_normalised(method, images, _):
    return normalize(_frozen_features(method, images, "z"), dim=1)


def _normalised(method, images, which):
    return normalize(_frozen_features(method, images, which), dim=1)


def _only_z_normalised(method, images, which):
    return (_normalised if which == "z" else _frozen_features)(method, images, which)


def _takes_a_step(function, cases):
    """An optimiser makes a step on the way, if only on a copy of the network."""
    steps = []
    handle = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    try:
        function(*cases[0].fresh())
    finally:
        handle.remove()
    return bool(steps)


def _do_not_follow_the_pictures(function, cases):
    """Two calls differ, or other pictures, or a network with other weights, give the same features."""
    method, images, which = cases[0].fresh()
    first, second = (function(*cases[0].fresh()) for _ in range(2))
    others = function(method, 255 - images, which)
    for parameter in method.parameters():
        parameter.data.neg_()
    elsewhere = function(method, images, which)
    return first.shape == second.shape and (
        not torch.allclose(first, second) or torch.equal(first, others) or torch.equal(first, elsewhere)
    )


FEATURES = Exercise(
    name="lab06_frozen_features",
    reference=_frozen_features,
    cases=_features_cases(VISIBLE),
    redraw=_features_cases,
    frozen=True,
    misconceptions=(
        Misconception(
            "z is read where h is asked",
            "What the head returns is z. The representation h is what the encoder returns, before the head.",
            _always("z"),
            also=(_z_normalised,),
        ),
        Misconception(
            "h is read where z is asked", "z is what the head makes of h: apply the head too.", _always("h")
        ),
        Misconception("h and z are mixed up", "h comes from the encoder, z from the head.", _other),
        Misconception(
            "the features are normalised",
            "Each row was divided by its length. The loss does so for itself; h and z are what encoder and "
            "head return.",
            _normalised,
            also=(_only_z_normalised,),
        ),
        Misconception(
            "the encoder is trained during the readout",
            "An optimiser makes a step while the features are read. Frozen features are those of the network "
            "as training left it.",
            behaves=_takes_a_step,
        ),
        Misconception(
            "the network is read in training mode",
            "Batch norm then uses the statistics of the pictures that happen to be read together, so a "
            "picture's features depend on its neighbours. Call .eval() first.",
            _in_training_mode,
        ),
        Misconception(
            "pixels from 0 to 255",
            "The encoder was trained on values from 0 to 1: as_views divides by 255.",
            _pixels_to_255,
        ),
        Misconception(
            "random vectors passed off as features",
            "What your function returns does not follow from pictures and weights. Features are what the "
            "encoder makes of the pictures.",
            behaves=_do_not_follow_the_pictures,
        ),
    ),
    guarantees="The features are those of the frozen network: no gradient, and nothing has changed.",
    hints=(
        "Which mode must the network be in, and what must not be recorded, while it is only read?",
        "method.eval(), then under torch.no_grad(): pictures as as_views(images), through method.encoder, "
        "and for z through method.head as well.",
        "with torch.no_grad(): h = method.encoder(as_views(images)); return h if which == 'h' else "
        "method.head(h)",
    ),
)

# The readout: features -> accuracy on the test part


def _readout(features, labels, train, test):
    scaler = StandardScaler().fit(features[train])
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(features[train]), labels[train])
    return torch.tensor(model.score(scaler.transform(features[test]), labels[test]))


def _not_scaled(features, labels, train, test):
    model = LogisticRegression(max_iter=1000).fit(features[train], labels[train])
    return torch.tensor(model.score(features[test], labels[test]))


def _test_rows_as_they_came(features, labels, train, test):
    scaler = StandardScaler().fit(features[train])
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(features[train]), labels[train])
    return torch.tensor(model.score(features[test], labels[test]))


def accuracy_on_train(features, labels, train, test):
    return _readout(features, labels, train, train)


def _ignores_the_split(function, cases):
    """Two calls differ, or the rows of another split of the same sizes give the same accuracies."""
    same = []
    for case in cases:
        first, second = (float(function(*case.fresh())) for _ in range(2))
        if first != second:
            return True
        features, labels, train, test = case.fresh()
        rows = torch.cat([test, train])
        other = function(features, labels, rows[: len(train)], rows[len(train) :])
        same.append(first == float(other))
    return all(same)


def _among_each_other(change):
    """Whether a change of some test rows alters how other test rows are judged.

    Each test row counts for itself: what a change of one half does to the score is the same whether the other
    half is changed as well. Not so if something was fitted on both.
    """

    def behaves(function, cases):
        for case in cases:
            features, labels, train, test = case.fresh()
            scores = []
            for changed in (test[:0], test[::2], test[1::2], test):
                given = change(features.clone(), labels.clone(), changed)
                scores.append(float(function(*given, train, test)))
            neither, first, second, both = scores
            if abs(neither + both - first - second) > 1e-4:
                return True
        return False

    return behaves


def _other_labels(features, labels, rows):
    labels[rows] = (labels[rows] + 1) % 3
    return features, labels


def _other_features(features, labels, rows):
    features[rows] = 3 * features[rows] + features.std(dim=0)
    return features, labels


def _counts_training_rows(function, cases):
    """Something is right although the test rows' labels are such that no classifier could know."""
    features, labels, train, test = cases[0].fresh()
    given = float(function(features, labels.clone(), train, test))
    labels[test] = 99
    return 0 < float(function(features, labels, train, test)) <= given


def _in_percent(function, cases):
    return all(1 < float(function(*case.fresh())) <= 100 for case in cases)


def _readout_case(seed):
    """Features of three kinds on which the mistakes show.

    Few training rows, so an accuracy on them is too high. Columns in units far apart, so one without a scaler
    differs. The test rows are stretched, each column by another factor, so another scaler weighs the columns
    otherwise.
    """
    draw = generator(seed)
    count, width, kinds = 260, 16, 3
    labels = torch.randint(kinds, (count,), generator=draw)
    features = 0.55 * torch.randn(kinds, width, generator=draw)[labels]
    features += torch.randn(count, width, generator=draw)
    order = torch.randperm(count, generator=draw)
    train, test = order[:60].sort().values, order[60:].sort().values
    stretch, units = torch.logspace(0, 1.5, width), torch.logspace(-1.5, 1.5, width)
    features[test] *= stretch[torch.randperm(width, generator=draw)]
    features[test] += 0.5 * torch.randn(width, generator=draw)
    features *= units[torch.randperm(width, generator=draw)]
    arguments = {"features": features, "labels": labels, "train": train, "test": test}
    return Case(arguments, tolerance=0.016)


def _readout_cases(seed):
    draw = random.Random(seed)
    return tuple(_readout_case(draw.randrange(10**6)) for _ in range(5))


READOUT = Exercise(
    name="lab06_readout",
    reference=_readout,
    cases=_readout_cases(VISIBLE),
    redraw=_readout_cases,
    misconceptions=(
        Misconception(
            "different splits between conditions",
            "The rows in train and test that were given are not used: where each call splits anew, two "
            "conditions are not judged by the same pictures.",
            behaves=_ignores_the_split,
        ),
        Misconception(
            "the readout is fitted on the test part",
            "The labels of the rows that judge have been seen before: by the classifier, or by whoever chose "
            "among several. Fit and choose on the rows in train alone.",
            behaves=_among_each_other(_other_labels),
        ),
        Misconception(
            "accuracy on the training part",
            "Your accuracy is that of the rows the classifier was fitted on: it rewards learning by heart. "
            "Judge by the rows in test.",
            behaves=_counts_training_rows,
        ),
        Misconception(
            "the scaler is fitted on the test part",
            "Means and deviations of the test rows went into the features. Fit the scaler on the rows in "
            "train, then transform both parts with it.",
            behaves=_among_each_other(_other_features),
        ),
        Misconception(
            "the features are not scaled",
            "A column with large numbers outweighs all others. Standardise them with a scaler that was "
            "fitted on the rows in train.",
            _not_scaled,
        ),
        Misconception(
            "the test rows are not scaled",
            "The classifier was fitted on scaled rows and is judged by rows as they came. Transform both "
            "parts with the scaler that was fitted on the rows in train.",
            _test_rows_as_they_came,
        ),
        Misconception(
            "an accuracy in percent",
            "An accuracy is a share, from 0 to 1: .score() returns one already.",
            behaves=_in_percent,
        ),
    ),
    guarantees="Scaler and classifier see the training rows only, and every condition is judged by the same "
    "test rows.",
    hints=(
        "Which rows may scaler and classifier see, and which rows may judge?",
        "Fit a StandardScaler on features[train]; fit classifier() on the scaled training rows; score the "
        "test rows, scaled by the same scaler.",
        "scaler = StandardScaler().fit(features[train]); model = classifier().fit(scaler.transform("
        "features[train]), labels[train]); return model.score(...) of the test rows, scaled and with labels",
    ),
)

# The table and the exit ticket

CONDITIONS = ("jitter", "no jitter")
CELLS = tuple(" ".join(parts) for parts in product(CONDITIONS, "hz", ("shape", "hue")))
CHANGES = ("falls by more than 0.1", "stays within 0.1", "rises by more than 0.1")

PREDICTION = Questions(
    name="lab06_prediction",
    choices={f"{label} in {which}": CHANGES for which in "hz" for label in ("shape", "hue")},
    guarantees="Your prediction is kept in the notebook.",
)

NOTHING = "nothing: compare the shape accuracies"


SUPPORT = {
    "jitter helps to read shape from h": {"jitter h shape", "no jitter h shape"},
    "jitter makes hue harder to read from z": {"jitter z hue", "no jitter z hue"},
    "with jitter, h keeps more hue than z": {"jitter h hue", "jitter z hue"},
}

EVIDENCE = Questions(
    name="lab06_evidence",
    choices={
        **dict.fromkeys(SUPPORT, CELLS),
        "hue in z fell; that tells about shape": (
            NOTHING,
            "shape must have become easier to read",
            "shape must have become harder to read",
        ),
    },
    right={**SUPPORT, "hue in z fell; that tells about shape": NOTHING},
    misconceptions=(
        Misconception(
            "colour loss taken as evidence on shape",
            "That hue is harder to read says nothing on whether shape is easier: a network can lose one "
            "without gaining the other. A claim on shape rests on accuracies for shape.",
            lambda given: (
                given["hue in z fell; that tells about shape"] != {NOTHING}
                or any(cell.endswith("hue") for cell in given["jitter helps to read shape from h"])
            ),
        ),
        Misconception(
            "two things changed at once",
            "Between the two cells of a comparison only what the claim is about may differ: the condition, "
            "or h against z.",
            lambda given: any(_differences(cells) > 1 for cells in given.values()),
        ),
        Misconception(
            "one cell is no comparison",
            "Each claim compares two cells of the table: list both.",
            lambda given: any(len(cells) == 1 for cells in given.values() if cells <= set(CELLS)),
        ),
        Misconception(
            "two cells that tell of something else",
            "They differ in one thing, but not in what the claim is about. What jitter does is jitter "
            "against no jitter; what h keeps is h against z; shape and hue are no pair.",
            lambda given: any(
                _differences(given[claim]) == 1 and given[claim] != cells for claim, cells in SUPPORT.items()
            ),
        ),
    ),
    guarantees="Each claim rests on two cells that differ in what the claim is about, and in nothing else.",
)


def _differences(cells):
    """In how many of condition, features and label two cells differ; 0 for anything else."""
    if len(cells) != 2 or not cells <= set(CELLS):
        return 0
    first, second = (cell.rsplit(" ", 2) for cell in cells)
    return sum(a != b for a, b in zip(first, second, strict=True))


PARTS = ("pictures", "views", "encoder", "head", "readout")

TICKET = Questions(
    name="lab06_ticket",
    choices={
        "the encoder's input": ("a picture", "a view", "h", "z"),
        "the loss compares": ("pictures", "views", "h", "z"),
        "candidates of one view": ("N", "N - 1", "2N", "2N - 1", "2N - 2"),
        "the readout's input": ("a picture", "a view", "h", "z"),
        "a training step changes": PARTS,
        "fitting the readout changes": PARTS,
    },
    right={
        "the encoder's input": "a view",
        "the loss compares": "z",
        "candidates of one view": "2N - 1",
        "the readout's input": "h",
        "a training step changes": {"encoder", "head"},
        "fitting the readout changes": "readout",
    },
    misconceptions=(
        Misconception(
            "the encoder is trained during the readout",
            "Fitting the readout changes scaler and classifier alone. If it changed the encoder, the "
            "accuracy would not be that of the representation.",
            lambda given: bool(given["fitting the readout changes"] & {"encoder", "head"}),
        ),
        Misconception(
            "the self-pair is left in",
            "Among 2N views a view is no candidate for itself: its partner and 2N - 2 negatives remain.",
            lambda given: given["candidates of one view"] == {"2N"},
        ),
        Misconception(
            "negatives counted in place of candidates",
            "The partner is a candidate too: 2N - 2 negatives and the partner.",
            lambda given: given["candidates of one view"] == {"2N - 2"},
        ),
        Misconception(
            "candidates of the other side alone",
            "All other 2N - 1 views are candidates, those of the view's own side as well.",
            lambda given: given["candidates of one view"] <= {"N", "N - 1"},
        ),
        Misconception(
            "z is read where h is asked",
            "The loss looks at z. What is kept for other tasks, and read out, is h.",
            lambda given: given["the readout's input"] == {"z"} or given["the loss compares"] == {"h"},
        ),
        Misconception(
            "the readout takes part in training",
            "A training step knows no labels and no readout: its gradient reaches head and encoder.",
            lambda given: "readout" in given["a training step changes"],
        ),
        Misconception(
            "a part of the network is left out of training",
            "The gradient comes to the encoder through the head, and a step changes both.",
            lambda given: given["a training step changes"] < {"encoder", "head"},
        ),
        Misconception(
            "the picture itself is encoded in training",
            "The encoder is trained on views; the picture as it is comes in when features are read.",
            lambda given: given["the encoder's input"] == {"a picture"},
        ),
    ),
    guarantees="Training changes encoder and head, the readout only itself.",
)

EXERCISES = (TWO_VIEWS, LOSS, FEATURES, READOUT, PREDICTION, EVIDENCE, TICKET)
