"""Every record as the same table: what was read out of what, with which seed, and beside which controls.

Records keep the columns that their own question needs. Here they come together on one page, so that a record
more needs no line more.

>>> from course_utils import records
>>> page = compared(readings(records.load("simclr_cifar_quick")))
>>> page.query("readout == 'linear'")[["run", "seeds", "against random"]].values.tolist()
[['random encoder', 3, ''], ['h', 3, 'above'], ['z', 3, 'above'], ['raw pixels', 1, '']]
"""

import re

import pandas as pd
from pandas.api.types import is_numeric_dtype

from course_utils.readout import interval

RANDOM = "random encoder"
CONTROLS = (RANDOM, "raw pixels", "supervised", "told shape and hue", "luminance of the shape", "labels")
READOUTS = ("linear", "knn")
LABELS = ("factor", "label", "judged", "asked", "pairs")  # columns that say what was asked
WAYS = ("readout", "measure", "reading")  # columns that say how
VALUES = ("accuracy", "value", "right")
SETTINGS = ("temperature", "momentum")  # numbers that runs differ by
APART = ("calibration error", "scale")  # judged, and no accuracy


def readings(record) -> pd.DataFrame:
    """The accuracies of a record, one row each: record, run, label, readout, seed, value, control.

    run: what differs between the record's runs and features, in words. label: what was asked. control: which
    of `CONTROLS` the row is, or "". A record with linear and nearest-neighbour readouts gives these alone:
    losses, cosines and the like stay behind. Any other record gives all of its accuracies but those of single
    pairs of colour and shape.
    """
    table = record.table
    value = next(column for column in VALUES if column in table)
    way = next((column for column in WAYS if column in table), None)
    if way == "measure" and table[way].str.fullmatch(r"\w+, (linear|knn)").any():  # "shape, linear"
        parts = table[way].str.extract(r"(?P<factor>\w+), (?P<measure>linear|knn)")
        table = table.assign(**parts)
    if way and table[way].isin(READOUTS).any():
        table = table[table[way].isin(READOUTS)]
    elif way:
        table = table[~table[way].str.startswith("each pair")]
        table = table[~table["judged"].isin(APART)] if "judged" in table else table
    only = "linear" if "logistic" in record.protocol["readout"] else "its own answer"
    described = [
        column
        for column in table
        if (column in SETTINGS or not is_numeric_dtype(table[column]))
        and column not in (way, "seed", *LABELS)
        and table[column].nunique(dropna=False) > 1
    ]
    rows = [
        {
            "record": record.name,
            **in_words(row, described),
            "label": asked(row, record),
            "readout": row[way] if way else only,
            "seed": row["seed"],
            "value": row[value],
        }
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows)


def in_words(row, described):
    """What a row's run and features are, and which control, if one."""
    cells = {column: row[column] for column in described if not pd.isna(row[column])}
    control = next((name for name in CONTROLS if any(is_control(cell, name) for cell in cells.values())), "")
    missing = [c for c in SETTINGS if c in row and pd.isna(row[c])]
    if missing and not control:
        control = RANDOM  # a run without the setting that is varied was not trained
    if control:
        cells = {
            c: cell for c, cell in cells.items() if c in ("input", "pictures") or is_control(cell, control)
        }
    words = [
        f"{column} {cell:g}" if isinstance(cell, float) else str(cell)
        for column, cell in cells.items()
        if cell != "none"
    ]
    return {"run": ", ".join(words) or control, "control": control}


def is_control(cell, name):
    """Whether a cell names a control, perhaps of a kind: "random encoder, no batch statistics"."""
    return isinstance(cell, str) and (cell == name or cell.startswith(f"{name}, "))


def asked(row, record):
    """The label that was read out: in the row, or once for the record."""
    found = [str(row[column]) for column in LABELS if column in row and not pd.isna(row[column])]
    if found:
        return ", ".join(found)
    once = re.search(r"the label is the (\w+)", record.protocol["readout"])
    return once[1] if once else "class"


def compared(rows) -> pd.DataFrame:
    """Mean and 95 % interval over the seeds of every run, and how it stands to the random encoder.

    rows: of `readings`, of one record or several. Returns a row for each record, run, label and readout: with
    them seeds, mean, low, high (NaN for one seed), difference (mean difference from the random encoder with
    the same seeds, NaN without one) and "against random": above or below if the interval of that difference
    is, "not told apart" else, "" for the random encoder itself and for one seed.
    """
    found = []
    for keys, part in rows.groupby(["record", "run", "label", "readout"], sort=False):
        record, run, label, readout = keys
        beside = own_control(
            run,
            rows[
                (rows["record"] == record)
                & (rows["control"] == RANDOM)
                & (rows["label"] == label)
                & (rows["readout"] == readout)
            ],
        )
        mean, low, high = spread_of(part["value"])
        row = dict(zip(["record", "run", "label", "readout"], keys, strict=True))
        row |= {
            "control": part["control"].iloc[0],
            "seeds": len(part),
            "mean": mean,
            "low": low,
            "high": high,
        }
        found.append(row | against(part, beside))
    return pd.DataFrame(found)


def own_control(run, random):
    """The rows of the random encoder that is of the run's kind: of its input, its layers, its pictures.

    Of several kinds the one of which the run's name has the most words.
    """
    fitting = [kind for kind in random["run"].unique() if kind_of(kind) <= set(run.split(", "))]
    return random[random["run"] == max(fitting, key=lambda kind: len(kind_of(kind)), default=None)]


def kind_of(control):
    """What a control's name says beside what it is."""
    return set(control.split(", ")) - {RANDOM}


def spread_of(values):
    if len(values) < 2:
        return values.mean(), float("nan"), float("nan")
    return interval(values)[:3]


def against(part, random):
    """The difference from the random encoder, seed by seed."""
    own = part.set_index("seed")["value"]
    control = random.set_index("seed")["value"]
    difference = (own - control).dropna() if own.index.is_unique and control.index.is_unique else own[:0]
    if part["control"].iloc[0] == RANDOM or len(difference) < 2:
        return {"difference": difference.mean(), "against random": ""}
    _, low, high, _ = interval(difference)
    word = "above" if low > 0 else "below" if high < 0 else "not told apart"
    return {"difference": difference.mean(), "against random": word}


def loss_and_readout(record) -> pd.DataFrame:
    """For each seed of a sweep: the run with the lowest final loss, and its place by linear readout of h.

    Columns: record, seed, lowest loss, its place (1 is best), runs, best readout. Empty for a record without
    both. The losses need not be comparable: this is about those who compare them all the same.
    """
    table = record.table
    if "measure" not in table or not {"loss", "linear"} <= set(table["measure"]):
        return pd.DataFrame()
    varied = next(column for column in ("temperature", "momentum", "arm") if column in table)
    table = table[table[varied].notna() & ~table[varied].isin(CONTROLS)]
    last = next((column for column in ("progress", "at") if column in table), None)
    losses = table[table["measure"] == "loss"]
    if last:
        losses = losses[losses[last] == losses[last].max()]
    linear = table[table["measure"] == "linear"]
    if "features" in table:
        linear = linear[linear["features"] == "h"]
    rows = []
    for seed in sorted(linear["seed"].unique()):
        loss = losses[losses["seed"] == seed].set_index(varied)["value"]
        accuracy = linear[linear["seed"] == seed].set_index(varied)["value"]
        lowest = loss.idxmin()
        rows.append(
            {
                "record": record.name,
                "seed": int(seed),
                "lowest loss": named(varied, lowest),
                "its place": int((accuracy > accuracy[lowest]).sum()) + 1,
                "runs": len(accuracy),
                "best readout": named(varied, accuracy.idxmax()),
            }
        )
    return pd.DataFrame(rows)


def named(column, value):
    return f"{column} {value:g}" if isinstance(value, float) else value
