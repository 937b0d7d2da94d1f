"""What a stored notebook shows: pictures with alt text, explorers that need no kernel, no noise."""

import ast
import re
from html.parser import HTMLParser

import pytest
import stored

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/svg+xml", "application/pdf")
LIVE = r"(\w*Explorer|Prediction)\("  # how the summary of an explorer or a question begins
FORBIDDEN = {"interact", "interactive", "interactive_output", "interact_manual", "Output", "clear_output"}
MOST_DIGITS = 10


class Page(HTMLParser):
    """The <img> tags of some HTML and its visible text."""

    def __init__(self, text):
        super().__init__()
        self.pictures, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag == "img":
            self.pictures.append(dict(attributes))

    def handle_data(self, data):
        self.text += data


def without_alt(text):
    """The sources of the pictures in HTML or Markdown that say nothing to those who cannot see them."""
    pictures = [(picture.get("src") or "", picture.get("alt")) for picture in Page(text).pictures]
    pictures += [(source, alt) for alt, source in re.findall(r"!\[([^\]]*)\]\(([^)\s]*)", text)]
    return [source[:60] for source, alt in pictures if not (alt or "").strip()]


def picture_problems(notebook):
    prose = [(place, text) for place, text in stored.markdown(notebook)]
    pages = [
        (place, output.data["text/html"]) for place, output in bundles(notebook) if "text/html" in output.data
    ]
    found = [
        f"cell {place}: a picture without alt text ({source})"
        for place, text in prose + pages
        for source in without_alt(text)
    ]
    return found + [
        f"cell {place}: a bare {kind}; pictures go out through show.picture"
        for place, output in bundles(notebook)
        for kind in IMAGE_TYPES
        if kind in output.data
    ]


def bundles(notebook):
    return [(place, output) for place, output in stored.outputs(notebook) if "data" in output]


def fallback_problems(notebook):
    """Explorers and questions that show nothing where no kernel runs."""
    found, shown = [], 0
    for place, output in bundles(notebook):
        summary = output.data.get("text/plain", "")
        if not re.match(LIVE, summary) and WIDGET_VIEW not in output.data:
            continue
        shown += 1
        page = Page(output.data.get("text/html", ""))
        if not page.text.strip():
            found.append(f"cell {place}: {summary[:60]} has no text/html for pages without a kernel")
        elif "Explorer(" in summary and "<figure" not in output.data["text/html"]:
            found.append(f"cell {place}: {summary[:60]} shows none of its frames without a kernel")
    made = [
        called
        for _, cell, tree in stored.code(notebook)
        if "test" not in cell.metadata.get("tags", [])  # there a second one is moved from code, not shown
        for node in ast.walk(tree)
        if (called := stored.called(node)) and (called == "predict" or called.endswith("Explorer"))
    ]
    if len(made) > shown:
        found.append(
            f"the cells make {len(made)} explorers and questions ({', '.join(made)}), stored are {shown}"
        )
    if "widgets" in notebook.metadata and not all(
        "state" in kind for kind in notebook.metadata["widgets"].values()
    ):
        found.append("metadata.widgets has no state: GitHub calls that an invalid notebook")
    return found


def noise(notebook):
    """Errors, warnings and tables that nobody can read."""
    found = []
    tags = {place: cell.metadata.get("tags", []) for place, cell, _ in stored.code(notebook)}
    for place, output in stored.outputs(notebook):
        if output.output_type == "error" and "raises-exception" not in tags[place]:
            found.append(f"cell {place}: ended with {output.ename}: {output.evalue}")
        if output.output_type == "stream" and output.name == "stderr":
            found.append(f"cell {place}: wrote to stderr: {output.text[:80]}")
        if output.output_type != "error":
            found += [
                f"cell {place}: {number} has more than {MOST_DIGITS} significant digits"
                for number in re.findall(r"(?<![\w.])\d*\.\d+(?![\w.]*\.\d)", stored.shown(output))
                if len(number.replace(".", "").lstrip("0")) > MOST_DIGITS
            ]
    return sorted(set(found))


def widget_problems(notebook):
    """Whatever a cell does with widgets but for giving described controls to an explorer."""
    found = []
    widgets = names_of_widgets(notebook)
    for place, _, tree in stored.code(notebook):
        for node in ast.walk(tree):
            called = stored.called(node)
            name = node.name if isinstance(node, ast.alias) else called
            if name in FORBIDDEN:
                found.append(f"cell {place}: {name} appends or fails in some hosts; use show.Explorer")
            if called in ("observe", "on_click"):
                found.append(f"cell {place}: .{called}(...): an explorer observes its own controls")
            if called and is_widget(node.func, widgets) and called not in FORBIDDEN and not described(node):
                found.append(f"cell {place}: {called} has no description")
    return sorted(set(found))


def names_of_widgets(notebook):
    """The names under which the notebook's cells know ipywidgets, and what they imported from it."""
    names = {"ipywidgets"}
    for _, _, tree in stored.code(notebook):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ipywidgets"):
                names |= {alias.asname or alias.name for alias in node.names}
            if isinstance(node, ast.Import):
                names |= {alias.asname for alias in node.names if alias.name == "ipywidgets" and alias.asname}
    return names


def is_widget(function, names):
    """ipywidgets.IntSlider(...), widgets.IntSlider(...) or IntSlider(...)."""
    if isinstance(function, ast.Attribute):
        return (
            function.attr[:1].isupper()
            and isinstance(function.value, ast.Name)
            and function.value.id in names
        )
    return isinstance(function, ast.Name) and function.id in names


def described(call):
    """Whether a call has a description that is not known to be empty, or makes no control."""
    if stored.called(call) == "Layout":
        return True
    descriptions = [keyword.value for keyword in call.keywords if keyword.arg == "description"]
    return any(
        not (isinstance(value, ast.Constant) and not str(value.value).strip()) for value in descriptions
    )


@pytest.mark.parametrize(
    "problems",
    [picture_problems, fallback_problems, noise, widget_problems],
    ids=lambda problems: problems.__name__,
)
@pytest.mark.parametrize("path", stored.NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_stored_notebook_shows(path, problems):
    found = problems(stored.read(path))
    assert not found, f"{path.name}:\n" + "\n".join(found)


# The finders find, and only what they should.

EXPLORER = {
    "text/plain": "CandidateExplorer('Candidates')",
    "text/html": "<section><figure><figcaption>s = 1</figcaption>"
    '<img alt="bars" src="data:image/png;base64,AA"></figure></section>',
}


def one(source, *outputs):
    return stored.made((source, *outputs))


def test_good_cells_have_no_problems():
    notebook = stored.made(
        "![a cup](cup.png) and <img src='cat.png' alt='a cat'>",
        ("import ipywidgets as widgets\nfrom ipywidgets import IntSlider, Layout",),
        (
            "controls = {'x': widgets.IntSlider(2, description='x'), 'y': IntSlider(description=name)}\n"
            "explorer = Explorer(f, controls, [{}], 'Squares')\n"
            "explorer",
            EXPLORER,
        ),
        (
            "predict('02/x', 'Which?', choices=['a', 'b'])",
            {"text/plain": "Prediction('02/x')", "text/html": "<p><strong>Which?</strong><br>a · b</p>"},
        ),
        ("frame", {"text/html": "<table><td>0.0001234567</td></table>", "text/plain": "0.5713"}),
        ("print('torch 2.14.1')", "torch 2.14.1\nfingerprint 0.a1b2c3d4e5f60718\n"),
    )
    assert [
        problems(notebook) for problems in (picture_problems, fallback_problems, noise, widget_problems)
    ] == [[]] * 4


@pytest.mark.parametrize(
    "notebook",
    [
        stored.made('<img src="cup.png">'),
        stored.made('<img src="cup.png" alt=" ">'),
        stored.made("![](cup.png)"),
        one("picture(figure)", {"text/html": '<figure><img alt="" src="data:image/png;base64,AA"></figure>'}),
        one("figure", {"image/png": "AA", "text/plain": "<Figure>"}),
        one("SVG(text)", {"image/svg+xml": "<svg/>"}),
    ],
)
def test_a_picture_that_says_nothing_is_found(notebook):
    assert len(picture_problems(notebook)) == 1


@pytest.mark.parametrize(
    "output",
    [
        {"text/plain": "Explorer('Squares')"},
        {"text/plain": "Explorer('Squares')", "text/html": "<section></section>"},
        {"text/plain": "Explorer('Squares')", "text/html": "<p>Squares</p>"},
        {"text/plain": "VBox(children=...)", WIDGET_VIEW: {"model_id": "1"}},
        {"text/plain": "Prediction('02/x')"},
    ],
)
def test_a_widget_without_fallback_is_found(output):
    assert len(fallback_problems(one("explorer", output))) == 1


def test_an_explorer_that_was_not_stored_is_found():
    assert fallback_problems(one("explorer = Explorer(f, {}, [], 'Squares')\nexplorer")) != []
    assert fallback_problems(one("predict('02/x', 'Which?', number=(0, 1))")) != []


def test_widget_metadata_without_state_is_found():
    notebook = one("1")
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {}}
    assert fallback_problems(notebook) != []
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    assert fallback_problems(notebook) == []


def test_noise_is_found():
    notebook = stored.made(
        ("1 / 0", "warned"),
        ("0.1 + 0.2", {"text/plain": "0.30000000000000004"}),
        ("frame", {"text/html": "<td>-1.23456789012</td>", "text/plain": ""}),
    )
    notebook.cells[0].outputs[0].name = "stderr"
    notebook.cells[0].outputs.append(
        stored.new_output("error", ename="ZeroDivisionError", evalue="division by zero")
    )
    assert [line.split(":")[0] for line in noise(notebook)] == ["cell 0", "cell 0", "cell 1", "cell 2"]
    notebook.cells[0].metadata["tags"] = ["raises-exception"]
    assert len(noise(notebook)) == 3


@pytest.mark.parametrize(
    "source",
    [
        "from ipywidgets import interact",
        "import ipywidgets\nipywidgets.interact(f, x=2)",
        "import ipywidgets as w\nout = w.Output()",
        "from IPython.display import clear_output as wipe",
        "slider.observe(f, 'value')",
        "import ipywidgets as w\nw.IntSlider(2)",
        "import ipywidgets as w\nw.IntSlider(2, description='')",
        "from ipywidgets import IntSlider\nIntSlider(2, description=' ')",
    ],
)
def test_another_way_to_use_widgets_is_found(source):
    assert len(widget_problems(one(source))) == 1
