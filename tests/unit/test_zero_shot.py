"""Zero-shot: class vectors as in the paper, measures with known values, how a real model is loaded."""

import json
from functools import partial

import pytest
import torch
from torch.nn.functional import normalize

from course_utils import zero_shot
from course_utils.experiments.clip import two_towers
from course_utils.images import photo, shapes
from course_utils.images.captions import VOCABULARY, UnknownWords
from course_utils.networks import SmallEncoder
from course_utils.training import seeded
from course_utils.zero_shot import Towers, WeightsMissing, class_vectors, probabilities, recalled, reliability


@pytest.fixture(scope="module")
def small():
    return zero_shot.towers(seeded(partial(two_towers, SmallEncoder, len(VOCABULARY)), 0).eval())


def test_towers_give_unit_vectors_in_one_space(small):
    images, texts = small.pictures(shapes.make(5).images), small.texts(["a red star", "a blue ring"])
    assert images.shape == (5, 64) and texts.shape == (2, 64)
    torch.testing.assert_close(torch.cat([images, texts]).norm(dim=1), torch.ones(7))
    assert small.scale == pytest.approx(1 / 0.07, rel=1e-6)


def test_a_class_vector_is_the_mean_of_unit_vectors_made_unit_length(small):
    texts = ["a red star", "a picture of a red star", "the star is red"]
    vectors = class_vectors(small, {"red star": texts, "ring": ["a ring"]})
    expected = sum(small.texts([text])[0] for text in texts)
    torch.testing.assert_close(vectors[0], expected / expected.norm())
    torch.testing.assert_close(vectors[1], small.texts(["a ring"])[0])


def test_probabilities_are_the_softmax_of_scaled_cosines(small):
    images = shapes.make(3).images
    vectors = class_vectors(small, {"a": ["red"], "b": ["blue"]})
    cosines = small.pictures(images) @ vectors.T
    torch.testing.assert_close(probabilities(small, images, vectors), (cosines / 0.07).softmax(dim=1))
    torch.testing.assert_close(probabilities(small, images, vectors, 3), (3 * cosines).softmax(dim=1))


def test_unknown_words_are_not_scored(small):
    with pytest.raises(UnknownWords, match="'hexagon'"):
        class_vectors(small, {"hexagon": ["a red hexagon"]})


@pytest.mark.parametrize("prompts", [{}, {"a": ["red"], "b": []}])
def test_a_class_needs_a_text(small, prompts):
    with pytest.raises(ValueError, match="no prompt"):
        class_vectors(small, prompts)


def test_recall_counts_the_own_column():
    s = torch.tensor([[0.9, 0.1, 0.2], [0.8, 0.2, 0.1], [0.5, 0.5, 0.5]])
    assert recalled(s, 1).tolist() == [True, False, False]
    assert recalled(s, 2).tolist() == [True, True, False]
    assert recalled(s, 3).all()


def test_reliability_of_answers_whose_truth_is_known():
    p = torch.tensor([[0.95, 0.05]] * 20 + [[0.35, 0.65]] * 10)
    labels = torch.tensor([0] * 19 + [1] + [1] * 3 + [0] * 7)
    table = reliability(p, labels)
    assert table["count"].tolist() == [10, 20]
    assert table["confidence"].tolist() == pytest.approx([0.65, 0.95])
    assert table["accuracy"].tolist() == pytest.approx([0.3, 0.95])
    assert table.attrs["ece"] == pytest.approx(0.35 / 3, abs=1e-6)
    sure = reliability(torch.eye(3), torch.arange(3))
    assert sure["to"].tolist() == [1.0] and sure.attrs["ece"] == 0


# A real model's loading path, with a tiny one of random weights

CONFIG = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
}


@pytest.fixture
def tiny(tmp_path):
    """A file with the random weights of a small CLIP, and the model itself."""
    open_clip = pytest.importorskip(
        "open_clip", reason="open_clip is not installed (extra clip): its loading path is not tested"
    )
    (tmp_path / "course-tiny.json").write_text(json.dumps(CONFIG))
    open_clip.add_model_config(tmp_path / "course-tiny.json")
    torch.manual_seed(0)
    model = open_clip.create_model("course-tiny").eval()
    path = tmp_path / "weights.pt"
    torch.save(model.state_dict(), path)
    return path, model


def test_a_local_file_is_loaded_and_gives_what_the_model_gives(tiny, monkeypatch):
    path, model = tiny
    monkeypatch.setenv("COURSE_CLIP_WEIGHTS", str(path))
    loaded = zero_shot.pretrained("course-tiny")
    assert isinstance(loaded, Towers) and "course-tiny" in loaded.source and "weights.pt" in loaded.source
    assert str(path.parent) not in loaded.source
    import open_clip

    texts = ["a photo of a cat", "a photo of a rocket"]
    with torch.no_grad():
        expected = normalize(model.encode_text(open_clip.get_tokenizer("course-tiny")(texts)), dim=1)
    torch.testing.assert_close(loaded.texts(texts), expected)
    pictures = loaded.pictures(torch.cat([photo.cat().images, photo.cup().images]))
    torch.testing.assert_close(pictures.norm(dim=1), torch.ones(2))
    assert not torch.allclose(pictures[0], pictures[1])
    assert loaded.scale == pytest.approx(model.logit_scale.exp().item())
    assert loaded.pictures(shapes.make(3).images).shape == (3, 16)


def one_line_that_says(words, name="course-tiny"):
    with pytest.raises(WeightsMissing) as caught:
        zero_shot.pretrained(name)
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message


def test_nothing_is_downloaded_unasked(monkeypatch):
    monkeypatch.delenv("COURSE_CLIP_WEIGHTS", raising=False)
    one_line_that_says(["COURSE_CLIP_WEIGHTS is not set", "download"])


def test_a_file_that_is_not_there_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_CLIP_WEIGHTS", str(tmp_path / "nowhere.pt"))
    one_line_that_says(["nowhere.pt", "no such file"])


@pytest.mark.parametrize("content", [b"no weights", b""])
def test_a_file_that_is_no_model_ends_in_one_line(content, tiny, monkeypatch, tmp_path):
    (tmp_path / "other.pt").write_bytes(content)
    monkeypatch.setenv("COURSE_CLIP_WEIGHTS", str(tmp_path / "other.pt"))
    one_line_that_says(["course-tiny was not loaded from", "other.pt"])


def test_weights_of_another_model_end_in_one_line(tiny, monkeypatch, tmp_path):
    torch.save({"positional_embedding": torch.zeros(3, 3)}, tmp_path / "other.pt")
    monkeypatch.setenv("COURSE_CLIP_WEIGHTS", str(tmp_path / "other.pt"))
    one_line_that_says(["course-tiny was not loaded from", "other.pt"])


def test_without_a_network_the_download_ends_in_one_line(tiny, monkeypatch):
    import open_clip

    def refuse(*_, **__):
        raise ConnectionError("no network\nhere")

    monkeypatch.setattr(open_clip, "create_model_and_transforms", refuse)
    monkeypatch.setenv("COURSE_CLIP_WEIGHTS", "download")
    one_line_that_says(["laion2b_s34b_b79k", "ConnectionError: no network here"])
