"""The experiment behind LAB 06's range, end to end on a handful of pictures."""

import json
from dataclasses import asdict

import pytest

from course_utils import records
from course_utils.experiments.lab06 import lab06_ranges
from course_utils.labs import lab06
from course_utils.labs.grading import student_seed
from course_utils.training import Budget


@pytest.fixture
def tiny(monkeypatch):
    for name, value in {"TRAINED_ON": 32, "READ_ON": 90, "FIT_ON": 50}.items():
        monkeypatch.setattr(lab06, name, value)
    monkeypatch.setattr(lab06, "BUDGET", Budget(epochs=1, batch=16))


def test_each_student_has_a_row_for_every_cell_of_the_table_and_for_the_control(tiny):
    record = lab06_ranges(range(2))
    table = record.table
    assert set(table["seed"]) == {student_seed("student-0"), student_seed("student-1")}
    assert (table.groupby(["row", "label"]).size() == 2).all()
    assert set(zip(table["row"], table["label"], strict=True)) == {
        (row, label) for row in (*lab06.ROWS, "random encoder") for label in lab06.LABELS
    }
    assert table["accuracy"].between(0, 1).all()
    assert lab06_ranges(range(2)).results == record.results

    expected = lab06.ranges(record)
    assert (expected["low"] < expected["high"]).all() and set(expected.index) == set(
        zip(table["row"], table["label"], strict=True)
    )


def test_the_record_is_that_of_the_lab_as_it_is():
    protocol = records.load(lab06.RECORD).protocol
    assert protocol["budget"] == asdict(lab06.BUDGET)
    assert [values(asdict(policy)) for policy in lab06.POLICIES.values()] == [
        values(policy) for policy in protocol["policy"]
    ]
    assert {data["count"] for data in protocol["data"]} == {lab06.TRAINED_ON}


def values(policy):
    """What a policy does, without its name and where it comes from."""
    kept = json.loads(json.dumps(policy))
    return {key: value for key, value in kept.items() if key not in ("name", "source")}
