"""Records come back as they were written, and none is written or read with a hole in it."""

import copy
import json

import pytest
import torch

from course_utils import records
from course_utils.records import Record, RecordError


def content():
    return {
        "name": "small_try",
        "question": "Does it learn?",
        "protocol": {
            "data": {"source": "rendered", "count": 64},
            "policy": {"name": "grey", "crop_scale": [0.2, 1.0]},
            "method": "SimCLR(temperature=0.2)",
            "networks": {"encoder": "SmallEncoder"},
            "budget": {"epochs": 1},
            "readout": "linear",
            "machines": [{"versions": {"torch": "2"}, "device": "cpu", "threads": 1}],
            "runs": [
                {"seed": 0, "seconds": 1.5, "weights": "00ff"},
                {"seed": 1, "seconds": 1.25, "weights": "01ff"},
            ],
        },
        "results": [
            {"seed": 0, "features": "h", "accuracy": 0.1 + 0.2},
            {"seed": None, "features": "raw pixels", "accuracy": 1 / 3},
        ],
    }


def test_a_record_comes_back_bit_for_bit(tmp_path):
    record = Record(**content())
    path = records.save(record, tmp_path)
    assert records.load("small_try", tmp_path) == record
    assert records.load("small_try", tmp_path).table["accuracy"].tolist() == [0.1 + 0.2, 1 / 3]
    first = path.read_bytes()
    records.save(records.load("small_try", tmp_path), tmp_path)
    assert path.read_bytes() == first and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("field", records.PROTOCOL)
@pytest.mark.parametrize("hole", ["missing", None, ""])
def test_a_protocol_with_a_hole_is_refused(tmp_path, field, hole):
    holey = content()
    if hole == "missing":
        del holey["protocol"][field]
    else:
        holey["protocol"][field] = hole
    with pytest.raises(RecordError, match=f"'small_try': its protocol lacks {field}"):
        Record(**holey)
    (tmp_path / "small_try.json").write_text(json.dumps(holey))
    with pytest.raises(RecordError, match=rf"small_try.json is not a whole record \(.*lacks {field}"):
        records.load("small_try", tmp_path)


def change(path, value):
    changed = copy.deepcopy(content())
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (change(["name"], "../other"), "name is '../other'; expected lower-case letters"),
        (change(["question"], "It learns."), "its question is not one"),
        (change(["results"], []), "it has no results"),
        (change(["results", 0], {"seed": 0}), "do not all have the same columns"),
        (change(["results", 0, "accuracy"], float("nan")), "cannot be written as JSON"),
        (change(["results", 0, "accuracy"], torch.tensor(0.5)), "cannot be written as JSON"),
        (change(["protocol", "policy", "crop_scale"], (0.2, 1.0)), "read differently than it was written"),
        (change(["protocol", "runs", 1], {"seed": 1, "seconds": 2.0}), "of its runs lacks weights"),
        (change(["protocol", "machines", 0], {"device": "cpu"}), "of its machines lacks versions, threads"),
    ],
)
def test_what_is_wrong_is_named(changed, message):
    with pytest.raises(RecordError, match=message):
        Record(**changed)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"name": "small_try"}', b"\xff\xfe"])
def test_a_damaged_file_is_named_and_stays(tmp_path, damage):
    path = records.save(Record(**content()), tmp_path)
    whole = path.read_bytes()
    for broken in (damage, whole[: len(whole) // 2]):
        path.write_bytes(broken)
        with pytest.raises(RecordError, match=r"small_try\.json is not a whole record"):
            records.load("small_try", tmp_path)
        assert path.read_bytes() == broken


def test_a_missing_record_says_which_there_are(tmp_path):
    records.save(Record(**content()), tmp_path)
    with pytest.raises(RecordError, match=r"no record .*other.json; there are: small_try\."):
        records.load("other", tmp_path)


def test_a_write_that_fails_leaves_the_old_record(tmp_path, monkeypatch):
    path = records.save(Record(**content()), tmp_path)
    whole = path.read_bytes()

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        records.save(Record(**change(["question"], "Another?")), tmp_path)
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]


def run(seed=0, **changes):
    return {
        "data": "d",
        "machines": ["m"],
        "seed": seed,
        "start": seed,
        "seconds": 1.0,
        "finished": True,
        "weights": "f",
    } | changes


def test_runs_that_belong_together_are_merged():
    merged = records.merge([run(0), run(1, seconds=2.0)])
    assert merged == {
        "data": "d",
        "machines": ["m"],
        "runs": [{"seed": 0, "seconds": 1.0, "weights": "f"}, {"seed": 1, "seconds": 2.0, "weights": "f"}],
    }


def test_what_an_experiment_varies_is_listed_and_said_with_each_run():
    methods = [{"kind": "cold"}, {"kind": "hot"}, {"kind": "hot"}]
    protocols = [run(seed, method=method, budget=9) for seed, method in enumerate(methods)]
    merged = records.merge(protocols, varied=("method", "budget"))
    assert merged["method"] == [{"kind": "cold"}, {"kind": "hot"}] and merged["data"] == "d"
    assert [one["method"] for one in merged["runs"]] == methods
    assert merged["budget"] == [9] and merged["runs"][2]["budget"] == 9


def test_runs_that_do_not_belong_together_are_refused():
    with pytest.raises(RecordError, match="differ in budget"):
        records.merge([run(0, method="cold"), run(1, method="hot", budget=3)], varied=("method",))
    with pytest.raises(RecordError, match="differ in machines"):
        records.merge([run(0), run(1, machines=["n"])])
    with pytest.raises(RecordError, match="differ in budget"):
        records.merge([run(0), run(1, budget=3)])
    with pytest.raises(RecordError, match=r"seeds \[1\] did not finish"):
        records.merge([run(0), run(1, finished=False)])


def test_the_machine_says_what_computed():
    machine = records.machine("cpu")
    assert (
        machine["versions"]["torch"] == torch.__version__.split("+")[0]
        or machine["versions"]["torch"] == torch.__version__
    )
    assert machine["device"].startswith("cpu") and machine["threads"] == torch.get_num_threads()


def test_every_committed_record_is_whole():
    for path in records.FOLDER.glob("*.json"):
        assert records.load(path.stem).name == path.stem
