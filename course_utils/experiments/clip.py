"""CLIP on rendered pictures: when are colour-shape pairs named right that were never seen together?"""

from functools import partial

import torch
from threadpoolctl import threadpool_limits
from torch.nn.functional import cross_entropy

from course_utils import records, runtime
from course_utils.experiments.seeds import side_by_side, trained
from course_utils.images import captions, scenes, shapes
from course_utils.images.pictures import Pictures
from course_utils.images.shapes import HUE_NAMES, SHAPE_NAMES
from course_utils.networks import ProjectionHead, SmallEncoder, TextTower, resnet18
from course_utils.readout import PENALTIES, chosen, classifier, features
from course_utils.training import CLIP, Budget, Method, seeded
from course_utils.zero_shot import class_vectors, probabilities, recalled, reliability, towers

# Encoder, training, and number of training pictures, by budget.
PAIRS = {
    # Where a shape is in doubt, its colour tips the balance, towards pairs that were seen. So shapes have to
    # be beyond doubt: an extra convolution sees a whole one, and weights decay strongly.
    "quick": (
        partial(SmallEncoder, extra=1),
        Budget(epochs=12, batch=64, rate=3e-3, weight_decay=1.0),
        16_000,
    ),
    "full": (resnet18, Budget(epochs=30, batch=256, rate=2e-3), 50_000),
}
SCENES = {
    "quick": (SmallEncoder, Budget(epochs=5, batch=128, rate=4e-3), 8_000),
    "full": (resnet18, Budget(epochs=30, batch=256, rate=2e-3), 20_000),
}
# How many of the 36 pairs are never seen in training, and the share of captions that name one of the two.
HELD_OUT = (6, 12)
CAPTIONS = {"always both": 0.0, "sometimes one": 0.5}
EDGE = 24  # pixels: enough for a large shape, and faster than 32
TESTED = 3600  # pictures to judge by, of all 36 pairs
SCENES_TESTED = 2000  # scenes of each kind to judge by
GALLERIES = 10  # for retrieval, of 108 test pictures each
READ_OUT = 4000  # training pictures to fit a linear readout on

PAIR_NAMES = tuple(f"{hue} {shape}" for shape in SHAPE_NAMES for hue in HUE_NAMES)
ONE_PROMPT = {name: [f"a {name}"] for name in PAIR_NAMES}
SHAPE_ALONE = {name: [f"a {name}"] for name in SHAPE_NAMES}
# Six wordings with the course's own words, as the captions have them.
ENSEMBLE = {
    name: [
        template.format(pair=name)
        for template in (
            "a {pair}",
            "a picture of a {pair}",
            "a large {pair}",
            "a large {pair} on a dark background",
            "a large {pair} on a grey background",
            "a large {pair} on a light background",
        )
    ]
    for name in PAIR_NAMES
}


# --- Pairs --------------------------------------------------------------------------------------------------


def held_out(count) -> torch.Tensor:
    """Which pairs of shape and hue training never shows: bool [6, 6], `count` of them, 6 or 12.

    Each shape and each hue is missing equally often, so each is seen with most of the others.
    """
    if count not in HELD_OUT:
        raise ValueError(f"count is {count!r}; expected one of {HELD_OUT}.")
    shape, hue = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij")
    turn = (hue - shape) % 6
    return (turn == 0) | ((turn == 2) & (count == 12))


def is_of(pictures, pairs) -> torch.Tensor:
    """Which pictures show one of these pairs: bool [B]. pairs: bool [6, 6], shape x hue."""
    return pairs[pictures.labels["shape"], pictures.labels["hue"]]


def pair_labels(pictures) -> torch.Tensor:
    """The place of each picture's pair in PAIR_NAMES: int64 [B]."""
    return pictures.labels["shape"] * len(HUE_NAMES) + pictures.labels["hue"]


def pair_pictures(count, seed, without=None) -> Pictures:
    """`count` rendered pictures of one large shape each. without: pairs that are left out, bool [6, 6]."""
    drawn = shapes.draw_factors(4 * count, seed)  # half is small; a third at most is left out
    kept = drawn.size_band == 1
    if without is not None:
        kept &= ~without[drawn.shape, drawn.hue]
    return shapes.render(drawn[kept][:count], EDGE)


def two_towers(encoder, words) -> CLIP:
    """An encoder, a text tower for so many words, and a linear head of width 64 on each."""
    pictures, text = encoder(), TextTower(words)
    return CLIP(
        pictures, ProjectionHead("linear", pictures.width), text, ProjectionHead("linear", text.width)
    )


def clip_of(pictures, texts, encoder, budget, seed, checkpoint=None, progress=True):
    """A run of CLIP on pictures with these captions, and its towers, which know their words alone."""
    known = captions.vocabulary(texts)
    run = trained(
        partial(two_towers, encoder, len(known)),
        pictures,
        budget,
        seed=seed,
        policy=None,
        captions=captions.tokens(texts, known),
        checkpoint=checkpoint,
        progress=progress,
    )
    return run, towers(run.method, known)


class Labels(Method):
    """The control that is given labels: cross-entropy of the hue and of the shape, from one encoder."""

    def loss(self, view, labels):
        hue, shape = self.project(view).split(6, dim=1)
        return cross_entropy(hue, labels[:, 0]) + cross_entropy(shape, labels[:, 1])


def with_labels(encoder) -> Labels:
    """An encoder and a linear head with a logit for each of six hues and six shapes."""
    network = encoder()
    return Labels(network, ProjectionHead("linear", network.width, width=12))


def hue_and_shape(pictures) -> torch.Tensor:
    """The labels of Labels: int64 [B, 2]."""
    return torch.stack([pictures.labels["hue"], pictures.labels["shape"]], dim=1)


def clip_pairs(seeds=range(3)):
    """CLIP with two kinds of captions, 6 of 36 pairs held out, beside labels and a random encoder."""
    return pairs_record(6, seeds)


def clip_more_pairs(seeds=range(3)):
    """The same with 12 of 36 pairs held out."""
    return pairs_record(12, seeds)


def pairs_record(number, seeds):
    """The record of clip_pairs with so many pairs held out."""
    size = runtime.budget()
    pairs = held_out(number)
    encoder, budget, count = PAIRS[size]
    pictures, test = pair_pictures(count, 0, without=pairs), pair_pictures(TESTED, 1)

    def one_run(task):
        said, seed = task
        checkpoint = f"clip_pairs_{size}_{number}_{said}_{seed}".replace(" ", "_")
        if said == "labels":
            make, labels = partial(with_labels, encoder), hue_and_shape(pictures)
            run = trained(
                make, pictures, budget, seed=seed, policy=None, captions=labels, checkpoint=checkpoint
            )
            rows = [
                *label_readings(run.method, test, pairs),
                *linear_readings("random encoder", seeded(make, seed).encoder, pictures, test, pairs),
            ]
        else:
            texts = captions.write(pictures, seed=0, alone=CAPTIONS[said])
            run, model = clip_of(pictures, texts, encoder, budget, seed, checkpoint)
            rows = [
                *clip_readings(model, test, pairs),
                *linear_readings("CLIP", run.encoder, pictures, test, pairs),
            ]
        return run.protocol, [{"seed": seed, "captions": said, **row} for row in rows]

    tasks = [(said, seed) for said in (*CAPTIONS, "labels") for seed in seeds]
    parts = side_by_side(one_run, tasks)
    return records.Record(
        name=f"clip_{'pairs' if number == 6 else 'more_pairs'}_{size}",
        question=f"Which captions let CLIP name the {number} of 36 colour-shape pairs that it never saw?",
        protocol={
            **together([said for said, _ in tasks], parts),
            "readout": f"{TESTED} test pictures of all 36 pairs, every answer one of 36; zero-shot with one "
            "prompt or the mean of six; linear: logistic regression on h, fitted on the first "
            f"{READ_OUT} training pictures, hue and shape apart; retrieval "
            "among 108 captions of shape, hue and background",
        },
        results=[row for part in parts for row in part[1]],
    )


def together(kinds, parts):
    """The protocols of several kinds of run as one; kinds: a name for each of parts, (protocol, results)."""
    merged = records.merge([protocol for protocol, _ in parts], varied=("data", "method", "networks"))
    runs = [{"kind": kind, **run} for kind, run in zip(kinds, merged["runs"], strict=True)]
    return {**merged, "runs": runs}


def by_pairs(model, reading, right, test, pairs):
    """Accuracy on pictures of seen and of held-out pairs; right: what is judged -> bool [B]."""
    held = is_of(test, pairs)
    for which, rows in (("seen", ~held), ("held out", held)):
        for judged, hits in right.items():
            value = hits[rows].double().mean().item()
            yield {"model": model, "reading": reading, "pairs": which, "judged": judged, "value": value}


def hits(hue, shape, test):
    """Which pictures got the right hue, the right shape, and both."""
    right_hue, right_shape = hue == test.labels["hue"], shape == test.labels["shape"]
    return {"both": right_hue & right_shape, "hue": right_hue, "shape": right_shape}


def clip_readings(model, test, pairs):
    """Zero-shot, retrieval and calibration of a CLIP's towers."""
    for reading, prompts in (("zero-shot, one prompt", ONE_PROMPT), ("zero-shot, six prompts", ENSEMBLE)):
        p = probabilities(model, test.images, class_vectors(model, prompts))
        chosen = p.argmax(dim=1)
        yield from by_pairs("CLIP", reading, hits(chosen % 6, chosen // 6, test), test, pairs)
        for which, rows in (("seen", ~is_of(test, pairs)), ("held out", is_of(test, pairs))):
            error = reliability(p[rows], pair_labels(test)[rows]).attrs["ece"]
            yield {
                "model": "CLIP",
                "reading": reading,
                "pairs": which,
                "judged": "calibration error",
                "value": error,
            }
    shape = probabilities(model, test.images, class_vectors(model, SHAPE_ALONE)).argmax(dim=1)
    right = {"shape": shape == test.labels["shape"]}
    yield from by_pairs("CLIP", "zero-shot, shape alone", right, test, pairs)
    chosen = probabilities(model, test.images, class_vectors(model, ONE_PROMPT)).argmax(dim=1)
    for place, name in enumerate(PAIR_NAMES):
        rows = pair_labels(test) == place
        yield {
            "model": "CLIP",
            "reading": "each pair, one prompt",
            "pairs": "held out" if pairs.flatten()[place] else "seen",
            "judged": name,
            "value": (chosen[rows] == place).double().mean().item(),
        }
    yield {"model": "CLIP", "reading": "learned", "pairs": "seen", "judged": "scale", "value": model.scale}
    yield from retrieval(model, test, pairs)


def description(picture):
    """The caption that names all four labels of one picture."""
    hue, shape, size, ground = (picture.named(kind)[0] for kind in ("hue", "shape", "size", "background"))
    return f"a {size} {hue} {shape} on a {ground} background"


def gallery(test, place) -> Pictures:
    """A picture of each of the 108 descriptions: of those that a description has, the one at `place`."""
    kinds = [test.labels[kind] for kind in ("shape", "hue", "background")]
    number = (kinds[0] * 6 + kinds[1]) * 3 + kinds[2]
    return test[torch.stack([(number == k).nonzero()[place, 0] for k in range(108)])]


def retrieval(model, test, pairs):
    """Recall at 1 and 5, both ways, each picture and each caption among 108."""
    found = {}
    for place in range(GALLERIES):
        pictures = gallery(test, place)
        vectors = model.texts([description(pictures[k : k + 1]) for k in range(len(pictures))])
        s = model.pictures(pictures.images) @ vectors.T
        held = is_of(pictures, pairs)
        for way, matrix in (("picture to caption", s), ("caption to picture", s.T)):
            for at in (1, 5):
                row = recalled(matrix, at)
                for which, rows in (("seen", ~held), ("held out", held)):
                    found.setdefault((way, which, f"recall at {at}"), []).append(row[rows].double().mean())
    for (way, which, judged), values in found.items():
        value = torch.stack(values).mean().item()
        yield {"model": "CLIP", "reading": way, "pairs": which, "judged": judged, "value": value}


def label_readings(method, test, pairs):
    """The control's own answers: the largest of six logits for the hue, and for the shape."""
    hue, shape = features(torch.nn.Sequential(method.encoder, method.head), test.images).split(6, dim=1)
    right = hits(hue.argmax(dim=1), shape.argmax(dim=1), test)
    yield from by_pairs("labels", "its own answer", right, test, pairs)


def linear_readings(name, encoder, pictures, test, pairs):
    """What a linear readout of h, fitted with labels on pictures of seen pairs, says about hue and shape."""
    fit = pictures[:READ_OUT]
    h, test_h = features(encoder, fit.images).numpy(), features(encoder, test.images).numpy()
    said = {}
    with threadpool_limits(1):
        for kind in ("hue", "shape"):
            labels = fit.labels[kind].numpy()
            model = classifier(chosen(h, labels, PENALTIES), len(h)).fit(h, labels)
            said[kind] = torch.from_numpy(model.predict(test_h))
    yield from by_pairs(name, "linear on h", hits(said["hue"], said["shape"], test), test, pairs)


# --- Scenes -------------------------------------------------------------------------------------------------

ASKED = {
    "which objects": scenes.objects,
    "which is left": scenes.relations,
    "how many": partial(scenes.numbers, new=False),
    "how many, new pairs": partial(scenes.numbers, new=True),
    "not": partial(scenes.negations, new=False),
    "not, of new colours": partial(scenes.negations, new=True),
}
LEARNED = (scenes.relations, ASKED["how many"], ASKED["not"])
LONGEST = 9  # words of "a red star left of a blue ring", and one to spare


def in_places(tokens, words):
    """Tokens that say the word's place as well: int64 [B, L], one of words * LONGEST numbers; 0 stays.

    A text tower that averages word vectors then knows the order of the words.
    """
    place = torch.arange(tokens.shape[1])
    return torch.where(tokens > 0, tokens + place * words, 0)


def training_scenes(count):
    """`count` scenes with two shapes, as many with one to four, as many with a "not": Pictures, captions."""
    drawn = [make(count, seed) for seed, make in enumerate(LEARNED)]
    pictures = Pictures(
        torch.cat([part.pictures.images for part in drawn]),
        source="; ".join(part.pictures.source for part in drawn),
    )
    return pictures, [caption for part in drawn for caption in part.captions]


def clip_scenes(seeds=range(3)):
    """CLIP on scenes: does it tell the true caption from one that is wrong in what is asked?"""
    size = runtime.budget()
    encoder, budget, count = SCENES[size]
    pictures, texts = training_scenes(count)
    known = captions.vocabulary(texts)
    towers_of_words = {"words": captions.tokens, "words in their places": placed}

    def one_run(task):
        said, seed = task
        tokens = towers_of_words[said]
        words = len(known) * (1 if said == "words" else LONGEST)
        make = partial(two_towers, encoder, words)
        run = trained(
            make,
            pictures,
            budget,
            seed=seed,
            policy=None,
            captions=tokens(texts, known),
            checkpoint=f"clip_scenes_{size}_{said.replace(' ', '_')}_{seed}",
        )
        model = towers(run.method, known, tokens)
        rows = [
            {
                "seed": seed,
                "text tower": said,
                "asked": asked,
                **true_or_false(model, make(SCENES_TESTED, seed=100)),
            }
            for asked, make in ASKED.items()
        ]
        return run.protocol, rows

    tasks = [(said, seed) for said in towers_of_words for seed in seeds]
    parts = side_by_side(one_run, tasks)
    return records.Record(
        name=f"clip_scenes_{size}",
        question="What do a CLIP's captions say to it about order, number and negation?",
        protocol={
            **together([said for said, _ in tasks], parts),
            "readout": f"{SCENES_TESTED} new scenes of each kind, each with its true caption and one that is "
            "wrong in what is asked; right if the true one is more similar to the picture, tied within 1e-6",
        },
        results=[row for part in parts for row in part[1]],
    )


def placed(texts, known):
    """captions.tokens, each with its place."""
    return in_places(captions.tokens(texts, known), len(known))


def true_or_false(model, asked):
    """How often the true caption is the more similar one, and how often the two are the same to the model."""
    z = model.pictures(asked.pictures.images)
    gap = (z * (model.texts(asked.captions) - model.texts(asked.wrong))).sum(dim=1)
    tied = gap.abs() < 1e-6
    return {"right": (gap[~tied] > 0).sum().item() / len(gap), "tied": tied.double().mean().item()}
