"""The experiments behind data/records, one function each: `python -m course_utils.experiments NAME` runs one.

Each trains with several seeds, reads the features out beside their controls, and writes one record. A seed's
run keeps its checkpoint in data/cache/runs: an interrupted experiment goes on where it was. COURSE_BUDGET
chooses the size, and the record is named after it.
"""

import argparse
from dataclasses import replace

from torch import nn

from course_utils import records, runtime
from course_utils.images import cifar
from course_utils.networks import ProjectionHead, SmallEncoder, resnet18
from course_utils.readout import Split, features, knn, linear, pixels
from course_utils.training import Budget, SimCLR, seeded, train
from course_utils.views import POLICIES

# Encoder, training, and number of pictures to fit the readout on, by budget.
CIFAR = {
    "quick": (SmallEncoder, Budget(epochs=7, batch=256, rate=6e-3, size=24), 10_000),
    "full": (resnet18, Budget(epochs=200, batch=512, rate=2e-3), 50_000),
}


def simclr_cifar(seeds):
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
        split = Split(
            make_features(fit.images), fit.labels["class"], make_features(test.images), test.labels["class"]
        )
        for readout in (linear, knn):
            yield {"seed": seed, "features": what, "readout": readout.__name__, "accuracy": readout(split)}

    def read(network):
        return lambda images: features(network, images)

    protocols, results = [], []
    for seed in seeds:
        results += readings(seed, "random encoder", read(seeded(simclr, seed).encoder))
        checkpoint = f"simclr_cifar_{size}_{seed}"
        run = train(simclr, pictures, budget, seed=seed, policy=policy, checkpoint=checkpoint)
        if not run.finished:
            raise SystemExit("The same command goes on from the last whole epoch.")
        results += readings(seed, "h", read(run.encoder))
        results += readings(seed, "z", read(nn.Sequential(run.encoder, run.method.head)))
        protocols.append(run.protocol)
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


EXPERIMENTS = {function.__name__: function for function in (simclr_cifar,)}


def main(arguments=None):
    """Run one experiment and write its record."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.experiments", description=main.__doc__)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, 0, 1, ... (default: 3)")
    options = parser.parse_args(arguments)
    record = EXPERIMENTS[options.name](range(options.seeds))
    print(record.table.pivot_table("accuracy", "features", "readout", sort=False).round(3))
    print(records.save(record))


if __name__ == "__main__":
    main()
