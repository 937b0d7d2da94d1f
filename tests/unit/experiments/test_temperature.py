"""The sweep over the temperature end to end on stand-ins, and one of its recorded runs once more."""

import pytest
import torch
from torch.nn.functional import normalize

from course_utils import records
from course_utils.experiments import temperature
from course_utils.experiments.seeds import on_one_thread
from course_utils.networks import SmallEncoder
from course_utils.readout import prediction
from course_utils.training import Budget


def test_every_temperature_seed_and_control_has_its_rows(monkeypatch):
    monkeypatch.setattr(temperature, "CIFAR", {"quick": (SmallEncoder, Budget(epochs=1, batch=16), 40)})
    monkeypatch.setattr(temperature, "TEMPERATURES", (0.1, 1.0))
    record = temperature.temperature_cifar(range(2))
    ends = record.table[record.table["progress"] == 1]
    trained = ends.dropna(subset="temperature")
    assert set(zip(trained["temperature"], trained["seed"], strict=True)) == {
        (tau, seed) for tau in (0.1, 1.0) for seed in (0, 1)
    }
    assert trained.groupby(["temperature", "seed"]).size().unique() == [11]
    controls = ends[ends["temperature"].isna()]
    assert controls.groupby("features").size().to_dict() == {"random encoder": 8, "raw pixels": 4}
    accuracies = ends[ends["measure"].isin(["linear", "knn", "contrastive accuracy"])]["value"]
    assert accuracies.between(0, 1).all()
    assert record.protocol["method"] == ["SimCLR(temperature=0.1)", "SimCLR(temperature=1.0)"]
    assert [run["method"][-4:-1] for run in record.protocol["runs"]] == ["0.1", "0.1", "1.0", "1.0"]
    monkeypatch.setattr("course_utils.training.take_step", None)  # trained already
    assert temperature.temperature_cifar(range(2)) == record


def test_contrastive_accuracy_by_loops():
    generator = torch.Generator().manual_seed(0)
    z_a = normalize(torch.randn(12, 4, generator=generator))
    z_b = normalize(z_a + 0.9 * torch.randn(12, 4, generator=generator))
    hits = 0
    for start in range(0, 12, 6):
        views = [*z_a[start : start + 6], *z_b[start : start + 6]]
        for i, view in enumerate(views):
            others = [j for j in range(12) if j != i]
            hits += max(others, key=lambda j: (view @ views[j]).item()) == (i + 6) % 12
    assert temperature.contrastive_accuracy(z_a, z_b, group=6) == hits / 24
    assert 0 < hits < 24


def test_a_recorded_run_comes_out_again(monkeypatch):
    """Temperature 0.5, seed 0: each measure within what the recorded seeds let one more run expect."""

    def ends(table):
        rows = table[(table["temperature"] == 0.5) & (table["progress"] == 1)]
        return rows.groupby(["features", "measure"])["value"].agg(list)

    recorded = ends(records.load("temperature_shapes_quick").table)
    monkeypatch.setattr(temperature, "TEMPERATURES", (0.5,))
    # Raw pixels are slow to fit and train nothing.
    monkeypatch.setattr(temperature, "pixels", lambda images: images[:, 0, ::8, ::8].flatten(1).float())
    again = ends(on_one_thread(temperature.temperature_shapes, range(1)).table)
    assert len(again) == len(recorded) == 11
    for key, [value] in again.items():
        expected = prediction(recorded[key])
        assert value == pytest.approx(expected.mean, abs=expected.high - expected.mean), key
