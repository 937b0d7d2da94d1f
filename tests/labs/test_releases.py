"""What every lab's source and release have in common; no notebook runs."""

import re

import nbformat
import pytest
from course import notebook, secrets

from course_utils.labs import build

LABS = [text.stem for text in build.sources()]
every_lab = pytest.mark.parametrize("lab", LABS)


def test_there_are_labs():
    assert {"lab06", "lab07"} <= set(LABS)


@every_lab
def test_source_and_release_are_up_to_date(lab):
    text = build.LABS / "source" / f"{lab}.md"
    assert nbformat.writes(build.prepare(text)) == nbformat.writes(notebook(lab, "source")), "run make labs"
    assert build.release(lab) == (build.LABS / "release" / lab / f"{lab}.ipynb").read_text(), "run make labs"


@every_lab
def test_the_release_is_the_source_without_solutions_and_hidden_tests(lab):
    for ours, theirs in zip(notebook(lab, "source").cells, notebook(lab, "release").cells, strict=True):
        settings = ours.metadata.get("nbgrader", {})
        if settings.get("solution") and ours.cell_type == "code":
            stub, marks = re.subn(
                r" *### BEGIN SOLUTION\n.*?### END SOLUTION", "STUB", ours.source, flags=re.S
            )
            kept = theirs.source.replace("    raise NotImplementedError", "STUB")
            assert marks == 1
            assert kept.split() == stub.removesuffix("\nSTUB").split() or kept == stub
        elif settings.get("solution"):
            assert theirs.source == "Your answer."
        elif settings.get("grade"):
            shown, marks = re.subn(
                r"### BEGIN HIDDEN TESTS\n.*### END HIDDEN TESTS", "", ours.source, flags=re.S
            )
            assert marks == 1 and theirs.source == shown.rstrip("\n")
        else:
            assert theirs.source == ours.source


@every_lab
def test_nothing_hidden_is_in_the_release(lab):
    assert len(secrets(lab)) > 10
    text = (build.LABS / "release" / lab / f"{lab}.ipynb").read_text(encoding="utf-8")
    found = [secret for secret in secrets(lab) if build.bare(secret) in build.bare(text)]
    assert not found


@every_lab
def test_the_points_add_up(lab):
    graded = [
        cell.metadata.nbgrader
        for cell in notebook(lab, "release").cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    ]
    assert sum(cell.points for cell in graded) == 100
