import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.show import show_table
from course_utils.show.tables import cell_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.00004, "0.0000"),
        (-0.0, "0.0000"),
        (1 / 3, "0.3333"),
        (np.float32(0.1), "0.1000"),
        (np.int64(7), "7"),
        (True, "yes"),
        (np.bool_(False), "no"),
        (float("nan"), "–"),
        (None, "–"),
        (float("-inf"), "-∞"),
        ("words", "words"),
    ],
)
def test_cell_text(value, text):
    assert cell_text(value) == text


@given(st.floats(-1e6, 1e6), st.integers(0, 6))
def test_rounding_keeps_the_value_and_never_shows_minus_zero(value, digits):
    text = cell_text(value, digits)
    assert abs(float(text) - value) <= 0.5 * 10**-digits + 1e-9
    assert not (text.startswith("-") and float(text) == 0)


def test_the_same_table_gives_the_same_text_twice():
    frame = pd.DataFrame({"p": [0.123456789, -1e-12], "right": [True, False]})
    first, second = show_table(frame, "Caption"), show_table(frame.copy(), "Caption")
    assert first.data == second.data
    assert repr(first) == repr(second)
    assert "0.1235" in first.data and "0.12345" not in first.data
    assert "-0.0000" not in first.data
    assert ">yes<" in first.data and ">Caption<" in first.data


def test_a_counting_index_is_left_out_and_a_named_one_kept():
    assert "<th" in show_table(pd.DataFrame({"a": [1]})).data
    assert repr(show_table(pd.DataFrame({"a": [1, 2]}))).split() == ["a", "1", "2"]
    frame = pd.DataFrame({"loss": [0.5]}, index=pd.Index([0.07], name="temperature"))
    assert repr(show_table(frame)).split() == ["temperature", "loss", "0.0700", "0.5000"]


def test_numbers_stand_right_and_words_left():
    data = show_table(pd.DataFrame({"name": ["a"], "n": [1], "flag": [True]})).data
    sides = [part.split(";")[0] for part in data.split("text-align: ")[1:]]
    assert sides == ["left", "right", "left"] * 2


def test_a_marked_row_bears_its_word():
    shown = show_table(pd.DataFrame({"a": [1, 2]}), mark={1: "positive"})
    rows = shown.data.split("<tbody>")[1].split("</tr>")
    assert "positive" not in rows[0] and "positive" in rows[1]
    assert "positive" in repr(shown)


def test_a_mark_beyond_the_table_names_the_rows():
    with pytest.raises(ValueError, match=r"\[2\].*0 to 1"):
        show_table(pd.DataFrame({"a": [1, 2]}), mark={2: "x"})


@pytest.mark.parametrize("rows", [[{"a": 1}], pd.Series([1]), None])
def test_what_is_no_frame_is_named(rows):
    with pytest.raises(TypeError, match=f"frame is a {type(rows).__name__}; expected a DataFrame"):
        show_table(rows)


def test_text_is_escaped():
    assert "<script>" not in show_table(pd.DataFrame({"<script>": ["<script>"]}), "<script>").data


def test_the_frame_is_left_as_it_was():
    frame = pd.DataFrame({"a": [0.5]}, index=["x"])
    before = frame.copy()
    show_table(frame, mark={0: "m"})
    pd.testing.assert_frame_equal(frame, before)


def test_columns_of_the_same_name_and_empty_tables():
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert repr(show_table(twice)).split() == ["a", "a", "1", "2"]
    assert "<table" in show_table(pd.DataFrame({"a": []})).data
