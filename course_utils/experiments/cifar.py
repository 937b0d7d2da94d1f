"""CIFAR-10: what SimCLR learns about its classes, beside a random encoder and raw pixels."""

from dataclasses import replace

from torch import nn

from course_utils import records, runtime
from course_utils.experiments.heads import accuracies, read
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.images import cifar
from course_utils.networks import ProjectionHead, SmallEncoder, resnet18
from course_utils.readout import pixels
from course_utils.training import Budget, SimCLR, seeded
from course_utils.views import POLICIES

# Encoder, training, and number of pictures to fit the readout on, by budget.
CIFAR = {
    "quick": (SmallEncoder, Budget(epochs=7, batch=256, rate=6e-3, size=24), 10_000),
    "full": (resnet18, Budget(epochs=200, batch=512, rate=2e-3), 50_000),
}


def simclr_cifar(seeds=range(3)):
    """SimCLR on CIFAR-10: class accuracy of h and z beside a random encoder and raw pixels."""
    size = runtime.budget()
    encoder, budget, readout_count = CIFAR[size]
    policy = replace(
        POLICIES["simclr_cifar"], name="simclr_cifar, crops of at least a fifth", crop_scale=(0.2, 1)
    )
    pictures, test = cifar.load("train"), cifar.load("test")
    fit = pictures[:readout_count]

    def simclr():
        network = encoder()
        return SimCLR(network, ProjectionHead("mlp", network.width), temperature=0.1)

    def readings(seed, what, make_features):
        for row in accuracies(make_features, fit, test, ["class"]):
            yield {"seed": seed, "features": what, "readout": row["readout"], "accuracy": row["accuracy"]}

    def one_seed(seed):
        results = [*readings(seed, "random encoder", read(seeded(simclr, seed).encoder))]
        checkpoint = f"simclr_cifar_{size}_{seed}"
        run = trained(simclr, pictures, budget, seed=seed, policy=policy, checkpoint=checkpoint)
        results += readings(seed, "h", read(run.encoder))
        results += readings(seed, "z", read(nn.Sequential(run.encoder, run.method.head)))
        return run.protocol, results

    protocols, parts = zip(*side_by_side(one_seed, seeds), strict=True)
    results = [row for part in parts for row in part]
    results += readings(None, "raw pixels", pixels)
    return records.Record(
        name=f"simclr_cifar_{size}",
        question="Does SimCLR learn more about CIFAR-10's classes than a random encoder or raw pixels tell?",
        protocol={
            **records.merge(protocols),
            "readout": f"fitted on the first {readout_count} training pictures, accuracy on all "
            f"{len(test)} test pictures; linear: logistic regression on features standardised with the "
            "training part, penalty chosen on a fifth of it; knn: 20 nearest by cosine, one vote each",
        },
        results=results,
    )
