"""What an encoder trained on rendered pictures tells about other factors, and about photographs.

The encoders are those of `heads`: two colour policies of SimCLR and one that was told shape and hue. They are
trained on large shapes alone and read out here on pictures of both sizes, and on CIFAR-10.
"""

import torch

from course_utils import records
from course_utils.experiments.heads import READOUT, Rendered, accuracies, read
from course_utils.experiments.seeds import side_by_side
from course_utils.images import cifar, shapes
from course_utils.images.pictures import Pictures
from course_utils.readout import pixels
from course_utils.runtime import budget

CONDITIONS = ("no colour jitter", "colour jitter")
COUNTS = {"quick": 2000, "full": 10_000}  # pictures to fit a readout on, and as many to judge it by

# After which angle a shape looks the same again; circles and rings always do.
PERIODS = {
    "square": torch.pi / 2,
    "triangle": 2 * torch.pi / 3,
    "star": 2 * torch.pi / 5,
    "cross": torch.pi / 2,
}
SIDES = ("right", "below", "left", "above")
NAMES = {
    "place": ("upper left", "upper right", "lower left", "lower right"),
    "light from": SIDES,
    "turn": ("first third", "second third", "last third"),
}


def with_factors(count, seed):
    """Rendered pictures [count] of both sizes with six labels, and those of them whose turn can be seen.

    place: the quarter of the picture that holds the shape's centre. light from: the side of the light. turn:
    the third of its period that the shape is turned by, the only label of the second Pictures.
    """
    factors = shapes.draw_factors(count, seed)
    rendered = shapes.render(factors)
    place = (factors.x > 0).long() + 2 * (factors.y > 0).long()
    light = (factors.light_direction / (torch.pi / 2)).round().long() % 4
    labels = {**rendered.labels, "place": place, "light from": light}
    names = {**rendered.names, "place": NAMES["place"], "light from": NAMES["light from"]}
    periods = torch.tensor([PERIODS.get(name, torch.nan) for name in shapes.SHAPE_NAMES])[factors.shape]
    seen = periods.isfinite()
    third = ((factors.turn % periods) / periods * 3)[seen].long().clamp(0, 2)
    return (
        Pictures(rendered.images, labels, names, rendered.source),
        Pictures(rendered.images[seen], {"turn": third}, {"turn": NAMES["turn"]}, rendered.source),
    )


class Tasks:
    """What every representation is asked: (name of the pictures, to fit on, to judge by), with all labels."""

    def __init__(self, count):
        (fit, fit_turned), (test, test_turned) = with_factors(count, seed=4), with_factors(count, seed=5)
        self.parts = [
            ("rendered", fit, test),
            ("rendered", fit_turned, test_turned),
            ("CIFAR-10", cifar.load("train", count), cifar.load("test", count)),
        ]

    def readings(self, what, make_features, seed=None):
        """A row for each set of pictures, label and readout of one representation."""
        return [
            {"features": what, "seed": seed, "pictures": name, **row}
            for name, fit, test in self.parts
            for row in accuracies(make_features, fit, test, tuple(fit.labels))
        ]

    def chance(self):
        """For each label the share of the most frequent value among the pictures that judge."""
        return {
            label: (values.bincount().max() / len(values)).item()
            for _, _, test in self.parts
            for label, values in test.labels.items()
        }


def transfer(seeds=range(5)):
    """h of three kinds of training on rendered pictures, read out on seven factors and on CIFAR-10."""
    size = budget()
    rendered, tasks = Rendered(size), Tasks(COUNTS[size])

    def one_seed(seed):
        simclr = {f"SimCLR, {condition}": rendered.run(condition, "mlp", seed) for condition in CONDITIONS}
        told = rendered.supervised_run(seed)
        results = tasks.readings("random encoder", read(rendered.random_encoder(seed)), seed)
        for what, run in {**simclr, "told shape and hue": told}.items():
            results += tasks.readings(what, read(run.encoder), seed)
        return [run.protocol for run in simclr.values()], told.protocol, results

    protocols, told, parts = zip(*side_by_side(one_seed, seeds), strict=True)
    simclr = [
        {**protocol, "condition": protocol["policy"]["name"], "policy": policies(both)}
        for both in protocols
        for protocol in both
    ]
    return records.Record(
        name=f"transfer_{size}",
        question="What do encoders trained on rendered pictures tell about other factors and photographs?",
        protocol={
            **records.merge(simclr, varied=("condition",)),
            "supervised": records.merge(told),
            "readout": READOUT.format(fit=COUNTS[size], test=COUNTS[size])
            + "; turn: of squares, triangles, stars and crosses alone",
            "most frequent": tasks.chance(),
        },
        results=[row for part in parts for row in part] + tasks.readings("raw pixels", pixels),
    )


def policies(protocols):
    """Policy name -> policy, of several protocols."""
    return {protocol["policy"]["name"]: protocol["policy"] for protocol in protocols}
