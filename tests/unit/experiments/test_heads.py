"""The experiment of notebook 04 end to end on a handful of pictures, and what it measures with."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from course_utils import records
from course_utils.experiments import heads
from course_utils.images import shapes
from course_utils.networks import SmallEncoder, fingerprint
from course_utils.training import Budget, seeded

TINY = heads.Recipe(SmallEncoder, Budget(epochs=1, batch=16), train=32, fit=48, test=30)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(heads, "RECIPES", {"quick": TINY})


CELL = ["condition", "head", "features", "input", "factor", "readout"]


def test_every_cell_of_the_table_has_its_row_and_a_second_run_finds_the_first(monkeypatch):
    record = heads.heads(range(2))
    cells = record.table.groupby(CELL).size()
    for condition in heads.CONDITIONS:
        for what in "hz":
            assert (cells[condition, "mlp", what] == 2).all()  # one a seed
            assert len(cells[condition, "mlp", what]) == 8  # input x factor x readout
    for what, count in {"random encoder": 2, "supervised": 2, "raw pixels": 1}.items():
        assert (cells["none", "none", what] == count).all() and len(cells["none", "none", what]) == 8
    assert cells["none", "none", "luminance of the shape"].index.tolist() == [("grey", "hue", "linear")]
    assert record.table["accuracy"].between(0, 1).all()
    runs = record.protocol["runs"]
    assert len(runs) == 6 and len({(run["condition"], run["head"], run["seed"]) for run in runs}) == 6
    assert set(record.protocol["policy"]) == set(heads.CONDITIONS)

    monkeypatch.setattr("course_utils.training.take_step", None)  # trained already
    assert heads.heads(range(2)) == record


def test_without_a_head_there_is_no_z_apart_from_h():
    record = heads.head_kinds(range(1))
    cells = record.table.groupby(CELL[:3]).size()
    for condition in heads.CONDITIONS:
        assert set(cells[condition, "linear"].index) == {"h", "z"}
        assert set(cells[condition, "none"].index) == {"h"}
    assert set(cells["none", "none"].index) == {"random encoder"}
    assert set(record.protocol["networks"]) == {"linear", "none"}


@pytest.mark.parametrize("head", ["mlp", "linear", "none"])
def test_the_random_encoder_is_what_a_run_starts_from_whatever_its_head(head):
    start = seeded(partial(heads.simclr, TINY, head), 3).encoder
    assert fingerprint(start) == fingerprint(heads.Rendered("quick").random_encoder(3))


def test_conditions_differ_in_colour_alone():
    without = [replace(policy, name="", source="") for policy in heads.CONDITIONS.values()]
    colourless = [
        replace(policy, jitter=0, grey=0, brightness=0, contrast=0, saturation=0, hue=0) for policy in without
    ]
    assert colourless[0] == colourless[1] == colourless[2]
    assert heads.CONDITIONS["no colour jitter"].operations == ("crop", "flip")
    assert heads.CONDITIONS["all views grey"].operations == ("crop", "flip", "grey")


def test_large_shapes_are_large_and_the_same_for_every_count():
    pictures, factors = heads.large_shapes(20, seed=5)
    assert len(pictures) == 20 and (factors.size_band == 1).all()
    more, _ = heads.large_shapes(30, seed=5)
    assert torch.equal(more.images[:20], pictures.images)


def test_grey_pictures_have_no_colour():
    pictures, _ = heads.large_shapes(6, seed=5)
    images = heads.grey(pictures).images
    assert images.dtype == torch.uint8
    assert torch.equal(images[:, 0], images[:, 1]) and torch.equal(images[:, 0], images[:, 2])
    assert not torch.equal(images, pictures.images)


def test_the_luminance_of_a_shape_is_that_of_its_pixels():
    factors = shapes.draw_factors(40, seed=1)
    factors = replace(
        factors,
        light_strength=torch.zeros(40),
        noise=torch.zeros(40),
        shape=torch.zeros(40, dtype=torch.int64),  # circles: the centre is painted
        x=torch.zeros(40),
        y=torch.zeros(40),
    )
    centres = heads.grey(shapes.render(factors)).images[:, 0, 16, 16] / 255
    steps = heads.luminances(factors, bins=64).argmax(dim=1) / 64
    assert ((centres - steps - 1 / 128).abs() < 0.02).all()


def test_the_ceiling_learns_from_every_factor():
    method = heads.supervised(TINY, [6, 6])
    labels = torch.tensor([[0, 5], [3, 2]])
    loss = method.loss(torch.rand(2, 3, 16, 16), labels)
    other = method.loss(torch.rand(2, 3, 16, 16), labels.flip(1))
    assert loss.shape == () and loss.item() > 0 and loss.item() != other.item()
    assert method.head.out_features == 12


def test_merged_runs_that_do_not_belong_together_are_refused():
    protocol = {
        "data": {"source": "x"},
        "policy": {"name": "colour jitter"},
        "networks": {},
        "budget": {"epochs": 1},
        "seed": 0,
        "seconds": 1.0,
        "weights": "0",
        "finished": True,
    }
    other = {**protocol, "budget": {"epochs": 2}}
    tasks = [("colour jitter", "mlp", 0), ("colour jitter", "linear", 0)]
    with pytest.raises(records.RecordError, match="budget"):
        heads.merged([protocol, other], tasks)


# Real pictures


def painted(*colours):
    """One plain picture a colour (red, green, blue in 0 to 255)."""
    return torch.tensor(colours, dtype=torch.uint8)[:, :, None, None].repeat(1, 1, 8, 8)


def test_plain_pictures_have_the_hue_that_they_are_painted_in():
    palette = torch.tensor(list(shapes.HUES.values())).mul(255).round().tolist()
    images = painted(*palette, (120, 120, 124), (255, 255, 255), (0, 0, 0))
    assert heads.dominant_hue(images).tolist() == [0, 1, 2, 3, 4, 5, 6, 6, 6]


def test_the_hue_with_most_chroma_wins_not_the_one_with_most_pixels():
    image = painted((150, 110, 110))  # a pale red
    image[..., :3] = torch.tensor([20, 40, 250], dtype=torch.uint8)[:, None, None]  # three columns of blue
    assert heads.dominant_hue(image).tolist() == [4]


def test_real_pictures_end_to_end(monkeypatch):
    monkeypatch.setattr(heads, "CIFAR_RECIPES", {"quick": TINY})
    record = heads.heads_cifar(range(2))
    cells = record.table.groupby(["condition", "features", "factor", "readout"]).size()
    assert (cells["colour jitter"] == 2).all() and len(cells["colour jitter"]) == 8
    for control, seeds in {"random encoder": 2, "supervised": 2, "raw pixels": 1}.items():
        assert (cells["none", control] == seeds).all() and len(cells["none", control]) == 4
    assert set(record.table["factor"]) == {"class", "hue"}
    assert set(record.protocol["most frequent"]) == {"class", "hue"}
