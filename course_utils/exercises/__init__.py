"""The exercises that `feedback.check` knows, one module for each notebook and lab.

A misconception is a function that makes the mistake. `check` runs it on the same inputs as the reader's
function and compares the numbers; nobody's code is read. Cases go from the smallest to the largest: the first
that differs is the one shown.
"""

from course_utils.exercises import (
    clip,
    evaluation,
    fused_kernels,
    infonce,
    lab06,
    lab07,
    moco,
    mutual_information,
    projection_head,
    temperature,
    two_views,
    without_negatives,
)
from course_utils.exercises.exercise import Exercise, Questions

MODULES = (
    *(two_views, infonce, temperature, projection_head, moco, clip, mutual_information, evaluation),
    *(without_negatives, fused_kernels, lab06, lab07),
)
EXERCISES = {exercise.name: exercise for module in MODULES for exercise in module.EXERCISES}


def find(name: str) -> Exercise | Questions:
    """The exercise with this name."""
    if name not in EXERCISES:
        raise ValueError(f"There is no exercise {name!r}; there are {sorted(EXERCISES)}.")
    return EXERCISES[name]
