"""What an exercise is: right answer, wrong ones by name, inputs that tell them apart."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Misconception:
    """A way to be wrong: its name, what is behind it, and a function that makes the mistake.

    also: the same mistake written differently, or with other constants. rounding: its wrong numbers are
    rounding errors, which differ from one way of writing to the next, so only the cases that come out wrong
    are compared.
    """

    name: str
    explanation: str
    function: Callable
    also: tuple[Callable, ...] = ()
    rounding: bool = False


@dataclass(frozen=True)
class Case:
    """One input: argument name -> value, in the order of the function's arguments."""

    arguments: dict[str, object]

    def fresh(self, dtype: torch.dtype | None = None) -> list:
        """The values, tensors and generators as copies, floating tensors in `dtype` if one is given."""
        return [_copy(value, dtype) for value in self.arguments.values()]


def _copy(value, dtype):
    if isinstance(value, torch.Tensor):
        return value.to(dtype, copy=True) if dtype and value.is_floating_point() else value.clone()
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).manual_seed(value.initial_seed())
    return value


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    reference: the right function. cases: inputs, smallest first. gradient: the names of the arguments through
    which a gradient must reach the result; constant: of those that none may reach. also_right: other
    functions whose values are accepted.
    """

    name: str
    reference: Callable
    cases: tuple[Case, ...]
    misconceptions: tuple[Misconception, ...]
    guarantees: str
    hints: tuple[str, str, str]
    gradient: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    also_right: tuple[Callable, ...] = ()
