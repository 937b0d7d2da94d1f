import json
import re
from datetime import datetime

import numpy as np
import pytest
import torch

from course_utils import contrast, feedback
from course_utils.feedback import check, hint, predict, reveal


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_PREDICTIONS_DIR", str(tmp_path))
    return tmp_path


def commit(key, value, **question):
    prediction = predict(key, "What happens?", **(question or {"choices": ["falls", "rises"]}))
    prediction.control.value = value
    prediction.button.click()
    return prediction


# Predictions


def test_a_prediction_is_kept_with_its_time_and_revealed(folder):
    prediction = commit("02/p", "falls")
    assert prediction.message.value.startswith("Committed: falls (")
    kept = json.loads((folder / ".predictions.json").read_text())["02/p"]
    assert kept["answer"] == "falls"
    datetime.strptime(kept["time"], "%Y-%m-%dT%H:%M:%SZ")
    shown = reveal("02/p", "rises", "It is the largest.")
    assert repr(shown).splitlines() == [
        "you predicted: falls",
        "result: rises",
        "compared: not the same",
        "It is the largest.",
    ]
    assert "falls" in shown.data and "rises" in shown.data and "It is the largest." in shown.data


def test_the_first_answer_stays(folder):
    commit("02/p", "falls")
    before = (folder / ".predictions.json").read_bytes()
    again = commit("02/p", "rises")
    assert "first prediction stays" in again.message.value and "falls" in again.message.value
    assert (folder / ".predictions.json").read_bytes() == before
    assert "falls" in predict("02/p", "What happens?", choices=["falls", "rises"]).message.value


def test_a_commit_without_a_choice_keeps_nothing(folder):
    prediction = predict("02/p", "What happens?", choices=["falls", "rises"])
    prediction.commit()
    assert prediction.message.value == "Choose an answer first."
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    "result, shown", [(16382, "16382"), (78.8, "78.8"), (0.07, "0.07"), (2 / 3, "0.6667"), (3.0, "3")]
)
def test_a_result_is_shown_without_empty_decimals(result, shown):
    assert f"result: {shown}\n" in repr(reveal("02/n", result, "t"))


@pytest.mark.parametrize("typed", ["2.5", " 2.5 ", "+2.5", "25e-1"])
def test_number_predictions_are_kept_as_numbers_and_compared(folder, typed):
    prediction = commit("02/n", typed, number=(0, 5))
    assert prediction.message.value.startswith("Committed: 2.5 (")
    assert json.loads((folder / ".predictions.json").read_text())["02/n"]["answer"] == 2.5
    assert "you were 1 off" in repr(reveal("02/n", 3.5, "t"))


@pytest.mark.parametrize("typed", ["0", "5", "0.0"])
def test_the_bounds_of_a_number_are_answers(typed):
    assert commit("02/n", typed, number=(0, 5)).message.value.startswith("Committed: ")


def test_a_commit_without_a_number_keeps_nothing(folder):
    prediction = predict("02/n", "How many?", number=(0, 5))
    for typed in (prediction.control.value, "", "  "):
        prediction.control.value = typed
        prediction.button.click()
        assert prediction.message.value == "Type a number first."
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("99", "'99' is not within the range"),
        ("-0.1", "'-0.1' is not within the range"),
        ("inf", "'inf' is not within the range"),
        ("nan", "'nan' is not a number"),
        ("0,5", "'0,5' is not a number"),
        ("2 %", "'2 %' is not a number"),
        ("many", "'many' is not a number"),
    ],
)
def test_what_is_no_number_of_the_range_is_refused_in_one_line(folder, typed, says):
    prediction = commit("02/n", typed, number=(0, 5))
    assert prediction.message.value.startswith(says) and "from 0 to 5" in prediction.message.value
    assert "\n" not in prediction.message.value and not list(folder.iterdir())
    prediction.control.value = "4"
    prediction.commit()
    assert prediction.message.value.startswith("Committed: 4 (")


@pytest.mark.parametrize(
    ("bounds", "says"), [((0, 1), "A number from 0 to 1."), ((0, 100000), "A number from 0 to 100000.")]
)
def test_a_number_question_states_its_range(bounds, says):
    prediction = predict("02/n", "How <many>?", number=bounds)
    question = f"<strong>How &lt;many&gt;?</strong><br>{says}"
    assert prediction._repr_mimebundle_()["text/html"] == f"<p>{question}</p>"
    assert prediction.children[0].value == question
    assert prediction.control.description == "Your prediction:"


def test_answers_to_several_questions_stand_side_by_side(folder):
    commit("01/a", "falls")
    commit("02/b", "rises")
    assert set(json.loads((folder / ".predictions.json").read_text())) == {"01/a", "02/b"}
    assert sorted(path.name for path in folder.iterdir()) == [".predictions.json"]


@pytest.mark.parametrize("key", ["02/never-asked", "", "../../x"])
def test_nobody_is_blocked_without_a_prediction(key):
    assert repr(reveal(key, 1.0, "t")).splitlines()[0] == "you predicted: no prediction committed"


@pytest.mark.parametrize(
    "damage", [b"{", b"\xff\xfe\x00", b"[]", b'{"02/p": 3}', b'{"02/p": {"answer": null}}', b""]
)
def test_a_damaged_file_is_set_aside_in_one_line(folder, capsys, damage):
    (folder / ".predictions.json").write_bytes(damage)
    assert "no prediction committed" in repr(reveal("02/p", 1.0, "t"))
    assert len(capsys.readouterr().out.splitlines()) == 1
    (aside,) = folder.glob(".predictions.json.damaged-*")
    assert aside.read_bytes() == damage
    commit("02/p", "falls")
    assert "you predicted: falls" in repr(reveal("02/p", "falls", "t"))


def test_a_write_that_breaks_off_leaves_the_old_file(folder, monkeypatch):
    commit("01/a", "falls")
    before = (folder / ".predictions.json").read_bytes()

    def full_disk(path, text, **settings):
        with open(path, "w") as file:
            file.write(text[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(feedback.pathlib.Path, "write_text", full_disk)
    prediction = commit("02/b", "rises")
    assert "Not kept" in prediction.message.value and "No space left" in prediction.message.value
    assert (folder / ".predictions.json").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [".predictions.json"]


def test_the_folder_of_the_predictions_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COURSE_PREDICTIONS_DIR", "~/kept")
    commit("02/p", "falls")
    assert feedback.predictions_file() == tmp_path / "kept" / ".predictions.json"
    assert feedback.predictions_file().exists()


def test_predictions_lie_beside_the_notebook_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("COURSE_PREDICTIONS_DIR")
    monkeypatch.chdir(tmp_path)
    commit("02/p", "falls")
    assert (tmp_path / ".predictions.json").exists()


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"choices": ["a"]},
        {"choices": ["a", "a"]},
        {"choices": ["a", "b"], "number": (0, 1)},
        {"choices": "abc"},
        {"number": (1, 0)},
        {"number": (1, 2, 3)},
        {"number": 5},
        {"number": ("1", "2")},
    ],
)
def test_questions_that_cannot_be_answered_are_refused(question):
    with pytest.raises(ValueError, match=f"02/p.*{re.escape(str(next(iter(question.values()), None)))}"):
        predict("02/p", "What?", **question)


@pytest.mark.parametrize("key", [5, None, ("02", "p")])
def test_a_key_that_is_no_text_is_refused_and_leaves_the_file(folder, key):
    commit("02/p", "falls")
    before = feedback.predictions_file().read_bytes()
    with pytest.raises(TypeError, match=re.escape(f"the key {key!r}; expected a text")):
        commit(key, "rises")
    assert feedback.predictions_file().read_bytes() == before


def test_the_stored_output_of_a_question_does_not_know_the_answer():
    before = predict("02/p", "What <happens>?", choices=["falls", "rises"])._repr_mimebundle_()["text/html"]
    commit("02/p", "falls")
    after = predict("02/p", "What <happens>?", choices=["falls", "rises"])._repr_mimebundle_()
    assert after["text/html"] == before and "What &lt;happens&gt;?" in before and "rises" in before
    assert after["text/plain"] == "Prediction('02/p')"


# Checks


def raises(*arguments):
    raise NotImplementedError


def dots(*arguments): ...


@pytest.mark.parametrize(
    ("stub", "returned_none"),
    [(raises, False), (lambda *_: None, True), (dots, True), (lambda *_: ..., False)],
    ids=["raises", "None", "body of dots", "Ellipsis"],
)
@pytest.mark.parametrize("name", ["candidate_probability", "candidate_gradient", "nt_xent_loop", "two_views"])
def test_a_stub_is_not_attempted(name, stub, returned_none):
    verdict = check(name, stub)
    assert verdict.status == "not attempted" and "Replace the stub" in verdict.headline
    said = "Your function returned None: if you wrote it already, a `return` is missing."
    assert (said in verdict.headline) == returned_none


@pytest.mark.parametrize("unfinished", [raises, lambda: None])
def test_what_is_not_written_for_a_later_input_is_wrong_there(unfinished):
    def for_two_only(similarities, temperature):
        return (similarities / temperature).softmax(0) if len(similarities) == 2 else unfinished()

    verdict = check("candidate_probability", for_two_only)
    assert verdict.status == "wrong"
    assert "NotImplementedError" in verdict.headline or "Is a `return` missing" in verdict.headline
    assert verdict.lines == ("Smallest input: similarities = [-0.1, 0.4, -0.6], temperature = 0.2",)


def test_an_error_is_one_line_with_the_smallest_input():
    verdict = check("candidate_probability", lambda s, tau: s @ torch.zeros(3, 7, dtype=s.dtype))
    assert verdict.status == "wrong" and "RuntimeError" in verdict.headline and "\n" not in verdict.headline
    assert verdict.lines == ("Smallest input: similarities = [0.8, 0.4], temperature = 1.0",)


def test_an_error_at_a_later_input_shows_that_input():
    def fails_below_zero(similarities, temperature):
        assert (similarities > 0).all(), "negative"
        return (similarities / temperature).softmax(0)

    verdict = check("candidate_probability", fails_below_zero)
    assert verdict.status == "wrong" and "AssertionError: negative" in verdict.headline
    assert "-0.1" in verdict.lines[0]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda s, tau: (s / tau).softmax(0).numpy(), "numpy.ndarray"),
        (lambda s, tau: (s / tau).softmax(0).tolist(), "a list of 2"),
        (lambda s, tau: 0.5, "a Python float"),
        (lambda s, tau: (s / tau).softmax(0)[:1], r"shape [1]; expected [2]"),
        (lambda s, tau: (s / tau).softmax(0)[None], r"shape [1, 2]; expected [2]"),
        (lambda s, tau: (s / tau).softmax(0).round().long(), "torch.int64"),
        (lambda s, tau: s.div_(tau).softmax(0), "similarities in place"),
        (lambda s, tau: (s / tau).softmax(0).detach(), "detached"),
        (lambda s, tau: torch.tensor((s / tau).softmax(0).tolist(), dtype=torch.float64), "detached"),
    ],
)
def test_the_wrong_kind_of_answer_is_named(function, says):
    verdict = check("candidate_probability", function)
    assert verdict.status == "wrong" and says in verdict.headline


@pytest.mark.parametrize(
    ("given", "kind"), [(3, "a Python int"), (None, "None"), (torch.zeros(2), "a torch.Tensor")]
)
def test_a_function_that_was_called_already_is_asked_for_itself(given, kind):
    verdict = check("nt_xent_loop", given)
    assert verdict.status == "wrong" and not verdict.lines
    assert verdict.headline == f"check got {kind}; give the function itself, without ()."


def test_numpy_in_the_middle_stops_with_the_reason_and_without_torchs_advice():
    def through_numpy(similarities, temperature):
        weights = np.exp((similarities.numpy() - similarities.numpy().max()) / temperature)
        return torch.tensor(weights / weights.sum())

    verdict = check("candidate_probability", through_numpy)
    assert verdict.status == "wrong" and "must stay a tensor with its gradient" in verdict.headline
    assert "detach" not in verdict.headline


@pytest.mark.parametrize("value", [0.5, 1, np.float64(0.5)])
def test_a_loss_that_is_a_number_is_told_to_be_a_tensor(value):
    verdict = check("nt_xent_loop", lambda view_a, view_b, temperature: value)
    assert verdict.status == "wrong" and "expected a 0-d torch.Tensor" in verdict.headline
    assert "gradients reach view_a and view_b" in verdict.headline
    assert "loops are fine, with torch.exp and torch.log" in verdict.headline


def test_no_gradient_is_asked_for_where_none_has_to_flow():
    verdict = check("candidate_gradient", lambda s, k, tau: [0.5, 0.5])
    assert verdict.status == "wrong"
    assert verdict.headline == "Your function returned a list of 2; expected a torch.Tensor of shape [2]."


def test_what_a_right_answer_guarantees_holds_in_float32_too():
    verdict = check("candidate_probability", lambda s, tau: (s / tau).softmax(0))
    assert verdict.status == "right" and "positive" not in verdict.headline
    assert "none of your probabilities is negative" in verdict.headline
    assert "loops" not in check("nt_xent_loop", contrast.nt_xent).headline


def test_small_differences_can_be_seen():
    lines = check("candidate_probability", lambda s, tau: (s / tau).softmax(0).clamp_min(1e-6)).lines
    assert lines[1:3] == (
        "Your value: [1e-06, 1e-06, 1]",
        "Right value: [2.0611536e-09, 9.3576229e-14, 1]",
    )


@pytest.mark.parametrize(
    "answer", [lambda i, p, g: i, lambda i, p, g: (i, i), lambda i, p, g: (i / 255,) * 3]
)
def test_two_views_must_be_two_float_batches(answer):
    assert check("two_views", answer).status == "wrong"


def test_autograd_off_and_the_global_seed_are_left_in_peace():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert check("nt_xent_loop", contrast.nt_xent).status == "right"
        verdict = check(
            "candidate_gradient", lambda s, k, tau: ((s / tau).softmax(0) - torch.eye(len(s))[k]) / tau
        )
    assert verdict.status == "right"
    assert torch.equal(torch.get_rng_state(), before)


def test_the_verdict_is_shown_once_and_the_same_at_every_run(capsys):
    outputs = []
    for _ in range(2):
        verdict = check("nt_xent_loop", lambda a, b, tau: (a * b).sum() / tau)
        outputs.append((repr(verdict), verdict._repr_html_(), capsys.readouterr().out))
    assert outputs[0] == outputs[1]
    assert outputs[0][2].count("✗ nt_xent_loop: wrong.") == 1
    assert verdict._ipython_display_() is None
    assert not re.search(r"0x[0-9a-f]{6}", outputs[0][1])


def test_hints_come_in_three_stages():
    texts = [repr(hint("nt_xent_loop", stage)) for stage in (1, 2, 3)]
    assert len(set(texts)) == 3 and texts[1].startswith("Hint 2 of 3.")
    with pytest.raises(ValueError, match="stage is 4"):
        hint("nt_xent_loop", 4)
    with pytest.raises(ValueError, match="no exercise 'x'"):
        hint("x", 1)
