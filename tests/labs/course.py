"""A course of nbgrader's in a folder of its own, with submissions made from the release."""

import os
import re
import shutil
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI

from course_utils.environment import ROOT
from course_utils.labs import build


def as_an_instructor(patch):
    """An activated .venv (nbgrader calls alembic by its name), and the course where kernels find it."""
    patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.setenv("TQDM_DISABLE", "1")


class Course:
    """nbgrader's whole way, source to feedback, for one lab, in `folder`."""

    def __init__(self, folder, lab):
        self.folder, self.lab = folder, lab
        shutil.copytree(build.LABS / "source" / lab, folder / "source" / lab)
        self.settings = build.config(folder)
        self.settings.Application.log_level = "ERROR"
        self.api = NbGraderAPI(config=self.settings)
        self.api.log_level = "ERROR"
        done = self.api.generate_assignment(lab)
        assert done["success"], done
        self.release = nbformat.read(folder / "release" / lab / f"{lab}.ipynb", as_version=4)

    def submit(self, student, answers=(), cells=(), change=None):
        """Hand the release in as a student.

        answers: grade_id -> source. cells: grade_id -> source of a cell to add before that one. change: a
        function that changes the notebook.
        """
        notebook = deepcopy(self.release)
        answers, cells = dict(answers), dict(cells)
        filled = []
        for cell in notebook.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id")
            if name in cells:
                filled.append(new_code_cell(cells.pop(name)))
            cell.source = answers.pop(name, cell.source)
            filled.append(cell)
        assert not answers and not cells, (answers, cells)
        notebook.cells = filled
        if change:
            change(notebook)
        path = self.folder / "submitted" / student / self.lab / f"{self.lab}.ipynb"
        path.parent.mkdir(parents=True)
        nbformat.write(notebook, path)

    @cache  # noqa: B019  (a course lives as long as the tests that use it)
    def graded(self, student):
        """The notebook that `nbgrader autograde` leaves; graded when it is first asked for."""
        done = self.api.autograde(self.lab, student)
        assert done["success"], done["log"]
        path = self.folder / "autograded" / student / self.lab / f"{self.lab}.ipynb"
        return nbformat.read(path, as_version=4)

    def points(self, student):
        """grade_id -> points; None where a person has to read it."""
        self.graded(student)
        with Gradebook(
            self.settings.CourseDirectory.get("db_url", f"sqlite:///{self.folder}/gradebook.db")
        ) as book:
            submission = book.find_submission(self.lab, student)
            return {grade.name: grade.auto_score for grade in submission.notebooks[0].grades}

    def messages(self, student):
        """grade_id of a test -> the message of its error, "" where there is none."""
        return {
            cell.metadata.nbgrader.grade_id: " ".join(
                f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"
            )
            for cell in self.graded(student).cells
            if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade")
        }

    def feedback(self, student):
        """The page that a student gets, as HTML."""
        self.graded(student)
        done = self.api.generate_feedback(self.lab, student)
        assert done["success"], done["log"]
        path = self.folder / "feedback" / student / self.lab / f"{self.lab}.html"
        return path.read_text(encoding="utf-8")


def solutions(lab):
    """grade_id -> the source's answer, without the marks."""
    return {
        cell.metadata.nbgrader.grade_id: re.sub(r"\n? *### (BEGIN|END) SOLUTION", "", cell.source)
        for cell in notebook(lab, "source").cells
        if cell.metadata.get("nbgrader", {}).get("solution")
    }


def notebook(lab, kind):
    """A lab's notebook of one kind, "source" or "release"."""
    return nbformat.read(build.LABS / kind / lab / f"{lab}.ipynb", as_version=4)


def secrets(lab):
    """Every hidden line of a lab, and the seeds in them."""
    lines = {line for cell in notebook(lab, "source").cells for line in build.hidden_lines(cell.source)}
    return lines | {seed for line in lines for seed in re.findall(r"seed=(\d+)", line)}
