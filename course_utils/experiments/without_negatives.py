"""Methods without negatives beside SimCLR: which collapse on the way, and what is read out of the others?"""

from dataclasses import replace
from functools import partial

from torch import nn

from course_utils import records, runtime
from course_utils.dashboard import MEASURES, Dashboard
from course_utils.experiments import heads
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.networks import ProjectionHead
from course_utils.readout import pixels
from course_utils.training import BYOL, BarlowTwins, SimCLR, SimSiam, seeded

EPOCHS = {"quick": 6, "full": 60}  # of notebook 04's recipe for the same pictures
LOOKS = 20  # how often a run's z are looked at
LOOKED_AT = 256  # held-out pictures
FACTORS = ("shape", "hue")


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

    def make_without_batch_statistics():
        encoder = recipe.encoder()
        head = ProjectionHead("mlp", encoder.width)
        method = byol(group_normalised(encoder), group_normalised(head))
        group_normalised(method.predictor)
        return method

    return {name: partial(make, kind) for name, kind in kinds.items()} | {
        "BYOL, no batch statistics": make_without_batch_statistics
    }


def group_normalised(network):
    """The network with a group norm in place of each batch norm: it looks at one picture at a time.

    network: nn.Sequential, changed in place. Eight groups of channels.
    """
    for place, layer in enumerate(network):
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
            network[place] = nn.GroupNorm(8, layer.num_features)
    return network


def without_negatives(seeds=range(3)):
    """SimCLR, Barlow Twins, SimSiam and BYOL, whole and with a part left out: collapse and readout."""
    size = runtime.budget()
    recipe = heads.RECIPES[size]
    budget = replace(recipe.budget, epochs=EPOCHS[size])
    pictures, fit, test, seen = (
        heads.large_shapes(count, seed)[0]
        for count, seed in ((recipe.train, 1), (recipe.fit, 2), (recipe.test, 3), (LOOKED_AT, 4))
    )
    made = arms(recipe)

    def one_run(task):
        arm, seed = task
        board = Dashboard(
            seen, heads.COLOUR_JITTER, budget.size, max(1, budget.steps(len(pictures)) // LOOKS)
        )
        run = trained(made[arm], pictures, budget, seed=seed, policy=heads.COLOUR_JITTER, watch=board)
        measured = [(look["step"], measure, look[measure]) for look in board.looks for measure in MEASURES]
        measured += [(len(run.history), *entry) for entry in readings(heads.read(run.encoder))]
        return run.protocol, rows(arm, seed, measured)

    def untrained(task):
        arm, seed = task
        name = "random encoder" + ", no batch statistics" * ("batch" in arm)
        encoder = seeded(made[arm], seed).encoder
        return rows(name, seed, [(0, *entry) for entry in readings(heads.read(encoder))])

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
    controls = [(arm, seed) for arm in ("SimCLR", "BYOL, no batch statistics") for seed in seeds]
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
