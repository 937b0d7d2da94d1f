"""LAB 07 through nbgrader: a right, an empty and a wrong submission, and what students get to read."""

import copy
import re

import pytest
import torch
from course import Course, as_an_instructor, notebook, secrets, solutions
from torch.nn.functional import normalize

from course_utils.labs import build, lab07
from course_utils.labs.grading import student_seed

LAB = "lab07"
RIGHT = solutions(LAB)
POINTS = {
    "test-prediction": 5,
    "test-enqueue": 15,
    "test-prepare": 5,
    "test-ema": 15,
    "test-logits": 10,
    "test-step": 15,
    "test-trace": 10,
    "test-readout": 10,
    "test-ticket": 5,
}

# Right answers, written differently.
OTHERWISE = {
    "student_id": 'STUDENT_ID = " S7654321 "',
    "prediction": RIGHT["prediction"].replace("it is the oldest", "it is the most similar"),
    "enqueue": """
def enqueue(ring, pointer, keys):
    fits = min(len(keys), len(ring) - pointer)
    ring[pointer : pointer + fits] = keys[:fits]
    ring[: len(keys) - fits] = keys[fits:]
    return ring, (pointer + len(keys)) % len(ring)
""",
    "prepare": """
def prepare(query_network, rate):
    key_network = copy.deepcopy(query_network)
    for parameter in key_network.parameters():
        parameter.requires_grad = False
    return key_network, torch.optim.Adam(query_network.parameters(), lr=rate)
""",
    "ema": """
@torch.no_grad()
def ema(follower, leader, m, buffers):
    for slow, fast in zip(follower.parameters(), leader.parameters()):
        slow.lerp_(fast, 1 - m)
    if buffers == "copy":
        for slow, fast in zip(follower.buffers(), leader.buffers()):
            slow.copy_(fast)
""",
    "logits": """
def logits(q, k, queue, t):
    with torch.no_grad():
        keys = F.normalize(k, dim=1)
        candidates = torch.cat([keys[:, None], queue.expand(len(q), -1, -1)], dim=1)
    return torch.einsum("bd,bkd->bk", F.normalize(q, dim=1), candidates) / t
""",
    "step": """
def step(state, view_a, view_b, ema, logits, enqueue):
    ema(state.key_network, state.query_network, state.momentum, "own")
    keys = state.key_network(view_b).detach()
    keys = keys / keys.norm(dim=1, keepdim=True)
    scores = logits(state.query_network(view_a), keys, state.ring, state.temperature)
    loss = -scores.log_softmax(dim=1)[:, 0].mean()
    loss.backward()
    state.optimiser.step()
    state.optimiser.zero_grad()
    state.ring, state.pointer = enqueue(state.ring, state.pointer, keys)
    return loss
""",
    "paragraph": "The keys came in.",
}

# test -> (wrong answer, what its message says). The run goes on with the course's functions.
WRONG = {
    "enqueue": (
        """
def enqueue(ring, pointer, keys):
    fits = min(len(keys), len(ring) - pointer)
    ring[pointer : pointer + fits] = keys[:fits]
    return ring, (pointer + len(keys)) % len(ring)
""",
        "the overflow is dropped at the wrap",
    ),
    "prepare": (
        """
def prepare(query_network, rate):
    key_network = copy.deepcopy(query_network)
    both = [*query_network.parameters(), *key_network.parameters()]
    return key_network, torch.optim.AdamW(both, lr=rate)
""",
        "the key encoder is trained by the optimiser",
    ),
    "ema": (
        RIGHT["ema"].replace(
            "momentum * key + (1 - momentum) * query", "(1 - momentum) * key + momentum * query"
        ),
        "m and 1 - m are swapped",
    ),
    "logits": (
        RIGHT["logits"].replace("[positive, negatives]", "[negatives, positive]"),
        "the positive is not in column 0",
    ),
    "step": (
        """
def step(state, view_a, view_b, ema, logits, enqueue):
    ema(state.key_network, state.query_network, state.momentum, "own")
    with torch.no_grad():
        keys = F.normalize(state.key_network(view_b), dim=1)
    state.ring, state.pointer = enqueue(state.ring, state.pointer, keys)
    scores = logits(state.query_network(view_a), keys, state.ring, state.temperature)
    loss = F.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long))
    state.optimiser.zero_grad()
    loss.backward()
    state.optimiser.step()
    return loss
""",
        "the keys are enqueued before the logits",
    ),
    "readout": (
        RIGHT["readout"].replace("trained.query_network.encoder", "trained.query_network"),
        "z is read where h is asked",
    ),
    "ticket": (RIGHT["ticket"].replace('"Q + 1"', '"Q"'), "the positive is not counted"),
}
CURIOUS = "print(repr(In))"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        as_an_instructor(patch)
        course = Course(tmp_path_factory.mktemp("course").resolve(), LAB)
        course.submit("right", RIGHT | OTHERWISE, {"test-ticket": CURIOUS})
        course.submit("nothing")
        course.submit("wrong", RIGHT | {test: source for test, (source, _) in WRONG.items()})
        yield course


def test_each_test_has_its_points():
    points = {
        cell.metadata.nbgrader.grade_id: cell.metadata.nbgrader.points
        for cell in notebook(LAB, "release").cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    }
    assert points == {**POINTS, "paragraph": 10}


def test_right_code_gets_all_points(course):
    """Whatever the id, however it is written."""
    assert course.points("right") == {**POINTS, "paragraph": None}, course.messages("right")
    outputs = [output for cell in course.graded("right").cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]


def test_nothing_attempted_gets_nothing_and_is_told_so(course):
    assert course.points("nothing") == dict.fromkeys([*POINTS, "paragraph"], 0)
    assert all(text.startswith("NotAttempted: ") for text in course.messages("nothing").values())


@pytest.mark.parametrize("test", WRONG)
def test_a_wrong_answer_is_named(course, test):
    text = course.messages("wrong")[f"test-{test}"]
    assert re.match(r"Wrong: .*Misconception: ", text) and WRONG[test][1] in text


def test_wrong_answers_lose_their_points_and_no_others(course):
    lost = {f"test-{test}": 0 for test in WRONG}
    assert course.points("wrong") == {**POINTS, **lost, "paragraph": None}, course.messages("wrong")


@pytest.mark.parametrize("student", ["right", "nothing", "wrong"])
def test_feedback_names_the_mistake_and_hides_the_tests(course, student):
    page = course.feedback(student)
    assert not [secret for secret in secrets(LAB) if build.bare(secret) in build.bare(page)]
    for _, message in WRONG.values() if student == "wrong" else ():
        assert build.bare(message) in build.bare(page)
    assert "grading.py" not in page and "exercises/lab07.py" not in page


# --- The trace and the readout, without nbgrader ------------------------------------------------------------

STUDENT = "somebody"


@pytest.fixture(scope="module")
def data():
    return lab07.data(student_seed(STUDENT))


@pytest.fixture(scope="module")
def trained(data):
    return lab07.train(lab07.COURSE, data)


def verdict(trained, data, own=lab07.COURSE, change=None):
    traced = lab07.three_steps(own, trained, data)
    if change:
        change(*traced)
    return lab07.judge_trace(trained, traced, STUDENT)


def test_a_right_run_is_right_and_its_queue_is_no_multiple_of_the_batch(trained, data):
    assert verdict(trained, data).status == "right"
    assert len(trained.ring) % lab07.BATCH
    assert len({lab07.places(student_seed(f"student-{number}")) for number in range(20)}) > 10


def test_each_stage_changes_one_thing(trained, data):
    _, trace = lab07.three_steps(lab07.COURSE, trained, data)
    assert [(event.stage, *event.changed) for event in trace.events] == 3 * [
        ("EMA", "key"), ("keys", "key statistics"), ("logits", "query statistics"), ("optimiser", "query"),
        ("enqueue", "queue"),
    ]  # fmt: skip


def test_the_table_shows_who_came_and_how_old(trained, data):
    after, _ = lab07.three_steps(lab07.COURSE, trained, data)
    table = lab07.before_and_after(trained, after)
    assert table["age after"].tolist() == [3, 3, 2, 2, 1, 1]
    assert table["age before"].iloc[0] == trained.table()["age"].max()
    assert table["picture after"].iloc[0] == data.batch(trained.steps)[0]


def random_vectors(trained):
    trained.ring = normalize(torch.randn_like(trained.ring), dim=1)


def random_network(trained):
    fresh = lab07.network(student_seed(STUDENT))
    trained.query_network.load_state_dict(fresh.state_dict())


def nearly_random_network(trained):
    random_network(trained)
    for parameter in trained.query_network.parameters():
        parameter.data += 1e-6


def one_place_more(trained):
    trained.ring = torch.cat([trained.ring, trained.ring[:1]])
    trained.names = torch.cat([trained.names, trained.names[:1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (random_vectors, "random vectors in place of trained keys"),
        (random_network, "random vectors in place of trained keys"),
        (nearly_random_network, "random vectors in place of trained keys"),
        (one_place_more, "which follow from your id"),
    ],
)
def test_keys_that_are_not_real_are_named(trained, data, change, message):
    trained = copy.deepcopy(trained)
    change(trained)
    found = verdict(trained, data)
    assert found.status == "wrong" and message in found.headline


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda after, trace: trace.events.pop(), "a stage is missing"),
        (lambda after, trace: after.names.zero_(), "the ring holds other keys"),
        (lambda after, trace: after.ring.normal_(), "are not those that your trained key network makes"),
        (lambda after, trace: after.losses.__setitem__(-1, 0.0), "losses"),
    ],
)
def test_a_trace_that_was_changed_is_found(trained, data, change, message):
    found = verdict(trained, data, change=change)
    assert found.status == "wrong" and message in found.headline


def test_a_trace_of_anything_else_is_wrong_and_none_is_not_attempted(trained):
    assert lab07.judge_trace(trained, "1 EMA changed: key", STUDENT).status == "wrong"
    assert lab07.judge_trace(None, None, STUDENT).status == "not attempted"


@pytest.fixture(scope="module")
def right_readout(trained, data):
    return {
        "trained": lab07.accuracy(trained.query_network.encoder, data),
        "random": lab07.accuracy(lab07.network(data.seed).encoder, data),
        "was the run useful?": lab07.USEFUL[0],
    }


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"random": 1 / 6}, "guessing taken for the control"),
        ({"random": "trained"}, "the control is trained as well"),
        ({"trained": 0.9}, "read again from your run"),
        ({"was the run useful?": lab07.USEFUL[2]}, "what do they say?"),
        ({"was the run useful?": ...}, "Not answered yet"),
    ],
)
def test_a_wrong_readout_is_named(trained, right_readout, changed, message):
    given = right_readout | {q: right_readout.get(a, a) if a is not ... else a for q, a in changed.items()}
    found = lab07.judge_readout(given, trained, STUDENT)
    assert found.status == "wrong" and message in found.headline


def test_an_untrained_run_is_not_useful(data, right_readout):
    untrained = lab07.start(lab07.COURSE, data)
    found = lab07.judge_readout(right_readout, untrained, STUDENT)
    assert found.status == "wrong" and "right code is ahead" in found.headline


def test_no_readout_is_not_attempted(trained):
    for nothing in (None, ..., dict.fromkeys(lab07.ANSWERS, ...)):
        assert lab07.judge_readout(nothing, trained, STUDENT).status == "not attempted"


def test_a_wrong_function_is_replaced_and_a_missing_one_asked_for(capsys):
    def stub(*arguments):
        raise NotImplementedError

    given = dict(vars(lab07.COURSE))
    own = lab07.functions(**given | {"ema": lambda *arguments: None})
    assert own == lab07.COURSE and "used from here on: ema." in capsys.readouterr().out
    with pytest.raises(lab07.NotAttempted, match="step is not written yet"):
        lab07.functions(**given | {"step": stub})
