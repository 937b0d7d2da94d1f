"""LAB 06 through nbgrader: right and wrong submissions, what they cost, and what students get to read."""

import re
from copy import deepcopy

import pandas as pd
import pytest
import torch
from course import Course, as_an_instructor, notebook, secrets, solutions

from course_utils import records
from course_utils.exercises import lab06 as exercises
from course_utils.images import shapes
from course_utils.labs import build, lab06
from course_utils.labs.grading import student_seed

LAB = "lab06"
RIGHT = solutions(LAB)
POINTS = {
    "test-prediction": 5,
    "test-two_views": 15,
    "test-loss": 10,
    "test-frozen_features": 15,
    "test-readout": 15,
    "test-table": 10,
    "test-evidence": 10,
    "test-ticket": 10,
}

# --- Wrong answers: grade_id -> source, and the misconception that the message has to name ------------------


def views_with(first, second, count="len(images)", policy_b="policy"):
    return f"""
def two_views(images, policy, generator):
    size = images.shape[-2:]
    parameters_a = draw_parameters({count}, *size, policy, generator)
    parameters_b = draw_parameters({count}, *size, {policy_b}, generator)
    return {first}, {second}
"""


EACH = "torch.cat([apply_view(image[None], parameters_{}) for image in images])"
SAME_PARAMETERS = views_with("apply_view(images, parameters_a)", "apply_view(images, parameters_a)")
ONE_SET = views_with(EACH.format("a"), EACH.format("b"), count="1")
JITTER_ON_ONE = views_with(
    "apply_view(images, parameters_a)",
    "apply_view(images, parameters_b)",
    policy_b='policy.without("colour")',
)
SELF_PAIR_IN = """
def loss(z_a, z_b, temperature):
    z = F.normalize(torch.cat([z_a, z_b]), dim=1)
    return F.cross_entropy(z @ z.T / temperature, torch.arange(len(z)).roll(len(z_a)))
"""
Z_FOR_H = """
def frozen_features(method, images, which):
    with torch.no_grad():
        return method.eval().project(as_views(images))
"""
RANDOM = """
def frozen_features(method, images, which):
    with torch.no_grad():
        width = method.eval().encoder(as_views(images[:1])).shape[1]
    return torch.randn(len(images), width)
"""
TYPED_IN_RANDOM = RANDOM.replace("return", "torch.manual_seed(0)\n    return")
TRAINED = """
def frozen_features(method, images, which):
    optimiser = torch.optim.SGD(method.parameters(), lr=0.1)
    method.eval().encoder(as_views(images)).square().mean().backward()
    optimiser.step()
    with torch.no_grad():
        h = method.encoder(as_views(images))
        return h if which == "h" else method.head(h)
"""
TRAINING_MODE = """
def frozen_features(method, images, which):
    with torch.no_grad():
        h = method.train().encoder(as_views(images))
        return h if which == "h" else method.head(h)
"""
WITH_GRADIENT = """
def frozen_features(method, images, which):
    h = method.eval().encoder(as_views(images))
    return h if which == "h" else method.head(h)
"""


def readout_with(scaled="train", fitted="train", judged="test", first=""):
    return f"""
def readout(features, labels, train, test):
    {first or "every = torch.cat([train, test])"}
    scaler = StandardScaler().fit(features[{scaled}])
    model = classifier().fit(scaler.transform(features[{fitted}]), labels[{fitted}])
    return model.score(scaler.transform(features[{judged}]), labels[{judged}])
"""


OWN_SPLIT = readout_with(first="train, test = torch.randperm(len(labels)).split(len(labels) // 2)")


def with_answer(name, **answers):
    """The right answers to questions, some of them replaced."""
    replaced = "\n".join(f"{name}[{question!r}] = {answer!r}" for question, answer in answers.items())
    return f"{RIGHT[name]}\n{replaced}"


SHAPE_CLAIM = "jitter helps to read shape from h"
COLOUR_AS_EVIDENCE = with_answer("evidence", **{SHAPE_CLAIM: ["jitter z hue", "no jitter z hue"]})
COLOUR_TELLS = with_answer(
    "evidence", **{"hue in z fell; that tells about shape": "shape must have become easier to read"}
)
TWO_THINGS = with_answer("evidence", **{SHAPE_CLAIM: ["jitter h shape", "no jitter z shape"]})

# student -> test -> (wrong answer, what its message says). None writes both two_views and loss: none trains.
WRONG = {
    "wrong-1": {
        "two_views": (SAME_PARAMETERS, "the same parameters for both views"),
        "frozen_features": (Z_FOR_H, "z is read where h is asked"),
        "readout": (readout_with(scaled="test"), "the scaler is fitted on the test part"),
        "evidence": (COLOUR_AS_EVIDENCE, "colour loss taken as evidence on shape"),
        "ticket": (with_answer("ticket", **{"candidates of one view": "2N"}), "the self-pair is left in"),
    },
    "wrong-2": {
        "two_views": (ONE_SET, "one set of parameters for the whole batch"),
        "frozen_features": (RANDOM, "random vectors passed off as features"),
        "readout": (readout_with(fitted="test"), "the readout is fitted on the test part"),
        "evidence": (COLOUR_TELLS, "colour loss taken as evidence on shape"),
        "ticket": (
            with_answer("ticket", **{"fitting the readout changes": ["readout", "encoder"]}),
            "the encoder is trained during the readout",
        ),
    },
    "wrong-3": {
        "two_views": (JITTER_ON_ONE, "colour jitter on view_a only"),
        "frozen_features": (TRAINED, "the encoder is trained during the readout"),
        "readout": (readout_with(judged="train"), "accuracy on the training part"),
        "evidence": (TWO_THINGS, "two things changed at once"),
        "ticket": (with_answer("ticket", **{"the readout's input": "z"}), "z is read where h is asked"),
    },
    "wrong-4": {
        "loss": (SELF_PAIR_IN, "self is left in"),
        "frozen_features": (TRAINING_MODE, "the encoder is trained during the readout"),
        "readout": (OWN_SPLIT, "different splits between conditions"),
        "ticket": (with_answer("ticket", **{"the loss compares": "h"}), "z is read where h is asked"),
        "evidence": ("evidence = {}", "NotAttempted"),
    },
    "wrong-5": {
        "loss": ("def loss(z_a, z_b, temperature):\n    return z_a.undefined", "stopped with AttributeError"),
        "frozen_features": (WITH_GRADIENT, "the encoder is trained during the readout"),
        "readout": (readout_with(scaled="every"), "the scaler is fitted on the test part"),
        "ticket": ("ticket = 'all of it'", "expected a dictionary"),
        "prediction": (with_answer("prediction", **{"hue in z": "up"}), "none of its choices"),
    },
    "wrong-6": {
        "frozen_features": (TYPED_IN_RANDOM, "random vectors passed off as features"),
        "readout": ("def readout(*anything):\n    return 0.9", "different splits between conditions"),
    },
}
CASES = [
    pytest.param(student, test, message, id=f"{student}-{test}")
    for student, tests in WRONG.items()
    for test, (_, message) in tests.items()
]

# Right answers, written differently.
ALTERNATIVE = {
    "student_id": 'STUDENT_ID = " S7654321 "',
    "prediction": f"prediction = dict.fromkeys({list(exercises.PREDICTION.choices)}, 'stays within 0.1')",
    "two_views": """
import course_utils.views

def two_views(pictures, policy, generator):
    return list(course_utils.views.two_views(pictures, policy, generator)[:2])
""",
    "loss": """
def loss(a, b, t):
    rows = torch.cat([a, b])
    s = torch.cosine_similarity(rows[:, None], rows[None], dim=2) / t
    itself = torch.eye(2 * len(a), dtype=torch.bool)
    s = torch.where(itself, torch.full_like(s, -float("inf")), s)
    positive = torch.cat([s.diagonal(len(a)), s.diagonal(-len(a))])
    return (s.logsumexp(dim=1) - positive).mean()
""",
    "frozen_features": """
@torch.inference_mode()
def frozen_features(network, images, kind):
    was = network.training
    network.train(False)
    parts = [network.encoder(as_views(part)) for part in images.split(512)]
    if kind == "z":
        parts = [network.head(part) for part in parts]
    network.train(was)
    return torch.cat(parts).clone()
""",
    "readout": """
from sklearn.pipeline import make_pipeline

def readout(features, labels, train, test):
    x, y = features.numpy(), labels.numpy()
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0) + 1e-8
    fitted = classifier().fit((x[train] - mean) / deviation, y[train])
    return float((fitted.predict((x[test] - mean) / deviation) == y[test]).mean())
""",
    "evidence": "evidence = {"
    + ", ".join(
        f"{question!r}: {tuple(sorted(right, reverse=True)) if isinstance(right, set) else right!r}"
        for question, right in exercises.EVIDENCE.right.items()
    )
    + "}",
    "ticket": with_answer("ticket", **{"a training step changes": ("head", "encoder")}),
    "paragraph": "I would hand over h.",
}


def tampered(notebook):
    """Every test replaced by nothing and made worth a hundred points, the readout's classifier by another."""
    for cell in notebook.cells:
        settings = cell.metadata.get("nbgrader", {})
        if settings.get("grade_id", "").startswith("test-"):
            cell.source = "pass"
            settings["points"] = 100
        elif cell.source.startswith("def classifier"):
            cell.source = "def classifier():\n    return None"


def without_a_test(notebook):
    notebook.cells = [
        cell
        for cell in notebook.cells
        if cell.metadata.get("nbgrader", {}).get("grade_id") != "test-evidence"
    ]


# What honest, curious and impatient students add; none of it may cost or gain anything, but for a training
# cut short: its encoders learned too little.
EXTRA = {
    "test-two_views": "lab06.BUDGET = lab06.Budget(epochs=1, batch=64)",
    "test-loss": "import sys, warnings\nwarnings.warn('look here')\nprint('here', file=sys.stderr)",
    "test-table": "import ipywidgets\nslider = ipywidgets.IntSlider()\nslider.value = 3\nslider",
}
CURIOUS = "for name in ('In', '_ih'):\n    print(*globals().get(name, []), sep='\\n')\nprint(repr(In))"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """One course in which everybody has handed in; only the first trains as long as the lab says."""
    with pytest.MonkeyPatch.context() as patch:
        as_an_instructor(patch)
        course = Course(tmp_path_factory.mktemp("course").resolve(), LAB)
        course.submit("right", RIGHT, {"test-ticket": CURIOUS})
        course.submit("otherwise", ALTERNATIVE, EXTRA, tampered)
        course.submit("nothing")
        for student, tests in WRONG.items():
            answers = {test: source for test, (source, _) in tests.items()}
            answers["student_id"] = 'STUDENT_ID = "somebody"'
            if student == "wrong-6":
                answers["evidence"] = RIGHT["evidence"]
                course.submit(student, answers, {"test-ticket": CURIOUS}, without_a_test)
            else:
                course.submit(student, answers)
        yield course


def test_the_points_add_up():
    points = {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
        for cell in notebook(LAB, "release").cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }
    assert points == {**POINTS, "paragraph": 10} and sum(points.values()) == 100


# --- Grades -------------------------------------------------------------------------------------------------


def test_right_code_gets_all_points(course):
    assert course.points("right") == {**POINTS, "paragraph": None}, course.messages("right")


def test_right_code_written_otherwise_loses_the_table_of_a_short_training_and_no_more(course):
    """Whatever the id, however it is written, with locked cells changed and cells added."""
    messages = course.messages("otherwise")
    assert course.points("otherwise") == {**POINTS, "test-table": 0, "paragraph": None}, messages
    # Out of range is judged last: the table is the one that the right functions read from these encoders.
    assert "right code gives that with no seed" in messages["test-table"]


def test_nothing_attempted_gets_nothing_and_is_told_so(course):
    assert course.points("nothing") == dict.fromkeys([*POINTS, "paragraph"], 0)
    assert all(text.startswith("NotAttempted: ") for text in course.messages("nothing").values())


@pytest.mark.parametrize("student, test, message", CASES)
def test_a_wrong_answer_loses_its_points_and_is_named(course, student, test, message):
    assert course.points(student)[f"test-{test}"] == 0
    text = course.messages(student)[f"test-{test}"]
    assert message in text and re.match(r"(Wrong|NotAttempted): ", text)


@pytest.mark.parametrize("student", WRONG)
def test_what_is_not_attempted_is_not_called_wrong(course, student):
    messages = course.messages(student)
    left = messages.keys() - {f"test-{test}" for test in WRONG[student]}
    assert all(messages[test].startswith("NotAttempted: ") for test in left)


def test_a_deleted_test_gives_no_points(course):
    assert "test-evidence" not in course.messages("wrong-6")
    assert not course.points("wrong-6")["test-evidence"]


def test_the_widgets_ran(course):
    """The explorer shows itself in a graded notebook, and no cell ran out of time."""
    outputs = [output for cell in course.graded("right").cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("Nearest neighbours" in str(output) for output in outputs)


# --- Feedback -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("student", ["right", "wrong-1", "wrong-4", "wrong-6", "nothing"])
def test_feedback_names_the_mistake_and_hides_the_tests(course, student):
    page = course.feedback(student)
    assert not [secret for secret in secrets(LAB) if build.bare(secret) in build.bare(page)]
    for _, message in WRONG.get(student, {}).values():
        assert build.bare(message) in build.bare(page)
    assert "grading.py" not in page and "exercises/lab06.py" not in page


# --- The table, without training ----------------------------------------------------------------------------


@pytest.fixture
def fewer_pictures(monkeypatch):
    """A third of the pictures to read from, and hardly any to train on: tables are compared, not believed."""
    for name, count in {"TRAINED_ON": 64, "READ_ON": 1000, "FIT_ON": 500}.items():
        monkeypatch.setattr(lab06, name, count)


@pytest.fixture(scope="module")
def untrained():
    seed = student_seed("somebody")
    return {name: lab06.start(seed).eval() for name in lab06.POLICIES}


@pytest.fixture(scope="module")
def astray(untrained):
    """Networks that left their start without having learned anything."""
    methods = deepcopy(untrained)
    for number, method in enumerate(methods.values()):
        draw = torch.Generator().manual_seed(number)
        for parameter in method.parameters():
            if parameter.ndim > 1:
                parameter.data += parameter.std() * torch.randn(parameter.shape, generator=draw)
    return methods


def judged(table, methods):
    return lab06.judge_table(table, methods, "somebody")


def test_the_range_holds_every_seed_of_the_record_with_room_and_no_other_policy():
    table = records.load(lab06.RECORD).table
    expected = lab06.ranges()
    accuracies = table.groupby(["row", "label"])["accuracy"]
    assert (accuracies.size() >= 5).all()
    assert (accuracies.max() - accuracies.min()).max() < lab06.REACH
    assert (accuracies.min() > expected["low"] + lab06.REACH / 2).all()
    without = table[(table["row"] == "no jitter z") & (table["label"] == "hue")]
    assert without["accuracy"].min() > expected["high"]["jitter z", "hue"]


@pytest.mark.usefixtures("fewer_pictures")
def test_an_untrained_encoder_is_named(untrained, astray):
    data = lab06.data(student_seed("somebody"))
    one_of_two = {**astray, "no jitter": untrained["no jitter"]}
    for methods in (untrained, one_of_two):
        verdict = judged(lab06.reference_table(methods, data), methods)
        assert verdict.status == "wrong" and "random vectors passed off as features" in verdict.headline


@pytest.mark.usefixtures("fewer_pictures")
def test_another_students_networks_are_found(astray):
    seed = student_seed("somebody else")
    table = lab06.reference_table(astray, lab06.data(seed))
    verdict = lab06.judge_table(table, astray, "somebody else")
    assert verdict.status == "wrong" and "did not start from the weights of your id" in verdict.headline


@pytest.mark.usefixtures("fewer_pictures")
def test_networks_that_learned_nothing_are_out_of_range(astray):
    data = lab06.data(student_seed("somebody"))
    verdict = judged(lab06.reference_table(astray, data), astray)
    assert verdict.status == "wrong" and "right code gives that with no seed" in verdict.headline


@pytest.mark.usefixtures("fewer_pictures")
def test_a_table_of_something_else_is_found(astray):
    data = lab06.data(student_seed("somebody"))
    right = lab06.reference_table(astray, data)
    tables = {
        "random vectors": lab06.compare(
            lambda method, images, which: torch.randn(len(images), 8),
            exercises.READOUT.reference, astray, data,
        ),
        "accuracy on the training part": lab06.compare(
            exercises.FEATURES.reference, exercises.accuracy_on_train, astray, data
        ),
        "z is read where h is asked": lab06.compare(
            lambda method, images, which: exercises.FEATURES.reference(method, images, "z"),
            exercises.READOUT.reference, astray, data,
        ),
        "is not that of your encoders": right + 0.2,
        "cannot be read": pd.DataFrame({"shape": [1.0]}),
    }  # fmt: skip
    for message, table in tables.items():
        verdict = judged(table, astray)
        assert verdict.status == "wrong" and message in verdict.headline


def test_no_table_is_not_attempted(untrained):
    assert judged(None, untrained).status == "not attempted"
    assert judged(pd.DataFrame(), None).status == "not attempted"


def test_the_neighbours_are_told_in_words():
    probe = shapes.make(120, seed=1)
    spaces = {
        f"by {label}": torch.nn.functional.one_hot(probe.labels[label]).float() for label in lab06.LABELS
    }
    page = lab06.draw_neighbours(spaces, lab06.Data(None, probe, None, None), 3)
    [status] = re.findall(r'<p role="status">(.*?)</p>', page)
    assert re.search(r"have: by shape 5 and \d; by hue \d and 5\.$", status), status
    assert f'alt="A row for each space, the picture and its five nearest. {status}"' in page
