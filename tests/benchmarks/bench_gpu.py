"""The Triton kernels on this machine's GPU: their unit tests, training with them, each loss beside its peers.

    python tests/benchmarks/bench_gpu.py

The forms of a loss are those of bench_losses.py, and triton. In half precision they run under autocast, with
features as a head gives them there. All forms of a case take turns, each round in another order; a turn is as
many steps as fill 20 ms, and the median counts. Memory is the peak beyond the inputs. What fails is a result
too: its row says how. data/benchmarks/gpu.json, and gpu.md with the same as tables, are written anew after
every stage, so a run that is cut short leaves what it had. --quick walks through all of it at toy sizes, on a
CPU with Triton's interpreter; it writes only where --out says.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import bench_losses  # noqa: E402
import machine  # noqa: E402
from bench_losses import FORMS, TEMPERATURE, WIDTH  # noqa: E402

from course_utils.images.pictures import Pictures  # noqa: E402
from course_utils.networks import ProjectionHead, resnet18  # noqa: E402
from course_utils.training import Budget, SimCLR, train  # noqa: E402

HALF = torch.bfloat16
# (loss, N, K), the most wanted first.
CASES = [
    ("nt_xent", 4096, None),
    ("clip_loss", 4096, None),
    ("info_nce", 256, 65536),
    ("nt_xent", 256, None),
    ("nt_xent", 1024, None),
    ("info_nce", 4096, 65536),
    ("clip_loss", 16384, None),
    ("nt_xent", 16384, None),
    ("nt_xent", 32768, None),
]
PRECISIONS = [(torch.float32, "highest"), (HALF, "highest"), (torch.float32, "high")]
COMPILED_AT = 4096  # the one N where torch.compile takes part: it needs a quarter of a minute each time
REPEATS, TURN = 11, 0.02  # seconds
PICTURES, EPOCHS, GOAL = 50_000, 3, 3.0  # GOAL: seconds an epoch, on an H200
# What train is given, and how many pictures in a batch.
EXACT, FUSED, COMPILED = {}, {"fused": True}, {"fused": True, "compiled": True}
TRAININGS = [(batch, how) for batch in (512, 1024) for how in (EXACT, FUSED, COMPILED)]
QUICK_CASES = [("nt_xent", 20, None), ("clip_loss", 20, None), ("info_nce", 8, 100)]


# --- tests --------------------------------------------------------------------------------------------------


def run_tests(quick):
    """pytest's last line on the kernels' unit tests, and whether all passed."""
    command = [sys.executable, "-m", "pytest", "tests/unit/kernels", *(["-k", "same_bits"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="", flush=True)
    lines = (done.stderr + done.stdout).strip().splitlines()
    return {"result": lines[-1].strip("= ") if lines else "no output", "passed": done.returncode == 0}


# --- training -----------------------------------------------------------------------------------------------


def time_training(count, batch, epochs, how):
    """Seconds an epoch, two views of each of `count` random pictures; the first epoch is not counted."""
    pictures = Pictures(torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8), source="random pictures")
    ends = []
    train(
        lambda: SimCLR(resnet18(), ProjectionHead("mlp", 512)),
        pictures,
        Budget(epochs, batch),
        device=DEVICE,
        watch=lambda method: ends.append(time.perf_counter()),
        progress=False,
        **how,
    )
    return (ends[-1] - ends[count // batch - 1]) / (epochs - 1)


def training_row(count, batch, epochs, how):
    row = {"pictures": count, "batch": batch, "views": "fused" if "fused" in how else "exact"}
    row["encoder"] = "compiled" if "compiled" in how else "as it is"
    try:
        row["seconds an epoch"] = time_training(count, batch, epochs, how)
    except Exception as error:
        row["failed"] = in_short(error)
    return row


# --- losses -------------------------------------------------------------------------------------------------


def inputs(loss, n, k, dtype):
    """(leaves with gradients, constants): MoCo's keys carry none."""
    torch.manual_seed(0)
    a, b = (torch.randn(n, WIDTH).to(dtype) for _ in range(2))
    if loss == "info_nce":
        return [a.requires_grad_()], [b, F.normalize(torch.randn(k, WIDTH), dim=1).to(dtype)]
    return [a.requires_grad_(), b.requires_grad_()], []


def turn(form, leaves, constants, steps=1):
    """Forward and backward, so many times; comes back when the device has done them."""
    for _ in range(steps):
        for x in leaves:
            x.grad = None
        form(*leaves, *constants).backward()
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def first_look(form, leaves, constants):
    """(MiB that a step needs beyond what was there, None on a CPU; steps that fill a turn)."""
    turn(form, leaves, constants)  # compiles what is to be compiled
    memory = None
    if DEVICE == "cuda":
        for x in leaves:
            x.grad = None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        turn(form, leaves, constants)
        memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    began = time.perf_counter()
    turn(form, leaves, constants)
    return memory, min(50, math.ceil(TURN / (time.perf_counter() - began)))


def time_case(loss, n, k, dtype, repeats):
    """{form: what was found}."""
    torch.compiler.reset()
    leaves, constants = inputs(loss, n, k, dtype)
    names = [name for name in FORMS[loss] if n == COMPILED_AT or "compile" not in name]
    forms, absent = bench_losses.make_forms(loss, n, names)
    forms = {"triton": bench_losses.ours(loss, "triton"), **forms}
    found = {name: {"failed": why} for name, why in absent.items()}
    turns, steps = {}, {}
    for name, form in forms.items():
        try:
            memory, steps[name] = first_look(form, leaves, constants)
            found[name] = {"MiB": memory}
            turns[name] = partial(turn, form, leaves, constants, steps[name])
        except Exception as error:  # a form's failure is a result, and the others still want their turn
            found[name] = {"failed": in_short(error)}
    medians, _ = bench_losses.take_turns(turns, repeats, steps=1)
    for name, seconds in medians.items():
        found[name]["ms"] = 1e3 * seconds / steps[name]
        if "triton" in medians:
            found[name]["triton is faster by"] = found[name]["ms"] / found["triton"]["ms"]
    return {name: found[name] for name in ["triton", *names]}


def loss_rows(loss, n, k, dtype, precision, repeats):
    """A row for each form."""
    torch.set_float32_matmul_precision(precision)
    case = {"loss": loss, "N": n, "K": k, "dtype": str(dtype).removeprefix("torch."), "precision": precision}
    try:
        with torch.device(DEVICE), torch.autocast(DEVICE, HALF, enabled=dtype == HALF):
            found = time_case(loss, n, k, dtype, repeats)
    except Exception as error:
        found = {"all forms": {"failed": in_short(error)}}
    torch.set_float32_matmul_precision("highest")
    return [{**case, "form": form, **row} for form, row in found.items()]


def in_short(error):
    """An error's name and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:120]


# --- the record ---------------------------------------------------------------------------------------------


def facts():
    card = torch.cuda.get_device_name() if DEVICE == "cuda" else "none, in Triton's interpreter"
    peers = machine.facts("torch", "triton", *bench_losses.PEERS)
    return {"card": card, "cuda": torch.version.cuda or "none", **peers}


def as_markdown(record):
    tests, card = record.get("tests"), record["machine"]["card"]
    lines = [
        f"# Losses on a GPU: {card}",
        "",
        f"{machine.in_words(record['machine'])} CUDA {record['machine']['cuda']}.",
        "",
        f"The kernels' unit tests on this device: {tests['result'] if tests else 'not run'}.",
    ]
    if record["training"]:
        lines += [
            "",
            "SimCLR with the ResNet-18 for 32 x 32 pixels: seconds an epoch, two views of each picture. "
            f"Wanted for {PICTURES:,} pictures on an H200: at most {GOAL:g}.",
            "",
            "| pictures | batch | views | encoder | seconds an epoch |",
            "|---:|---:|---|---|---:|",
        ]
    for row in record["training"]:
        seconds = row.get("failed") or f"{row['seconds an epoch']:.2f}"
        lines.append(
            f"| {row['pictures']:,} | {row['batch']} | {row['views']} | {row['encoder']} | {seconds} |"
        )
    if record["losses"]:
        lines += [
            "",
            f"Forward and backward, D = {WIDTH}, temperature {TEMPERATURE}: median ms of the forms' turns, "
            "and peak MiB beyond the inputs. bfloat16: under autocast.",
            "",
            "| loss | N | K | dtype | float32 products | form | ms | MiB | triton is faster by |",
            "|---|---:|---:|---|---|---|---:|---:|---:|",
        ]
    for row in record["losses"]:
        cells = [row["loss"], row["N"], row["K"] or "", row["dtype"], row["precision"], row["form"]]
        cells.append(row.get("failed") or f"{row['ms']:.3f}")
        cells.append("" if row.get("MiB") is None else f"{row['MiB']:.0f}")
        cells.append(f"{row['triton is faster by']:.2f}x" if "triton is faster by" in row else "")
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def write(record, out):
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")
        out.with_suffix(".md").write_text(as_markdown(record))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="by default data/benchmarks/gpu.json")
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see it run")
    options = parser.parse_args()
    if DEVICE == "cpu" and not options.quick:
        sys.exit("No GPU here, so nothing was measured. --quick walks through the script on a CPU.")
    out = options.out or (None if options.quick else ROOT / "data" / "benchmarks" / "gpu.json")
    cases, precisions, repeats = (
        (QUICK_CASES, PRECISIONS[:2], 3) if options.quick else (CASES, PRECISIONS, REPEATS)
    )
    trainings, count, epochs = (
        ([(4, EXACT), (4, FUSED)], 8, 2) if options.quick else (TRAININGS, PICTURES, EPOCHS)
    )

    record = {"machine": facts(), "training": [], "losses": []}
    print(json.dumps(record["machine"], indent=1), flush=True)
    record["tests"] = run_tests(options.quick)
    write(record, out)
    for batch, how in trainings:
        record["training"].append(training_row(count, batch, epochs, how))
        print(record["training"][-1], flush=True)
        write(record, out)
    for loss, n, k in cases:
        for dtype, precision in precisions:
            rows = loss_rows(loss, n, k, dtype, precision, repeats)
            print(*rows, sep="\n", flush=True)
            record["losses"] += rows
            write(record, out)
    print("\n" + as_markdown(record))
    sys.exit(0 if record["tests"]["passed"] else 1)


if __name__ == "__main__":
    main()
