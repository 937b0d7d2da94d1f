"""Building, checking and publishing notebooks, on a course of one small notebook."""

import json
import re
import shutil

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from course_utils import notebooks
from course_utils.environment import ROOT

SOURCE = """---
kernelspec:
  name: python3
  display_name: Python 3
  language: python
---

# 07 · A small one

What the notebook is about.

```{code-cell} ipython3
:tags: [setup]
```

+++

Two cells that show something.

```{code-cell} ipython3
:tags: [hide-input]

import os
from ipywidgets import IntSlider

print(os.environ["COURSE_BUDGET"], os.listdir(os.environ["COURSE_PREDICTIONS_DIR"]))
IntSlider(description="steps")
```

```{code-cell} ipython3
1 + 1
```
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A course with one built notebook; tests that change it work on a copy."""
    root = tmp_path_factory.mktemp("course")
    (root / "notebooks" / "source").mkdir(parents=True)
    (root / "course_utils").symlink_to(ROOT / "course_utils")
    shutil.copy(ROOT / "notebooks" / "source" / "setup_cell.py", root / "notebooks" / "source")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (root / "pyproject.toml").write_text(re.sub("^repository = .*", 'repository = ""', project, flags=re.M))
    (root / "README.md").write_text("# Two Views\n\nWhat this is.\n")
    (root / "notebooks" / "source" / "07_small.md").write_text(SOURCE)
    notebooks.build(*notebooks.pairs(root)[0], root)
    return root


@pytest.fixture
def course(built, tmp_path):
    return shutil.copytree(built, tmp_path / "course", symlinks=True)


def pair(root):
    return notebooks.pairs(root)[0]


def edit(target, change):
    """Change an executed notebook as an editor would."""
    notebook = nbformat.read(target, as_version=4)
    change(notebook)
    nbformat.write(notebook, target)


def files(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_built_notebook_is_in_order_and_holds_its_outputs(built):
    source, target = pair(built)
    assert notebooks.problems(source, target) == []
    setup, first, second = (c for c in nbformat.read(target, as_version=4).cells if c.cell_type == "code")
    assert setup.source == notebooks.setup_cell(built) and setup.outputs == []
    assert first.outputs[0].text == "quick []\n" and first.metadata.jupyter.source_hidden
    assert len(first.outputs) == 1, "without a kernel a widget without a fallback would say nothing"
    assert second.outputs[0].data == {"text/plain": "2"}
    assert notebooks.WIDGET_VIEW not in target.read_text()


def test_a_second_build_writes_the_same_bytes(course):
    before = files(course)
    notebooks.build(*pair(course), course)
    assert files(course) == before


CHANGES = {
    "its cells differ from its source": lambda nb: nb.cells[0].update(source="# Another title"),
    "a code cell was not executed, or not in order": lambda nb: nb.cells[-1].update(execution_count=5),
    "its outputs come from another source text": lambda nb: nb.cells[-1].update(source="1 + 2"),
    "its outputs were changed or removed": lambda nb: nb.cells[-1].update(outputs=[]),
    "widget state is stored": lambda nb: nb.metadata.update(widgets={}),
    "an output is an error": lambda nb: nb.cells[-1].outputs.append(nbformat.v4.new_output("error")),
    "a cell wrote to stderr": lambda nb: nb.cells[-1].outputs.append(
        nbformat.v4.new_output("stream", name="stderr", text="careful")
    ),
    "it is larger than": lambda nb: nb.metadata.update(ballast="x" * notebooks.BIGGEST),
}


@pytest.mark.parametrize("problem", CHANGES)
def test_each_fault_is_named(course, problem):
    source, target = pair(course)
    edit(target, CHANGES[problem])
    assert any(problem in line and target.name in line for line in notebooks.problems(source, target))


def test_a_stripped_notebook_and_a_missing_one_are_named(course):
    source, target = pair(course)

    def strip(notebook):
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None

    edit(target, strip)
    assert len(notebooks.problems(source, target)) == 2
    target.unlink()
    assert notebooks.problems(source, target) == ["07_small.ipynb is missing"]


def test_code_that_changed_since_the_run_is_named(course):
    source, target = pair(course)
    source.write_text(source.read_text().replace("1 + 1", "1 + 2"))
    edit(
        target,
        lambda notebook: notebook.cells[-1].update(source="1 + 2", id=notebooks.prepare(source).cells[-1].id),
    )
    assert notebooks.problems(source, target) == ["07_small.ipynb: its outputs come from another source text"]


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("1 / 0", CellExecutionError, "ZeroDivisionError"),
        ("print(sys.prefix + '/lib')", ValueError, "a folder of this machine"),
    ],
)
def test_a_notebook_that_fails_leaves_the_old_one(course, code, error, message):
    source, target = pair(course)
    before = target.read_bytes()
    source.write_text(source.read_text().replace("1 + 1", code))
    with pytest.raises(error, match=message):
        notebooks.build(source, target, course)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.glob("*.*")] == [target.name]


def test_a_source_needs_one_set_up_cell(course):
    source, target = pair(course)
    source.write_text(source.read_text().replace("[setup]", "[other]"))
    with pytest.raises(ValueError, match=r"one code cell tagged \[setup\], this one has 0"):
        notebooks.build(source, target, course)


def test_badges_come_and_go_and_the_outputs_stay(course):
    source, target = pair(course)
    before = files(course)
    outputs = [cell.get("outputs") for cell in nbformat.read(target, as_version=4).cells]

    notebooks.publish("owner/two.views", course)
    published = files(course)
    notebooks.publish("owner/two.views", course)
    assert files(course) == published

    assert notebooks.problems(source, target) == []
    assert [cell.get("outputs") for cell in nbformat.read(target, as_version=4).cells] == outputs
    for path in (source, target):
        text = path.read_text()
        text = (
            "\n".join(map("".join, (c["source"] for c in json.loads(text)["cells"])))
            if path is target
            else text
        )
        assert text.count('REPOSITORY = "https://github.com/owner/two.views"') == 1
        assert (
            text.count("colab.research.google.com/github/owner/two.views/blob/main/notebooks/07_small.ipynb")
            == 1
        )
        assert (
            text.count(
                "https%3A%2F%2Fgithub.com%2Fowner%2Ftwo.views%2Fblob%2Fmain%2Fnotebooks%2F07_small.ipynb"
            )
            == 1
        )
    assert (course / "README.md").read_text().startswith("# Two Views\n\n[![Open in Colab]")
    assert 'repository = "https://github.com/owner/two.views"' in (course / "pyproject.toml").read_text()

    notebooks.publish("another/one", course)
    assert not any(b"owner/two.views" in content for content in files(course).values())
    notebooks.publish("", course)
    assert files(course) == before


@pytest.mark.parametrize(
    "repository", ["two-views", "https://github.com/owner/name", "a/b/c", 'a/"b', "owner/na me", "/x"]
)
def test_an_address_of_another_form_changes_nothing(course, repository):
    before = files(course)
    with pytest.raises(ValueError, match=f'REPO is "{re.escape(repository)}"; give it as owner/name'):
        notebooks.publish(repository, course)
    assert files(course) == before


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(SystemExit, match="no such notebook: 99_none; there are"):
        notebooks.main(["build", "99_none"])
