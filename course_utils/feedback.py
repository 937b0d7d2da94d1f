"""Feedback: predictions committed before the reveal, checks that name the misconception, staged hints."""

import html
import json
import math
import numbers
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import torch
from IPython.display import display
from ipywidgets import HTML, Button, HBox, Label, Layout, RadioButtons, Text
from threadpoolctl import threadpool_limits

from course_utils import exercises
from course_utils.exercises.exercise import Fault, Questions
from course_utils.show.tables import Shown
from course_utils.show.widgets import WithFallback

# Predictions


def predict(
    key: str, question: str, choices: Sequence[str] | None = None, number: tuple[float, float] | None = None
):
    """Ask for a prediction before the cell that reveals the answer, and keep it with its time.

    key: names the prediction for `reveal`, e.g. "02/low-temperature". Give either `choices`, two or more
    texts, or `number`, the (lowest, highest) answer. The first answer that is committed stays. Answers go to
    `predictions_file()`. Nobody is blocked: the notebook goes on without an answer.
    Raises TypeError for a key that is no text, ValueError for a question that cannot be answered.
    """
    return Prediction(key, question, choices, number)


def reveal(key: str, result, teaches: str) -> Shown:
    """The committed prediction and the result side by side, and what the difference between them teaches.

    result: the computed answer, a text (the right choice as `predict` wrote it) or a number. Without an
    answer, or with a key that was never asked, it says "no prediction committed" and goes on.
    """
    kept = _kept().get(key)
    said = "no prediction committed" if kept is None else _said(kept["answer"])
    rows = [("you predicted", said), ("result", _said(result))]
    if kept is not None:
        rows.append(("compared", _compared(kept["answer"], result)))
    cells = "".join(
        f'<tr><th scope="row" style="text-align: left; padding: 0.2em 0.8em;">{name}</th>'
        f'<td style="text-align: left; padding: 0.2em 0.8em;">{html.escape(value)}</td></tr>'
        for name, value in rows
    )
    text = "\n".join([*(f"{name}: {value}" for name, value in rows), teaches])
    return Shown(
        f'<table style="border-collapse: collapse; color: inherit;">{cells}</table>'
        f"<p>{html.escape(teaches)}</p>",
        text,
    )


def _compared(answer, result):
    if isinstance(answer, numbers.Real) and isinstance(result, numbers.Real):
        return f"you were {_said(abs(answer - result))} off"
    return "the same" if str(answer) == str(result) else "not the same"


def _said(value):
    """A choice as it is; a whole number whole, any other with four significant digits: 16382, 78.8, 0.07."""
    if isinstance(value, numbers.Real):
        return str(int(value)) if float(value).is_integer() else f"{value:.4g}"
    return str(value)


class Prediction(WithFallback):
    """The question of `predict`: `.control`, a commit button (from code: `.commit()`) and a message."""

    def __init__(self, key, question, choices=None, number=None):
        _require_question(key, choices, number)
        self.key, self.question, self.choices, self.number = key, question, choices, number
        if choices is not None:
            # Without a description of its own a screen reader would read the choices without the question.
            self.control = RadioButtons(
                options=list(choices), value=None, description="Your prediction:", layout=Layout(width="auto")
            )
        else:
            # A number field would start with an answer. The text is sent when the reader leaves the field:
            # sent key by key, the last digits may reach the kernel after the click on Commit.
            self.control = Text(description="Your prediction:", continuous_update=False)
        self.control.style.description_width = "8em"
        self.button = Button(description="Commit", tooltip="Keep this prediction; the first one stays")
        self.button.on_click(lambda button: self.commit())
        self.message = Label()
        super().__init__(
            [
                HTML(self._asked() if choices is None else f"<strong>{html.escape(question)}</strong>"),
                self.control,
                HBox([self.button, self.message]),
            ]
        )
        kept = _kept().get(key)
        if kept is not None:
            self.message.value = _committed(kept)

    def commit(self) -> None:
        """Keep the control's value, unless it is no answer or an answer to this question is kept already."""
        kept = _kept()
        if self.key in kept:
            self.message.value = "Your first prediction stays. " + _committed(kept[self.key])
            return
        try:
            answer = self._answer()
        except ValueError as error:
            self.message.value = str(error)
            return
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        kept[self.key] = {"answer": answer, "time": now}
        try:
            _write(kept)
        except OSError as error:
            self.message.value = f"Not kept, {predictions_file()} cannot be written: {error}"
            return
        self.message.value = _committed(kept[self.key])

    def _answer(self):
        """The choice, or the number that was typed; ValueError with a line for the reader without one."""
        value = self.control.value
        if self.choices is not None:
            if value is None:
                raise ValueError("Choose an answer first.")
            return value
        if not value.strip():
            raise ValueError("Type a number first.")
        low, high = self.number
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not low <= number <= high:  # so is NaN
            what = "a number" if math.isnan(number) else "within the range"
            raise ValueError(
                f"{value.strip()!r} is not {what}; type one from {_said(low)} to {_said(high)}, with a point "
                "for decimals and no unit."
            )
        return number

    def _asked(self):
        """The question and the answers that are allowed."""
        allowed = (
            f"A number from {_said(self.number[0])} to {_said(self.number[1])}."
            if self.choices is None
            else " · ".join(html.escape(choice) for choice in self.choices)
        )
        return f"<strong>{html.escape(self.question)}</strong><br>{allowed}"

    def fallback(self) -> str:
        return f"<p>{self._asked()}</p>"

    def summary(self) -> str:
        return f"Prediction({self.key!r})"


def _require_question(key, choices, number):
    """Refuse a key that the file cannot keep, and a question without an answer."""
    if not isinstance(key, str):
        raise TypeError(f'predict got the key {key!r}; expected a text such as "02/low-temperature".')
    if (choices is None) == (number is None):
        raise ValueError(
            f"predict({key!r}) got choices={choices!r} and number={number!r}; expected one of the two."
        )
    if number is not None and not _is_range(number):
        raise ValueError(f"predict({key!r}) got number={number!r}; expected (lowest, highest).")
    if choices is not None and (
        isinstance(choices, str) or len(choices) < 2 or len(set(choices)) < len(choices)
    ):
        raise ValueError(
            f"predict({key!r}) got choices={choices!r}; expected a list of two or more texts, all different."
        )


def _is_range(number):
    return (
        isinstance(number, (tuple, list))
        and len(number) == 2
        and all(isinstance(bound, numbers.Real) for bound in number)
        and number[0] < number[1]
    )


def _committed(kept):
    return f"Committed: {_said(kept['answer'])} ({kept['time'].replace('T', ' ').removesuffix('Z')} UTC)"


def predictions_file() -> pathlib.Path:
    """Where the predictions are kept: in the working folder, or in COURSE_PREDICTIONS_DIR (~ is your home).

    >>> predictions_file().name
    '.predictions.json'
    """
    folder = pathlib.Path(os.environ.get("COURSE_PREDICTIONS_DIR") or ".").expanduser()
    return folder / ".predictions.json"


def _kept():
    """The answers kept so far; a file that cannot be read is set aside, which one line says."""
    path = predictions_file()
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(kept, dict) or not all(_is_answer(entry) for entry in kept.values()):
            raise ValueError("not a file of predictions")
        return kept
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        aside = path.with_name(f"{path.name}.damaged-{datetime.now(timezone.utc):%Y%m%dT%H%M%S}")
        try:
            os.replace(path, aside)
        except OSError:
            aside = path
        print(
            f"The kept predictions could not be read ({type(error).__name__}); the file now lies at "
            f"{aside}, a new one begins."
        )
        return {}


def _is_answer(entry):
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("answer"), (str, int, float))
        and isinstance(entry.get("time"), str)
    )


def _write(kept):
    path = predictions_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(kept, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


# Checks

NOT_ATTEMPTED, WRONG, RIGHT, ANSWERED = "not attempted", "wrong", "right", "answered"
MARKS = {NOT_ATTEMPTED: "○", WRONG: "✗", RIGHT: "✓", ANSWERED: "●"}

FLOAT32 = torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Verdict:
    """What `check` found: `.status`, a headline, and lines that say more."""

    exercise: str
    status: str
    headline: str
    lines: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "\n".join(
            [f"{MARKS[self.status]} {self.exercise}: {self.status}. {self.headline}", *self.lines]
        )

    def _repr_html_(self) -> str:
        lines = "".join(f"<br>{html.escape(line)}" for line in self.lines)
        return (
            '<div role="status" '
            'style="border-left: 4px solid currentColor; padding: 0.2em 0.8em; margin: 0.5em 0;">'
            f"<strong>{MARKS[self.status]} {html.escape(self.exercise)}: {self.status}.</strong> "
            f"{html.escape(self.headline)}{lines}</div>"
        )

    def _ipython_display_(self) -> None:
        """Nothing: `check` has shown it, and as a cell's last value it would stand there twice."""


def check(exercise_name: str, function: Callable) -> Verdict:
    """Compare the reader's function with the definition, show the verdict and return it.

    The verdict's `.status` is "not attempted" (the stub is still there), "wrong" (with the misconception
    whose numbers the function reproduces, if one does, and the smallest input that shows it) or "right" (with
    what that now guarantees). For Questions that are graded, whose answers are a dictionary, it says only
    whether all are "answered": the grades tell which are right.
    """
    exercise = exercises.find(exercise_name)
    graded = isinstance(exercise, Questions) and exercise.graded
    verdict = (_answered if graded else judge)(exercise, function)
    display(Shown(verdict._repr_html_(), repr(verdict)))
    return verdict


def judge(exercise, answer) -> Verdict:
    """The verdict on a function (for an Exercise) or on a dictionary of answers (for Questions)."""
    if isinstance(exercise, Questions):
        return _judge_answers(exercise, answer)
    with threadpool_limits(1):  # small inputs: a second thread costs more than it brings
        return _judge(exercise, answer)


def _judge(exercise, function):
    if not callable(function):
        headline = f"check got {_kind(function)}; give the function itself, without ()."
        return Verdict(exercise.name, WRONG, headline)
    if exercise.adapt is not None:
        function = exercise.adapt(function)
    right = [_outputs(exercise.reference(*case.fresh(torch.float64))) for case in exercise.cases]
    answers = []
    for case, expected in zip(exercise.cases, right, strict=True):
        try:
            answer = _call(function, case)
            if not answers and _is_blank(answer):
                return _not_attempted(exercise, answer)
            answers.append(_tensors(answer, expected, exercise))
        except Exception as error:
            if not answers and _is_a_stub(error):
                return _not_attempted(exercise)
            return _stopped(exercise, case, error)
    if not all(map(_close, answers, right, exercise.cases)) and not any(
        _gives(other, exercise.cases, answers) for other in exercise.also_right
    ):
        return _wrong_values(exercise, function, answers, right)
    return (
        _wrong_gradient(exercise, function)
        or _gradient_into_constants(exercise, function)
        or Verdict(exercise.name, RIGHT, exercise.guarantees)
    )


def _not_attempted(exercise, answer=...):
    headline = "Replace the stub by your own lines, then run this cell again."
    if answer is None:
        headline = f"Your function returned None: if you wrote it already, a `return` is missing. {headline}"
    return Verdict(exercise.name, NOT_ATTEMPTED, headline)


def _is_a_stub(error):
    """Whether this was raised on purpose: torch raises the same kind for a dtype that it cannot handle."""
    of_torch = any(words in str(error) for words in ("not implemented for", "Could not run"))
    return isinstance(error, NotImplementedError) and not of_torch


def _call(function, case):
    """The function's answer to fresh copies of the case's arguments, none of which it may change."""
    arguments = case.fresh()
    answer = function(*arguments)
    for name, before, after in zip(case.arguments, case.fresh(), arguments, strict=True):
        if isinstance(before, torch.nn.Module):
            _require_frozen(name, before, after)
        elif isinstance(before, torch.Tensor) and not torch.equal(before, after):
            raise _changed(name, "work on a new tensor (x = x * 2, not x *= 2)")
        elif isinstance(before, list) and before != after:
            raise _changed(name, "work on a new list (sorted(x), not x.sort())")
    return answer


def _changed(name, advice):
    return Fault(
        f"Your function changes its input {name} in place. Whoever called it still needs that; {advice}."
    )


def _require_frozen(name, before, after):
    """A fault if a network's weights or buffers are not what they were."""
    old, new = before.state_dict(), after.state_dict()
    moved = [key for key in old if key not in new or not torch.equal(old[key], new[key])]
    if not moved and old.keys() == new.keys():
        return
    weights = {key for key, _ in before.named_parameters()}
    what = "weights" if weights & set(moved) else "batch-norm statistics"
    advice = "no step of an optimiser belongs here" if what == "weights" else "call .eval() before you read"
    raise Fault(
        f"Misconception: the encoder is trained during the readout. The {what} of {name} are not what they "
        f"were: {advice}. A frozen network is the same before and after."
    )


def _stopped(exercise, case, error, before=""):
    """The verdict for an exception, in one line."""
    headline = (str(error).splitlines() or [""])[0]
    if _is_a_stub(error):
        headline = "A part is not written yet: at this input your function raises NotImplementedError."
    elif not isinstance(error, Fault):
        headline, advice, _ = f"Your function stopped with {type(error).__name__}: {headline}".partition(
            "Use tensor.detach().numpy()"  # torch's advice would cut the gradient
        )
        if advice:
            headline += (
                "The result must stay a tensor with its gradient, so compute with torch in place of numpy."
            )
    return Verdict(exercise.name, WRONG, before + headline, (f"Smallest input: {_written(case)}",))


def _outputs(answer):
    """One answer as a tuple of tensors."""
    return tuple(answer) if isinstance(answer, (tuple, list)) else (answer,)


def _tensors(answer, expected, exercise):
    """The reader's answer as a tuple of tensors of the expected shapes, or a fault that says what it is."""
    shapes = " and ".join(_wanted(value) for value in expected)
    outputs = _outputs(answer) if len(expected) > 1 else (answer,)
    if len(outputs) != len(expected):
        raise Fault(f"Your function returned {_kind(answer)}; expected {shapes}.")
    if len(expected) == 1 and not expected[0].ndim and not exercise.gradient:
        outputs = tuple(
            torch.tensor(float(output)) if isinstance(output, numbers.Real) else output for output in outputs
        )
    for output, value in zip(outputs, expected, strict=True):
        if not isinstance(output, torch.Tensor):
            raise Fault(f"Your function returned {_kind(output)}; expected {shapes}.{_why(output, exercise)}")
        if output.shape != value.shape:
            raise Fault(f"Your function returned shape {list(output.shape)}; expected {list(value.shape)}.")
        if not output.is_floating_point():
            raise Fault(
                f"Your function returned {output.dtype}; expected a floating type such as {value.dtype}."
            )
        if exercise.frozen and output.requires_grad:
            raise Fault(
                "Misconception: the encoder is trained during the readout. A gradient hangs on what your "
                "function returns, so whatever is fitted on it could change the network: read under "
                "torch.no_grad()."
            )
    return tuple(output.detach().cpu() for output in outputs)


def _wanted(value):
    return f"a torch.Tensor of shape {list(value.shape)}" if value.ndim else "a 0-d torch.Tensor"


def _why(output, exercise):
    """What to do about an output that is no tensor."""
    if output is None:
        return " Is a `return` missing in one of its branches?"
    if not exercise.gradient:
        return ""
    return (
        f" Return a tensor, so that gradients reach {' and '.join(exercise.gradient)}: loops are fine, with "
        "torch.exp and torch.log in place of math.exp and math.log, without .item() or float()."
    )


def _kind(answer):
    if isinstance(answer, (tuple, list)):
        return f"a {type(answer).__name__} of {len(answer)}"
    if isinstance(answer, numbers.Number):
        return f"a Python {type(answer).__name__}"
    return "None" if answer is None else f"a {type(answer).__module__}.{type(answer).__qualname__}"


def _close(answer, expected, case):
    return all(
        torch.isclose(a.double(), b.double(), *_tolerance(case, a.dtype), equal_nan=True).all()
        for a, b in zip(answer, expected, strict=True)
    )


def _tolerance(case, dtype):
    """(relative, absolute): what rounding may do to an answer of this dtype.

    A similarity is right to some roundings, here 16, of the answer's or the input's dtype, whichever is
    coarser; a logit is similarity / temperature, so its error is as much larger. That is the relative error
    of a probability and the absolute one of a loss. A float64 answer may have met a temperature in float32,
    such as `torch.tensor(0.07)`, which moves the logits by half a float32 epsilon: the relative part does not
    go below that. The absolute part does, or 1e-6 in place of a probability of 1e-9 would pass. Pixels know
    no temperature; 1e-4 of the way from black to white is a fortieth of one of 255 levels.
    """
    if case.tolerance is not None:
        return 0.0, case.tolerance
    tensors = [value for value in case.arguments.values() if isinstance(value, torch.Tensor)]
    dtypes = [dtype, *(tensor.dtype for tensor in tensors if tensor.is_floating_point())]
    rounding = 16 * min(FLOAT32, max(torch.finfo(dtype).eps for dtype in dtypes))
    cold = 1 / min(1, case.arguments.get("temperature", 0.02))
    return max(rounding, FLOAT32) * cold, rounding * cold


def _wrong_values(exercise, function, answers, right):
    agree = list(map(_close, answers, right, exercise.cases))
    first = agree.index(False)
    lines = (
        f"Smallest input: {_written(exercise.cases[first])}",
        *_compared_values(answers[first], right[first]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the mistakes' warnings are not the reader's
        for misconception in exercise.misconceptions:
            if _makes(misconception, function, exercise.cases, answers, right):
                headline = f"Misconception: {misconception.name}. {misconception.explanation}"
                return Verdict(exercise.name, WRONG, headline, lines)
    headline = (
        f"{sum(agree)} of {len(right)} inputs come out right; your numbers match none of the mistakes known "
        "for this exercise."
    )
    return Verdict(exercise.name, WRONG, headline, lines)


def _makes(misconception, function, cases, answers, right):
    """Whether the reader's numbers are those of the misconception, or the function behaves like it."""
    if misconception.rounding:
        return _goes_wrong_with(misconception.function, cases, answers, right)
    mistakes = filter(None, (misconception.function, *misconception.also))
    if any(_gives(mistake, cases, answers) for mistake in mistakes):
        return True
    try:
        return misconception.behaves is not None and misconception.behaves(function, cases)
    except Exception:  # at inputs that are not among the cases the reader's function may stop
        return False


def _gives(function, cases, answers):
    """Whether the function gives the reader's numbers at every case, in the case's dtype or in float64."""
    return all(
        any(_close(answer, _outputs(function(*case.fresh(dtype))), case) for dtype in (None, torch.float64))
        for case, answer in zip(cases, answers, strict=True)
    )


def _goes_wrong_with(function, cases, answers, right):
    """Whether both are right at the same cases, and the reader's has left the finite numbers at some other.

    A clamp or a small number added can go wrong at the same low temperatures, but its numbers stay finite.
    """
    made = [_outputs(function(*case.fresh())) for case in cases]
    return list(map(_close, made, right, cases)) == list(map(_close, answers, right, cases)) and not all(
        output.isfinite().all() for answer in answers for output in answer
    )


def _wrong_gradient(exercise, function):
    """A verdict if no gradient or a wrong one comes through although the values are right, else None."""
    for case in exercise.cases if exercise.gradient else ():
        expected = _gradients(exercise.reference, case, exercise.gradient)
        try:
            found = _gradients(function, case, exercise.gradient)
        except Exception as error:
            return _stopped(exercise, case, error, "The values are right, but no gradient comes through. ")
        for name, gradient, value in zip(exercise.gradient, found, expected, strict=True):
            if not _close_gradient(gradient, value, case):
                cause = (
                    "a part of the calculation was detached, or made anew from numbers"
                    if gradient.isfinite().all()
                    else "exp of a large number, or infinity times zero, lies on its way"
                )
                headline = f"The values are right, the gradient that reaches {name} is not: {cause}."
                lines = (f"Smallest input: {_written(case)}", *_compared_values((gradient,), (value,)))
                return Verdict(exercise.name, WRONG, headline, lines)
    return None


def _gradient_into_constants(exercise, function):
    """A verdict if a gradient reaches a constant, else None; values and gradients are right so far."""
    for case in exercise.cases if exercise.constant else ():
        found = _gradients(function, case, (*exercise.gradient, *exercise.constant))[len(exercise.gradient) :]
        reached = [name for name, gradient in zip(exercise.constant, found, strict=True) if gradient.any()]
        if reached:
            headline = (
                f"Misconception: gradient into {' and '.join(reached)}. The values are right, but training "
                "would move what should only be compared with. Constants are detached: x.detach()."
            )
            return Verdict(exercise.name, WRONG, headline, (f"Smallest input: {_written(case)}",))
    return None


def _close_gradient(gradient, expected, case):
    """Right to the rounding of float32, in which it may have been computed, of the largest entry.

    At temperatures below 0.1 the terms are far larger than their sum, and rounding is all that is left of
    some: there a gradient has to be finite only. What was detached is missing at every temperature.
    """
    if case.arguments.get("temperature", 1) < 0.1:
        return bool(gradient.isfinite().all())
    relative, _ = _tolerance(case, torch.float32)
    return torch.allclose(gradient, expected, relative, relative * expected.abs().max().item())


@torch.enable_grad()
def _gradients(function, case, names):
    """The gradients of the answer's sum, weighted from 1 to 2, with respect to the named arguments."""
    arguments = dict(zip(case.arguments, case.fresh(), strict=True))
    for name in names:
        arguments[name].requires_grad_()
    (output,) = _outputs(function(*arguments.values()))
    if not output.requires_grad:
        raise Fault(
            "The answer is detached from its input: look for .detach(), .item(), torch.no_grad() or numpy."
        )
    weights = torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device)
    total = (output.flatten() * weights).sum()
    found = torch.autograd.grad(total, [arguments[name] for name in names], allow_unused=True)
    return [
        torch.zeros_like(arguments[name]) if gradient is None else gradient
        for name, gradient in zip(names, found, strict=True)
    ]


# Questions


def _answered(questions, answers):
    """Whether every question has an answer that can be judged; not whether it is right."""
    if (problem := _unanswered(questions, answers)) is not None:
        return problem
    after = "There is no wrong answer here." if questions.right is None else "The grades tell what is right."
    return Verdict(questions.name, ANSWERED, f"All {len(questions.choices)} have an answer. {after}")


def _judge_answers(questions, answers):
    if (problem := _unanswered(questions, answers)) is not None:
        return problem
    if questions.right is None:
        return Verdict(questions.name, RIGHT, questions.guarantees)
    given = {question: _chosen(answers[question]) for question in questions.choices}
    right = [given[question] == _chosen(value) for question, value in questions.right.items()]
    if all(right):
        return Verdict(questions.name, RIGHT, questions.guarantees)
    for misconception in questions.misconceptions:
        if misconception.function(given):
            headline = f"Misconception: {misconception.name}. {misconception.explanation}"
            return Verdict(questions.name, WRONG, headline)
    return Verdict(questions.name, WRONG, f"{sum(right)} of {len(right)} answers are right.")


def _unanswered(questions, answers):
    """The verdict on answers that cannot be judged, else None."""
    if answers is None or answers is ...:
        return Verdict(questions.name, NOT_ATTEMPTED, "Replace each ... by your answer.")
    if not isinstance(answers, dict):
        return Verdict(questions.name, WRONG, f"Your answers are {_kind(answers)}; expected a dictionary.")
    given = {question: answers.get(question, ...) for question in questions.choices}
    missing = [question for question, answer in given.items() if any(map(_is_blank, _parts(answer)))]
    if len(missing) == len(given):
        return Verdict(questions.name, NOT_ATTEMPTED, "Replace each ... by your answer.")
    if missing:
        return Verdict(questions.name, WRONG, f"Not answered yet: {', '.join(missing)}.")
    for question, answer in given.items():
        choices = questions.choices[question]
        if not _chosen(answer) <= set(choices):
            headline = f"{question}: {_no_choice(answer, choices)} There are: {', '.join(choices)}."
            return Verdict(questions.name, WRONG, headline)
    return None


def _is_blank(answer):
    if isinstance(answer, (list, tuple, set)):
        return all(map(_is_blank, answer))
    return answer is ... or answer is None or (isinstance(answer, str) and not answer.strip())


def _chosen(answer):
    """An answer as the set of what was chosen; what nobody can choose becomes a text that is no choice."""
    return {part.strip() if isinstance(part, str) else repr(part) for part in _parts(answer)}


def _parts(answer):
    """An answer as the list of what was chosen; one that is left out altogether has one part, itself."""
    return list(answer) if isinstance(answer, (list, tuple, set, frozenset)) and answer else [answer]


def _no_choice(answer, choices):
    """What is wrong with an answer that is none of the choices; one text may hold several of them."""
    parts = [part.strip() for part in re.split(r",| and ", answer)] if isinstance(answer, str) else []
    if len(parts) > 1 and set(parts) <= set(choices):
        return f"{answer!r} is one text; several choices make a list, {json.dumps(parts)}."
    return f"{answer!r} is none of its choices."


# Values in words

FEW = 12  # numbers that are written out; of more only the place of the largest difference is


def _written(case):
    return ", ".join(f"{name} = {_argument(value)}" for name, value in case.arguments.items())


def _argument(value):
    if isinstance(value, torch.Tensor):
        return _numbers(value) if value.numel() <= FEW else f"a tensor of shape {list(value.shape)}"
    if isinstance(value, torch.Generator):
        return f"a generator seeded with {value.initial_seed()}"
    if isinstance(value, torch.nn.Module):
        return f"a {type(value).__name__}"
    return str(getattr(value, "name", value))


def _numbers(tensor, digits=4):
    """Decimals to read (`digits`), or eight significant digits (None)."""
    if tensor.ndim == 0:
        return f"{tensor.item() if digits is None else round(tensor.item(), digits) + 0.0:.8g}"
    return f"[{', '.join(_numbers(part, digits) for part in tensor)}]"


def _compared_values(answer, expected):
    """Lines with the reader's value, the right value and their largest difference."""
    worst = max(range(len(answer)), key=lambda place: _gap(answer[place], expected[place]).max().item())
    yours, right = answer[worst], expected[worst]
    gap = _gap(yours, right)
    where = f" in output {worst}" if len(answer) > 1 else ""
    if yours.numel() > FEW:
        place = tuple(int(index) for index in torch.unravel_index(gap.argmax(), gap.shape))
        where, yours, right = f"{where} at {list(place)}", yours[place], right[place]
    digits = 4 if gap.max() >= 0.001 else None
    return (
        f"Your value{where}: {_numbers(yours, digits)}",
        f"Right value{where}: {_numbers(right, digits)}",
        f"Largest difference: {gap.max().item():.2g}",
    )


def _gap(answer, expected):
    return (answer.double() - expected.double()).abs().nan_to_num(nan=math.inf, posinf=math.inf)


# Hints


def hint(exercise_name: str, stage: int = 1) -> Shown:
    """A hint in three stages: 1 the question to ask, 2 the steps, 3 almost the answer."""
    hints = exercises.find(exercise_name).hints
    if stage not in (1, 2, 3):
        raise ValueError(f"stage is {stage!r}; expected 1, 2 or 3.")
    title = f"Hint {stage} of 3"
    return Shown(
        f"<p><strong>{title}.</strong> {html.escape(hints[stage - 1])}</p>", f"{title}. {hints[stage - 1]}"
    )
