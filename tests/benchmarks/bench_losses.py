"""The losses on a CPU beside their peers: time of forward and backward, peak memory, share of the floor.

    python tests/benchmarks/bench_losses.py

All forms of a case take turns, each round in another order, so that a busy moment or a greedy neighbour hits
all of them; the median counts. A turn is two steps, and the second is the one that counts: the first finds
the caches as another form left them, of code as well as of numbers, so it depends on the company. It is
written down too. Memory is the peak beyond the inputs in a fresh process. At the end a few forms take turns
once more, with freed memory kept as the course's training keeps it. Says of each goal whether it was reached,
by both steps of a turn; writes all of it to data/benchmarks/losses.json, and as tables to losses.md. Peers
that are not installed are named as such; the extra "bench" in pyproject.toml lists them.
"""

import argparse
import ctypes
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

# Settled when torch is imported. Waiting threads spin if nobody says otherwise; the notebooks let them sleep.
WAITING = "asleep" if "--asleep" in sys.argv else "spinning"
os.environ.pop("OMP_WAIT_POLICY", None)
if WAITING == "asleep":
    os.environ["OMP_WAIT_POLICY"] = "passive"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from course_utils import kernels  # noqa: E402
from course_utils.kernels import blocked  # noqa: E402
from course_utils.runtime import device_name, keep_memory  # noqa: E402

THREADS, WIDTH, TEMPERATURE = 2, 128, 0.1
PEERS = ["lightly", "pytorch-metric-learning", "info-nce-pytorch", "open_clip_torch"]


# --- the forms ----------------------------------------------------------------------------------------------


def partners(n):
    return torch.arange(2 * n).roll(n)


def in_place_nt_xent(a, b):
    """The honest baseline: temperature folded into one operand, self-pairs overwritten in place."""
    z = F.normalize(torch.cat([a, b]), dim=1)
    logits = (z / TEMPERATURE) @ z.T
    logits.fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, partners(len(a)))


def plain_nt_xent(a, b):
    z = F.normalize(torch.cat([a, b]), dim=1)
    logits = z @ z.T / TEMPERATURE
    logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(logits, partners(len(a)))


def index_select_nt_xent(a, b):
    """The form of many tutorials: boolean masks pick positives and negatives, labels are all zero."""
    z = F.normalize(torch.cat([a, b]), dim=1)
    labels = torch.arange(len(a)).repeat(2)
    same = labels[:, None] == labels
    similarity = z @ z.T
    others = ~torch.eye(len(z), dtype=torch.bool)
    same, similarity = same[others].view(len(z), -1), similarity[others].view(len(z), -1)
    positive, negative = similarity[same].view(len(z), -1), similarity[~same].view(len(z), -1)
    logits = torch.cat([positive, negative], dim=1) / TEMPERATURE
    return F.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long))


def plain_info_nce(query, positive, queue):
    """As in MoCo: the queue holds unit rows, and nobody looks whether it does."""
    q, k = F.normalize(query, dim=1), F.normalize(positive, dim=1)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / TEMPERATURE
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def in_place_clip(image, text):
    logits = (F.normalize(image, dim=1) / TEMPERATURE) @ F.normalize(text, dim=1).T
    labels = torch.arange(len(image))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def lightly_nt_xent():
    from lightly.loss import NTXentLoss

    return NTXentLoss(temperature=TEMPERATURE)


def metric_learning_nt_xent():
    from pytorch_metric_learning.losses import NTXentLoss

    loss = NTXentLoss(temperature=TEMPERATURE)
    return lambda a, b: loss(torch.cat([a, b]), torch.arange(len(a)).repeat(2))


def package_info_nce():
    from info_nce import InfoNCE

    return InfoNCE(temperature=TEMPERATURE, negative_mode="unpaired")


def open_clip_loss():
    from open_clip.loss import ClipLoss

    loss = ClipLoss()
    return lambda a, b: loss(F.normalize(a, dim=1), F.normalize(b, dim=1), torch.tensor(1 / TEMPERATURE))


def ours(loss, implementation):
    setting = 1 / TEMPERATURE if loss == "clip_loss" else TEMPERATURE
    return lambda *inputs: getattr(kernels, loss)(*inputs, setting, implementation=implementation)


# loss -> {name of the form: function that makes it}; the first is ours, the second what it is compared with.
FORMS = {
    "nt_xent": {
        "blocked": lambda: ours("nt_xent", "blocked"),
        "in-place matmul + cross_entropy": lambda: in_place_nt_xent,
        "plain matmul + cross_entropy": lambda: plain_nt_xent,
        "torch.compile of in-place": lambda: torch.compile(in_place_nt_xent, dynamic=False),
        "torch.compile of plain": lambda: torch.compile(plain_nt_xent, dynamic=False),
        "index-select form": lambda: index_select_nt_xent,
        "reference": lambda: ours("nt_xent", "reference"),
        "lightly": lightly_nt_xent,
        "pytorch-metric-learning": metric_learning_nt_xent,
    },
    "clip_loss": {
        "blocked": lambda: ours("clip_loss", "blocked"),
        "open_clip ClipLoss": open_clip_loss,
        "in-place matmul + 2 cross_entropy": lambda: in_place_clip,
        "reference": lambda: ours("clip_loss", "reference"),
    },
    "info_nce": {
        "blocked": lambda: ours("info_nce", "blocked"),
        "straightforward cat + cross_entropy": lambda: plain_info_nce,
        "info-nce-pytorch": package_info_nce,
        "reference": lambda: ours("info_nce", "reference"),
    },
}
# (loss, N, K, repeats, steps in a turn). At N = 4096 a step takes so long that what the caches held before it
# is nothing to it: one is enough.
CASES = [
    ("nt_xent", 64, None, 41, 2),
    ("nt_xent", 256, None, 41, 2),
    ("nt_xent", 1024, None, 21, 2),
    ("nt_xent", 4096, None, 11, 1),
    ("clip_loss", 256, None, 41, 2),
    ("clip_loss", 1024, None, 21, 2),
    ("clip_loss", 4096, None, 11, 1),
    ("info_nce", 256, 65536, 11, 2),
]
# The forms that are too slow or too large to take part.
LEFT_OUT = {("pytorch-metric-learning", n) for n in (256, 1024, 4096)}
MEMORY_ONLY = [("nt_xent", 16384, None)]
# What was asked of blocked before it was written: (loss, N, peer, times as fast as the peer).
SPEED_GOALS = [
    ("nt_xent", 256, "in-place matmul + cross_entropy", 1.2),
    ("nt_xent", 1024, "in-place matmul + cross_entropy", 1.8),
    ("nt_xent", 4096, "in-place matmul + cross_entropy", 3.6),
    ("nt_xent", 256, "lightly", 2.5),
    ("nt_xent", 1024, "lightly", 3.2),
    ("nt_xent", 4096, "lightly", 9.5),
    ("clip_loss", 4096, "open_clip ClipLoss", 3.0),
    ("info_nce", 256, "straightforward cat + cross_entropy", 4.0),
]
# Those that are timed again with memory kept.
KEPT_CASES = [case for case in CASES if case[1] >= 256]
KEPT_FORMS = ["blocked", *sorted({peer for _, _, peer, _ in SPEED_GOALS})]
FLOOR_GOAL, MIB_AT_16384 = 0.8, 200  # at N = 4096


def inputs(loss, n, k):
    """(leaves with gradients, constants): MoCo's keys carry none."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, WIDTH, generator=generator) for _ in range(2))
    if loss == "info_nce":
        return [a.requires_grad_()], [b, F.normalize(torch.randn(k, WIDTH, generator=generator), dim=1)]
    return [a.requires_grad_(), b.requires_grad_()], []


def step(form, leaves, constants):
    for x in leaves:
        x.grad = None
    loss = form(*leaves, *constants)
    loss.backward()
    return loss.item()


# --- time ---------------------------------------------------------------------------------------------------


def make_forms(loss, n, names):
    """({name: form}, {name: why it does not take part})."""
    forms, absent = {}, {}
    for name in names:
        if (name, n) in LEFT_OUT:
            absent[name] = "left out: holds every pair of pairs, seconds and gigabytes from N = 256 on"
            continue
        try:
            forms[name] = FORMS[loss][name]()
        except ImportError:
            absent[name] = "not installed"
    return forms, absent


def time_case(loss, n, k, repeats, steps, names=None):
    """A row for each form, or for those among `names`."""
    names = [name for name in FORMS[loss] if names is None or name in names]
    leaves, constants = inputs(loss, n, k)
    forms, absent = make_forms(loss, n, names)
    values = {}
    for name in list(forms):
        try:
            step(forms[name], leaves, constants)
            values[name] = step(forms[name], leaves, constants)
        except Exception as error:  # a peer's failure is a result, and the others still want their turn
            absent[name] = f"failed: {type(error).__name__}"
            del forms[name]
    turns = {name: partial(step, form, leaves, constants) for name, form in forms.items()}
    floor = Floor(2 * n)
    turns["floor"] = floor.step
    first, last = take_turns(turns, repeats, steps)
    rows = []
    compared_with = list(FORMS[loss])[1]
    for name in names:
        row = {"loss": loss, "N": n, "K": k, "form": name}
        if name in forms:
            row |= {"ms": 1e3 * last[name], "value": values[name], "repeats": repeats}
            row["blocked is faster by"] = last[name] / last["blocked"]
            row["compared with"] = compared_with
            if steps > 1:
                row["ms, first step"] = 1e3 * first[name]
                row["blocked is faster by, first step"] = first[name] / first["blocked"]
        else:
            row["absent"] = absent[name]
        rows.append(row)
        print(describe(row), flush=True)
    if loss == "nt_xent":
        rows[0]["share of the floor"] = last["floor"] * floor.steps / last["blocked"]
        print(f"    share of the floor: {rows[0]['share of the floor']:.0%}", flush=True)
    return rows


def take_turns(turns, repeats, steps):
    """({name: median seconds of a turn's first step}, {name: of its last})."""
    times, order = {name: [] for name in turns}, random.Random(0)
    for _ in range(repeats):
        for name in order.sample(list(turns), len(turns)):
            turn = []
            for _ in range(steps):
                begin = time.perf_counter()
                turns[name]()
                turn.append(time.perf_counter() - begin)
            times[name].append(turn)
    return [
        {name: statistics.median(turn[place] for turn in times[name]) for name in turns} for place in (0, -1)
    ]


class Floor:
    """The time of NT-Xent's arithmetic alone: one unit of S, one of W @ Z, an exponential a similarity.

    A step does this for twenty tiles in one place: what a warm cache gives. It takes its turns as the forms
    do, because the machine's speed drifts: so both sides of the quotient have met the same moments.
    """

    TILES = 20

    def __init__(self, m):
        edge = min(m // 2, blocked.TILE)
        self.steps = (m / edge) ** 2 / self.TILES  # that many make up the whole loss
        self.rows = F.normalize(torch.randn(edge, WIDTH), dim=1)
        self.tile, self.sums = torch.empty(edge, edge), torch.empty(edge, WIDTH)

    def step(self):
        for _ in range(self.TILES):
            self.tile.addmm_(self.rows, self.rows.T, beta=0).exp2_()
            self.sums.addmm_(self.tile, self.rows, beta=0)


# --- memory -------------------------------------------------------------------------------------------------


def peak_memory(loss, n, k, name):
    """MiB that one forward and backward pass needs beyond its inputs, in a fresh process."""
    command = [sys.executable, __file__, "--memory", loss, str(n), str(k or 0), name]
    done = subprocess.run(command, capture_output=True, text=True)
    return float(done.stdout) if done.returncode == 0 else None


def print_peak_memory(loss, n, k, name):
    form = FORMS[loss][name]()
    # What the libraries load and set aside on first use, MKL for its products above all, is not the loss's.
    step(form, *inputs(loss, 8, 16))
    z = torch.rand(512, WIDTH)
    (z @ z.T @ z).sum()
    del z
    ctypes.CDLL(None).malloc_trim(0)
    leaves, constants = inputs(loss, n, k)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = status("VmRSS")
    step(form, leaves, constants)
    print((status("VmHWM") - before) / 1024)


def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def memory_allowed(n):
    """At most 5 M D numbers plus two tiles, in MiB."""
    return (5 * 2 * n * WIDTH + 2 * blocked.TILE**2) * 4 / 2**20


# --- the record ---------------------------------------------------------------------------------------------


def machine():
    versions = {"torch": torch.__version__}
    for peer in PEERS:
        try:
            versions[peer] = importlib.metadata.version(peer)
        except importlib.metadata.PackageNotFoundError:
            versions[peer] = "not installed"
    return {
        "processor": device_name(torch.device("cpu")),
        "threads": THREADS,
        "waiting threads": WAITING,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "D": WIDTH,
        "temperature": TEMPERATURE,
        "tile": blocked.TILE,
        "versions": versions,
    }


def goals(rows):
    """[{goal, asked, measured, reached}]; what was not measured is None and not reached."""
    found = {(row["loss"], row["N"], row["form"]): row for row in rows}
    listed = []

    def goal(text, loss, n, form, column, sign, asked):
        row = found.get((loss, n, form), {})
        measured, first = row.get(column), row.get(f"{column}, first step")
        counted = [value for value in (measured, first) if value is not None]
        reached = bool(counted) and all(
            value >= asked if sign == ">=" else value <= asked for value in counted
        )
        one = {"goal": f"{loss}, N = {n}: {text}", "asked": f"{sign} {asked:g}", "measured": measured}
        listed.append(one | {"reached": reached, "first step": first})

    for loss, n, peer, asked in SPEED_GOALS:
        goal(f"times as fast as {peer}", loss, n, peer, "blocked is faster by", ">=", asked)
    for n in sorted({n for loss, n, *_ in CASES if loss == "nt_xent"}):
        within = "MiB, within 5 M D numbers and two tiles"
        goal(within, "nt_xent", n, "blocked", "MiB", "<=", round(memory_allowed(n), 2))
    goal("MiB", "nt_xent", 16384, "blocked", "MiB", "<=", MIB_AT_16384)
    goal("share of the floor", "nt_xent", 4096, "blocked", "share of the floor", ">=", FLOOR_GOAL)
    return listed


def describe(row):
    if "ms" not in row:
        return f"{row['loss']} N={row['N']} {row['form']}: {row['absent']}"
    faster = row["blocked is faster by"]
    return f"{row['loss']} N={row['N']} {row['form']}: {row['ms']:.2f} ms, {faster:.2f}x blocked"


def as_markdown(record):
    facts = record["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    lines = [
        "# Losses on a CPU",
        "",
        f"{facts['processor']}, {facts['threads']} threads, {facts['waiting threads']} while they wait, "
        f"{facts['date']}; {versions}. "
        f"Forward and backward in float32, D = {WIDTH}, temperature {TEMPERATURE}: median milliseconds of "
        "repeats, and peak MiB beyond the inputs in a fresh process. The forms take turns, each round in "
        "another order. A turn is two steps (at N = 4096 one): ms and what follows from it is the second, "
        "which finds the caches as the form itself left them; the first finds them as another form did.",
        "",
        "| loss | N | K | form | ms | blocked is faster by | ms, first step | MiB |",
        "|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        ms, faster = row.get("absent", ""), ""
        if "ms" in row:
            ms, faster = f"{row['ms']:.2f}", f"{row['blocked is faster by']:.2f}x"
        first = f"{row['ms, first step']:.2f}" if "ms, first step" in row else ""
        memory = "" if row.get("MiB") is None else f"{row['MiB']:.1f}"
        cells = [row["loss"], row["N"], row["K"] or "", row["form"], ms, faster, first, memory]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    for row in record["rows"]:
        if "share of the floor" in row:
            share = f"{row['share of the floor']:.0%}"
            lines += ["", f"N = {row['N']}: the arithmetic alone takes {share} of the time of blocked."]
    lines += [
        "",
        "With freed memory kept (`course_utils.runtime.keep_memory`, as in `train`), which spares all forms "
        "the page faults of fresh memory:",
        "",
        "| loss | N | K | form | ms | blocked is faster by |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for row in record["rows with memory kept"]:
        if "ms" in row:
            cells = [row["loss"], row["N"], row["K"] or "", row["form"], f"{row['ms']:.2f}"]
            cells.append(f"{row['blocked is faster by']:.2f}x")
            lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    lines += [
        "",
        "The goals are for torch as it comes, without `keep_memory`; a goal is reached in both steps or not.",
    ]
    lines += ["", "| goal | asked | measured | | in first steps |", "|---|---:|---:|---|---:|"]
    for goal in record["goals"]:
        verdict = "reached" if goal["reached"] else "not reached"
        measured = "not measured" if goal["measured"] is None else f"{goal['measured']:.2f}"
        first = "" if goal["first step"] is None else f"{goal['first step']:.2f}"
        lines.append(f"| {goal['goal']} | {goal['asked']} | {measured} | {verdict} | {first} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "benchmarks" / "losses.json")
    parser.add_argument(
        "--quick", action="store_true", help="three repeats of the small cases, to see it run"
    )
    parser.add_argument(
        "--asleep",
        action="store_true",
        help="threads sleep while they wait, as in the notebooks; by default they spin, as torch has it",
    )
    parser.add_argument("--memory", nargs=4, metavar=("LOSS", "N", "K", "FORM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.memory:
        loss, n, k, form = options.memory
        print_peak_memory(loss, int(n), int(k), form)
        return
    record = {"machine": machine(), "rows": []}
    print(json.dumps(record["machine"], indent=1), flush=True)
    for loss, n, k, repeats, steps in CASES:
        if options.quick and n > 256:
            continue
        record["rows"] += time_case(loss, n, k, 3 if options.quick else repeats, steps)
    for loss, n, k in [] if options.quick else MEMORY_ONLY:
        record["rows"].append({"loss": loss, "N": n, "K": k, "form": "blocked"})
    for row in record["rows"]:
        if "absent" not in row:
            row["MiB"] = peak_memory(row["loss"], row["N"], row["K"], row["form"])
            row["MiB allowed"] = memory_allowed(row["N"]) if row["form"] == "blocked" else None
            print(f"{row['loss']} N={row['N']} {row['form']}: {row['MiB']} MiB", flush=True)
    keep_memory()  # from here on in this process; the forms above were timed without
    record["rows with memory kept"] = []
    for loss, n, k, repeats, steps in KEPT_CASES:
        if options.quick and n > 256:
            continue
        repeats = 3 if options.quick else repeats
        record["rows with memory kept"] += time_case(loss, n, k, repeats, steps, KEPT_FORMS)
    record["goals"] = goals(record["rows"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(as_markdown(record))
    print("\n" + as_markdown(record))


if __name__ == "__main__":
    main()
