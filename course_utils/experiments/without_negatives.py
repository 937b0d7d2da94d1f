"""Methods without negatives beside SimCLR: which collapse on the way, and what is read out of the others?"""

from dataclasses import replace
from functools import partial

from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from course_utils import records, runtime
from course_utils.dashboard import MEASURES, Dashboard
from course_utils.experiments import heads
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.networks import ProjectionHead
from course_utils.readout import pixels
from course_utils.training import BYOL, BarlowTwins, Budget, SimCLR, SimSiam, seeded

# Notebook 04's encoder and pictures, at a rate and a temperature that the search for its recipe tried before.
RECIPES = {
    "quick": replace(
        heads.RECIPES["quick"], budget=Budget(epochs=4, batch=64, rate=3e-3, size=24), temperature=0.1
    ),
    "full": heads.RECIPES["full"],
}
LOOKS = 20  # how often a run's z are looked at
LOOKED_AT = 256  # held-out pictures
FACTORS = ("shape", "hue")
UNTRAINED = {  # the arms whose untrained encoder is read out as a control, and the control's name
    "SimCLR": "random encoder",
    "BYOL, group norm": "random encoder, group norm",
    "BYOL, group norm, standardised weights": "random encoder, group norm, standardised weights",
}


def arms(recipe):
    """Name -> a function without arguments that makes the method, whole or with one part left out."""
    byol = partial(BYOL, momentum=0.99)
    kinds = {
        "SimCLR": partial(SimCLR, temperature=recipe.temperature),
        "Barlow Twins": BarlowTwins,
        "SimSiam": SimSiam,
        "SimSiam, no stop-gradient": partial(SimSiam, stop_gradient=False),
        "SimSiam, no predictor": partial(SimSiam, predictor=False),
        "BYOL": byol,
        "BYOL, no predictor": partial(byol, predictor=False),
        "BYOL, target without delay": partial(BYOL, momentum=0.0),
    }

    def make(kind):
        encoder = recipe.encoder()
        return kind(encoder, ProjectionHead("mlp", encoder.width))

    def without_batch_statistics(standardised):
        encoder = recipe.encoder()
        head = ProjectionHead("mlp", encoder.width)
        method = byol(*(group_normed(network, standardised) for network in (encoder, head)))
        group_normed(method.predictor, standardised)
        return method

    return {name: partial(make, kind) for name, kind in kinds.items()} | {
        "BYOL, group norm": partial(without_batch_statistics, standardised=False),
        "BYOL, group norm, standardised weights": partial(without_batch_statistics, standardised=True),
    }


def group_normed(network, standardised):
    """The network with a group norm in place of each batch norm: it looks at one picture at a time.

    network: nn.Sequential, changed in place. Eight groups of channels. standardised: whether the weights of
    the layer before are standardised too, as in Richemond et al. 2020.
    """
    for place, layer in enumerate(network):
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            network[place] = nn.GroupNorm(8, layer.num_features)
            if standardised:
                register_parametrization(network[place - 1], "weight", Standardised())
    return network


class Standardised(nn.Module):
    """The weights of a layer, those of each output with mean 0 and variance 1 / their number."""

    def forward(self, weight):
        rows = weight.flatten(1)
        rows = rows - rows.mean(dim=1, keepdim=True)
        return (rows / rows.norm(dim=1, keepdim=True)).view_as(weight)


def without_negatives(seeds=range(3)):
    """SimCLR, Barlow Twins, SimSiam and BYOL, whole and with a part left out: collapse and readout."""
    size = runtime.budget()
    recipe = RECIPES[size]
    pictures, fit, test, seen = (
        heads.large_shapes(count, seed)[0]
        for count, seed in ((recipe.train, 1), (recipe.fit, 2), (recipe.test, 3), (LOOKED_AT, 4))
    )
    every = max(1, recipe.budget.steps(len(pictures)) // LOOKS)
    made = arms(recipe)

    def one_run(task):
        arm, seed = task
        board = Dashboard(seen, heads.COLOUR_JITTER, recipe.budget.size, every)
        run = trained(made[arm], pictures, recipe.budget, seed=seed, policy=heads.COLOUR_JITTER, watch=board)
        measured = [(row["step"], measure, row[measure]) for row in board.looks for measure in MEASURES]
        measured += [(len(run.history), *entry) for entry in readings(heads.read(run.encoder))]
        return run.protocol, rows(arm, seed, measured)

    def untrained(task):
        arm, seed = task
        encoder = seeded(made[arm], seed).encoder
        return rows(UNTRAINED[arm], seed, [(0, *entry) for entry in readings(heads.read(encoder))])

    def readings(make_features):
        for row in heads.accuracies(make_features, fit, test, FACTORS):
            yield f"{row['factor']}, {row['readout']}", row["accuracy"]

    def rows(arm, seed, measured):
        return [
            {"arm": arm, "seed": seed, "step": step, "measure": measure, "value": round(value, 5)}
            for step, measure, value in measured
        ]

    tasks = [(arm, seed) for seed in seeds for arm in made]
    protocols, parts = zip(*side_by_side(one_run, tasks), strict=True)
    controls = [(arm, seed) for arm in UNTRAINED for seed in seeds]
    parts += (*side_by_side(untrained, controls),)
    parts += (rows("raw pixels", None, [(0, *entry) for entry in readings(pixels)]),)
    named = [{**protocol, "arm": arm} for (arm, _), protocol in zip(tasks, protocols, strict=True)]
    return records.Record(
        name=f"without_negatives_{size}",
        question="Which methods without negatives collapse, and what do the others learn about shapes?",
        protocol={
            **records.merge(named, varied=("arm", "method", "networks")),
            "looks": f"at z of {LOOKED_AT} held-out pictures, two views each, in training mode (batch norm "
            "with these views' statistics): " + ", ".join(MEASURES) + ", as in contrast.py",
            "readout": "of h, in evaluation mode, " + heads.READOUT.format(fit=recipe.fit, test=recipe.test),
        },
        results=[row for part in parts for row in part],
    )
