"""The examples in the package's docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import course_utils

# Triton's kernels are imported where it is decided whether they run on a GPU or in the interpreter.
MODULES = [
    module.name
    for module in pkgutil.walk_packages(course_utils.__path__, "course_utils.")
    if not module.name.endswith(".triton_kernels")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name}: see above"


@pytest.mark.parametrize(
    "name",
    [
        *["contrast", "views", "networks", "memory", "kernels", "images.shapes", "images.photo", "readout"],
        *["training", "show.tables", "show.widgets"],
    ],
)
def test_what_readers_look_up_has_an_example(name):
    assert doctest.testmod(importlib.import_module(f"course_utils.{name}")).attempted > 0
