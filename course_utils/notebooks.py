"""Build, check and publish the notebooks from their text sources.

An author edits `notebooks/source/NN_name.md` (MyST Markdown, read by jupytext) and nothing else;
`make notebooks` (one: `make notebooks NOTEBOOK=02_infonce`) runs it in a fresh kernel, in the folder
notebooks/, and writes `notebooks/NN_name.ipynb` with its outputs. A source looks like this:

    ---
    kernelspec:
      name: python3
      display_name: Python 3
      language: python
    ---

    # 02 · InfoNCE: the title, the file's only heading of level one

    Markdown. A line `+++` begins a new Markdown cell; so does a code cell.

    ```{code-cell} ipython3
    :tags: [setup]
    ```

    ```{code-cell} ipython3
    :tags: [nbval-ignore-output]
    runtime.doctor()
    ```

- The first code cell is tagged `setup`. Its text comes from notebooks/source/setup_cell.py: leave it empty,
  `make notebooks` fills it in. It imports `runtime`; every other import is the notebook's own.
- Badges stand below the title; only `make badges` writes them.
- Tags: `nbval-ignore-output` where the output depends on the machine, its data or its speed (device,
  versions, timings, CIFAR-10 or rendered pictures, trained numbers): the cell runs, nobody compares.
  Everything else is compared, so round before printing. `raises-exception` for an error that is the lesson.
  `hide-input` folds a cell's code. `test` marks a cell that drives a control from code.
- The cell runs with COURSE_BUDGET=quick and COURSE_PREDICTIONS_DIR set to an empty folder.
"""

import argparse
import hashlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from course_utils.environment import ROOT, replace_file, setting

BIGGEST = 3_000_000  # bytes of one executed notebook
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
QUIET = {"COURSE_BUDGET": "quick", "TQDM_DISABLE": "1"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def pairs(root=ROOT):
    """(source, executed notebook) of every notebook of the course, in order; the second may not exist yet."""
    sources = sorted((root / "notebooks" / "source").glob("[0-9][0-9]_*.md"))
    return [(source, root / "notebooks" / f"{source.stem}.ipynb") for source in sources]


def setup_cell(root=ROOT):
    """The text of the set-up cell, with the address at which the course is published."""
    text = (root / "notebooks" / "source" / "setup_cell.py").read_text(encoding="utf-8").rstrip("\n")
    return text.replace('REPOSITORY = ""', f'REPOSITORY = "{setting("tool.course", "repository", root)}"', 1)


def with_setup_cell(text, cell):
    """A MyST source in which the cell tagged setup holds this text."""
    fenced = f"```{{code-cell}} ipython3\n:tags: [setup]\n\n{cell}\n```"
    pattern = r"^```\{code-cell\} ipython3\n:tags: \[setup\]\n.*?^```$"
    changed, count = re.subn(pattern, lambda _: fenced, text, flags=re.M | re.S)
    if count != 1:
        raise ValueError(f"a source needs one code cell tagged [setup], this one has {count}")
    return changed


def with_badges(text, repository, notebook):
    """Markdown with the badges of a notebook below its title, or with none if there is no repository."""
    text = re.sub(r"^\[!\[Open in .*\n\n?", "", text, flags=re.M)
    if not repository:
        return text
    page = f"{repository}/blob/main/notebooks/{notebook}.ipynb"
    colab = page.replace("https://github.com", "https://colab.research.google.com/github")
    deepnote = f"https://deepnote.com/launch?url={quote(page, safe='')}"
    line = (
        f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({colab}) "
        f"[![Open in Deepnote](https://deepnote.com/buttons/launch-in-deepnote-small.svg)]({deepnote})"
    )
    return re.sub(r"^# .*\n", lambda title: f"{title.group()}\n{line}\n", text, count=1, flags=re.M)


def prepare(source):
    """The notebook of a MyST source, not yet executed; its metadata and cell ids depend on nothing else."""
    notebook = jupytext.read(source, fmt="md:myst")
    notebook.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    seen = {}
    for cell in notebook.cells:
        seen[cell.source] = seen.get(cell.source, 0) + 1
        tags = cell.metadata.get("tags", [])
        cell.id = "setup" if "setup" in tags else digest([cell.source, seen[cell.source]])[:12]
        if "hide-input" in tags:
            cell.metadata["jupyter"] = {"source_hidden": True}
    return notebook


def digest(value):
    """The SHA-256 of a value of lists, dictionaries, strings and numbers."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def fingerprint(notebook):
    """What the stored outputs belong to: the code that made them (but for the set-up cell), and themselves.

    `make badges` changes an address in the set-up cell only, so it leaves stored outputs valid.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    sources = [cell.source for cell in code if "setup" not in cell.metadata.get("tags", [])]
    return {"executed_source": digest(sources), "executed_outputs": digest([cell.outputs for cell in code])}


def execute(notebook, folder):
    """Run all cells of a notebook in a fresh kernel; returns the seconds it took.

    Predictions go to an empty folder and progress bars are off, so that nothing personal and no time of day
    gets into the outputs. The first cell that fails raises nbclient's CellExecutionError.
    """
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=40"],
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as predictions:
        client.execute(env={**os.environ, **QUIET, "COURSE_PREDICTIONS_DIR": predictions})
    return time.perf_counter() - start


def build(source, target, root=ROOT):
    """Execute a source and store the notebook with its outputs; a line for the terminal is returned."""
    write_address(source, root)
    notebook = prepare(source)
    seconds = execute(notebook, target.parent)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not is_progress_bar(output)]
            for output in cell.outputs:
                # A view without its kernel shows "Model not found"; the explorer's fallback stays.
                output.get("data", {}).pop(WIDGET_VIEW, None)
    notebook.metadata["language_info"] = {"name": "python"}  # without the version that happened to run
    notebook.metadata["course"] = fingerprint(notebook)
    text = nbformat.writes(notebook) + "\n"
    for folder in (root, Path.home(), sys.prefix):
        if f"{folder}/" in text:
            raise ValueError(f"an output names {folder}, a folder of this machine")
    replace_file(target, text)
    return f"{target.stem}: {seconds:.0f} s"


def is_progress_bar(output):
    """Whether an output is a widget without a fallback: stored, tqdm's bar would stand at 0 % for ever."""
    data = output.get("data", {})
    return WIDGET_VIEW in data and "text/html" not in data


def write_address(source, root=ROOT):
    """Bring the set-up cell and the badges of a source up to date."""
    repository = setting("tool.course", "repository", root)
    text = source.read_text(encoding="utf-8")
    changed = with_badges(with_setup_cell(text, setup_cell(root)), repository, source.stem)
    if changed != text:
        replace_file(source, changed)


def problems(source, target):
    """What is wrong with an executed notebook, as a list of lines; empty when it is as it should be."""
    if not target.exists():
        return [f"{target.name} is missing"]
    expected, found = prepare(source), nbformat.read(target, as_version=4)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    stored = found.metadata.get("course", {})
    actual = fingerprint(found)
    checks = {
        "its cells differ from its source": content(expected) == content(found),
        "a code cell was not executed, or not in order": [cell.execution_count for cell in code]
        == list(range(1, len(code) + 1)),
        "an output is an error": not any(
            output.output_type == "error"
            for cell in code
            for output in cell.outputs
            if "raises-exception" not in cell.metadata.get("tags", [])
        ),
        "a cell wrote to stderr (a warning?)": not any(output.get("name") == "stderr" for output in outputs),
        "its outputs come from another source text": stored.get("executed_source")
        == actual["executed_source"],
        "its outputs were changed or removed": stored.get("executed_outputs") == actual["executed_outputs"],
        "widget state is stored": "widgets" not in found.metadata,
        f"it is larger than {BIGGEST:,} bytes": target.stat().st_size <= BIGGEST,
    }
    return [f"{target.name}: {problem}" for problem, holds in checks.items() if not holds]


def content(notebook):
    """What a notebook's source determines, cell by cell."""
    return [(cell.cell_type, cell.source, cell.metadata, cell.id) for cell in notebook.cells]


def publish(repository, root=ROOT):
    """Write the course's address ("owner/name", or "" for none) wherever it stands."""
    if repository and not re.fullmatch(r"[A-Za-z0-9-]+/[\w.-]+", repository):
        raise ValueError(f'REPO is "{repository}"; give it as owner/name')
    address = f"https://github.com/{repository}" if repository else ""
    project, readme = root / "pyproject.toml", root / "README.md"
    text = project.read_text(encoding="utf-8")
    replace_file(
        project, re.sub(r'^repository = ".*"', f'repository = "{address}"', text, count=1, flags=re.M)
    )
    replace_file(readme, with_badges(readme.read_text(encoding="utf-8"), address, "00_start_here"))
    for source, target in pairs(root):
        write_address(source, root)
        if target.exists():
            readdress(target, address, root)


def readdress(target, repository, root=ROOT):
    """Bring the set-up cell and the badges of an executed notebook up to date, its outputs untouched."""
    notebook = nbformat.read(target, as_version=4)
    for cell in notebook.cells:
        if cell.id == "setup":
            cell.source = setup_cell(root)
        elif cell.source.startswith("# "):
            cell.source = with_badges(f"{cell.source}\n", repository, target.stem).rstrip("\n")
            cell.id = digest([cell.source, 1])[:12]
    replace_file(target, nbformat.writes(notebook) + "\n")


def main(arguments=None):
    """The command line behind `make notebooks` and `make badges`."""
    parser = argparse.ArgumentParser(prog="python -m course_utils.notebooks")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="execute the sources").add_argument("names", nargs="*")
    commands.add_parser("check", help="look for stale or stripped notebooks")
    commands.add_parser("badges", help="write the address").add_argument(
        "repository", help="owner/name or ''"
    )
    options = parser.parse_args(arguments)
    if options.command == "badges":
        try:
            publish(options.repository)
        except ValueError as error:
            sys.exit(str(error))
    elif options.command == "check":
        found = [line for pair in pairs() for line in problems(*pair)]
        sys.exit("\n".join(found) if found else 0)
    else:
        chosen = [pair for pair in pairs() if not options.names or pair[0].stem in options.names]
        if unknown := set(options.names) - {source.stem for source, _ in chosen}:
            sys.exit(
                f"no such notebook: {', '.join(sorted(unknown))}; there are {[s.stem for s, _ in pairs()]}"
            )
        for source, target in chosen:
            try:
                print(build(source, target), flush=True)
            except (CellExecutionError, ValueError) as error:
                sys.exit(f"{source.name}: {error}")


if __name__ == "__main__":
    main()
