"""The losses on a GPU: first every correctness case for real, then time and memory beside the usual forms.

    python tests/benchmarks/bench_gpu.py --out data/benchmarks/gpu.json

writes the record and, beside it, the same as a Markdown table. Takes under five minutes. --dry walks through
everything at toy sizes on a CPU, with the Triton interpreter. --sweep times tile shapes instead.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "unit" / "kernels")]
if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"

import against_float64 as compare  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402

from course_utils import kernels  # noqa: E402

WIDTH, TEMPERATURE = 128, 0.1
STARTED = time.monotonic()


def say(*words):
    print(f"[{time.monotonic() - STARTED:5.0f} s]", *words, flush=True)


# --- correctness --------------------------------------------------------------------------------------------


def check_group(dtype, width, device):
    """All losses, sizes and temperatures of one dtype and width: [(case, relative errors, those beyond)]."""
    results = []
    for loss in compare.LOSSES:
        for rows in compare.ROWS if device == "cuda" else compare.ROWS[:3]:
            for temperature in compare.TEMPERATURES:
                inputs = compare.inputs(loss, rows, width, dtype, device)
                errors = compare.relative_errors(loss, inputs, temperature, implementation="triton")
                case = f"{loss} M={rows} D={width} tau={temperature} {name(dtype)}"
                results.append((case, errors, compare.too_large(errors, dtype)))
    return results


def check_determinism(device):
    """The same input twice gives the same bits."""
    for loss in compare.LOSSES:
        inputs = compare.inputs(loss, 1000 if device == "cuda" else 130, 64, torch.float32, device)
        once, again = (
            compare.value_and_gradients(loss, inputs, 0.1, implementation="triton") for _ in range(2)
        )
        assert torch.equal(once[0], again[0]), loss
        assert all(torch.equal(a, b) for a, b in zip(once[1], again[1], strict=True)), loss


def check_all(device):
    """Groups run side by side in fresh processes, because most of their time is compiling kernels."""
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    groups = [(dtype, width) for dtype in dtypes for width in (*compare.WIDTHS, 512)]
    if device == "cpu":
        groups = groups[:1]
    failures, worst = [], {}
    workers = min(len(groups), max(1, (os.cpu_count() or 2) - 2), 12)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        jobs = [(dtype, width, pool.submit(check_group, dtype, width, device)) for dtype, width in groups]
        for dtype, width, job in jobs:
            results = job.result()
            worst_here = max(max(errors) for _, errors, _ in results)
            worst[name(dtype)] = max(worst.get(name(dtype), 0), worst_here)
            bad = [(case, errors) for case, errors, beyond in results if beyond]
            failures += bad
            say(f"{name(dtype)} D={width}: {len(results)} cases, worst {worst_here:.0e}, {len(bad)} failed")
            for case, errors in bad[:3]:
                say("   ", case, [f"{e:.1e}" for e in errors])
    check_determinism(device)
    say("the same input twice gives the same bits")
    return {"worst relative error": worst, "failed": [case for case, _ in failures]}


# --- the forms that are compared ----------------------------------------------------------------------------


def rows_of(x):
    """Unit rows in the dtype that came, as a network under autocast would hand them to the tensor cores."""
    return F.normalize(x.float(), dim=1).to(x.dtype)


def plain_nt_xent(a, b):
    z = torch.cat([rows_of(a), rows_of(b)])
    logits = (z @ z.T).float() / TEMPERATURE
    logits = logits.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(a)))


def in_place_nt_xent(a, b):
    z = torch.cat([rows_of(a), rows_of(b)])
    logits = (z / TEMPERATURE) @ z.T
    logits.fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(a)))


def plain_clip(a, b):
    logits = (rows_of(a) @ rows_of(b).T).float() / TEMPERATURE
    labels = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def plain_info_nce(query, positive, queue):
    q, k, queue = rows_of(query), rows_of(positive), rows_of(queue)
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1).float() / TEMPERATURE
    return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))


def ours(loss, implementation):
    setting = 1 / TEMPERATURE if loss == "clip_loss" else TEMPERATURE
    return lambda *inputs: getattr(kernels, loss)(*inputs, setting, implementation=implementation)


PLAIN = {"nt_xent": plain_nt_xent, "clip_loss": plain_clip, "info_nce": plain_info_nce}


def contenders(loss, with_compile):
    forms = {
        "triton": ours(loss, "triton"),
        "blocked": ours(loss, "blocked"),
        "matmul + cross_entropy": PLAIN[loss],
        "reference": ours(loss, "reference"),
    }
    if loss == "nt_xent":
        forms["in-place matmul + cross_entropy"] = in_place_nt_xent
        if with_compile:
            torch._dynamo.reset()
            forms["torch.compile of in-place"] = torch.compile(in_place_nt_xent, dynamic=False)
    elif with_compile:
        torch._dynamo.reset()
        forms["torch.compile of matmul + cross_entropy"] = torch.compile(PLAIN[loss], dynamic=False)
    return forms


# --- measuring ----------------------------------------------------------------------------------------------


def step(form, leaves, constants):
    for x in leaves:
        x.grad = None
    form(*leaves, *constants).backward()


def measure(form, leaves, constants, device):
    """Milliseconds of a forward and backward pass (median), and MiB beyond what was there before."""
    step(form, leaves, constants)
    if device == "cpu":
        begin = time.perf_counter()
        step(form, leaves, constants)
        return 1e3 * (time.perf_counter() - begin), float("nan")
    for x in leaves:
        x.grad = None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(form, leaves, constants)
    torch.cuda.synchronize()
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = triton.testing.do_bench(
        lambda: step(form, leaves, constants), warmup=20, rep=120, return_mode="median"
    )
    return times, memory


def problem(loss, n, keys, dtype, device):
    generator = torch.Generator(device).manual_seed(0)

    def draw(count):
        return torch.randn(count, WIDTH, generator=generator, device=device).to(dtype)

    if loss == "info_nce":
        return [draw(n).requires_grad_()], [draw(n), draw(keys)]
    return [draw(n).requires_grad_(), draw(n).requires_grad_()], []


def cases(device):
    """(loss, N, keys, dtype, float32 precision, with torch.compile), the most wanted first."""
    if device == "cpu":
        yield from [
            ("nt_xent", 40, 0, torch.float32, "highest", False),
            ("clip_loss", 40, 0, torch.bfloat16, "highest", False),
        ]
        yield ("info_nce", 8, 100, torch.float32, "highest", False)
        return
    precisions = [(torch.float32, "highest"), (torch.bfloat16, "highest"), (torch.float32, "high")]
    for n in (4096, 256, 1024, 16384, 32768):
        for dtype, precision in precisions:
            yield "nt_xent", n, 0, dtype, precision, n == 4096
    for n in (4096, 16384):
        for dtype, precision in precisions:
            yield "clip_loss", n, 0, dtype, precision, False
    for n in (256, 4096):
        for dtype, precision in precisions:
            yield "info_nce", n, 65536, dtype, precision, False


def measure_all(device, budget):
    rows = []
    for loss, n, keys, dtype, precision, with_compile in cases(device):
        torch.set_float32_matmul_precision(precision)
        leaves, constants = problem(loss, n, keys, dtype, device)
        for form_name, form in contenders(loss, with_compile).items():
            if time.monotonic() - STARTED > budget:
                say("time is up: the remaining cases were not run")
                return rows
            row = {
                "loss": loss,
                "N": n,
                "K": keys or None,
                "dtype": name(dtype),
                "precision": precision,
                "form": form_name,
            }
            try:
                row["ms"], row["MiB"] = measure(form, leaves, constants, device)
                say(
                    f"{loss} N={n} {name(dtype)} {precision} {form_name}: "
                    f"{row['ms']:.3f} ms, {row['MiB']:.0f} MiB"
                )
            except torch.cuda.OutOfMemoryError:
                row["failed"] = "out of memory"
                say(f"{loss} N={n} {name(dtype)} {precision} {form_name}: out of memory")
            rows.append(row)
        del leaves, constants
    torch.set_float32_matmul_precision("highest")
    return rows


def ceilings(device):
    """What this card does at best: TFLOP/s of a large product, TB/s of a large copy."""
    if device == "cpu":
        return {}
    found = {}
    for dtype, precision in [
        (torch.float32, "highest"),
        (torch.float32, "high"),
        (torch.bfloat16, "highest"),
    ]:
        torch.set_float32_matmul_precision(precision)
        a, b = (torch.randn(8192, 8192, device=device).to(dtype) for _ in range(2))
        ms = triton.testing.do_bench(lambda a=a, b=b: a @ b, warmup=20, rep=100, return_mode="median")
        found[f"TFLOP/s {name(dtype)} {precision}"] = 2 * 8192**3 / ms / 1e9
    torch.set_float32_matmul_precision("highest")
    x = torch.empty(2**29, device=device)
    y = torch.empty_like(x)
    found["copy TB/s"] = (
        2 * x.nbytes / triton.testing.do_bench(lambda: y.copy_(x), return_mode="median") / 1e9
    )
    return found


# --- tile shapes --------------------------------------------------------------------------------------------


def sweep(device):
    from course_utils.kernels import triton_kernels

    chosen = triton_kernels.tile_shape
    results = []
    for dtype, precision in [
        (torch.float32, "highest"),
        (torch.bfloat16, "highest"),
        (torch.float32, "high"),
    ]:
        torch.set_float32_matmul_precision(precision)
        leaves, constants = problem("nt_xent", 8192 if device == "cuda" else 40, 0, dtype, device)
        half = dtype != torch.float32
        for rows, columns, chunk, warps, stages in [
            (64, 64, 32, 8, 2), (64, 64, 32, 4, 2), (64, 32, 32, 4, 2), (128, 64, 32, 8, 2),
            (128, 64, 16, 8, 3), (128, 32, 32, 8, 2), (128, 128, 16, 8, 2), (64, 128, 32, 8, 2),
            (64, 64, 64, 4, 2), (128, 64, 128, 8, 2), (128, 64, 128, 4, 3), (128, 64, 128, 8, 3),
            (128, 128, 128, 8, 3), (64, 128, 128, 4, 3), (64, 64, 128, 4, 3),
        ]:  # fmt: skip
            if (half and chunk < 64) or (precision == "highest" and not half and chunk > 64):
                continue
            shape = {
                "BLOCK_M": rows,
                "BLOCK_N": columns,
                "CHUNK": chunk,
                "num_warps": warps,
                "num_stages": stages,
            }
            triton_kernels.tile_shape = lambda x, shape=shape: {**chosen(x), **shape}
            try:
                ms, _ = measure(ours("nt_xent", "triton"), leaves, constants, device)
                triton_forward = forward_time(leaves, device)
            except Exception as error:  # a shape may not fit on a card: that is what a sweep is for
                say(name(dtype), precision, shape, type(error).__name__)
                continue
            say(name(dtype), precision, shape, f"{ms:.3f} ms, of it forward {triton_forward:.3f} ms")
            results.append(
                {
                    "dtype": name(dtype),
                    "precision": precision,
                    **shape,
                    "ms": ms,
                    "forward_ms": triton_forward,
                }
            )
    triton_kernels.tile_shape = chosen
    torch.set_float32_matmul_precision("highest")
    return results


def forward_time(leaves, device):
    form = ours("nt_xent", "triton")
    if device == "cpu":
        return float("nan")
    with torch.no_grad():
        return triton.testing.do_bench(lambda: form(*leaves), warmup=20, rep=60, return_mode="median")


# --- the record ---------------------------------------------------------------------------------------------


def name(dtype):
    return str(dtype).removeprefix("torch.")


def machine(device):
    card = torch.cuda.get_device_name() if device == "cuda" else "no GPU was measured (dry run on a CPU)"
    return {
        "card": card,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
        "D": WIDTH,
        "temperature": TEMPERATURE,
    }


def as_markdown(record):
    facts = record["machine"]
    lines = [
        f"# Losses on a GPU: {facts['card']}",
        "",
        f"torch {facts['torch']}, triton {facts['triton']}, CUDA {facts['cuda']}, {facts['date']}. "
        f"Forward and backward, D = {WIDTH}, temperature {TEMPERATURE}; median ms, and peak MiB beyond "
        "the inputs.",
        "",
        "| loss | N | K | dtype | float32 products | form | ms | MiB | triton is faster by |",
        "|---|---:|---:|---|---|---|---:|---:|---:|",
    ]
    fastest = {key(row): row["ms"] for row in record["times"] if row["form"] == "triton" and "ms" in row}
    for row in record["times"]:
        numbers = [row.get("failed"), "", ""]
        if "ms" in row:
            ratio = f"{row['ms'] / fastest[key(row)]:.2f}x" if key(row) in fastest else ""
            numbers = [f"{row['ms']:.3f}", f"{row['MiB']:.0f}", ratio]
        cells = [row["loss"], row["N"], row["K"] or "", row["dtype"], row["precision"], row["form"], *numbers]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def key(row):
    return row["loss"], row["N"], row["K"], row["dtype"], row["precision"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "benchmarks" / "gpu.json")
    parser.add_argument("--seconds", type=float, default=270, help="start no further case after this long")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--skip-checks", action="store_true")
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        sys.exit("No GPU here, so nothing was measured. --dry walks through the script on a CPU.")
    device = "cpu" if options.dry else "cuda"
    record = {"machine": machine(device)}
    say(record["machine"])
    if not options.skip_checks:
        record["correctness"] = check_all(device)
    record["ceilings"] = ceilings(device)
    say(record["ceilings"])
    record["times"] = measure_all(device, options.seconds) if not options.sweep else []
    record["sweep"] = sweep(device) if options.sweep else []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(as_markdown(record))
    print(as_markdown(record), flush=True)
    failed = record.get("correctness", {}).get("failed", [])
    say(f"written to {options.out}; {len(failed)} correctness cases failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
