"""The course's executed notebooks, and made ones, as the tests of this folder read them.

Cells are counted from 0, Markdown and code alike.
"""

import ast
import html
import re

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_utils.environment import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def read(path):
    return nbformat.read(path, as_version=4)


def made(*cells):
    """A notebook for a test: a string is a Markdown cell, a tuple (source, output, ...) a code cell.

    An output is a dict of MIME type -> data, or a string: what the cell printed.
    """
    return new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        cells=[new_markdown_cell(cell) if isinstance(cell, str) else made_code(*cell) for cell in cells],
    )


def made_code(source, *outputs):
    stored = [
        new_output("stream", name="stdout", text=output)
        if isinstance(output, str)
        else new_output("display_data", output)
        for output in outputs
    ]
    return new_code_cell(source, execution_count=1, outputs=stored)


def markdown(notebook):
    """(number, source) of every Markdown cell."""
    return [(place, cell.source) for place, cell in enumerate(notebook.cells) if cell.cell_type == "markdown"]


def code(notebook):
    """(number, cell, syntax tree) of every code cell."""
    return [
        (place, cell, ast.parse(cell.source))
        for place, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
    ]


def outputs(notebook):
    """(number of its cell, output) of every output."""
    return [(place, output) for place, cell, _ in code(notebook) for output in cell.outputs]


def shown(output):
    """What a reader sees of an output, as plain text; what stands in alt texts is left out."""
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    if "text/html" in data:
        return html.unescape(re.sub(r"<[^>]*>", " ", data["text/html"]))
    return re.sub(r"\[picture: .*?\]", " ", data.get("text/plain", ""), flags=re.S)


def called(node):
    """The last name of what a call calls: "predict" for feedback.predict(...); None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
