"""An experiment's protocol and results as one file under data/records, small enough to read.

A record says what was done so exactly that somebody can do it again, and holds every single result: means and
intervals are computed from it, never typed.
"""

import json
import platform
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from course_utils.environment import ROOT, replace_file
from course_utils.runtime import device_name, version

FOLDER = ROOT / "data" / "records"

# What a protocol has to say. "machines" has one row, more where a run was resumed elsewhere; "runs" has a row
# for each training run, with what differs between them.
PROTOCOL = ("data", "policy", "method", "networks", "budget", "readout", "machines", "runs")
MACHINE = ("versions", "device", "threads")
RUN = ("seed", "seconds", "weights")


class RecordError(ValueError):
    """A record that is missing, damaged or incomplete; the message names it and says what is wrong."""


@dataclass(frozen=True)
class Record:
    """One experiment: its name, the question it answers, how it was done, and every single result.

    name: lower-case letters, digits and underscores, the file's name. question: one sentence. protocol: what
    PROTOCOL lists, plain JSON values. results: one row a measurement, all with the same columns.
    Raises RecordError that names what is missing or cannot be written as JSON.
    """

    name: str
    question: str
    protocol: dict
    results: list[dict]

    def __post_init__(self):
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            raise RecordError(f"name is {self.name!r}; expected lower-case letters, digits and underscores.")
        problems = list(_problems(self))
        if problems:
            raise RecordError(f"record {self.name!r}: {'; '.join(problems)}.")

    @property
    def table(self) -> pd.DataFrame:
        """The results as a DataFrame, one row a measurement."""
        return pd.DataFrame(self.results)


def save(record, folder=None) -> Path:
    """Write a record whole or not at all as <name>.json in data/records, or in `folder`; returns the path."""
    folder = folder or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.name}.json"
    replace_file(path, json.dumps(asdict(record), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def load(name, folder=None) -> Record:
    """Read a record and check that nothing is missing. Raises RecordError that names the file."""
    folder = folder or FOLDER
    path = folder / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Record(**content)
    except FileNotFoundError:
        there = ", ".join(names(folder)) or "none"
        raise RecordError(f"there is no record {path}; there are: {there}.") from None
    except (ValueError, TypeError) as error:
        raise RecordError(f"{path} is not a whole record ({error}); restore it with git.") from error


def names(folder=None) -> list[str]:
    """The names of all records that are there, in alphabetical order."""
    return sorted(path.stem for path in (folder or FOLDER).glob("*.json"))


def merge(protocols, varied=()) -> dict:
    """The protocols of finished runs as one: what all share once, what differs by design under "runs".

    protocols: those of training.Run, one a run. varied: the entries that the experiment varies, such as
    "method": each run has its own, and the shared entry lists all that there are. Raises RecordError where
    one did not finish, or where two disagree in anything but these, seed, seconds and weights: they do not
    belong in one record.
    """
    unfinished = [protocol["seed"] for protocol in protocols if not protocol["finished"]]
    if unfinished:
        raise RecordError(f"the runs with seeds {unfinished} did not finish; let them, then record.")
    own = (*varied, *RUN, "start", "finished")
    shared = [{key: value for key, value in protocol.items() if key not in own} for protocol in protocols]
    different = {
        key for other in shared for key in other.keys() | shared[0] if other.get(key) != shared[0].get(key)
    }
    if different:
        raise RecordError(f"the runs differ in {', '.join(sorted(different))}; record them apart.")
    runs = [{key: protocol[key] for key in (*varied, *RUN)} for protocol in protocols]
    return {**shared[0], **{key: _different(run[key] for run in runs) for key in varied}, "runs": runs}


def _different(values):
    """The values in their order, each once; some are dicts, which no set takes."""
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def machine(device) -> dict:
    """What a run was computed with: versions, device and threads."""
    device = torch.device(device)
    return {
        "versions": {
            "python": platform.python_version(),
            **{n: version(n) for n in ("torch", "scikit-learn")},
        },
        "device": f"{device.type} ({device_name(device)})",
        "threads": torch.get_num_threads(),
    }


def _problems(record):
    for field in PROTOCOL:
        if record.protocol.get(field) in (None, "", [], {}):
            yield f"its protocol lacks {field}"
    for kind, fields in (("machines", MACHINE), ("runs", RUN)):
        for row in record.protocol.get(kind) or []:
            if missing := [field for field in fields if field not in row]:
                yield f"{row} of its {kind} lacks {', '.join(missing)}"
    if not record.question.endswith("?"):
        yield "its question is not one"
    if not record.results:
        yield "it has no results"
    elif any(row.keys() != record.results[0].keys() for row in record.results):
        yield "its results do not all have the same columns"
    try:
        content = json.dumps(asdict(record), allow_nan=False)
        if json.loads(content) != asdict(record):
            yield "it would be read differently than it was written (text keys, lists instead of tuples)"
    except (TypeError, ValueError) as error:
        yield f"it cannot be written as JSON ({error})"
