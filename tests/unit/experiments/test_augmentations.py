"""The leave-one-out experiment end to end on a handful of rendered pictures that stand in for CIFAR-10."""

import pytest

from course_utils import results
from course_utils.experiments import augmentations, heads
from course_utils.networks import SmallEncoder
from course_utils.training import Budget

TINY = heads.Recipe(SmallEncoder, Budget(epochs=1, batch=16), train=32, fit=48, test=30)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(augmentations, "CIFAR_RECIPES", {"quick": TINY})


def test_every_arm_and_control_has_its_row_and_a_second_run_finds_the_first(monkeypatch):
    record = augmentations.augmentations_cifar(range(2))
    table = record.table
    rows = table.groupby(["arm", "measure"]).size()
    for arm in ("whole policy", *(f"without {name}" for name in ("crop", "flip", "colour", "grey", "blur"))):
        assert rows[arm].to_dict() == {"linear": 2, "knn": 2, "loss": 2}
    assert rows["random encoder"].to_dict() == {"linear": 2, "knn": 2}
    assert rows["raw pixels"].to_dict() == {"linear": 1, "knn": 1}
    assert len(table) == 6 * 6 + 4 + 2
    runs = record.protocol["runs"]
    assert len({(run["arm"], run["seed"]) for run in runs}) == len(runs) == 12
    assert len({run["weights"] for run in runs}) == 12
    assert set(record.protocol["policy"]) == set(augmentations.ARMS)
    places = results.loss_and_readout(record)
    assert (places["runs"] == 6).all() and places["seed"].tolist() == [0, 1]

    monkeypatch.setattr("course_utils.training.take_step", None)  # trained already
    assert augmentations.augmentations_cifar(range(2)) == record


def test_an_arm_lacks_one_operation_and_nothing_else():
    whole = augmentations.ARMS["whole policy"]
    for name, policy in list(augmentations.ARMS.items())[1:]:
        left_out = name.removeprefix("without ")
        assert set(whole.operations) - set(policy.operations) == {left_out}
        assert policy == whole.without(left_out)


def test_all_arms_of_a_seed_start_from_the_same_weights(monkeypatch):
    starts = []

    def note(make, pictures, budget, **options):
        run = TRAINED(make, pictures, budget, **options)
        starts.append((options["seed"], run.protocol["start"]))
        return run

    monkeypatch.setattr(augmentations, "trained", note)
    augmentations.augmentations_cifar(range(2))
    assert len(starts) == 12 and len(set(starts)) == len({seed for seed, _ in starts}) == 2


TRAINED = augmentations.trained
