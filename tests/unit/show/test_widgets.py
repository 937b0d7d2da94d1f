import ipywidgets
import pytest

from course_utils.show.widgets import WIDGET_VIEW, CandidateExplorer, Explorer, TemperatureExplorer


def squares(render=lambda x, y: f"<p>{x * x + y}</p>", **changes):
    settings = {
        "controls": {
            "x": ipywidgets.IntSlider(2, description="x"),
            "y": ipywidgets.IntSlider(0, description="y"),
        },
        "frames": [{"x": 1}, {"x": 3, "y": 1}],
        "title": "Squares",
        **changes,
    }
    return Explorer(render, **settings)


def changes_of(explorer):
    """A list that grows by every value the result takes."""
    seen = []
    explorer.output.observe(lambda change: seen.append(change["new"]), "value")
    return seen


def test_one_move_changes_the_result_once():
    explorer = squares()
    assert "<p>4</p>" in explorer.html
    seen = changes_of(explorer)
    explorer.controls["x"].value = 5
    assert len(seen) == 1 and "<p>25</p>" in seen[0] and explorer.html == seen[0]


def test_set_moves_several_controls_and_renders_once():
    calls = []
    explorer = squares(lambda x, y: calls.append((x, y)) or f"{x} {y}")
    calls.clear()
    seen = changes_of(explorer)
    explorer.set(x=7, y=3)
    assert calls == [(7, 3)] and len(seen) == 1
    assert explorer.values == {"x": 7, "y": 3}
    explorer.controls["y"].value = 4  # still listening
    assert "7 4" in explorer.html


def test_an_exception_is_shown_kept_and_raised_to_code():
    explorer = squares(lambda x, y: str(6 // x))
    explorer.controls["x"].value = 0
    assert isinstance(explorer.error, ZeroDivisionError)
    assert "ZeroDivisionError" in explorer.html and 'role="alert"' in explorer.html
    explorer.controls["x"].value = 3
    assert explorer.error is None and "alert" not in explorer.html
    with pytest.raises(ZeroDivisionError):
        explorer.set(x=0)


def test_an_explorer_that_fails_from_the_start_raises():
    with pytest.raises(ZeroDivisionError):
        squares(lambda x, y: 1 / 0)


@pytest.mark.parametrize(
    "changes",
    [{"controls": {}}, {"frames": []}, {"controls": {"x": ipywidgets.IntSlider()}}, {"frames": [{"z": 1}]}],
)
def test_explorers_without_controls_frames_or_descriptions_are_refused(changes):
    with pytest.raises(ValueError):
        squares(**changes)


def test_set_names_a_control_that_is_not_there():
    with pytest.raises(ValueError, match=r"\['z'\].*\['x', 'y'\]"):
        squares().set(z=1)


def test_the_bundle_holds_live_view_frames_and_text():
    explorer = squares()
    bundle = explorer._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", WIDGET_VIEW}
    assert bundle["text/plain"] == "Explorer('Squares')"
    assert "x = 1, y = 0" in bundle["text/html"] and "<p>1</p>" in bundle["text/html"]
    assert "x = 3, y = 1" in bundle["text/html"] and "<p>10</p>" in bundle["text/html"]
    explorer.set(x=9)
    assert (
        explorer._repr_mimebundle_()["text/html"] == bundle["text/html"]
    )  # a stored output does not know the sliders


def test_ipython_takes_the_bundle_with_every_version_of_ipywidgets():
    from IPython.core.interactiveshell import InteractiveShell

    explorer = squares()
    data, _ = InteractiveShell.instance().display_formatter.format(explorer)
    assert data["text/plain"] == "Explorer('Squares')"
    assert WIDGET_VIEW in data and "<figure" in data["text/html"]


def test_a_list_is_wide_enough_for_its_longest_option():
    options = [("short", 0), ("long, " * 12, 1)]
    explorer = squares(
        controls={
            "x": ipywidgets.Dropdown(options=options, value=1, description="x"),
            "y": ipywidgets.IntSlider(0, description="y"),
        }
    )
    wide, usual = (float(explorer.controls[name].layout.width.removesuffix("em")) for name in "xy")
    assert wide > 0.5 * len(options[1][0]) > usual


def test_controls_are_core_widgets_with_descriptions():
    explorer = CandidateExplorer([0.8, 0.4, 0.2])
    for control in explorer.controls.values():
        assert type(control).__module__.startswith("ipywidgets.")
        assert control.description


@pytest.mark.parametrize(
    ("temperature", "shown"),
    [
        (1.0, ["0.4506", "-0.5494", "0.7971"]),
        (0.1, ["0.9796", "-0.2037", "0.0206"]),
        (0.07, ["0.9965", "-0.0497", "0.0035"]),
    ],
)
def test_the_candidate_explorer_shows_the_numbers_of_the_temperature_table(temperature, shown):
    explorer = CandidateExplorer([0.8, 0.4, 0.2], positive=0, temperature=0.5)
    explorer.set(temperature=temperature)
    assert explorer.error is None
    for number in shown:
        assert number in explorer.html


def test_every_slider_of_the_candidate_explorer_moves_the_result():
    explorer = CandidateExplorer([0.8, 0.4, 0.2, -0.5], positive=2)
    for name, value in {"s0": 0.1, "s1": 0.2, "s2": 0.3, "s3": 0.4, "temperature": 0.07}.items():
        before = explorer.html
        seen = changes_of(explorer)
        explorer.controls[name].value = value
        assert len(seen) == 1 and explorer.html != before
    assert explorer.error is None


def test_the_temperature_slider_holds_round_numbers_and_the_start_value():
    explorer = CandidateExplorer([0.8, 0.4], temperature=0.32)
    temperatures = [value for _, value in explorer.controls["temperature"].options]
    assert temperatures == sorted(temperatures) and temperatures[0] == 0.01 and temperatures[-1] == 10
    assert {0.32, 0.07, 0.1, 0.2, 0.5, 1} <= set(temperatures)
    assert "0.32" in explorer.controls["temperature"].label


def test_the_candidate_explorer_stands_the_ends_of_its_sliders():
    explorer = CandidateExplorer([1.0, -1.0], positive=1)
    for temperature in (0.01, 10):
        explorer.set(temperature=temperature)
        assert "nan" not in explorer.html.split("base64,")[0].lower()


def test_pictures_of_the_candidate_explorer_have_alt_text():
    html = CandidateExplorer([0.8, 0.4]).html
    assert html.count("<img alt=") == html.count("<img") == 1
    assert 'role="status"' in html


def shown_sliders(explorer):
    return [control.description for control in explorer.children[1].children]


@pytest.mark.parametrize(
    ("temperature", "shown"),
    [
        (1.0, ["0.4506", "-0.5494", "0.7971"]),
        (0.5, ["0.5713", "-0.8575", "0.5599"]),
        (0.1, ["0.9796", "-0.2037", "0.0206"]),
    ],
)
def test_the_temperature_explorer_shows_the_table_and_the_strongest_pull(temperature, shown):
    explorer = TemperatureExplorer([0.8, 0.4, 0.2])
    explorer.set(temperature=temperature)
    assert all(number in explorer.html for number in [*shown, "0.3245", "0.9548"])
    explorer.set(s0=0.3)
    assert "does not lead" in explorer.html and "0.3245" not in explorer.html


def test_only_the_negatives_that_take_part_have_a_slider():
    explorer = TemperatureExplorer([0.8, 0.4], names=["positive", "false negative"])
    always = ["temperature", "number of negatives", "similarity of positive", "similarity of false negative"]
    assert shown_sliders(explorer) == always
    seen = changes_of(explorer)
    explorer.controls["negatives"].value = 3
    assert len(seen) == 1 and "negative 3" in explorer.html
    assert shown_sliders(explorer) == [*always, "similarity of negative 2", "similarity of negative 3"]
    explorer.set(negatives=1, s8=0.9)
    assert shown_sliders(explorer) == always and "negative 2" not in explorer.html


def test_the_temperature_explorer_stands_the_ends_of_its_sliders():
    explorer = TemperatureExplorer([1.0, -1.0])
    for place, temperature in enumerate((0.01, 10, 0.01)):
        explorer.set(
            temperature=temperature, negatives=8, **{f"s{j}": 1.0 - 2 * (place == j) for j in range(9)}
        )
        assert explorer.error is None and "nan" not in explorer.html.split("base64,")[0].lower()
    assert explorer.html.count("<img alt=") == explorer.html.count("<img") == 2
