"""CLIP's experiments end to end on a handful of rendered pictures, and what they hold out."""

from functools import partial

import pytest
import torch

from course_utils.experiments import clip
from course_utils.images import captions, shapes
from course_utils.networks import SmallEncoder
from course_utils.training import Budget, train


@pytest.fixture(autouse=True)
def small(monkeypatch):
    tiny = (SmallEncoder, Budget(epochs=1, batch=32), 96)
    monkeypatch.setattr(clip, "PAIRS", {"quick": tiny})
    monkeypatch.setattr(clip, "SCENES", {"quick": tiny})
    monkeypatch.setattr(clip, "READ_OUT", 96)
    monkeypatch.setattr(clip, "GALLERIES", 1)
    monkeypatch.setattr(clip, "TESTED", 2500)
    monkeypatch.setattr(clip, "SCENES_TESTED", 100)


@pytest.mark.parametrize("count", clip.HELD_OUT)
def test_every_shape_and_hue_is_held_out_equally_often(count):
    pairs = clip.held_out(count)
    assert pairs.sum() == count
    assert (pairs.sum(dim=0) == count // 6).all() and (pairs.sum(dim=1) == count // 6).all()
    pictures = clip.pair_pictures(400, 0, without=pairs)
    assert len(pictures) == 400 and not clip.is_of(pictures, pairs).any()
    assert clip.is_of(pictures, ~pairs).all() and (pictures.labels["size"] == 1).all()


def test_a_number_of_pairs_that_is_not_known():
    with pytest.raises(ValueError, match=r"count is 7; expected one of \(6, 12\)"):
        clip.held_out(7)


def test_pairs_have_their_names():
    pictures = shapes.make(20)
    names = [clip.PAIR_NAMES[k] for k in clip.pair_labels(pictures)]
    assert names == [f"{h} {s}" for h, s in zip(pictures.named("hue"), pictures.named("shape"), strict=True)]
    assert clip.ONE_PROMPT.keys() == clip.ENSEMBLE.keys() == set(clip.PAIR_NAMES)


def test_a_gallery_has_one_picture_of_each_description():
    test = clip.pair_pictures(2500, 1)
    pictures = clip.gallery(test, 0)
    described = {clip.description(pictures[k : k + 1]) for k in range(len(pictures))}
    assert len(pictures) == len(described) == 108
    captions.tokens(list(described))  # all words are known


def test_labels_alone_teach_hue_and_shape():
    pictures = shapes.make(64)
    run = train(
        partial(clip.with_labels, SmallEncoder),
        pictures,
        Budget(epochs=30, batch=32, rate=1e-2),
        policy=None,
        captions=clip.hue_and_shape(pictures),
    )
    hues = run.method.project(pictures.images.float() / 255)[:, :6].argmax(dim=1)
    assert run.history["loss"].iloc[-1] < run.history["loss"].iloc[0] / 2
    assert (hues == pictures.labels["hue"]).double().mean() > 0.9


def test_the_pairs_record_is_whole():
    record = clip.clip_pairs(range(2))
    table = record.table
    assert table["value"].notna().all()
    assert set(table["model"]) == {"CLIP", "labels", "random encoder"}
    assert set(table["captions"]) == {"always both", "sometimes one", "labels"}
    one = table[(table["reading"] == "zero-shot, one prompt") & (table["judged"] == "both")]
    assert len(one) == 2 * 2 * 2  # captions, seen or not, seeds
    assert len(record.protocol["runs"]) == 6 and len(record.protocol["data"]) == 3
    assert record.protocol["runs"][0]["kind"] == "always both"
    chosen = table[table["reading"] == "each pair, one prompt"]
    assert set(chosen["judged"]) == set(clip.PAIR_NAMES)


def test_towers_know_the_words_of_their_captions_alone():
    pictures = clip.pair_pictures(64, 0)
    texts = captions.write(pictures, seed=0)
    _, model = clip.clip_of(pictures, texts, SmallEncoder, Budget(epochs=1, batch=32), seed=0)
    assert model.texts(["a red circle"]).shape == (1, 64)
    with pytest.raises(captions.UnknownWords, match="'small'"):
        model.texts(["a small circle"])


def test_the_scenes_record_is_whole_and_a_bag_of_words_cannot_tell_left_from_right():
    record = clip.clip_scenes(range(2))
    table = record.table
    assert len(table) == 2 * 2 * len(clip.ASKED)
    left = table[table["asked"] == "which is left"].groupby("text tower")["tied"].mean()
    assert left["words"] == 1.0 and left["words in their places"] < 0.1


def test_places_keep_words_apart_and_padding_out():
    tokens = torch.tensor([[3, 1, 3, 0]])
    assert clip.in_places(tokens, words=5).tolist() == [[3, 6, 13, 0]]
