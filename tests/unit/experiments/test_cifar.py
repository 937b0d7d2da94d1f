"""An experiment end to end on a handful of rendered pictures that stand in for CIFAR-10."""

import pytest

from course_utils import records
from course_utils.experiments import __main__, cifar
from course_utils.networks import SmallEncoder
from course_utils.training import Budget


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(cifar, "CIFAR", {"quick": (SmallEncoder, Budget(epochs=1, batch=16), 40)})


def test_every_seed_and_control_has_its_row_and_a_second_run_finds_the_first(monkeypatch, tmp_path):
    record = cifar.simclr_cifar(range(2))
    table = record.table
    assert set(zip(table["seed"].fillna(-1), table["features"], strict=True)) == {
        (-1, "raw pixels"),
        *((seed, what) for seed in (0, 1) for what in ("random encoder", "h", "z")),
    }
    assert len(table) == 14 and table["accuracy"].between(0, 1).all()
    assert [run["seed"] for run in record.protocol["runs"]] == [0, 1]
    assert record.protocol["policy"]["crop_scale"][0] == 0.2
    monkeypatch.setattr("course_utils.training.take_step", None)  # trained already
    assert cifar.simclr_cifar(range(2)) == record


def test_an_interruption_ends_the_experiment(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("course_utils.training.take_step", interrupt)
    with pytest.raises(RuntimeError, match="goes on from the last whole epoch"):
        cifar.simclr_cifar(range(2))


def test_the_command_writes_the_record_and_shows_its_table(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    __main__.main(["simclr_cifar", "--seeds", "1"])
    assert len(records.load("simclr_cifar_quick").protocol["runs"]) == 1
    out = capsys.readouterr().out
    assert "random encoder" in out and "simclr_cifar_quick.json" in out
