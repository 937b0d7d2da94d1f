"""Every number with two or more decimals in a notebook's prose is one that was computed.

Prose is the Markdown, and the sentences typed into code cells that a reader then sees (captions, questions,
what a reveal teaches). Such a number has to stand, rounded to the digits written, in what a cell of the same
notebook computed, in a record under data/records or in the claim ledger.
"""

import ast
import re
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

import pytest
import stored

from course_utils.environment import ROOT, distribution, requirements

TOOLS = [
    "Python",
    "CUDA",
    "conda",
    "version",
    "versions",
    "release",
    *(distribution(line) for extra in ("", "lab", "test") for line in requirements(extra)),
]
PLACES = [
    "sections?",
    "sec\\.",
    "chapters?",
    "tables?",
    "tab\\.",
    "figures?",
    "figs?\\.",
    "equations?",
    "eqs?\\.",
    "algorithms?",
    "alg\\.",
    "appendix",
    "appendices",
    "app\\.",
    "§",
]
DOTTED = r"\d+(?:\.\d+)+"
LIST = rf"{DOTTED}(?:\s*(?:,|–|-|to|and|or|<)\s*{DOTTED})*"

# What is no prose, or holds a number that is no measurement.
APART = [
    r"^ {0,3}(```+|~~~+).*?^ {0,3}\1",  # fenced code, in <details> or not
    r"(`+)[^`].*?\1",  # code in a line
    r"<!--.*?-->",
    r"\b(?:src|href|style|width|height)\s*=\s*(?:\"[^\"]*\"|'[^']*')",
    r"(?<=\])\([^)\s]*\)",  # where a link leads
    r"https?://[^\s)>\]]+",
    r"\bdoi:?\s*\S+",
    r"\b10\.\d{4,9}/\S+",  # a DOI
    r"\barXiv:?\s*\d{4}\.\d{4,5}(?:v\d+)?",
    r"(?<![\d.])\d\d(?:0[1-9]|1[0-2])\.\d{5}(?:v\d+)?(?!\d)",  # an arXiv id: year, month, five digits
    r"\d+\.\d+\.[\d.]*\d",  # 2.14.1, 3.1.4, 29.11.2026
    rf"^\#+\s+{DOTTED}",  # a numbered heading
    rf"\b(?:{'|'.join(TOOLS)})\s*(?:[<>=~!]=?\s*)?{LIST}",
    rf"(?<!\w)(?:{'|'.join(PLACES)})\s*{LIST}",
    r"\bv\d+(?:\.\d+)+",
]
NUMBER = (
    r"(?<![\w.])(?P<whole>\d{1,3}(?:,\d{3})+|\d*)\.(?P<decimals>\d+)(?P<exponent>[eE][-+]?\d+)?(?!\d)"
    r"(?P<percent>\s*\\?%)?"
)


def without(patterns, text):
    for pattern in patterns:
        text = re.sub(pattern, " ", text, flags=re.M | re.S | re.I)
    return text


def numbers_of(text):
    """(number, whether "%" follows) of each decimal fraction; a Decimal knows the digits written."""
    text = text.replace("{,}", ",").replace("{.}", ".")  # how LaTeX is kept from putting a space there
    return [
        (
            Decimal(
                f"{(found['whole'] or '0').replace(',', '')}.{found['decimals']}{found['exponent'] or ''}"
            ),
            bool(found["percent"]),
        )
        for found in re.finditer(NUMBER, text)
    ]


def claimed(prose):
    """The numbers of a piece of prose that need a computation: two decimals or more."""
    return [(number, percent) for number, percent in numbers_of(without(APART, prose)) if digits(number) >= 2]


def digits(number):
    return -number.as_tuple().exponent


def agrees(number, computed):
    """Whether one number is the other, rounded to the digits written (a tie may go either way)."""
    return digits(computed) >= digits(number) and any(
        computed.quantize(number, rounding) == number for rounding in (ROUND_HALF_UP, ROUND_HALF_EVEN)
    )


def is_backed(number, percent, computed):
    """The sign is left to the words: a gradient of -0.8575 is "a pull of 0.86"."""
    readings = [number, number.scaleb(-2)] if percent else [number]
    return any(agrees(reading, value) for reading in readings for value in computed)


def typed(notebook):
    """(cell, sentence) of the texts of more than one word that stand in code."""
    return [
        (place, node.value)
        for place, _, tree in stored.code(notebook)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) > 1
    ]


def computed_in(notebook):
    """What its cells computed: the numbers of the outputs, less those of sentences that were typed."""
    text = "\n".join(stored.shown(output) for _, output in stored.outputs(notebook))
    for _, sentence in sorted(typed(notebook), key=lambda entry: -len(entry[1])):
        text = text.replace(sentence.strip(), " ")
    return {number for number, _ in numbers_of(text)}


def on_record():
    """The numbers of the records and of the claim ledger."""
    files = [*(ROOT / "data" / "records").rglob("*.*"), *(ROOT / "data").glob("claims*")]
    return {
        number
        for path in files
        if path.is_file()
        for number, _ in numbers_of(path.read_text(encoding="utf-8"))
    }


def unbacked(notebook, records=frozenset()):
    """A line for each number in the prose that nothing computed."""
    visible = "\n".join(stored.shown(output) for _, output in stored.outputs(notebook))
    prose = stored.markdown(notebook) + [
        (place, text) for place, text in typed(notebook) if text.strip() in visible
    ]
    computed = computed_in(notebook) | records
    return [
        f"cell {place}: {number} in “{line_with(number, text)}” is in no output, record or claim"
        for place, text in prose
        for number, percent in claimed(text)
        if not is_backed(number, percent, computed)
    ]


def line_with(number, text):
    tail = str(number).lstrip("0")
    return next((line.strip() for line in text.splitlines() if tail in line), text.strip())[:120]


@pytest.mark.parametrize("path", stored.NOTEBOOKS, ids=lambda path: path.stem)
def test_each_number_in_the_prose_was_computed(path):
    found = unbacked(stored.read(path), on_record())
    assert not found, f"{path.name}:\n" + "\n".join(found)


# The finder finds, and only what it should.


def backed_by(prose, output):
    return unbacked(stored.made(prose, ("print()", output)))


@pytest.mark.parametrize(
    "prose",
    [
        "The loss is 0.57.",
        "The loss is 0.5713, not less.",
        "The loss is $L = 0.571$.",
        r"$p = .57$ and $p = 0{.}5713$",
        "A drop of −0.57 in **0.57**.",
        "It is 57.13 % of $57.13\\%$.",
        "| loss | 0.57 |",
        "<details>It is 0.57.\n```python\nx = 0.99\n```\n</details>",
    ],
)
def test_a_computed_number_passes(prose):
    assert backed_by(prose, "loss 0.57134") == []
    assert backed_by(prose, "loss 0.61250") != [], "and the same prose fails beside another output"


@pytest.mark.parametrize(
    "prose, output",
    [
        ("The loss is 0.57.", "0.56"),
        ("The loss is 0.58.", "0.57134"),
        ("The loss is 0.570.", "0.57"),  # more digits than were computed
        ("The loss is 5.71.", "0.571"),
        ("The loss is 0.57.", "10.57"),
        ("It is 1,024.25 in all.", "24.25"),
        ("It is 1.25e-4.", "1.25"),
        ("A batch of 8192 takes 3.25s.", "8192"),
        ("torch gives 0.57.", "1"),  # a tool's name alone excuses nothing
        ("a table of 0.57", "1"),
        ("<details>\n\nIt is 0.57.\n\n</details>", "1"),
        ("```\ncode 0.11\n```\nIt is 0.57, says\n```\ncode 0.12\n```", "1"),
        ("`code` then 0.57 then `code`", "1"),
        ("If $a<0.1$ then 0.57 > 0", "1"),
        ("![a bar at 0.57](0.57.png)", "1"),
        ('<img src="x.png" alt="a bar at 0.57">', "1"),
    ],
)
def test_an_uncomputed_number_is_found(prose, output):
    assert len(backed_by(prose, output)) == 1


@pytest.mark.parametrize(
    "prose",
    [
        "Tested with torch 2.14.1, torchvision >= 0.29, JupyterLab 4.62, Python 3.10 to 3.13, version 1.25.",
        "See 3.1.4, section 3.14, Table 2.11, § 4.12, Fig. 1.23 and appendix B.11.",
        "He et al. 2019, 1911.05722; Chen et al., arXiv:2002.05709v3, arXiv 1404.1234.",
        "doi: 10.1145/3292500.3330701 and https://doi.org/10.1000/12.34 and [it](https://x.org/1.25).",
        "On 29.11.2026, or 2026-11-29.",
        "## 3.10 A heading",
        "N = 16,382; 0.5 against 0.8; about 2.5 %.",
        "`tau = 0.07` or ``0.07``",
        "~~~python\ntau = 0.07\n~~~",
        "<details><summary>Solution</summary>\n\n```python\nreturn 0.07 * x\n```\n</details>",
        '<p style="margin: 0.25em">text</p> <!-- 0.99 -->',
    ],
)
def test_what_is_no_measurement_is_left_alone(prose):
    assert backed_by(prose, "1") == []


def test_a_typed_sentence_backs_nothing_and_is_prose_itself():
    cell = 'show_table(frame, "The loss is 0.57 here")\nassert "0.11 is no prose" != ""'
    caption = {"text/html": "<table><caption>The loss is 0.57 here</caption><td>0.6000</td></table>"}
    found = unbacked(stored.made("It fell to 0.57.", (cell, caption)))
    assert [line.split(":")[0] for line in found] == ["cell 0", "cell 1"]
    caption["text/html"] = caption["text/html"].replace("0.6000", "0.5713")
    assert unbacked(stored.made("It fell to 0.57.", (cell, caption))) == []


def test_alt_text_backs_nothing():
    picture = {"text/html": '<img alt="a bar at 0.57">', "text/plain": "[picture: a bar at 0.57]"}
    assert unbacked(stored.made("It is 0.57.", ("picture(figure)", picture)))
    assert unbacked(stored.made("It is 0.57.", ("picture(figure)", {"text/plain": picture["text/plain"]})))


def test_a_record_backs_a_number():
    assert unbacked(stored.made("It is 90.91."), {Decimal("90.912")}) == []
