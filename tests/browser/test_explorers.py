"""The notebooks in a real JupyterLab, moved by keyboard and mouse in a real browser.

It needs Chromium (Debian: `apt-get install chromium`). JupyterLab is one of its own, on a free port,
and shows copies.
"""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell
from nbgrader.preprocessors import ClearHiddenTests

from course_utils.environment import ROOT
from course_utils.runtime import data_dir

CHROMIUM = next(
    filter(
        None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"])
    ),
    None,
)
if CHROMIUM is None:
    pytest.skip(
        "no chromium, chromium-browser or google-chrome on the PATH: the browser tests need one",
        allow_module_level=True,
    )

from playwright.sync_api import expect, sync_playwright  # noqa: E402

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--disable-background-networking",
    "--disable-component-update",
]
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {
        "windowingMode": "none"
    },  # every cell is in the page, seen or not
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
}
OUTPUT = "xpath=ancestor::*[contains(concat(' ', @class, ' '), ' jp-OutputArea-output ')]"
LATER = 400  # milliseconds in which a result that comes twice would come again
MILLISECONDS = 300  # from a key press to the changed table
SECONDS = 600  # for all cells of a notebook: a limit for what hangs, not a time to keep

# Waits for the kernel, runs all cells as the menu does, and waits for the last one.
RUN_ALL = """async seconds => {
  const late = new Promise(done => setTimeout(done, 1000 * seconds, `not ready after ${seconds} s`));
  const run = async () => {
    const context = window.jupyterapp.shell.currentWidget.sessionContext;
    await context.ready;
    await context.session.kernel.info;
    return await window.jupyterapp.commands.execute('notebook:run-all-cells') ? "ran" : "a cell failed";
  };
  return Promise.race([run(), late]);
}"""

ERRORS = """() => [
  ...document.querySelectorAll('.jp-Notebook [data-mime-type="application/vnd.jupyter.error"]'),
  ...document.querySelectorAll('.jp-Notebook [data-mime-type="application/vnd.jupyter.stderr"]'),
  ...document.querySelectorAll('.jp-Notebook .jupyter-widgets [role=alert]'),
  ...[...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output')].filter(
    e => /model not found|Loading widget|Error displaying/i.test(e.textContent)),
].map(e => e.textContent.slice(0, 300))"""

# Notes each new result of an explorer (what its table and picture say, and when) and when a key went down.
WATCH = """content => {
  const log = window.courseLog = {keys: [], results: []};
  document.addEventListener('keydown', () => log.keys.push(performance.now()), true);
  new MutationObserver(records => {
    const text = content.innerText, source = content.querySelector('img')?.src;
    for (const record of records) log.results.push({time: performance.now(), text, source});
  }).observe(content, {childList: true, characterData: true, subtree: true});
}"""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its address, the folder it shows, and where its kernels keep predictions."""

    address: str
    notebooks: Path
    predictions: Path


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_until_it_answers(address, server, log, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            return urllib.request.urlopen(f"{address}/api", timeout=2).read()
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"JupyterLab did not answer at {address} within {seconds} s:\n{log.read_text()[-3000:]}")


def answered(name):
    """A lab with its solutions, without its hidden tests, which trains for a moment only."""
    notebook = nbformat.read(ROOT / "labs" / "source" / name / f"{name}.ipynb", as_version=4)
    notebook, _ = ClearHiddenTests().preprocess(notebook, {})
    first = next(place for place, cell in enumerate(notebook.cells) if f"import {name}" in cell.source)
    short = f"{name}.TRAINED_ON, {name}.BUDGET = 128, {name}.Budget(epochs=1, batch=64)"
    notebook.cells.insert(first + 1, new_code_cell(short))
    return notebook


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """JupyterLab on copies of the notebooks, with settings and workspaces that are thrown away."""
    folder = tmp_path_factory.mktemp("lab")
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    (folder / "course_utils").symlink_to(ROOT / "course_utils")
    for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"):
        shutil.copy(path, notebooks)
    nbformat.write(answered("lab06"), notebooks / "lab06.ipynb")
    for name, values in SETTINGS.items():
        file = folder / "settings" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    port, log = free_port(), folder / "server.log"
    own = {
        name: str(folder / name.lower())
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
            "IPYTHONDIR",
            "COURSE_PREDICTIONS_DIR",
        )
    }
    command = [
        *[sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser"],
        *["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"],
        *["--IdentityProvider.token=", "--ServerApp.password=", f"--ServerApp.root_dir={notebooks}"],
        *[
            f"--LabApp.user_settings_dir={folder / 'settings'}",
            f"--LabApp.workspaces_dir={folder / 'workspaces'}",
        ],
        "--LabApp.extension_manager=readonly",
    ]
    with log.open("w") as output:
        server = subprocess.Popen(
            command,
            cwd=notebooks,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **own, "COURSE_BUDGET": "quick", "COURSE_DATA_DIR": str(data_dir())},
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(address, server, log)
        yield Lab(address, notebooks, Path(own["COURSE_PREDICTIONS_DIR"]))
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@pytest.fixture(scope="module")
def browser():
    """One browser whose pages share a cache: JupyterLab is loaded once."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium.new_context(viewport={"width": 1300, "height": 1200})
        chromium.close()


@contextmanager
def opened(browser, lab, name):
    """A page that shows a notebook of the lab; `page.complaints` are the errors on the browser's console."""
    page = browser.new_page()
    page.set_default_timeout(30_000)
    page.complaints = []
    page.on("console", lambda message: message.type == "error" and page.complaints.append(message.text[:300]))
    page.on("pageerror", lambda error: page.complaints.append(str(error)[:300]))
    try:
        page.goto(f"{lab.address}/doc/tree/{name}?reset")
        page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
        yield page
    finally:
        page.close()


def run_all(page):
    outcome = page.evaluate(RUN_ALL, SECONDS)
    assert outcome == "ran", f"running all cells: {outcome}; errors on the page: {page.evaluate(ERRORS)}"


def assert_no_errors(page):
    assert page.evaluate(ERRORS) == []
    assert page.complaints == []


@dataclass(frozen=True)
class OnPage:
    """An explorer on a page: the cell's output that it is, and the element that its result stands in."""

    box: object
    content: object

    @property
    def log(self):
        return self.content.page.evaluate("window.courseLog")

    def wait_for_results(self, count):
        self.content.page.wait_for_function(
            "count => window.courseLog.results.length >= count", arg=count, timeout=5_000
        )


def explorers(page):
    """Every explorer that a page shows alive."""
    results = page.locator(
        ".jupyter-widgets .widget-html-content:has(> [role=region][aria-label$=': result'])"
    )
    return [OnPage(content.locator(OUTPUT), content) for content in results.all()]


def watched(page, title):
    """The explorer with this title, its results noted from now on."""
    found = [
        one
        for one in explorers(page)
        if title in one.content.locator("[role=region]").get_attribute("aria-label")
    ]
    assert len(found) == 1, f"{len(found)} explorers are called {title!r}"
    found[0].content.evaluate(WATCH)
    return found[0]


def slider(explorer, description):
    """The handle of the slider with this description."""
    row = explorer.box.locator(".widget-slider", has=explorer.box.page.get_by_text(description, exact=True))
    return row.locator(".noUi-handle")


@pytest.fixture(scope="module")
def page(request, browser, lab):
    """A page on which all cells of a notebook were run; the tests of one notebook share it."""
    with opened(browser, lab, request.param) as page:
        run_all(page)
        yield page
        page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")


def on(*names):
    """Give a test the page of each of these notebooks."""
    return pytest.mark.parametrize("page", names, indirect=True)


@on("02_infonce.ipynb")
def test_all_cells_run_without_an_error(page):
    assert_no_errors(page)


@on("02_infonce.ipynb")
def test_each_key_press_changes_table_and_picture_once_and_soon(page):
    explorer = watched(page, "Candidates, probabilities and gradients")
    before = {
        "text": explorer.content.inner_text(),
        "source": explorer.content.locator("img").get_attribute("src"),
    }
    slider(explorer, "temperature").focus()
    for press in range(1, 11):
        page.keyboard.press("ArrowLeft")
        explorer.wait_for_results(press)
    page.wait_for_timeout(LATER)
    keys, results = explorer.log["keys"], explorer.log["results"]
    assert len(keys) == len(results) == 10, f"10 key presses made {len(results)} results; one each is right"
    seen = [before, *results]
    for name in ("text", "source"):
        assert len({result[name] for result in seen}) == 11, (
            f"a key press left the {'table' if name == 'text' else 'picture'} as it was"
        )
    assert explorer.content.locator("table").count() == explorer.content.locator("img").count() == 1
    delays = [result["time"] - key for key, result in zip(keys, results, strict=True)]
    median = statistics.median(delays)
    print(f"from key to table, milliseconds: median {median:.0f}, all {[round(delay) for delay in delays]}")
    assert median <= MILLISECONDS, f"median {median:.0f} ms of {[round(delay) for delay in delays]}"
    assert_no_errors(page)


@on("02_infonce.ipynb")
def test_a_slider_dragged_with_the_mouse_moves_the_result(page):
    explorer = watched(page, "Candidates, probabilities and gradients")
    handle = slider(explorer, "similarity of negative 1")
    handle.scroll_into_view_if_needed()
    picture = explorer.content.locator("img").get_attribute("src")
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 40, y)
    explorer.wait_for_results(1)
    page.mouse.up()
    page.wait_for_timeout(LATER)
    assert len(explorer.log["results"]) == 1, (
        f"one move of the mouse made {len(explorer.log['results'])} results"
    )
    assert explorer.content.locator("table").count() == explorer.content.locator("img").count() == 1
    assert explorer.content.locator("img").get_attribute("src") != picture, "the picture did not change"
    value = float(handle.get_attribute("aria-valuetext"))
    row = explorer.content.locator("tr", has_text="negative 1")
    assert value < 0.4, f"the handle went to the left from 0.4, its value is {value}"
    expect(row).to_contain_text(f"{value:.4f}")
    assert_no_errors(page)


@on("02_infonce.ipynb")
def test_a_prediction_is_committed_from_the_keyboard(page, lab):
    question = page.locator(
        ".jp-OutputArea-output:has(.jupyter-widgets)", has_text="How probable is the positive?"
    )
    radios = question.locator("input[type=radio]")
    radios.first.focus()
    # No arrow: ipywidgets' radio buttons are no group, and the arrow is JupyterLab's.
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(radios.count() - 1):
        page.keyboard.press("Tab")
    expect(question.get_by_role("button", name="Commit")).to_be_focused()
    page.keyboard.press("Enter")
    expect(question.get_by_text("Committed: a little over a half")).to_be_visible()
    [file] = lab.predictions.iterdir()
    assert json.loads(file.read_text())["02/probability"]["answer"] == "a little over a half"
    assert_no_errors(page)


@on("02_infonce.ipynb")
def test_a_number_is_committed_only_after_it_was_typed(page, lab):
    question = page.locator(
        ".jp-OutputArea-output:has(.jupyter-widgets)", has_text="How many negatives does one view have?"
    )
    commit = question.get_by_role("button", name="Commit")
    commit.click()
    expect(question.get_by_text("Type a number first.")).to_be_visible()
    question.locator("input[type=text]").focus()
    page.keyboard.type("16382")
    page.keyboard.press("Tab")
    expect(commit).to_be_focused()
    page.keyboard.press("Enter")
    expect(question.get_by_text("Committed: 16382")).to_be_visible()
    [file] = lab.predictions.iterdir()
    assert json.loads(file.read_text())["02/negatives"]["answer"] == 16382
    assert_no_errors(page)


@on("02_infonce.ipynb")
def test_a_screenshot_to_look_at(page, tmp_path_factory):
    explorers(page)[0].content.scroll_into_view_if_needed()
    path = tmp_path_factory.mktemp("screenshots") / "02_infonce.png"
    page.screenshot(path=path)
    print(f"screenshot: {path}")
    assert path.stat().st_size > 20_000


def test_without_a_kernel_the_fallback_is_seen(browser, lab):
    notebook = json.loads((lab.notebooks / "02_infonce.ipynb").read_text())
    notebook[
        "metadata"
    ] = {}  # then JupyterLab asks which kernel it should be, and takes "none" for an answer
    (lab.notebooks / "no_kernel.ipynb").write_text(json.dumps(notebook))
    with opened(browser, lab, "no_kernel.ipynb") as page:
        page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
        fallback = page.locator(
            ".jp-RenderedHTML section", has_text="Candidates, probabilities and gradients"
        ).first
        expect(fallback.locator("img").first).to_be_visible()
        assert page.locator(".jupyter-widgets").count() == 0
        for picture in page.locator(".jp-OutputArea img").all():
            assert picture.evaluate("image => image.complete && image.naturalWidth > 0"), (
                picture.get_attribute("alt")
            )
        assert_no_errors(page)


@on("03_temperature.ipynb")
def test_the_temperature_slider_reaches_the_numbers_of_the_table(page):
    explorer = watched(page, "One comparison at every temperature")
    readout = explorer.box.locator(".widget-slider", has=page.get_by_text("temperature", exact=True)).locator(
        ".widget-readout"
    )
    slider(explorer, "temperature").focus()
    shown = {
        "0.5": ["0.5713", "-0.8575", "0.5599"],
        "1": ["0.4506", "-0.5494", "0.7971"],
        "0.1": ["0.9796", "-0.2037", "0.0206"],
    }
    assert all(number in explorer.content.inner_text() for number in shown["0.5"])
    presses = 0
    for value, key in (("1", "ArrowRight"), ("0.1", "ArrowLeft")):
        while readout.inner_text() != value:
            presses += 1
            assert presses < 20, f"the slider did not reach {value}"
            page.keyboard.press(key)
            explorer.wait_for_results(presses)
        text = explorer.content.inner_text()
        assert all(number in text for number in shown[value]), f"at temperature {value}: {text}"
        assert "strongest at temperature 0.3245, where it is 0.9548" in text
    keys, results = explorer.log["keys"], explorer.log["results"]
    delays = [result["time"] - key for key, result in zip(keys, results, strict=True)]
    print(f"from key to table, milliseconds: median {statistics.median(delays):.0f}")
    assert statistics.median(delays) <= MILLISECONDS, [round(delay) for delay in delays]
    assert_no_errors(page)


@on("03_temperature.ipynb")
def test_a_negative_more_brings_its_slider(page):
    explorer = watched(page, "A false negative among the negatives")
    sliders = explorer.box.locator(".noUi-handle")
    assert sliders.count() == 8
    slider(explorer, "number of negatives").focus()
    page.keyboard.press("ArrowRight")
    explorer.wait_for_results(1)
    expect(sliders).to_have_count(9)
    expect(explorer.content.locator("tr", has_text="negative 6")).to_contain_text("0.0000")
    assert_no_errors(page)


@on("05_moco.ipynb")
def test_buttons_and_player_step_an_explorer_from_the_keyboard(page):
    explorer = watched(page, "Six places, step by step")
    for press, (button, words) in enumerate(
        [("one step forward", "Step 2: k9 and k10 in"), ("one step back", "Step 1: k7 and k8 in")],
        start=1,
    ):
        explorer.box.get_by_role("button", name=button).focus()
        page.keyboard.press("Enter")
        explorer.wait_for_results(press)
        expect(explorer.content).to_contain_text(words)
    explorer.box.locator(".widget-play button").first.focus()
    page.keyboard.press("Enter")
    explorer.wait_for_results(4)  # the player has made two steps of its own
    page.keyboard.press("Enter")
    page.wait_for_timeout(LATER)
    stopped = explorer.content.inner_text()
    assert "Step 1:" not in stopped
    page.wait_for_timeout(4 * LATER)
    assert explorer.content.inner_text() == stopped, "it goes on after it was stopped"
    assert_no_errors(page)


CONTROLS = ".noUi-handle, input[type=checkbox], input[type=text], select"
KEYS = {"slider": "ArrowRight", "checkbox": "Space", "text": "Tab"}  # what moves a control of each kind
AT_ITS_END = "e => e.getAttribute('aria-valuenow') === e.getAttribute('aria-valuemax')"


def longest_first(path):
    """Notebooks that train before others: two processes that share them end at about the same time."""
    return not path.name.startswith(("04", "06", "09")), path.name


NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"), key=longest_first)


@on(*(path.name for path in NOTEBOOKS), "lab06.ipynb")
def test_every_control_of_every_explorer_moves_its_result(page):
    found = explorers(page)
    assert found, "it shows no explorer"
    for explorer in found:
        controls = explorer.box.locator(CONTROLS).all()
        assert controls, "an explorer without a control"
        for control in controls:
            before = explorer.content.inner_html()
            control.focus()
            kind = control.evaluate("e => e.matches('.noUi-handle') ? 'slider' : e.type")
            if kind == "text":  # what was typed is sent when the reader leaves the field
                page.keyboard.press("End")
                page.keyboard.type(" unheard")
            if kind == "select-one":  # JupyterLab takes arrow keys for itself while a list is closed
                control.select_option(index=0 if control.evaluate("e => e.selectedIndex") else 1)
            elif kind == "slider" and control.evaluate(AT_ITS_END):
                page.keyboard.press("ArrowLeft")
            else:
                page.keyboard.press(KEYS[kind])
            expect(explorer.content).not_to_have_js_property("innerHTML", before, timeout=5_000)
    assert_no_errors(page)
