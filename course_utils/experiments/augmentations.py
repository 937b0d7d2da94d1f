"""CIFAR-10: what each operation of SimCLR's policy for photographs is worth to the readout, one left out."""

from functools import partial

from course_utils import records, runtime
from course_utils.experiments.heads import CIFAR_RECIPES, READOUT, accuracies, read, simclr
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.images import cifar
from course_utils.readout import pixels
from course_utils.training import seeded
from course_utils.views import POLICIES

POLICY = POLICIES["strong"]
ARMS = {"whole policy": POLICY, **{f"without {name}": POLICY.without(name) for name in POLICY.operations}}


def augmentations_cifar(seeds=range(5)):
    """SimCLR on CIFAR-10 with five operations and with four of them: class accuracy of h, and its controls.

    All arms of a seed have the same start weights, order and draws; the one operation is all that differs.
    """
    size = runtime.budget()
    recipe = CIFAR_RECIPES[size]
    loaded = cifar.load("train", recipe.train + recipe.fit)
    pictures, fit = loaded[: recipe.train], loaded[recipe.train :]
    test = cifar.load("test", recipe.test)
    make = partial(simclr, recipe, "mlp")

    def readings(arm, make_features, seed=None):
        own = {"arm": arm, "seed": seed}
        return [
            own | {"measure": row["readout"], "value": row["accuracy"]}
            for row in accuracies(make_features, fit, test, ["class"])
        ]

    def one_run(task):
        arm, seed = task
        checkpoint = f"augmentations_cifar_{size}_{arm}_{seed}".replace(" ", "_")
        run = trained(make, pictures, recipe.budget, seed=seed, policy=ARMS[arm], checkpoint=checkpoint)
        last = run.history["loss"].tail(max(1, len(run.history) // 10)).mean()
        results = [
            *readings(arm, read(run.encoder), seed),
            {"arm": arm, "seed": seed, "measure": "loss", "value": round(last, 6)},
        ]
        return {**run.protocol, "arm": arm}, results

    def random_encoder(seed):
        return readings("random encoder", read(seeded(make, seed).encoder), seed)

    tasks = [(arm, seed) for seed in seeds for arm in ARMS]
    protocols, parts = zip(*side_by_side(one_run, tasks), strict=True)
    parts += (*side_by_side(random_encoder, seeds), readings("raw pixels", pixels))
    policies = {protocol["arm"]: protocol["policy"] for protocol in protocols}
    return records.Record(
        name=f"augmentations_cifar_{size}",
        question="What does leaving out one operation of the views cost the readout of CIFAR-10's classes?",
        protocol={
            **records.merge([{**one, "policy": policies} for one in protocols], varied=("arm",)),
            "readout": READOUT.format(fit=len(fit), test=len(test))
            + "; loss: mean over the last tenth of the steps, and not comparable between arms: without an "
            "operation the question is another",
        },
        results=[row for part in parts for row in part],
    )
