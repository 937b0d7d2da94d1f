"""Tables for notebooks: rounded, aligned, readable on light and dark pages, the same text at every run."""

import html
import math
import numbers

import numpy as np
import pandas as pd
from IPython.display import HTML

CELL = "padding: 0.2em 0.8em; border: none;"
ONE_LINE = 40  # characters; a longer text may run over several lines
RULE = "border-bottom: 1px solid var(--jp-border-color1, #8a8a8a);"
MARKED = "font-weight: bold;"


class Shown(HTML):
    """HTML for the notebook together with the plain text that a terminal, a log or a comparison sees.

    `.data` is the HTML as a string, so one piece can be put into another.
    """

    def __init__(self, data: str, text: str):
        super().__init__(data)
        self.text = text

    def __repr__(self) -> str:
        return self.text


def cell_text(value, digits: int = 4) -> str:
    """One value as a reader wants it: rounded, no minus before zero, words for truth values.

    >>> cell_text(-0.00001), cell_text(2 / 3), cell_text(True), cell_text(float("nan")), cell_text(12)
    ('0.0000', '0.6667', 'yes', '–', '12')
    """
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, numbers.Integral):
        return str(int(value))
    if isinstance(value, numbers.Real):
        value = float(value)
        if math.isnan(value):
            return "–"
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        return f"{round(value, digits) + 0.0:.{digits}f}"
    if value is None or value is pd.NA or value is pd.NaT:
        return "–"
    return str(value)


def show_table(
    frame: pd.DataFrame, caption: str | None = None, digits: int = 4, mark: dict[int, str] | None = None
) -> Shown:
    """A compact table of `frame`, every number rounded to `digits` decimals.

    Numbers stand to the right, words to the left; an index that only counts 0, 1, 2 ... is left out.
    `mark={0: "positive"}` sets row 0 in bold and writes the word beside it, so that colour never speaks
    alone. Raises TypeError for anything else than a DataFrame, ValueError for a mark beyond the table.

    >>> show_table(pd.DataFrame({"candidate": ["a", "b"], "probability": [2 / 3, 1 / 3]}), "Two candidates")
    Two candidates
    candidate probability
            a      0.6667
            b      0.3333
    """
    if not isinstance(frame, pd.DataFrame):
        raise TypeError(
            f"frame is a {type(frame).__name__}; expected a DataFrame: wrap it in pd.DataFrame(...)."
        )
    mark = mark or {}
    beyond = [row for row in mark if not 0 <= row < len(frame)]
    if beyond:
        raise ValueError(f"mark names the rows {beyond}, but the table has the rows 0 to {len(frame) - 1}.")
    words, right = _words(frame, digits)
    if mark:
        marks = [f"◀ {mark[row]}" if row in mark else "" for row in range(len(words))]
        words.insert(words.shape[1], "", marks, allow_duplicates=True)
        right.append(False)
    text = words.to_string(index=False)
    return Shown(_html(words, right, caption, mark), f"{caption}\n{text}" if caption else text)


def _words(frame, digits):
    """The frame with every cell as text, and for each column whether it stands to the right."""
    if not _only_counts(frame.index):
        frame = frame.reset_index(names=[name or "" for name in frame.index.names])
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    right = [
        pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column) for column in columns
    ]
    words = pd.DataFrame(
        [[cell_text(value, digits) for value in row] for row in zip(*columns, strict=True)],
        columns=[str(name) for name in frame.columns],
    )
    return words, right


def _only_counts(index):
    return index.name is None and index.nlevels == 1 and list(index) == list(range(len(index)))


def _html(words, right, caption, mark):
    sides = ["right" if is_right else "left" for is_right in right]

    def cell(tag, text, side, style):
        wrap = "nowrap" if len(text) <= ONE_LINE else "normal"
        style = f"{CELL} white-space: {wrap}; text-align: {side}; {style}"
        return f'<{tag} style="{style}">{html.escape(text)}</{tag}>'

    def row(tag, texts, style):
        cells = (cell(tag, text, side, style) for text, side in zip(texts, sides, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    head = row("th", words.columns, RULE)
    body = "\n".join(
        row("td", texts, MARKED if place in mark else "")
        for place, texts in enumerate(words.itertuples(index=False, name=None))
    )
    title = (
        (
            f'<caption style="caption-side: top; text-align: left; font-weight: bold; color: inherit; '
            f'padding: 0.2em 0.8em;">{html.escape(caption)}</caption>\n'
        )
        if caption
        else ""
    )
    return (
        f'<table style="border-collapse: collapse; color: inherit; font-variant-numeric: tabular-nums; '
        f'margin: 0.5em 0;">\n{title}<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>'
    )
