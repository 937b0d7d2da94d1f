"""The MoCo experiments end to end on a handful of rendered pictures: rows, staleness and seeds."""

import copy

import pytest
import torch
from torch.nn.functional import cosine_similarity

from course_utils.experiments import moco
from course_utils.networks import ProjectionHead, SmallEncoder
from course_utils.training import Budget


@pytest.fixture(autouse=True)
def small(monkeypatch):
    budget = Budget(epochs=4, batch=8, size=16)
    monkeypatch.setattr(moco, "READOUT", {"quick": 60})
    monkeypatch.setattr(moco, "TEST", 60)
    monkeypatch.setattr(moco, "STALENESS", {"quick": (SmallEncoder, 64, budget, 24)})
    monkeypatch.setattr(moco, "SHAPES", {"quick": (SmallEncoder, 64, budget, 24)})
    monkeypatch.setattr(moco, "CIFAR", {"quick": (SmallEncoder, None, budget, 24)})


def test_every_momentum_seed_and_age_has_its_row():
    record = moco.moco_staleness(range(2))
    cosines = record.table[record.table["measure"] == "cosine"]
    expected = {(m, seed, age) for m in moco.MOMENTA for seed in (0, 1) for age in (1, 2, 3)}
    assert set(zip(cosines["momentum"], cosines["seed"], cosines["at"], strict=True)) == expected
    assert cosines["value"].between(-1, 1.000001).all()
    assert record.table[record.table["momentum"].isna()]["measure"].value_counts().to_dict() == {
        "linear": 2,
        "knn": 2,
    }
    assert len(record.protocol["method"]) == 4 and len(record.protocol["runs"]) == 8


def test_cosines_are_those_of_the_views_behind_the_keys():
    torch.manual_seed(0)
    settings = {"queue": 12, "momentum": 0.5, "look": 5, "batch": 4, "size": 16}
    method = moco.WatchedMoCo(SmallEncoder(), ProjectionHead("mlp", 128), **settings)
    optimiser = torch.optim.SGD(method.parameters(), lr=0.5)
    batches = [torch.rand(2, 4, 3, 16, 16) for _ in range(5)]
    for view_a, view_b in batches:
        optimiser.zero_grad()
        method.loss(view_a, view_b).backward()
        optimiser.step()
        method.after_step()
    following = copy.deepcopy(method)
    for age, (view_a, view_b) in enumerate(reversed(batches[2:])):
        if age == 0:
            following.loss(
                view_a, view_b
            )  # the next step's EMA; only the first call may move the key network
            again = following.made[0]
        else:
            again = following.key_head(following.key_encoder(view_b))
        stored = method.queue.keys[method.queue.births == 5 - age]
        expected = cosine_similarity(again, stored).mean()
        torch.testing.assert_close(method.cosines[age], expected, rtol=1e-4, atol=1e-5)
    assert method.cosines[0] > method.cosines[2]


@pytest.mark.parametrize(("experiment", "arms"), [("simclr_moco_shapes", 4), ("moco_cifar", 2)])
def test_every_arm_is_read_out_with_every_seed_beside_its_controls(experiment, arms, monkeypatch):
    record = getattr(moco, experiment)(range(2))
    table = record.table
    assert table["arm"].nunique() == arms + 1
    readouts = table[table["measure"].isin(["linear", "knn"])]
    assert (readouts.groupby("arm").size() == 4).all()
    steps = table.groupby("arm")[["steps", "pictures"]].first()
    if experiment == "simclr_moco_shapes":
        few = "MoCo, small batch, as many steps as the large"
        assert steps.loc["SimCLR, large batch", "steps"] == steps.loc[few, "steps"] == 8
        assert steps.loc["SimCLR, large batch", "pictures"] == steps.loc["MoCo, small batch", "pictures"]
    assert len(record.protocol["method"]) == 2
    monkeypatch.setattr("course_utils.training.take_step", None)  # trained already
    assert getattr(moco, experiment)(range(2)) == record
