"""Temperature: the same training at four of them, and what it does to readout, loss and embeddings."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import normalize

from course_utils import records, runtime
from course_utils.contrast import alignment, tolerance, uniformity
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.images import cifar, shapes
from course_utils.networks import ProjectionHead, SmallEncoder, resnet18
from course_utils.readout import Split, features, knn, linear, pixels
from course_utils.training import Budget, SimCLR, seeded
from course_utils.views import POLICIES, two_views

TEMPERATURES = (0.01, 0.1, 0.5, 1.0)
SIMCLR = POLICIES["simclr_cifar"]

# Encoder, training, and number of pictures to fit the readout on, by budget.
SHAPES = {
    "quick": (SmallEncoder, Budget(epochs=5, batch=64, rate=3e-3, size=24), 2_048),
    "full": (resnet18, Budget(epochs=100, batch=512, rate=2e-3), 20_000),
}
CIFAR = {
    "quick": (SmallEncoder, Budget(epochs=2, batch=256, rate=6e-3, size=24), 5_000),
    "full": (resnet18, Budget(epochs=100, batch=512, rate=2e-3), 50_000),
}
GROUP = 256  # pictures whose views look for each other in the contrastive accuracy


def temperature_shapes(seeds=range(3)):
    """SimCLR on rendered pictures at four temperatures: the shape's accuracy in h and z, and their spread."""
    encoder, budget, count = SHAPES[runtime.budget()]
    pictures, fit, test = shapes.make(2_048, 0), shapes.make(count, 1), shapes.make(2_048, 2)
    policy = replace(SIMCLR, name="simclr_cifar, crops of at least three fifths", crop_scale=(0.6, 1))
    return sweep("shapes", "shape", encoder, budget, policy, pictures, fit, test, seeds)


def temperature_cifar(seeds=range(3)):
    """SimCLR on CIFAR-10 at four temperatures: the class's accuracy in h and z, and their spread."""
    encoder, budget, count = CIFAR[runtime.budget()]
    pictures = cifar.load("train")
    policy = replace(SIMCLR, name="simclr_cifar, crops of at least a fifth", crop_scale=(0.2, 1))
    fit, test = pictures[:count], cifar.load("test")
    return sweep("cifar", "class", encoder, budget, policy, pictures, fit, test, seeds)


def sweep(name, label, encoder, budget, policy, pictures, fit, test, seeds):
    """One record: every temperature with every seed, all from the seed's start weights, order and views."""
    size = runtime.budget()
    held_out = two_views(test.images[: 10 * GROUP], policy, runtime.generator(0), budget.size)

    def simclr(temperature):
        network = encoder()
        return SimCLR(network, ProjectionHead("mlp", network.width), temperature=temperature)

    def readings(make_features):
        split = Split(
            make_features(fit.images), fit.labels[label], make_features(test.images), test.labels[label]
        )
        yield "linear", linear(split)
        yield "knn", knn(split)
        yield "uniformity", uniformity(split.test_features[:2000]).item()
        yield "tolerance", tolerance(split.test_features, split.test_labels).item()

    def rows(temperature, seed, what, measured, progress=1.0):
        own = {"temperature": temperature, "seed": seed, "features": what, "progress": progress}
        return [own | {"measure": measure, "value": value} for measure, value in measured]

    def read(network):
        return readings(lambda images: features(network, images))

    def one_run(task):
        temperature, seed = task
        checkpoint = f"temperature_{name}_{size}_{temperature:g}_{seed}"
        run = trained(
            lambda: simclr(temperature), pictures, budget, seed=seed, policy=policy, checkpoint=checkpoint
        )
        z = nn.Sequential(run.encoder, run.method.head)
        results = rows(temperature, seed, "h", read(run.encoder)) + rows(temperature, seed, "z", read(z))
        results += rows(temperature, seed, "z", on_views(run.method, held_out))
        tenths = torch.tensor(run.history["loss"]).chunk(10)
        for place, losses in enumerate(tenths, start=1):
            results += rows(temperature, seed, "z", [("loss", losses.mean().item())], place / len(tenths))
        return run.protocol, results

    def random_encoder(seed):
        return rows(None, seed, "random encoder", read(seeded(lambda: simclr(1.0), seed).encoder))

    tasks = [(temperature, seed) for temperature in TEMPERATURES for seed in seeds]
    protocols, parts = zip(*side_by_side(one_run, tasks), strict=True)
    parts += (*side_by_side(random_encoder, seeds), rows(None, None, "raw pixels", readings(pixels)))
    return records.Record(
        name=f"temperature_{name}_{size}",
        question="What does the temperature of training change in the loss, the embeddings and the readout?",
        protocol={
            **records.merge(protocols, varied=("method",)),
            "readout": f"the label is the {label}; fitted on {len(fit)} pictures, accuracy on {len(test)} "
            "test pictures; linear: logistic regression on features standardised with the training part, "
            "penalty chosen on a fifth of it; knn: 20 nearest by cosine, one vote each; uniformity: 2000 "
            "test pictures; tolerance: mean cosine of all pairs of test pictures with one label; contrastive "
            f"accuracy and alignment: two views of {len(held_out.view_a)} test pictures, each looks for its "
            f"partner among the others of {GROUP} pictures; loss: mean over a tenth of the steps, for its "
            "course only: losses of different temperatures are not comparable",
        },
        results=[row for part in parts for row in part],
    )


@torch.no_grad()
def on_views(method, pair):
    """Contrastive accuracy and alignment of z on two held-out views of the same pictures."""
    device = next(method.parameters()).device
    z_a, z_b = (
        normalize(torch.cat([method.project(part.to(device)).cpu() for part in view.split(GROUP)]))
        for view in (pair.view_a, pair.view_b)
    )
    yield "contrastive accuracy", contrastive_accuracy(z_a, z_b)
    yield "alignment", alignment(z_a, z_b).item()


def contrastive_accuracy(z_a, z_b, group=GROUP):
    """The share of views [N, D], of unit length, whose partner is nearest among a group's other views."""
    hits = 0
    for a, b in zip(z_a.split(group), z_b.split(group), strict=True):
        views = torch.cat([a, b])
        nearest = (views @ views.T).fill_diagonal_(-torch.inf).argmax(dim=1)
        hits += (nearest == torch.arange(len(views)).roll(len(a))).sum().item()
    return hits / (2 * len(z_a))
