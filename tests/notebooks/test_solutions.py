"""Each exercise of a notebook: its stub is "not attempted", its folded solution is "right".

The answer is a function, or a dictionary of answers to questions.
"""

import ast
import inspect
import re

import pytest
import stored
import torch

from course_utils.feedback import NOT_ATTEMPTED, RIGHT, check


def exercises(notebook):
    """(cell, exercise, name of the answer, solution or None) of each `check("exercise", answer)`."""
    found = [
        (place, node.args[0].value, node.args[1].id)
        for place, cell, tree in stored.code(notebook)
        for node in ast.walk(tree)
        if stored.called(node) == "check"
        and isinstance(node.args[1], ast.Name)
        and "test" not in cell.metadata.get("tags", [])
    ]
    ends = [place for place, *_ in found[1:]] + [len(notebook.cells)]
    return [
        (*exercise, solution_between(notebook, exercise[0], end))
        for exercise, end in zip(found, ends, strict=False)
    ]


def solution_between(notebook, start, end):
    """The Python code of the folded solution in the Markdown between two cells."""
    text = "\n".join(source for place, source in stored.markdown(notebook) if start < place < end)
    folded = re.search(r"<details>(.*?)</details>", text, re.S)
    code = re.search(r"^```python\n(.*?)^```", folded.group(1), re.S | re.M) if folded else None
    return code.group(1) if code else None


def definitions(tree):
    """What a cell imports and defines, without what it computes or shows; a dictionary of constants too."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    body = [node for node in tree.body if isinstance(node, kept) or is_sheet(node)]
    return compile(ast.Module(body, []), "cell", "exec")


def is_sheet(node):
    """Whether a statement gives a name to a dictionary of constants: a sheet of answers."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Dict)
        and all(isinstance(part, ast.Constant) for part in (*node.value.keys, *node.value.values))
    )


def outline(answer):
    """What the reader was given: a function's arguments, or the questions on a sheet."""
    return list(answer) if isinstance(answer, dict) else inspect.signature(answer)


def problems(notebook):
    """A line for each exercise whose stub or solution is not what a reader should find."""
    found = []
    for place, exercise, name, solution in exercises(notebook):
        scope = {}
        for earlier, _, tree in stored.code(notebook):
            if earlier <= place:
                exec(definitions(tree), scope)
        if (verdict := check(exercise, scope[name])).status != NOT_ATTEMPTED:
            found.append(f"cell {place}: the stub of {exercise} is {verdict}")
        if solution is None:
            found.append(
                f"cell {place}: {exercise} has no folded solution, ```python in <details>, before the next"
            )
            continue
        asked = outline(scope[name])
        exec(compile(solution, f"solution of {exercise}", "exec"), scope)
        if outline(scope[name]) != asked:
            found.append(
                f"cell {place}: {exercise} is {name}{asked} in the stub, "
                f"{name}{outline(scope[name])} in the solution"
            )
        if (verdict := check(exercise, scope[name])).status != RIGHT:
            found.append(f"cell {place}: the solution of {exercise} is {verdict}")
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("path", stored.NOTEBOOKS, ids=lambda path: path.stem)
def test_stubs_and_solutions(path, dtype):
    torch.set_default_dtype(dtype)  # a notebook may have set it
    try:
        found = problems(stored.read(path))
    finally:
        torch.set_default_dtype(torch.float32)
    assert not found, f"{path.name}:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "path", [path for path in stored.NOTEBOOKS if path.name[:2] in ("01", "02")], ids=lambda path: path.stem
)
def test_the_exercises_are_found(path):
    notebook = stored.read(path)
    mentioned = {
        place for place, cell, _ in stored.code(notebook) if re.search(r"^check\(", cell.source, re.M)
    }
    assert mentioned and mentioned == {place for place, *_ in exercises(notebook)}


# The test itself can fail.

STUB = (
    "from course_utils.feedback import check\nimport torch\n\n"
    "def candidate_probability(similarities, temperature):\n"
    "    raise NotImplementedError\n\ncheck('candidate_probability', candidate_probability)"
)
SOLUTION = (
    "<details><summary>Solution</summary>\n\n```python\n"
    "def candidate_probability(similarities, temperature):\n"
    "    return torch.softmax(similarities / temperature, dim=0)\n```\n</details>"
)


def test_a_right_solution_passes():
    assert problems(stored.made((STUB,), "Some text.", SOLUTION)) == []


SHEET = """from course_utils.feedback import check
ticket = {"the encoder's input": ..., "the loss compares": ...}
check("course_ticket", ticket)"""


def test_a_sheet_of_answers_is_judged_as_well():
    solution = """<details>
```python
ticket = {"the encoder's input": "z", "the loss compares": "z"}
```
</details>"""
    found = problems(stored.made((SHEET,), solution))
    assert len(found) == 1 and "the solution of course_ticket is" in found[0], found
    found = problems(stored.made((SHEET,), solution.replace('"the loss compares": "z"', "")))
    assert "in the solution" in found[0], found


@pytest.mark.parametrize(
    "stub, solution, words",
    [
        (STUB, SOLUTION.replace("/ temperature", "* temperature"), "solution of candidate_probability is ✗"),
        (STUB, SOLUTION.replace("(similarities, temperature)", "(s, temperature)"), "in the solution"),
        (STUB, "No solution here.", "has no folded solution"),
        (
            STUB.replace("raise NotImplementedError", "return similarities"),
            SOLUTION,
            "stub of candidate_probability is ✗",
        ),
    ],
)
def test_a_wrong_one_is_found(stub, solution, words):
    found = problems(stored.made((stub,), solution))
    assert found and words in found[0], found
