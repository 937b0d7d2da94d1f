"""All records on one page: none is left out, and who is above the random encoder is decided seed by seed."""

import math

import pytest

from course_utils import records, results
from course_utils.records import Record

RUN = {"seed": 0, "seconds": 1.0, "weights": "0" * 16}
PROTOCOL = {
    **dict.fromkeys(records.PROTOCOL, "x"),
    "machines": [{"versions": {}, "device": "cpu", "threads": 1}],
    "runs": [RUN],
    "readout": "the label is the shape; logistic regression",
}


def made(rows):
    return Record("made_quick", "Which?", PROTOCOL, rows)


@pytest.mark.parametrize("name", records.names())
def test_every_record_has_its_rows(name):
    rows = results.readings(records.load(name))
    assert len(rows) and rows["value"].between(0, 1).all()
    assert rows[["run", "label", "readout"]].map(lambda text: bool(text and text == text)).all(axis=None)
    repeated = rows.dropna(subset="seed").duplicated(["run", "label", "readout", "seed"])
    assert not repeated.any(), rows[repeated]
    page = results.compared(rows)
    assert page["seeds"].sum() == len(rows)
    trained = page[(page["seeds"] > 1) & (page["control"] == "") & page["difference"].notna()]
    if (page["control"] == results.RANDOM).any():
        assert len(trained)
        assert trained["against random"].isin(["above", "below", "not told apart"]).all()


def arm(name, values, measure="linear"):
    return [
        {"arm": name, "seed": seed, "measure": measure, "value": value} for seed, value in enumerate(values)
    ]


def test_runs_stand_above_below_or_beside_the_random_encoder_seed_by_seed():
    random = [0.2, 0.4, 0.6]  # far apart, but each run is compared with its own
    rows = [
        *arm("random encoder", random),
        *arm("better", [0.30, 0.51, 0.69]),
        *arm("worse", [0.10, 0.29, 0.51]),
        *arm("alike", [0.25, 0.35, 0.65]),
        *arm("better", [2.0, 3.0, 4.0], measure="loss"),
    ]
    page = results.compared(results.readings(made(rows))).set_index("run")
    assert page["against random"].to_dict() == {
        "random encoder": "",
        "better": "above",
        "worse": "below",
        "alike": "not told apart",
    }
    assert page.loc["better", "difference"] == pytest.approx(0.1)
    assert page.loc["better", "mean"] == pytest.approx(0.5) and (page["label"] == "shape").all()
    assert page.loc["random encoder", "control"] == "random encoder"


def test_one_seed_has_no_interval_and_no_verdict():
    page = results.compared(results.readings(made([*arm("only", [0.3]), *arm("random encoder", [0.2])])))
    assert math.isnan(page["low"][0]) and page["against random"].tolist() == ["", ""]


def test_grey_and_coloured_pictures_have_their_own_control():
    rows = [
        {"features": features, "input": kind, "seed": seed, "factor": "hue", "accuracy": value + seed / 100}
        for features, kind, value in [
            ("h", "colour", 0.8),
            ("h", "grey", 0.5),
            ("random encoder", "colour", 0.9),
            ("random encoder", "grey", 0.4),
        ]
        for seed in range(3)
    ]
    page = results.compared(results.readings(made(rows))).set_index("run")
    assert page.loc["h, colour", "difference"] == pytest.approx(-0.1)
    assert page.loc["h, grey", "difference"] == pytest.approx(0.1)


def test_measures_that_name_their_factor_and_controls_of_a_kind():
    rows = [
        *arm("BYOL", [0.5, 0.51], "shape, linear"),
        *arm("BYOL, no batch statistics", [0.5, 0.51], "shape, linear"),
        *arm("random encoder", [0.4, 0.4], "shape, linear"),
        *arm("random encoder, no batch statistics", [0.6, 0.6], "shape, linear"),
        *arm("BYOL", [0.9, 0.9], "spread"),
    ]
    page = results.compared(results.readings(made(rows))).set_index("run")
    assert (page["label"] == "shape").all() and (page["readout"] == "linear").all()
    assert page.loc["BYOL", "against random"] == "above"
    assert page.loc["BYOL, no batch statistics", "against random"] == "below"
    assert page["control"].iloc[2:].tolist() == ["random encoder"] * 2


def test_a_random_encoder_among_runs_with_labels_is_the_random_encoder():
    rows = [
        {
            "captions": captions,
            "model": model,
            "seed": seed,
            "judged": "hue",
            "reading": "linear on h",
            "value": v,
        }
        for captions, model, v in [
            ("both", "CLIP", 0.9),
            ("labels", "labels", 1.0),
            ("labels", "random encoder", 0.3),
        ]
        for seed in range(2)
    ]
    page = results.compared(results.readings(made(rows)))
    assert page["control"].tolist() == ["", "labels", "random encoder"]
    assert page["difference"].round(3).tolist() == [0.6, 0.7, 0.0]


def test_a_run_without_the_setting_that_is_varied_was_not_trained():
    rows = [
        {"momentum": momentum, "seed": seed, "measure": "linear", "at": 0, "value": value}
        for momentum, value in [(0.9, 0.5), (None, 0.2)]
        for seed in range(2)
    ]
    found = results.readings(made(rows))
    assert found["control"].tolist() == ["", "", "random encoder", "random encoder"]
    assert found["run"].unique().tolist() == ["momentum 0.9", "random encoder"]


def test_the_place_of_the_lowest_loss():
    rows = [
        *arm("random encoder", [0.1, 0.1]),
        *arm("low", [0.3, 0.6]),
        *arm("middle", [0.4, 0.5]),
        *arm("high", [0.5, 0.4]),
        *arm("low", [1.0, 1.0], "loss"),
        *arm("middle", [2.0, 2.0], "loss"),
        *arm("high", [3.0, 3.0], "loss"),
    ]
    places = results.loss_and_readout(made(rows))
    assert places["lowest loss"].tolist() == ["low", "low"]
    assert places["its place"].tolist() == [3, 1] and places["best readout"].tolist() == ["high", "low"]
    assert results.loss_and_readout(made(arm("low", [0.3, 0.4]))).empty
