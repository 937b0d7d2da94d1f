"""Imports run downwards: a module of the package uses its own floor and those below."""

import ast

import pytest

from course_utils.environment import ROOT

PACKAGE = ROOT / "course_utils"
GROUND = {"contrast", "views", "fused_loops", "networks", "memory", "records", "runtime", "environment"}
MIDDLE = {"images", "kernels", "readout"}
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem != "__init__")


def floor(name):
    """0 for the ground, 1 for the middle, 2 for the top, which is everything else."""
    return 0 if name in GROUND else 1 if name in MIDDLE else 2


def part(path):
    """The module or subpackage of course_utils that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def parts_imported(path):
    """The modules and subpackages of course_utils that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path.name} imports by a relative name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("course_utils.")}


def test_the_floors_name_what_there_is():
    assert {part(path) for path in SOURCES} > GROUND | MIDDLE


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_downwards(path):
    above = {name for name in parts_imported(path) if floor(name) > floor(part(path))}
    assert not above, f"{path.name} stands below {above}"


def test_the_definitions_need_none_of_ours():
    assert parts_imported(PACKAGE / "contrast.py") == set()
