"""The experiment of notebook 09 end to end on a handful of pictures, and the parts that an arm leaves out."""

from functools import partial

import pytest
import torch
from torch import nn

from course_utils.dashboard import MEASURES
from course_utils.experiments import heads, without_negatives
from course_utils.networks import SmallEncoder
from course_utils.training import Budget, seeded

TINY = heads.Recipe(
    partial(SmallEncoder, extra=1), Budget(epochs=1, batch=16, size=16), train=32, fit=48, test=30
)

VIEWS = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))
GROUP_NORMED = ("BYOL, group norm", "BYOL, group norm, standardised weights")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(without_negatives, "RECIPES", {"quick": TINY})
    monkeypatch.setattr(without_negatives, "LOOKED_AT", 12)
    monkeypatch.setattr(without_negatives, "FACTORS", ("shape",))


def test_every_arm_is_looked_at_and_read_out_and_a_seed_gives_the_same_again(monkeypatch):
    made = without_negatives.arms(TINY)
    record = without_negatives.without_negatives(range(1))
    table = record.table
    counts = table.groupby(["arm", "measure"]).size().unstack(fill_value=0)
    accuracies = ["shape, linear", "shape, knn"]
    assert (counts.loc[list(made), list(MEASURES)] == 2).all(axis=None)  # steps
    assert (counts.loc[list(made), accuracies] == 1).all(axis=None)
    controls = set(counts.index) - set(made)
    assert controls == {*without_negatives.UNTRAINED.values(), "raw pixels"}
    assert (counts.loc[list(controls), list(MEASURES)] == 0).all(axis=None)
    assert table[table["measure"].isin(accuracies)]["value"].between(0, 1).all()
    runs = record.protocol["runs"]
    assert [run["arm"] for run in runs] == list(made)
    assert len({run["method"] for run in runs if "group norm" not in run["arm"]}) == len(made) - 2

    few = {arm: made[arm] for arm in without_negatives.UNTRAINED}
    monkeypatch.setattr(without_negatives, "arms", lambda recipe: few)
    again = without_negatives.without_negatives(range(1)).table
    assert again.equals(table[table["arm"].isin(again["arm"])].reset_index(drop=True))


def batch_norms(method):
    return [layer for layer in method.modules() if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))]


@pytest.mark.parametrize("arm", GROUP_NORMED)
def test_without_batch_statistics_a_picture_s_prediction_is_its_own(arm):
    arms = without_negatives.arms(TINY)
    whole, method = arms["BYOL"](), arms[arm]()
    assert batch_norms(whole) and not batch_norms(method)
    assert not any(p.requires_grad for p in method.target_encoder.parameters())
    others = torch.cat([VIEWS[:1], torch.rand(5, 3, 16, 16)])
    for byol, changes in ((whole, True), (method, False)):
        predicted = [byol.predictor(byol.project(batch))[0] for batch in (VIEWS, others)]
        assert torch.allclose(*predicted, atol=1e-4) != changes


def test_standardised_weights_have_no_mean_and_unit_length():
    method = without_negatives.arms(TINY)["BYOL, group norm, standardised weights"]()
    first, last = method.encoder[0], method.head[-1]
    rows = first.weight.flatten(1)
    torch.testing.assert_close(rows.mean(dim=1), torch.zeros(len(rows)), atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))
    assert last.weight.flatten(1).norm(dim=1).std() > 1e-4, "behind the last group norm they are as they were"
    before = rows.clone()
    method.loss(VIEWS, VIEWS.flip(3)).backward()
    torch.optim.SGD([p for p in method.parameters() if p.grad is not None], lr=1.0).step()
    rows = method.encoder[0].weight.flatten(1)
    assert not torch.equal(rows, before)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(len(rows)))


def test_arms_differ_in_the_part_that_their_name_says():
    arms = without_negatives.arms(TINY)
    made = {name: seeded(make, 0) for name, make in arms.items()}
    starts = [next(method.encoder.parameters()) for method in made.values()]
    assert all(torch.equal(start, starts[0]) for start in starts)
    assert made["SimSiam, no stop-gradient"].stop_gradient is False
    assert made["SimSiam"].stop_gradient and made["SimSiam, no predictor"].stop_gradient
    for name, method in made.items():
        if hasattr(method, "predictor"):
            assert (len(method.predictor) == 0) == ("no predictor" in name)
    assert {made[name].momentum for name in ("BYOL", "BYOL, no predictor")} == {0.99}
    assert made["BYOL, target without delay"].momentum == 0
