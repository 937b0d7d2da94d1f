"""What a lab's hidden tests call: a seed for each student, and verdicts that cost points.

A hidden test is one line, such as `grade("lab06_readout", globals().get("readout"), seed=...)`. All that
judges is here and in course_utils/exercises; the test's own secret is its seed. Whatever a student's function
prints or warns is swallowed: nbgrader gives no points to a test that writes to standard error.
"""

import contextlib
import hashlib
import io
import warnings
from pathlib import Path

from course_utils import exercises
from course_utils.feedback import NOT_ATTEMPTED, RIGHT, WRONG, Verdict, judge

PACKAGE = Path(exercises.__file__).parents[1]


class NoPoints(Exception):
    """A test that gives no points; a notebook shows its message and nothing of the test."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


class NotAttempted(NoPoints):
    """The stub is still there, or what is asked for is missing."""


class Wrong(NoPoints):
    """An answer that is wrong; the message names the misconception, if it is a known one."""


def student_seed(student_id: str) -> int:
    """The seed that belongs to a student: the same on every machine, with or without spaces and capitals.

    An id that is not filled in yet gets the seed of "example", and one line says so.

    >>> student_seed(" S1234567 ") == student_seed("s1234567")
    True
    """
    if not filled_in(student_id):
        print("No student id yet: going on with the seed of an example.")
        student_id = "example"
    digest = hashlib.sha256(student_id.strip().lower().encode()).hexdigest()
    return int(digest[:6], 16)


def filled_in(student_id) -> bool:
    """Whether this is a student id: a text that is not empty."""
    return isinstance(student_id, str) and bool(student_id.strip())


def grade_id(student_id) -> None:
    """Raise NotAttempted where there is no student id."""
    if not filled_in(student_id):
        raise NotAttempted('student_id: write your id as a text, STUDENT_ID = "s1234567".')


def grade(name: str, answer, seed: int | None = None) -> None:
    """Judge an answer; quiet if it is right. Raises NotAttempted or Wrong with the verdict in one line.

    name: the exercise. answer: the student's function or answers, None if there is none. seed: redraws the
    inputs that the student's own check saw.
    """
    exercise = exercises.find(name)
    if seed is not None:
        exercise = exercise.redrawn(seed)
    if answer is None:
        require(Verdict(name, NOT_ATTEMPTED, "There is no answer."))
    if of_the_course(answer):
        require(Verdict(name, WRONG, "This is a function of the course: write your own."))
    with quiet():
        try:
            verdict = judge(exercise, answer)
        except SystemExit:
            verdict = Verdict(name, WRONG, "Your function ends the program; let it return instead.")
    require(verdict)


def of_the_course(answer) -> bool:
    """Whether an answer is a function of the course as it is, renamed, bound or wrapped.

    Not one that a function of the student's own calls: a part may be looked up, the whole may not.
    """
    while inner := next(
        (getattr(answer, name) for name in ("func", "__wrapped__", "__self__") if hasattr(answer, name)), None
    ):
        answer = inner
    file = answer.__code__.co_filename if hasattr(answer, "__code__") else ""
    module = getattr(answer, "__module__", None) or ""
    return Path(file).is_relative_to(PACKAGE) or module.startswith("course_utils.")


def require(verdict: Verdict) -> None:
    """Raise what a verdict costs. Its lines stay unsaid: they hold the hidden inputs."""
    if verdict.status == RIGHT:
        print(f"{verdict.exercise}: right. {verdict.headline}")
        return
    kind = NotAttempted if verdict.status == NOT_ATTEMPTED else Wrong
    raise kind(f"{verdict.exercise}: {verdict.headline}")


@contextlib.contextmanager
def quiet():
    """Swallow what is printed and warned."""
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
