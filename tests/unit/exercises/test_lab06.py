"""LAB 06's exercises at inputs that no check cell shows, and its questions."""

import sys

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from course_utils.exercises import lab06
from course_utils.feedback import ANSWERED, NOT_ATTEMPTED, RIGHT, WRONG, check, judge
from course_utils.labs.grading import NotAttempted, Wrong, grade, student_seed

FUNCTIONS = [lab06.TWO_VIEWS, lab06.LOSS, lab06.FEATURES, lab06.READOUT]
SEEDS = (11, 12)


def by_name(exercise):
    return exercise.name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise", FUNCTIONS, ids=by_name)
def test_other_inputs_tell_the_mistakes_apart_as_well(exercise, seed):
    redrawn = exercise.redrawn(seed)
    assert str(redrawn.cases) != str(exercise.cases)
    assert judge(redrawn, redrawn.reference).status == RIGHT
    for mistake in exercise.misconceptions:
        if not mistake.behaves:
            assert f"Misconception: {mistake.name}." in judge(redrawn, mistake.function).headline


# Frozen features


def named(exercise, function):
    """The verdict's headline, for the function at other inputs."""
    verdict = judge(exercise.redrawn(SEEDS[0]), function)
    assert verdict.status == WRONG
    return verdict.headline


def step(method, images, which):
    optimiser = torch.optim.Adam(method.parameters())
    method.encoder(images / 255).mean().backward()
    optimiser.step()
    return lab06.FEATURES.reference(method, images, which)


def training_mode(method, images, which):
    with torch.no_grad():
        return method.train().encoder(images / 255)


def with_gradient(method, images, which):
    return method.eval().encoder(images / 255)


@pytest.mark.parametrize("function", [step, training_mode, with_gradient])
def test_an_encoder_that_is_trained_is_named(function):
    assert "the encoder is trained during the readout" in named(lab06.FEATURES, function)


def drawn(method, images, which):
    return torch.randn(lab06.FEATURES.reference(method, images, which).shape)


def drawn_with_a_seed(method, images, which):
    torch.manual_seed(3)
    return drawn(method, images, which)


def nothing_but_zeros(method, images, which):
    return torch.zeros_like(lab06.FEATURES.reference(method, images, which))


@pytest.mark.parametrize("function", [drawn, drawn_with_a_seed, nothing_but_zeros])
def test_random_vectors_are_named(function):
    assert "random vectors passed off as features" in named(lab06.FEATURES, function)


def test_a_network_may_be_left_in_evaluation_mode_or_not():
    def restored(method, images, which):
        answer = lab06.FEATURES.reference(method, images, which)
        method.train()
        return answer

    assert judge(lab06.FEATURES, restored).status == RIGHT


# The readout


def by_hand(features, labels, train, test):
    mean, deviation = features[train].mean(0), features[train].std(0)  # n - 1 in place of n
    scaled = (features - mean) / deviation
    model = LogisticRegression(solver="newton-cg", max_iter=5000).fit(scaled[train], labels[train])
    return float((model.predict(scaled[test]) == labels[test].numpy()).mean())


@pytest.mark.parametrize("seed", range(5))
def test_another_way_of_scaling_and_fitting_is_right(seed):
    assert judge(lab06.READOUT.redrawn(seed), by_hand).status == RIGHT


@pytest.mark.parametrize("random_state", [0, None])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_split_of_ones_own_is_named(random_state, share):
    def own_split(features, labels, train, test):
        rows = train_test_split(range(len(labels)), test_size=share, random_state=random_state)
        return lab06.READOUT.reference(features, labels, *map(torch.tensor, rows))

    assert "different splits between conditions" in named(lab06.READOUT, own_split)


# Questions


def answers(questions, **changed):
    return {
        question: sorted(v) if isinstance(v, set) else v for question, v in questions.right.items()
    } | changed


@pytest.mark.parametrize("questions", [lab06.EVIDENCE, lab06.TICKET], ids=by_name)
def test_right_answers_are_right_and_a_check_does_not_tell(questions):
    assert judge(questions, answers(questions)).status == RIGHT
    assert check(questions.name, answers(questions)).status == ANSWERED
    wrong = dict.fromkeys(questions.choices) | {q: c[0] for q, c in questions.choices.items()}
    assert check(questions.name, wrong).status == ANSWERED
    assert judge(questions, wrong).status == WRONG


@pytest.mark.parametrize(
    ("questions", "changed", "name"),
    [
        (
            lab06.EVIDENCE,
            {"jitter helps to read shape from h": ["jitter z hue", "no jitter z hue"]},
            "colour",
        ),
        (
            lab06.EVIDENCE,
            {"hue in z fell; that tells about shape": "shape must have become easier to read"},
            "colour loss taken as evidence on shape",
        ),
        (
            lab06.EVIDENCE,
            {"jitter helps to read shape from h": ["jitter h shape", "no jitter z shape"]},
            "two",
        ),
        (
            lab06.EVIDENCE,
            {"jitter helps to read shape from h": "jitter h shape"},
            "one cell is no comparison",
        ),
        (lab06.TICKET, {"fitting the readout changes": ["readout", "encoder"]}, "the encoder is trained"),
        (lab06.TICKET, {"candidates of one view": "2N"}, "the self-pair is left in"),
        (lab06.TICKET, {"candidates of one view": "2N - 2"}, "negatives counted in place of candidates"),
        (lab06.TICKET, {"the readout's input": "z"}, "z is read where h is asked"),
        (lab06.TICKET, {"a training step changes": lab06.PARTS}, "the readout takes part in training"),
    ],
)
def test_a_wrong_answer_is_named(questions, changed, name):
    assert f"Misconception: {name}" in judge(questions, answers(questions, **changed)).headline


@pytest.mark.parametrize("nothing", [None, ..., {}, dict.fromkeys(lab06.TICKET.choices, ...)])
def test_no_answers_are_not_attempted(nothing):
    assert judge(lab06.TICKET, nothing).status == check("lab06_ticket", nothing).status == NOT_ATTEMPTED


def test_answers_that_cannot_be_judged_say_why():
    one_left_out = answers(lab06.TICKET, **{"the loss compares": " "})
    assert "Not answered yet: the loss compares." in judge(lab06.TICKET, one_left_out).headline
    typo = answers(lab06.TICKET, **{"the loss compares": "zz"})
    assert "'zz' is none of its choices. There are: pictures, views" in judge(lab06.TICKET, typo).headline
    assert "expected a dictionary" in judge(lab06.TICKET, ["z"]).headline


def test_a_prediction_is_never_wrong():
    for choice in lab06.CHANGES:
        assert judge(lab06.PREDICTION, dict.fromkeys(lab06.PREDICTION.choices, choice)).status == RIGHT


# Grading


def test_grading_is_quiet_and_says_one_line(capsys):
    def loud(method, images, which):
        print("loud")
        torch.nn.functional.softmax(torch.zeros(2))  # warns
        return lab06.FEATURES.reference(method, images, which)

    grade("lab06_frozen_features", loud, seed=1)
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.startswith("lab06_frozen_features: right.")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, NotAttempted),
        (lambda *_: None, NotAttempted),
        (lambda *_: 1.0, Wrong),
        (lambda *_: sys.exit(), Wrong),
        (3, Wrong),
        (lab06.FEATURES.reference, Wrong),
    ],
)
def test_what_gives_no_points_is_one_line_without_the_inputs(answer, kind):
    with pytest.raises(kind) as raised:
        grade("lab06_frozen_features", answer, seed=1)
    assert "\n" not in str(raised.value) and "Smallest input" not in str(raised.value)
    assert raised.value._render_traceback_() == [f"{kind.__name__}: {raised.value}"]


def test_a_seed_for_each_student():
    assert student_seed("s1234567") == student_seed(" S1234567\n") != student_seed("s1234568")


@pytest.mark.parametrize("empty", [..., None, "", "  "])
def test_without_an_id_the_example_goes_on(empty, capsys):
    assert student_seed(empty) == student_seed("example")
    assert "No student id yet" in capsys.readouterr().out
