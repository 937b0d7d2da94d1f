"""Zero-shot classification with two towers: classes are texts, and a picture goes to the nearest.

    class -> prompts --text tower--> mean of unit vectors, renormalised --cosine with the picture's--> class

The small models that the notebooks train and a real pretrained CLIP are used through the same `Towers`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn.functional import normalize

from course_utils.images import captions
from course_utils.readout import features
from course_utils.runtime import one_line

WEIGHTS = "COURSE_CLIP_WEIGHTS"
DOWNLOAD = "download"


class WeightsMissing(RuntimeError):
    """There are no weights of a pretrained model to use; the message is one line that says what to do."""


@dataclass(frozen=True)
class Towers:
    """A picture tower and a text tower that give unit vectors in one space.

    pictures: uint8 [B, 3, H, W] -> [B, D]. texts: a list of B texts -> [B, D]. scale: the learned logit
    scale, exp(t). source: a sentence on which model this is.
    """

    pictures: Callable[[torch.Tensor], torch.Tensor]
    texts: Callable[[Sequence[str]], torch.Tensor]
    scale: float
    source: str = ""


def towers(method, known=captions.VOCABULARY, tokens=captions.tokens) -> Towers:
    """The towers of a trained training.CLIP. known: the words of its captions, in the order of their numbers.

    Its `texts` raises captions.UnknownWords for a word that no caption held.
    """
    device = method.t.device

    def texts(those):
        rows = tokens(list(those), known).to(device)
        return normalize(features_of_texts(method, rows), dim=1)

    def pictures(images):
        return normalize(features(nn.Sequential(method.encoder, method.head), images), dim=1)

    return Towers(pictures, texts, method.t.exp().item())


@torch.no_grad()
def features_of_texts(method, rows):
    """What the text side of a CLIP in evaluation mode makes of token rows, on the CPU."""
    return method.text_head(method.text(rows)).cpu()


def class_vectors(towers, prompts: Mapping[str, Sequence[str]]) -> torch.Tensor:
    """One unit vector a class, [C, D]: the mean of its prompts' unit vectors, made unit length again.

    prompts: class -> its texts, at least one. Raises ValueError for a class without a text.
    Radford et al. 2021 (CLIP), section 3.1.4.
    """
    empty = [name for name, texts in prompts.items() if not texts]
    if empty or not prompts:
        raise ValueError(
            f"the classes {empty or list(prompts)} have no prompt; expected at least one text each."
        )
    means = [towers.texts(list(texts)).mean(dim=0) for texts in prompts.values()]
    return normalize(torch.stack(means), dim=1)


def probabilities(towers, images, vectors, scale=None) -> torch.Tensor:
    """The probability of each class for each picture, [B, C]: softmax(scale * cosine).

    images: uint8 [B, 3, H, W]. vectors: from class_vectors. scale: by default the learned one.
    """
    return ((scale or towers.scale) * towers.pictures(images) @ vectors.T).softmax(dim=1)


def recalled(similarities, at) -> torch.Tensor:
    """Whether each row's own column (row k, column k) is among the `at` most similar ones: bool [N].

    similarities: [N, N]; transpose it for the other direction. Of equal similarities the own one comes last.

    >>> recalled(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), at=1)
    tensor([ True, False])
    """
    not_behind = (similarities >= similarities.diagonal()[:, None]).sum(dim=1)  # itself included
    return not_behind <= at


def reliability(p, labels, bins=10) -> pd.DataFrame:
    """How often the most probable class is right, among pictures of which it is equally sure.

    p: probabilities [B, C]. labels: int64 [B]. Returns a row for each of `bins` equal parts of [0, 1] that is
    not empty: from, to, count, confidence (mean probability of the chosen class), accuracy. attrs["ece"], the
    expected calibration error: the mean distance of the two, weighted by count. Guo et al. 2017, section 2.
    """
    confidence, chosen = p.max(dim=1)
    right = (chosen == labels).double().numpy()
    confidence = confidence.double().numpy()
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    rows = [
        {
            "from": k / bins,
            "to": (k + 1) / bins,
            "count": int((place == k).sum()),
            "confidence": confidence[place == k].mean(),
            "accuracy": right[place == k].mean(),
        }
        for k in np.unique(place)
    ]
    table = pd.DataFrame(rows)
    gaps = (table["confidence"] - table["accuracy"]).abs()
    table.attrs["ece"] = float((gaps * table["count"]).sum() / table["count"].sum())
    return table


def pretrained(name="ViT-B-32", tag="laion2b_s34b_b79k") -> Towers:
    """A CLIP that others trained, through open_clip (extra `clip`).

    name: an architecture that open_clip knows. The weights: the file that COURSE_CLIP_WEIGHTS names, or, if
    it says "download", those of `tag` from their usual source (some 600 MB, kept by open_clip). Nothing is
    downloaded unasked. Raises WeightsMissing with one line that says what to do.
    """
    wanted = os.environ.get(WEIGHTS)
    if not wanted:
        raise WeightsMissing(
            f'{WEIGHTS} is not set: set it to a file with weights of {name}, or to "{DOWNLOAD}" '
            "to fetch them (about 600 MB)."
        )
    if wanted != DOWNLOAD and not Path(wanted).expanduser().is_file():
        raise WeightsMissing(
            f'{WEIGHTS} is "{wanted}", and there is no such file; name one, or "{DOWNLOAD}".'
        )
    try:
        import open_clip
    except ImportError as error:
        raise WeightsMissing('open_clip is not here: pip install "open_clip_torch>=3.2,<4".') from error
    source = tag if wanted == DOWNLOAD else str(Path(wanted).expanduser())
    try:
        model, _, preprocess = open_clip.create_model_and_transforms(name, pretrained=source)
        tokenise = open_clip.get_tokenizer(name)
    except Exception as error:  # no network, a file of another model, a damaged one: all end in one line
        raise WeightsMissing(f"{name} was not loaded from {source} ({one_line(error)[:200]}).") from error
    model.eval()

    @torch.no_grad()
    def pictures(images):
        from torchvision.transforms.v2.functional import to_pil_image

        rows = [preprocess(to_pil_image(image)) for image in images]
        return torch.cat([model.encode_image(part, normalize=True) for part in torch.stack(rows).split(100)])

    @torch.no_grad()
    def texts(those):
        return model.encode_text(tokenise(list(those)), normalize=True)

    file = source if wanted == DOWNLOAD else Path(source).name
    return Towers(pictures, texts, model.logit_scale.exp().item(), f"open_clip {name}, weights {file}")
