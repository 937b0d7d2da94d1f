"""MoCo: what old keys are still worth, MoCo beside SimCLR, and MoCo on photographs."""

import copy
from dataclasses import replace

import torch
from torch.nn.functional import cosine_similarity

from course_utils import records, runtime
from course_utils.experiments import heads
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.images import cifar, shapes
from course_utils.memory import ema_update, write_ring
from course_utils.networks import ProjectionHead, SmallEncoder, resnet18
from course_utils.training import Budget, MoCo, SimCLR, seeded
from course_utils.views import POLICIES

SIMCLR = POLICIES["simclr_cifar"]
SHAPES_POLICY = replace(SIMCLR, name="simclr_cifar, crops of at least three fifths", crop_scale=(0.6, 1))
CIFAR_POLICY = replace(SIMCLR, name="simclr_cifar, crops of at least a fifth", crop_scale=(0.2, 1))
TEMPERATURE = 0.2
MOMENTA = (0.0, 0.9, 0.99, 0.999)

# By budget: encoder, number of pictures to train on, training, places of the queue.
STALENESS = {
    "quick": (SmallEncoder, 6_400, Budget(epochs=4, batch=64, rate=3e-3, size=24), 1024),
    "full": (resnet18, 50_000, Budget(epochs=100, batch=256, rate=2e-3), 16_384),
}
SHAPES = {
    "quick": (SmallEncoder, 6_400, Budget(epochs=4, batch=64, rate=3e-3, size=24), 1024),
    "full": (resnet18, 51_200, Budget(epochs=100, batch=128, rate=2e-3), 16_384),
}
CIFAR = {
    "quick": (SmallEncoder, None, Budget(epochs=2, batch=256, rate=6e-3, size=24), 4096),
    "full": (resnet18, None, Budget(epochs=200, batch=512, rate=2e-3), 16_384),
}
READOUT = {"quick": 5_000, "full": 20_000}  # pictures to fit on
TEST = 5_000  # rendered pictures to be judged by


class WatchedMoCo(MoCo):
    """MoCo that keeps the views behind its keys and encodes them once more, half-way through.

    look: the step after which it does. cosines: float32 [Q // B], of the keys aged 1, 2, ... with what the
    key network of the next step makes of the same views, batch by batch as they were made.
    """

    def __init__(self, *networks, look, batch, size, **settings):
        super().__init__(*networks, **settings)
        self.look, self.batch = look, batch
        self.register_buffer("seen", torch.zeros(self.queue.size, 3, size, size))
        self.register_buffer("cosines", torch.zeros(self.queue.size // batch))

    def loss(self, view_a, view_b):
        write_ring(self.seen, self.queue.pointer, view_b)
        return super().loss(view_a, view_b)

    @torch.no_grad()
    def after_step(self):
        super().after_step()
        if self.queue.steps != self.look:
            return
        encoder, head = copy.deepcopy(self.key_encoder), copy.deepcopy(self.key_head)
        ema_update(encoder, self.encoder, self.momentum)
        ema_update(head, self.head, self.momentum)
        newest_first = self.queue.order().flip(0).split(self.batch)
        for age, places in enumerate(newest_first[: len(self.cosines)]):
            again = head(encoder(self.seen[places]))
            self.cosines[age] = cosine_similarity(again.float(), self.queue.keys[places]).mean()


def moco_staleness(seeds=range(3)):
    """MoCo with four momenta: how like its keys are to their re-encoding, by age; loss and readout."""
    size = runtime.budget()
    encoder, count, budget, places = STALENESS[size]
    pictures = shapes.make(count, 0)
    read = shape_readings(READOUT[size])
    look = budget.steps(count) // 2

    def moco(momentum):
        network = encoder()
        return WatchedMoCo(
            network,
            ProjectionHead("mlp", network.width),
            **{"queue": places, "momentum": momentum, "temperature": TEMPERATURE},
            **{"look": look, "batch": budget.batch, "size": budget.size or pictures.images.shape[-1]},
        )

    def one_run(task):
        momentum, seed = task
        run = trained(
            lambda: moco(momentum),
            pictures,
            budget,
            seed=seed,
            policy=SHAPES_POLICY,
            checkpoint=f"moco_staleness_{size}_{momentum:g}_{seed}",
        )
        own = {"momentum": momentum, "seed": seed}
        part = max(1, len(run.history) // 40)
        losses = run.history["loss"].rolling(part).mean()[part - 1 :: part]
        measured = [("cosine", age, value) for age, value in enumerate(run.method.cosines.tolist(), start=1)]
        measured += [("loss", place + 1, mean) for place, mean in losses.items()]
        measured += [(name, len(run.history), value) for name, value in read(run.encoder)]
        return run.protocol, [own | row(*entry) for entry in measured]

    def random_encoder(seed):
        network = seeded(lambda: moco(0.0), seed).encoder
        return [{"momentum": None, "seed": seed} | row(name, 0, value) for name, value in read(network)]

    def row(measure, at, value):
        return {"measure": measure, "at": at, "value": round(value, 6)}

    tasks = [(momentum, seed) for momentum in MOMENTA for seed in seeds]
    protocols, parts = zip(*side_by_side(one_run, tasks), strict=True)
    parts += (*side_by_side(random_encoder, seeds),)
    return records.Record(
        name=f"moco_staleness_{size}",
        question="How like are a queue's keys to what the key network would make of the same views now?",
        protocol={
            **records.merge(protocols, varied=("method",)),
            "readout": f"cosine, by age: mean over the keys of one batch, after step {look}, with the key "
            "network of the next step; loss: mean over a fortieth of the steps, up to the step given; "
            + describe_readout("shape", READOUT[size], TEST),
        },
        results=[row for part in parts for row in part],
    )


def simclr_moco_shapes(seeds=range(3)):
    """SimCLR and MoCo on rendered pictures, at equal numbers of steps and at equal numbers of pictures."""
    size = runtime.budget()
    encoder, count, budget, places = SHAPES[size]
    large = replace(budget, batch=4 * budget.batch)
    arms = {
        "SimCLR, small batch": (simclr(encoder), budget),
        "SimCLR, large batch": (simclr(encoder), large),
        "MoCo, small batch": (moco(encoder, places), budget),
        "MoCo, small batch, as many steps as the large": (
            moco(encoder, places),
            replace(budget, epochs=budget.epochs // 4),
        ),
    }
    return compare(
        name="simclr_moco_shapes",
        question="Which learns more about shapes at equal steps and at equal pictures, SimCLR or MoCo?",
        arms=arms,
        pictures=shapes.make(count, 0),
        policy=SHAPES_POLICY,
        read=shape_readings(READOUT[size]),
        readout=describe_readout("shape", READOUT[size], TEST),
        seeds=seeds,
    )


def moco_cifar(seeds=range(3)):
    """MoCo on CIFAR-10 with a queue well below the number of pictures, beside SimCLR at the same budget."""
    size = runtime.budget()
    encoder, count, budget, places = CIFAR[size]
    pictures, test = cifar.load("train", count), cifar.load("test")
    return compare(
        name="moco_cifar",
        question="What does MoCo learn about CIFAR-10's classes with a queue well below its pictures?",
        arms={"SimCLR": (simclr(encoder), budget), "MoCo": (moco(encoder, places), budget)},
        pictures=pictures,
        policy=CIFAR_POLICY,
        read=readings(pictures[: READOUT[size]], test, "class"),
        readout=describe_readout("class", READOUT[size], len(test)),
        seeds=seeds,
    )


def compare(name, question, arms, pictures, policy, read, readout, seeds):
    """One record: every arm (its name -> (function that makes the method, Budget)) with every seed.

    read: encoder -> pairs (readout, accuracy).
    """
    size = runtime.budget()

    def one_run(task):
        (arm, (make, budget)), seed = task
        checkpoint = f"{name}_{size}_{list(arms).index(arm)}_{seed}"
        run = trained(make, pictures, budget, seed=seed, policy=policy, checkpoint=checkpoint)
        last = run.history["loss"].tail(max(1, len(run.history) // 10)).mean()
        seen = {"steps": len(run.history), "pictures": len(run.history) * budget.batch}
        measured = [*read(run.encoder), ("loss", last)]
        return run.protocol, rows({"arm": arm, "seed": seed, **seen}, measured)

    def random_encoder(seed):
        make, _ = next(iter(arms.values()))
        own = {"arm": "random encoder", "seed": seed, "steps": 0, "pictures": 0}
        return rows(own, read(seeded(make, seed).encoder))

    def rows(own, measured):
        return [own | {"measure": measure, "value": round(value, 6)} for measure, value in measured]

    tasks = [(arm, seed) for arm in arms.items() for seed in seeds]
    protocols, parts = zip(*side_by_side(one_run, tasks), strict=True)
    parts += (*side_by_side(random_encoder, seeds),)
    return records.Record(
        name=f"{name}_{size}",
        question=question,
        protocol={
            **records.merge(protocols, varied=("method", "networks", "budget")),
            "readout": readout + "; loss: mean over the last tenth of the steps, and not comparable between "
            "different numbers of candidates",
        },
        results=[row for part in parts for row in part],
    )


def simclr(encoder):
    """A function that makes SimCLR with this encoder."""

    def make():
        network = encoder()
        return SimCLR(network, ProjectionHead("mlp", network.width), TEMPERATURE)

    return make


def moco(encoder, places, momentum=0.99):
    """A function that makes MoCo with this encoder and a queue of so many places."""

    def make():
        network = encoder()
        return MoCo(network, ProjectionHead("mlp", network.width), places, momentum, TEMPERATURE)

    return make


def shape_readings(count):
    """`readings` of the shape on rendered pictures that no run has seen."""
    return readings(shapes.make(count, 1), shapes.make(TEST, 2), "shape")


def readings(fit, test, label):
    """A function: encoder -> pairs (readout, test accuracy)."""

    def read(network):
        for row in heads.accuracies(heads.read(network), fit, test, [label]):
            yield row["readout"], row["accuracy"]

    return read


def describe_readout(label, fit, test):
    return (
        f"the label is the {label}; fitted on {fit} pictures, accuracy on {test} test pictures; linear: "
        "logistic regression on features standardised with the training part, penalty chosen on a fifth of "
        "it; knn: 20 nearest by cosine, one vote each"
    )
