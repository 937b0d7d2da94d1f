"""The labs' tool: what a text becomes, and what feedback leaves out."""

import html

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_utils.labs import build

HIDDEN = 'grade("lab_x", globals().get("x"), seed=123)'
TEST = f"# 5 points.\n### BEGIN HIDDEN TESTS\n{HIDDEN}\n### END HIDDEN TESTS"
GRADED = {"nbgrader": {"grade": True, "solution": False, "grade_id": "test-x", "points": 5}}


def feedback(*cells):
    return build.MessagesOnly().preprocess(new_notebook(cells=list(cells)), {})[0].cells


@pytest.mark.parametrize(
    "shown", [HIDDEN, repr(TEST), html.escape(HIDDEN), repr([TEST]), f"\x1b[31m{HIDDEN}"]
)
def test_an_output_that_repeats_a_hidden_test_goes(shown):
    printed = new_code_cell(
        "print(In)", outputs=[new_output("stream", text="fine"), new_output("stream", text=shown)]
    )
    _, cell = feedback(new_code_cell(TEST, metadata=GRADED), printed)
    assert [output.text for output in cell.outputs] == ["fine"]


def test_of_an_error_in_a_test_only_the_message_stays():
    error = new_output("error", ename="Wrong", evalue="x: named.", traceback=["in grade_it", f"----> {1} x"])
    (cell,) = feedback(new_code_cell(TEST, metadata=GRADED, outputs=[error]))
    assert cell.source == "# 5 points."
    assert cell.outputs[0].traceback == ["Wrong: x: named."]


def test_a_students_own_error_keeps_its_traceback():
    error = new_output("error", ename="KeyError", evalue="'a'", traceback=["----> 3 table['a']"])
    _, cell = feedback(new_code_cell(TEST, metadata=GRADED), new_code_cell("table['a']", outputs=[error]))
    assert cell.outputs[0].traceback == ["----> 3 table['a']"]


SOURCE = """---
kernelspec:
  name: python3
  display_name: Python 3
  language: python
---

# LAB

```{code-cell} ipython3
given = 1
```

```{code-cell} ipython3
:answer: double
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION
```

```{code-cell} ipython3
:test: double
:points: 5
### BEGIN HIDDEN TESTS
assert double(2) == 4
### END HIDDEN TESTS
```

+++ {"answer": "why", "points": 2}

### BEGIN SOLUTION
Because.
### END SOLUTION
"""


def test_a_text_becomes_source_and_release(tmp_path):
    text = tmp_path / "source" / "lab99.md"
    text.parent.mkdir()
    text.write_text(SOURCE)
    assert build.build(text, tmp_path).startswith("lab99: ")
    read = build.nbformat.read
    source, release = (
        read(tmp_path / kind / "lab99" / "lab99.ipynb", as_version=4).cells for kind in ("source", "release")
    )
    roles = [(cell.metadata.nbgrader.grade_id, cell.metadata.nbgrader.locked) for cell in source[1:]]
    assert roles == [("given-1", True), ("double", False), ("test-double", True), ("why", False)]
    assert [cell.source for cell in release] == [
        "# LAB", "given = 1", "def double(x):\n    raise NotImplementedError", "", "Your answer.",
    ]  # fmt: skip
    assert "return 2 * x" in source[2].source
