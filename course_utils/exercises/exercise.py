"""What an exercise is: right answer, wrong ones by name, inputs that tell them apart."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn


class Fault(Exception):
    """An answer that is wrong before its numbers are looked at; the message is for the reader."""


@dataclass(frozen=True)
class Misconception:
    """A way to be wrong: its name, what is behind it, and a function that makes the mistake.

    also: the same mistake written differently, or with other constants. rounding: its wrong numbers are
    rounding errors, which differ from one way of writing to the next, so only the cases that come out wrong
    are compared. behaves: (the reader's function, cases) -> whether it makes the mistake, for one without
    numbers of its own, such as random ones, or one that can be written in too many ways to list.
    """

    name: str
    explanation: str
    function: Callable | None = None
    also: tuple[Callable, ...] = ()
    rounding: bool = False
    behaves: Callable | None = None


@dataclass(frozen=True)
class Case:
    """One input: argument name -> value, in the order of the function's arguments.

    tolerance: how far a right answer may be off, where ways of writing differ by more than rounding.
    """

    arguments: dict[str, object]
    tolerance: float | None = None

    def fresh(self, dtype: torch.dtype | None = None) -> list:
        """The values; whatever can be changed as a copy, floating tensors in `dtype` if given."""
        return [_copy(value, dtype) for value in self.arguments.values()]


def _copy(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(dtype, copy=True) if dtype and value.is_floating_point() else value.clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).manual_seed(value.initial_seed())
    return copy.deepcopy(value) if isinstance(value, (nn.Module, list)) else value


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    reference: the right function. cases: inputs, smallest first. gradient: the names of the arguments through
    which a gradient must reach the result; constant: of those that none may reach. frozen: no gradient may
    hang on the result at all. also_right: other functions whose values are accepted. redraw: seed -> other
    cases, for tests that nobody has seen. adapt: the reader's function -> one that takes the cases' arguments
    and returns what is compared, for a function that works in place or step by step; reference and
    misconceptions take the cases' arguments as they are. It may raise Fault.
    """

    name: str
    reference: Callable
    cases: tuple[Case, ...]
    misconceptions: tuple[Misconception, ...]
    guarantees: str
    hints: tuple[str, str, str]
    gradient: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    frozen: bool = False
    also_right: tuple[Callable, ...] = ()
    redraw: Callable[[int], tuple[Case, ...]] | None = None
    adapt: Callable | None = None

    def redrawn(self, seed: int) -> "Exercise":
        """The same exercise with the cases of another seed."""
        return replace(self, cases=self.redraw(seed))


@dataclass(frozen=True)
class Questions:
    """Questions that are answered in a dictionary: question -> one of its choices, or a list of some.

    choices: question -> what may be chosen. right: question -> the right choice, or the set of them; None
    where any choice will do, as in a prediction. misconceptions: a function answers -> bool each, in which
    the answers of one question are a set. graded: `check` keeps to itself what is right.
    """

    name: str
    choices: dict[str, tuple[str, ...]]
    right: dict[str, object] | None = None
    misconceptions: tuple[Misconception, ...] = ()
    guarantees: str = ""
    graded: bool = True
