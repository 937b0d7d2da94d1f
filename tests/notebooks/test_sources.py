"""The executed notebooks are those of their sources, whole and up to date; no badge leads nowhere."""

import re

import pytest

from course_utils import notebooks
from course_utils.environment import ROOT, setting

PAIRS = notebooks.pairs()


def test_the_first_three_are_there():
    assert [source.stem for source, _ in PAIRS[:3]] == ["00_start_here", "01_views", "02_infonce"]


def test_no_executed_notebook_is_without_a_source():
    executed = sorted((ROOT / "notebooks").glob("*.ipynb"))
    assert executed == [target for _, target in PAIRS]


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[source.stem for source, _ in PAIRS])
def test_the_executed_notebook_is_up_to_date(source, target):
    assert notebooks.problems(source, target) == []


@pytest.mark.parametrize("source", [source for source, _ in PAIRS], ids=[source.stem for source, _ in PAIRS])
def test_the_source_carries_the_set_up_cell_and_the_badges_of_the_address(source):
    text = source.read_text(encoding="utf-8")
    cells = notebooks.prepare(source).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code[0].metadata.tags == ["setup"] and code[0].source == notebooks.setup_cell()
    assert notebooks.with_badges(text, setting("tool.course", "repository"), source.stem) == text
    assert len(re.findall("^# ", "\n".join(c.source for c in cells if c.cell_type == "markdown"), re.M)) == 1


def test_readme_has_the_badges_of_the_address():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert notebooks.with_badges(text, setting("tool.course", "repository"), "00_start_here") == text
