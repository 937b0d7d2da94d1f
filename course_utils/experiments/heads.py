"""What a colour augmentation leaves in h and in z, read out of both, with three kinds of head.

Each condition sees the same pictures, with the same encoder, budget and readout; only the views' colours and
the head differ. `heads` asks rendered pictures, whose shape and hue are known, `heads_cifar` CIFAR-10.
"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from course_utils import records, runtime
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.images import cifar, shapes
from course_utils.networks import ProjectionHead, SmallEncoder, resnet18
from course_utils.readout import Split, features, knn, linear, pixels
from course_utils.training import Budget, Method, SimCLR, seeded
from course_utils.views import Policy, greyscale

COLOUR_JITTER = Policy(
    name="colour jitter",
    source="Ours: a crop that leaves most of the picture, flip, and colours turned by any angle.",
    crop_scale=(0.5, 1.0),
    jitter=1.0,
    brightness=0.4,
    contrast=0.4,
    saturation=0.4,
    hue=0.5,
    grey=0.2,
)
CONDITIONS = {
    "no colour jitter": replace(
        COLOUR_JITTER, name="no colour jitter", source="Ours: crop and flip alone.", jitter=0.0, grey=0.0
    ),
    "colour jitter": COLOUR_JITTER,
    "all views grey": replace(
        COLOUR_JITTER,
        name="all views grey",
        source="Ours: crop, flip, every view grey.",
        jitter=0.0,
        grey=1.0,
    ),
}
FACTORS = ("shape", "hue")


@dataclass(frozen=True)
class Recipe:
    """One size of the experiment: encoder, pictures to train on, to fit the readout on and to judge it by."""

    encoder: type | partial
    budget: Budget
    train: int
    fit: int
    test: int
    temperature: float = 0.1


RECIPES = {
    # One place of the last map has to see a whole shape, hence the extra convolution.
    "quick": Recipe(
        partial(SmallEncoder, extra=1),
        Budget(epochs=10, batch=64, rate=5e-3, size=24),
        *(8192, 2000, 2000),
        temperature=0.07,
    ),
    "full": Recipe(resnet18, Budget(epochs=60, batch=512, rate=2e-3), 32_768, 10_000, 10_000),
}


# --- Pictures -----------------------------------------------------------------------------------------------


def large_shapes(count, seed):
    """`count` rendered pictures whose shape is large, and their factors: on 32 pixels the small ones blur."""
    factors = shapes.draw_factors(3 * count, seed)
    factors = factors[factors.size_band == 1][:count]
    return shapes.render(factors), factors


def grey(pictures):
    """The same pictures without their colours."""
    images = (greyscale(pictures.images / 255) * 255).round().to(torch.uint8)
    return replace(pictures, images=images, source=f"{pictures.source}, made grey")


def luminances(factors, bins=64):
    """What is left of a hue without colour: the palette's luminance times the light, as one of `bins` steps.

    factors: shapes.Factors. Returns float32 [B, bins], one hot: a linear readout of it is a vote per step.
    """
    colours = torch.tensor(list(shapes.HUES.values()))[:, :, None, None]
    luminance = greyscale(colours)[factors.hue, 0, 0, 0]
    towards_light = factors.light_direction.cos() * factors.x + factors.light_direction.sin() * factors.y
    steps = (luminance * (1 + factors.light_strength * towards_light) * bins).long().clamp(0, bins - 1)
    return one_hot(steps, bins).float()


# --- Networks -----------------------------------------------------------------------------------------------


def simclr(recipe, head):
    """The method of a condition: a new encoder below a new head of this kind."""
    encoder = recipe.encoder()
    return SimCLR(encoder, ProjectionHead(head, encoder.width), recipe.temperature)


class Supervised(Method):
    """The ceiling: an encoder trained with its pictures' labels in place of a partner.

    values: how many values each factor has. The head is a linear layer; labels: int64 [B, len(values)].
    """

    def __init__(self, encoder, values):
        super().__init__(encoder, nn.Linear(encoder.width, sum(values)))
        self.values = values

    def loss(self, view, labels):
        scores = self.project(view).split(self.values, dim=1)
        return sum(map(cross_entropy, scores, labels.unbind(1)))


def supervised(recipe, values):
    """The ceiling of a recipe: the same encoder, told factors with so many values each."""
    return Supervised(recipe.encoder(), values)


def train_condition(recipe, pictures, condition, head, seed, **options):
    """The finished run of one condition, the one call that the records and notebook 04 train with.

    options: for training.train, such as a checkpoint.
    """
    return trained(
        partial(simclr, recipe, head),
        pictures,
        recipe.budget,
        seed=seed,
        policy=CONDITIONS[condition],
        **options,
    )


def train_supervised(recipe, pictures, factors, seed, **options):
    """The finished run of the ceiling, told these factors of its pictures.

    options: for training.train, such as a checkpoint.
    """
    return trained(
        partial(supervised, recipe, [len(pictures.names[factor]) for factor in factors]),
        pictures,
        recipe.budget,
        seed=seed,
        policy=CONDITIONS["no colour jitter"],
        captions=torch.stack([pictures.labels[factor] for factor in factors], dim=1),
        **options,
    )


# --- Readout ------------------------------------------------------------------------------------------------


def accuracies(make_features, fit, test, factors=FACTORS):
    """A row for each factor and readout: features of `fit` and `test`, both Pictures, judged on `test`."""
    fit_features, test_features = make_features(fit.images), make_features(test.images)
    for factor in factors:
        split = Split(fit_features, fit.labels[factor], test_features, test.labels[factor])
        for readout in (linear, knn):
            yield {"factor": factor, "readout": readout.__name__, "accuracy": readout(split)}


READOUT = (
    "fitted on {fit} pictures that were not trained on, accuracy on {test} others; linear: logistic "
    "regression on features standardised with the fitted part, penalty chosen on a fifth of it; knn: 20 "
    "nearest by cosine, one vote each"
)


def read(network):
    """What `accuracies` wants: pictures -> the features that a frozen network makes of them."""
    return partial(features, network)


def representations(run):
    """h, and z where a head makes another one of it: name -> network."""
    parts = {"h": run.encoder}
    if len(run.method.head):
        parts["z"] = nn.Sequential(run.encoder, run.method.head)
    return parts


# --- The experiments ----------------------------------------------------------------------------------------


class Rendered:
    """The rendered pictures of a recipe, what is trained on them, and what is read out."""

    def __init__(self, size):
        self.size, self.recipe = size, RECIPES[size]
        self.pictures, _ = large_shapes(self.recipe.train, seed=1)
        self.fit, self.fit_factors = large_shapes(self.recipe.fit, seed=2)
        self.test, self.test_factors = large_shapes(self.recipe.test, seed=3)
        self.inputs = {"colour": (self.fit, self.test), "grey": (grey(self.fit), grey(self.test))}
        self.readout = READOUT.format(fit=len(self.fit), test=len(self.test))

    def readings(self, what, make_features, condition="none", head="none", seed=None):
        """A row for each input, factor and readout of one representation."""
        own = {"condition": condition, "head": head, "seed": seed, "features": what}
        return [
            {**own, "input": name, **row}
            for name, parts in self.inputs.items()
            for row in accuracies(make_features, *parts)
        ]

    def run(self, condition, head, seed):
        """The finished run of one condition; its checkpoint is kept, so a second call trains nothing."""
        name = f"heads_{self.size}_{condition}_{head}_{seed}".replace(" ", "_")
        return train_condition(self.recipe, self.pictures, condition, head, seed, checkpoint=name)

    def one_run(self, task):
        """The protocol and the readings of (condition, head, seed)."""
        condition, head, seed = task
        run = self.run(condition, head, seed)
        return run.protocol, [
            row
            for what, network in representations(run).items()
            for row in self.readings(what, read(network), condition, head, seed)
        ]

    def supervised_run(self, seed):
        """The finished run of the ceiling, told shape and hue; kept like the others."""
        name = f"heads_{self.size}_labels_{seed}"
        return train_supervised(self.recipe, self.pictures, FACTORS, seed, checkpoint=name)

    def random_encoder(self, seed):
        """The control: the encoder that every run with this seed starts from, whatever its head."""
        return seeded(self.recipe.encoder, seed)

    def untrained(self, seed):
        """The readings of the control."""
        return self.readings("random encoder", read(self.random_encoder(seed)), seed=seed)

    def ceiling(self, seed):
        """The protocol of a supervised run, and the readings of its encoder before and after."""
        run = self.supervised_run(seed)
        after = self.readings("supervised", read(run.encoder), seed=seed)
        return run.protocol, [*self.untrained(seed), *after]

    def luminance(self):
        """What the luminance of the shape alone tells of the hue: the ceiling for grey pictures."""
        fit, test = luminances(self.fit_factors), luminances(self.test_factors)
        accuracy = linear(Split(fit, self.fit.labels["hue"], test, self.test.labels["hue"]))
        own = {"condition": "none", "head": "none", "seed": None, "features": "luminance of the shape"}
        return {**own, "input": "grey", "factor": "hue", "readout": "linear", "accuracy": accuracy}


def heads(seeds=range(5)):
    """Rendered pictures, MLP head: shape and hue in h and z under three colour policies, and controls."""
    rendered = Rendered(runtime.budget())
    protocol, results = conditions_read(rendered, seeds, ["mlp"])
    ceilings, controls = zip(*side_by_side(rendered.ceiling, seeds), strict=True)
    return records.Record(
        name=f"heads_{rendered.size}",
        question="Which of shape and hue can be read out of h and of z, with and without colour in the task?",
        protocol={**protocol, "supervised": records.merge(ceilings)},
        results=[
            *results,
            *(row for part in controls for row in part),
            *rendered.readings("raw pixels", pixels),
            rendered.luminance(),
        ],
    )


def head_kinds(seeds=range(5)):
    """The same with a linear head and without one, and the random encoder once more as their control."""
    rendered = Rendered(runtime.budget())
    protocol, results = conditions_read(rendered, seeds, ["linear", "none"])
    results += [row for part in side_by_side(rendered.untrained, seeds) for row in part]
    return records.Record(
        name=f"head_kinds_{rendered.size}",
        question="What is left in h and in z with a linear head, and in h without a head?",
        protocol=protocol,
        results=results,
    )


def conditions_read(rendered, seeds, kinds):
    """Protocol and results of all three policies, with each of these kinds of head."""
    tasks = [(condition, head, seed) for seed in seeds for head in kinds for condition in CONDITIONS]
    protocols, parts = zip(*side_by_side(rendered.one_run, tasks), strict=True)
    protocol = {**merged(protocols, tasks), "readout": rendered.readout}
    return protocol, [row for part in parts for row in part]


def merged(protocols, tasks):
    """The protocols of all conditions as one; beside each run stand its condition and head."""
    policies = {protocol["policy"]["name"]: protocol["policy"] for protocol in protocols}
    networks = {head: protocol["networks"] for (_, head, _), protocol in zip(tasks, protocols, strict=True)}
    named = [
        {**protocol, "policy": policies, "networks": networks, "condition": condition, "head": head}
        for (condition, head, _), protocol in zip(tasks, protocols, strict=True)
    ]
    return records.merge(named, varied=("condition", "head"))


# --- The same question on real pictures ---------------------------------------------------------------------

CIFAR_RECIPES = {
    "quick": Recipe(SmallEncoder, Budget(epochs=4, batch=64, rate=2e-3, size=24), 20_000, 5000, 5000),
    "full": Recipe(resnet18, Budget(epochs=200, batch=512, rate=2e-3), 40_000, 10_000, 10_000),
}
DOMINANT_HUES = (*shapes.HUE_NAMES, "grey")
GREYISH = 0.12  # mean chroma below which a picture counts as grey


def dominant_hue(images):
    """The hue that most of a picture's colour has: int64 [B], a place in `DOMINANT_HUES`.

    images: uint8 [B, 3, H, W]. Each pixel votes for the nearest of six hues, 60 degrees apart, with its
    chroma (the largest of red, green and blue less the smallest, 0 to 1); the hue with most votes wins. Where
    the mean chroma is below `GREYISH`, the picture counts as grey.
    """
    views = images.float() / 255
    red, green, blue = views.unbind(1)
    chroma = views.amax(dim=1) - views.amin(dim=1)
    angle = torch.atan2(3**0.5 * (green - blue), 2 * red - green - blue) / (torch.pi / 3)
    sixth = angle.round().long() % 6
    votes = (one_hot(sixth, 6) * chroma[..., None]).sum(dim=(1, 2))
    return torch.where(chroma.mean(dim=(1, 2)) < GREYISH, 6, votes.argmax(dim=1))


def most_frequent(labels):
    """Chance: the share of the label that comes most often."""
    return (labels.bincount().max() / len(labels)).item()


def with_hue(pictures):
    """CIFAR-10 pictures with their dominant hue as a second label."""
    return replace(
        pictures,
        labels={**pictures.labels, "hue": dominant_hue(pictures.images)},
        names={**pictures.names, "hue": DOMINANT_HUES},
    )


def heads_cifar(seeds=range(5)):
    """CIFAR-10: class and dominant hue in h and z, with and without colour jitter, and their controls."""
    size = runtime.budget()
    recipe = CIFAR_RECIPES[size]
    labelled = with_hue(cifar.load("train", recipe.train + recipe.fit))
    pictures, fit = labelled[: recipe.train], labelled[recipe.train :]
    test = with_hue(cifar.load("test", recipe.test))
    conditions, factors = ("no colour jitter", "colour jitter"), ("class", "hue")

    def readings(what, make_features, condition="none", seed=None):
        own = {"condition": condition, "head": "mlp", "seed": seed, "features": what, "input": "colour"}
        return [{**own, **row} for row in accuracies(make_features, fit, test, factors)]

    def one_run(task):
        condition, _, seed = task
        name = f"heads_cifar_{size}_{condition}_{seed}".replace(" ", "_")
        run = train_condition(recipe, pictures, condition, "mlp", seed, checkpoint=name)
        results = [
            row
            for what, network in representations(run).items()
            for row in readings(what, read(network), condition, seed)
        ]
        return run.protocol, results

    def ceiling(seed):
        name = f"heads_cifar_{size}_labels_{seed}"
        run = train_supervised(recipe, pictures, factors, seed, checkpoint=name)
        return run.protocol, [
            *readings("random encoder", read(seeded(recipe.encoder, seed)), seed=seed),
            *readings("supervised", read(run.encoder), seed=seed),
        ]

    tasks = [(condition, "mlp", seed) for seed in seeds for condition in conditions]
    protocols, parts = zip(*side_by_side(one_run, tasks), strict=True)
    ceilings, controls = zip(*side_by_side(ceiling, seeds), strict=True)
    results = [row for part in (*parts, *controls) for row in part]
    results += readings("raw pixels", pixels)
    return records.Record(
        name=f"heads_cifar_{size}",
        question="Which of class and dominant hue can be read out of h and of z on real pictures?",
        protocol={
            **merged(protocols, tasks),
            "supervised": records.merge(ceilings),
            "readout": READOUT.format(fit=len(fit), test=len(test)),
            "hue": " ".join(dominant_hue.__doc__.split()),
            "most frequent": {factor: most_frequent(test.labels[factor]) for factor in factors},
        },
        results=results,
    )
