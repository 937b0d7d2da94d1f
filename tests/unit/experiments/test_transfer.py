"""The experiment end to end on a handful of pictures, and labels that mean what they say."""

from dataclasses import replace

import pytest
import torch

from course_utils.experiments import heads, transfer
from course_utils.images import shapes
from course_utils.networks import SmallEncoder
from course_utils.training import Budget

TINY = heads.Recipe(SmallEncoder, Budget(epochs=1, batch=16), train=32, fit=48, test=30)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(heads, "RECIPES", {"quick": TINY})
    monkeypatch.setattr(transfer, "COUNTS", {"quick": 60})


def test_every_factor_of_every_representation_has_its_row(monkeypatch):
    record = transfer.transfer(range(2))
    cells = record.table.groupby(["features", "factor", "readout"]).size()
    factors = {"shape", "hue", "size", "background", "place", "light from", "turn", "class"}
    for what in ("random encoder", "SimCLR, colour jitter", "SimCLR, no colour jitter", "told shape and hue"):
        assert set(cells[what].index.get_level_values("factor")) == factors
        assert (cells[what] == 2).all()
    assert (cells["raw pixels"] == 1).all() and len(cells["raw pixels"]) == 16
    assert set(record.protocol["most frequent"]) == factors
    assert len(record.protocol["runs"]) == 4 and len(record.protocol["supervised"]["runs"]) == 2
    monkeypatch.setattr("course_utils.training.take_step", None)  # trained already
    assert transfer.transfer(range(2)) == record


def test_the_encoders_are_those_of_heads(monkeypatch):
    heads.heads(range(1))
    monkeypatch.setattr("course_utils.training.take_step", None)
    transfer.transfer(range(1))


def test_place_light_and_turn_are_those_of_the_factors():
    whole, turned = transfer.with_factors(200, seed=4)
    factors = shapes.draw_factors(200, seed=4)
    for x, y, name in zip(factors.x, factors.y, whole.named("place"), strict=True):
        assert name == f"{'lower' if y > 0 else 'upper'} {'right' if x > 0 else 'left'}"
    for direction, side in zip(factors.light_direction, whole.named("light from"), strict=True):
        far = {"right": direction.cos(), "left": -direction.cos(), "below": direction.sin()}
        far["above"] = -far["below"]
        assert max(far, key=far.get) == side
    assert len(turned) == sum(name in transfer.PERIODS for name in whole.named("shape"))
    assert set(turned.labels["turn"].tolist()) == {0, 1, 2}


def test_a_shape_turned_by_its_period_looks_the_same():
    factors = shapes.draw_factors(4, seed=0)
    names = list(transfer.PERIODS)
    factors = replace(
        factors,
        shape=torch.tensor([shapes.SHAPE_NAMES.index(name) for name in names]),
        turn=torch.zeros(4),
    )
    again = replace(factors, turn=torch.tensor([transfer.PERIODS[name] for name in names]))
    difference = shapes.render(again).images.int() - shapes.render(factors).images.int()
    assert difference.abs().max() <= 1
