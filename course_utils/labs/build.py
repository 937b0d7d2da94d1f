"""Build the labs: a text source becomes nbgrader's source notebook, and that the students' release.

    labs/source/lab06.md --> labs/source/lab06/lab06.ipynb --nbgrader--> labs/release/lab06/lab06.ipynb

`make labs` does both; an author edits the text alone. It is MyST Markdown as in notebooks/source, and a cell
says in one line what nbgrader is to do with it:

    ```{code-cell} ipython3
    :answer: two_views             an answer; ### BEGIN SOLUTION and ### END SOLUTION enclose what goes
    ```{code-cell} ipython3
    :test: two_views
    :points: 15                    graded; ### BEGIN HIDDEN TESTS and ### END HIDDEN TESTS enclose what goes
    +++ {"answer": "paragraph", "points": 10}      Markdown that a person grades

Every other code cell is locked: autograding puts it back as it was. Solutions inside a function leave
`raise NotImplementedError` behind, those outside nothing.
"""

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions, NbGraderPreprocessor
from nbgrader.utils import is_grade
from traitlets.config import Config, PyFileConfigLoader

from course_utils import notebooks
from course_utils.environment import ROOT, replace_file

LABS = ROOT / "labs"
STUB = "raise NotImplementedError"


def sources(folder=LABS):
    """The labs' texts, in order."""
    return sorted((folder / "source").glob("lab[0-9][0-9].md"))


def prepare(text):
    """nbgrader's source notebook of a text, not executed."""
    notebook = notebooks.prepare(text)
    given = 0
    for cell in notebook.cells:
        answer, test, points = (cell.metadata.pop(key, None) for key in ("answer", "test", "points"))
        if cell.cell_type == "code":
            cell.metadata.pop("course", None)
        if "setup" in cell.metadata.get("tags", []):
            cell.source = notebooks.setup_cell()
        if answer or test or cell.cell_type == "code":
            given += not (answer or test)
            cell.metadata["nbgrader"] = {
                "grade": points is not None,
                "grade_id": answer or (f"test-{test}" if test else f"given-{given}"),
                "locked": not answer,
                "schema_version": 3,
                "solution": bool(answer),
                "task": False,
                **({"points": points} if points is not None else {}),
            }
    return notebook


def config(folder=LABS):
    """The settings of labs/nbgrader_config.py, for the course in `folder`."""
    settings = PyFileConfigLoader("nbgrader_config.py", path=str(LABS)).load_config()
    settings.CourseDirectory.root = str(folder)
    return settings


def write_source(text, folder=LABS):
    """Write nbgrader's source notebook of a text; returns its path."""
    path = folder / "source" / text.stem / f"{text.stem}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, nbformat.writes(prepare(text)) + "\n")
    return path


def release(lab, folder=LABS):
    """The release that nbgrader makes of a source notebook, as text; no gradebook is touched."""
    with tempfile.TemporaryDirectory() as course:
        shutil.copytree(folder / "source" / lab, Path(course) / "source" / lab)
        settings = config(Path(course).resolve())
        settings.merge(Config(SaveCells={"enabled": False}, GenerateAssignment={"no_database": True}))
        directory = CourseDirectory(config=settings, assignment_id=lab)
        converter = GenerateAssignment(coursedir=directory, config=settings)
        converter.log.setLevel("ERROR")
        converter.start()
        return (Path(course) / "release" / lab / f"{lab}.ipynb").read_text(encoding="utf-8")


def build(text, folder=LABS):
    """Write source notebook and release of a text."""
    write_source(text, folder)
    path = folder / "release" / text.stem / f"{text.stem}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, release(text.stem, folder))
    return f"{text.stem}: {path.relative_to(folder.parent)}"


class Stubs(ClearSolutions):
    """Clear solutions; inside a function the stub stays behind, outside nothing."""

    def preprocess_cell(self, cell, resources, cell_index):
        inside = re.search(rf"^\s+### {self.begin_solution_delimeter}", cell.source, re.M)
        self.code_stub = {"python": STUB if inside else ""}
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        cell.source = cell.source.rstrip()
        return cell, resources


class MessagesOnly(NbGraderPreprocessor):
    """In feedback: hidden tests and everything that repeats them go, of an error its message stays.

    A student's code runs beside the tests and can print them, so each output that holds a line of them goes
    as well.
    """

    def preprocess(self, nb, resources):
        hidden = {line for cell in nb.cells if is_grade(cell) for line in hidden_lines(cell.source)}
        for cell in nb.cells:
            if cell.cell_type == "code":
                cell.outputs = [output for output in cell.outputs if not repeats(output, hidden)]
                for output in cell.outputs if is_grade(cell) else ():
                    if output.output_type == "error":
                        output.traceback = [f"{output.ename}: {output.evalue}"]
        return ClearHiddenTests().preprocess(nb, resources)


def hidden_lines(source):
    """The lines of a cell between the marks of its hidden tests."""
    inside = re.findall(r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN TESTS", source, re.S)
    return {line.strip() for part in inside for line in part.splitlines() if line.strip()}


def repeats(output, lines):
    """Whether an output holds one of the lines, however it is quoted, escaped or broken into lines."""
    letters = bare(str(output))
    return any(bare(line) in letters for line in lines)


def bare(text):
    """A text's letters and digits."""
    return re.sub(r"\\n|&\w+;|[\W_]", "", text)


def main(arguments=None):
    """The command line behind `make labs`."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.labs.build", description=main.__doc__)
    parser.add_argument("labs", nargs="*", metavar="LAB", help="lab06, ...; by default all")
    chosen = parser.parse_args(arguments).labs
    there = {text.stem: text for text in sources()}
    if unknown := set(chosen) - there.keys():
        sys.exit(f"there is no lab {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    for lab in chosen or there:
        print(build(there[lab]))


if __name__ == "__main__":
    main()
