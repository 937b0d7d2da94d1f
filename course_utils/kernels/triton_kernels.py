"""The losses on a GPU, in two Triton kernels. A program owns a block of rows and nobody else writes there.

* log_sum_kernel walks a block of rows along the columns. Of each tile of similarities it keeps two numbers
  a row, the largest logit so far and the sum of exponentials relative to it: S never leaves the chip. For
  captions and pictures it leaves the same two numbers a column behind, so one walk serves both directions.
* gradient_kernel walks the same way once more, turns each tile into its weights W_ij = g_i p_ij + g_j p_ji,
  and adds W @ columns to its rows' gradient. Programs never add to each other's rows, so there are no
  atomics and the same input gives the same bits.

One computation of S is a unit. NT-Xent and the gradient of MoCo's queries take 3: S for the loss, S once more
and W @ columns for the gradient. Where rows and columns both want a gradient, as in CLIP, each walks for
itself: 5 units, where atomics would take 4 and autograd on the stored matrix 3.

Where few rows meet many columns, the columns are split between programs and the parts added at the end.

Logits are in units of log2, because a GPU has exp2 in hardware. The lengths of the rows and log2(e) /
temperature are multiplied in after the dot product, so float16 and bfloat16 rows enter the tensor cores as
they came, unrounded. float32 follows torch.set_float32_matmul_precision or torch's newer fp32_precision; the
default is full float32.
"""

import math
import os

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch.autograd import Function

from course_utils.kernels.blocked import FLOAT32_SCALE, SURE, refuse_double_backward, scale_gradient, unit

LOWEST = tl.constexpr(-1e30)  # below every logit, and unlike -inf it can be subtracted from itself
PRECISION = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # on a CPU, step by step, with the same code
LN2 = math.log(2)


@triton.jit
def load_rows(x_ptr, rows, R, d, D):
    inside = (rows[:, None] < R) & (d[None, :] < D)
    return tl.load(x_ptr + rows[:, None].to(tl.int64) * D + d[None, :], mask=inside, other=0.0)


@triton.jit
def logits_of(
    x_ptr, y_ptr, x_factor, y_factor, rows, cols, R, C, D, period,
    PAIRED: tl.constexpr, BLOCK_D: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of logits, -inf where there is no negative.

    The rows of x come anew from the cache for every tile. Where one chunk is the whole width, as in half
    precision on large cards, the compiler takes their load out of the loop over tiles.
    """
    s = tl.zeros((rows.shape[0], cols.shape[0]), tl.float32)
    for start in range(0, BLOCK_D, CHUNK):
        d = start + tl.arange(0, CHUNK)
        x = load_rows(x_ptr, rows, R, d, D)
        y = load_rows(y_ptr, cols, C, d, D)
        s = tl.dot(x, tl.trans(y), s, input_precision=PRECISION)
    negative = (rows < R)[:, None] & (cols < C)[None, :]
    if PAIRED:  # a row, and its partner `period` rows further on
        negative &= (rows % period)[:, None] != (cols % period)[None, :]
    return tl.where(negative, s * x_factor[:, None] * y_factor[None, :], float("-inf"))


@triton.jit(do_not_specialize=["R", "C", "scale", "period", "span"])
def log_sum_kernel(
    x_ptr, y_ptr, x_factor_ptr, y_factor_ptr, top_ptr, sum_ptr, column_top_ptr, column_sum_ptr,
    R, C, D, scale, period, span,
    PAIRED: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, part = tl.program_id(0), tl.program_id(1)
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    x_factor = tl.load(x_factor_ptr + rows, mask=rows < R, other=0.0) * scale
    top = tl.full((BLOCK_M,), LOWEST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in range(part * span, tl.minimum(part * span + span, C), BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        y_factor = tl.load(y_factor_ptr + cols, mask=cols < C, other=0.0)
        logits = logits_of(
            x_ptr, y_ptr, x_factor, y_factor, rows, cols, R, C, D, period, PAIRED, BLOCK_D, CHUNK, PRECISION
        )
        new_top = tl.maximum(top, tl.max(logits, 1))
        total = total * tl.exp2(top - new_top) + tl.sum(tl.exp2(logits - new_top[:, None]), 1)
        top = new_top
        if COLUMNS:
            column_top = tl.maximum(tl.max(logits, 0), LOWEST)
            column_sum = tl.sum(tl.exp2(logits - column_top[None, :]), 0)
            tl.store(column_top_ptr + block * C + cols, column_top, mask=cols < C)
            tl.store(column_sum_ptr + block * C + cols, column_sum, mask=cols < C)
    tl.store(top_ptr + part * R + rows, top, mask=rows < R)
    tl.store(sum_ptr + part * R + rows, total, mask=rows < R)


@triton.jit(do_not_specialize=["R", "C", "scale", "period", "span"])
def gradient_kernel(
    x_ptr, y_ptr, x_factor_ptr, y_factor_ptr, x_grad_ptr, x_log_ptr, y_grad_ptr, y_log_ptr, out_ptr,
    R, C, D, scale, period, span,
    PAIRED: tl.constexpr, BOUNDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr, CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, part = tl.program_id(0), tl.program_id(1)
    rows, d = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    x_factor = tl.load(x_factor_ptr + rows, mask=rows < R, other=0.0) * scale
    x_grad = tl.load(x_grad_ptr + rows, mask=rows < R, other=0.0)
    x_log = tl.load(x_log_ptr + rows, mask=rows < R, other=0.0)
    out = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(part * span, tl.minimum(part * span + span, C), BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        y_factor = tl.load(y_factor_ptr + cols, mask=cols < C, other=0.0)
        y_grad = tl.load(y_grad_ptr + cols, mask=cols < C, other=0.0)
        y_log = tl.load(y_log_ptr + cols, mask=cols < C, other=0.0)
        logits = logits_of(
            x_ptr, y_ptr, x_factor, y_factor, rows, cols, R, C, D, period, PAIRED, BLOCK_D, CHUNK, PRECISION
        )
        if BOUNDED:  # one exponential serves both rows and columns
            weights = (x_grad * tl.exp2(-x_log))[:, None] + (y_grad * tl.exp2(-y_log))[None, :]
            weights *= tl.exp2(logits)
        else:
            weights = x_grad[:, None] * tl.exp2(logits - x_log[:, None])
            weights += y_grad[None, :] * tl.exp2(logits - y_log[None, :])
        y = load_rows(y_ptr, cols, C, d, D)
        out = tl.dot((weights * y_factor[None, :]).to(y.dtype), y, out, input_precision=PRECISION)
    at = (part * R + rows).to(tl.int64)
    tl.store(out_ptr + at[:, None] * D + d[None, :], out, mask=(rows < R)[:, None] & (d < D)[None, :])


def within(view_a, view_b, scale):
    """[N, D] twice, row k of both a pair -> [2N] losses: each row looks for its partner among the others."""
    a, b = unit(*view_a), unit(*view_b)
    log_sum = _LogSums.apply(torch.cat([a, b]), None, scale, (view_a[0], view_b[0]), len(a))
    return minus_log_p(a, b, log_sum.view(2, -1), scale).flatten()


def between(rows, columns, scale):
    """[N, D] twice, row k of both a pair -> [2, N] losses: rows look for columns, columns look for rows."""
    x, y = unit(*rows), unit(*columns)
    log_sums = _LogSums.apply(x, y, scale, (rows[0], columns[0]), len(x))
    return minus_log_p(x, y, torch.stack(log_sums), scale)


def against(queries, positives, keys, scale):
    """[B, D], [B, D], [K, D] -> [B] losses: each query looks for its positive among that one and the keys."""
    q, p = unit(*queries), unit(*positives)
    log_sum = _LogSums.apply(q, unit(*keys), scale, (queries[0], keys[0]), None)
    return minus_log_p(q, p, log_sum, scale)


def minus_log_p(rows, partners, log_sum, scale):
    """log(1 + exp(gap)): a loss near zero keeps its digits, and so does its gradient."""
    positive = scale * (rows * partners).sum(dim=1)
    return F.softplus(log_sum - positive, threshold=SURE).to(rows.dtype)


class _LogSums(Function):
    """Rows against columns; `period` rows from one of a pair to the other, None where there are no pairs."""

    @staticmethod
    def forward(ctx, rows, columns, scale, raw, period):
        dtype = torch.promote_types(*(r.dtype for r in raw))
        if columns is None:
            x, x_factor = y, y_factor = operand(rows, raw, dtype)
        else:
            x, x_factor = operand(rows, raw[:1], dtype)
            y, y_factor = operand(columns, raw[1:], dtype)
        both_ways = columns is not None and period is not None
        row_log, column_log = log_sums(x, x_factor, y, y_factor, float(scale), period, both_ways)
        ctx.save_for_backward(rows, columns, x, y, x_factor, y_factor, row_log, column_log)
        ctx.scale, ctx.period = scale, period
        return (row_log * LN2, column_log * LN2) if both_ways else row_log * LN2

    @staticmethod
    def backward(ctx, row_grad, column_grad=None):
        refuse_double_backward()
        rows, columns, x, y, x_factor, y_factor, row_log, column_log = ctx.saved_tensors
        of_rows = (x, x_factor, row_grad, row_log)
        if columns is None:
            of_columns = of_rows
        elif column_grad is None:  # keys ask for nothing themselves
            of_columns = (y, y_factor, *no_weight(y))
        else:
            of_columns = (y, y_factor, column_grad, column_log)
        for_rows = for_columns = for_scale = None
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[2]:
            for_rows = gradient(*of_rows, *of_columns, float(ctx.scale), ctx.period)
            for_scale = scale_gradient(ctx.scale, rows, for_rows, ways=2 if columns is None else 1)
        if ctx.needs_input_grad[1]:
            for_columns = gradient(*of_columns, *of_rows, float(ctx.scale), ctx.period)
        return for_rows, for_columns, for_scale, None, None


def operand(unit, raw, dtype):
    """Rows for the tensor cores, and the factor that makes each of them a unit row.

    float16 and bfloat16 rows are only shifted by a power of two, which rounds nothing.
    """
    if dtype not in (torch.float16, torch.bfloat16):
        return unit.contiguous(), unit.new_ones(len(unit))
    raw = torch.cat(raw).float()
    length = torch.linalg.vector_norm(raw, dim=1)
    power = length.log2().floor().exp2()
    rows = raw / power[:, None]
    # The interpreter multiplies bfloat16 wrongly; as float32 the values are the same.
    return rows.to(dtype) if tensor_cores(rows.device) else rows, power / length


def log_sums(x, x_factor, y, y_factor, scale, period, both_ways):
    """log2 of the sums of exponentials, float64: [R] of the rows and, with both_ways, [C] of the columns."""
    blocks = tile_shape(x)
    row_blocks, parts, span = grid(x, y, blocks)
    top, total = (x_factor.new_empty(parts, len(x)) for _ in range(2))
    column_top, column_sum = (x_factor.new_empty(row_blocks if both_ways else 0, len(y)) for _ in range(2))
    with torch.cuda.device_of(x):
        log_sum_kernel[(row_blocks, parts)](
            x, y, x_factor, y_factor, top, total, column_top, column_sum,
            len(x), len(y), x.shape[1], scale / LN2, period or 1, span,
            PAIRED=period is not None, COLUMNS=both_ways, **blocks,
        )  # fmt: skip
    return joined(top, total), joined(column_top, column_sum) if both_ways else None


def joined(top, total):
    """[P, R] partial results, sums relative to 2^top -> [R] log2 of their whole."""
    highest = top.amax(dim=0)
    return highest.double() + (total.double() * (top - highest).double().exp2()).sum(dim=0).log2()


def gradient(x, x_factor, x_grad, x_log, y, y_factor, y_grad, y_log, scale, period):
    """[R, D] float32: over the columns, the sum of (x_grad_i p_ij + y_grad_j p_ji) * scale * unit y_j."""
    blocks = tile_shape(x)
    row_blocks, parts, span = grid(x, y, blocks)
    out = x_factor.new_empty(parts, *x.shape)
    # Weights of 1/M would vanish in float16: the largest is set to 1 here and put back below.
    peak = torch.maximum(x_grad.abs().max(), y_grad.abs().max()).clamp_min(1e-300)
    vectors = [*weight_and_log(x_grad / peak, x_log), *weight_and_log(y_grad / peak, y_log)]
    with torch.cuda.device_of(x):
        gradient_kernel[(row_blocks, parts)](
            x, y, x_factor, y_factor, *vectors, out,
            len(x), len(y), x.shape[1], scale / LN2, period or 1, span,
            PAIRED=period is not None, BOUNDED=scale <= FLOAT32_SCALE, **blocks,
        )  # fmt: skip
    return out.sum(dim=0) * (peak * scale).float()


def weight_and_log(grad, log):
    """grad * 2^-log in float32 without loss: the whole part of log stays, its fraction joins grad."""
    return (grad * (log.round() - log).exp2()).float(), log.round().float()


def no_weight(y):
    """A gradient of 0 on a boundless log-sum: columns that take no part as rows."""
    zero = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    return zero, zero + 1e30


def tile_shape(x):
    """Tile shape and launch options for rows of this width and dtype."""
    width = max(16, triton.next_power_of_2(x.shape[1]))
    if x.dtype == torch.float32:  # a tile of columns is at most 32 KiB, because a T4 shares 64 KiB in all
        rows, columns, chunk, warps, stages = (64 if width <= 256 else 32), min(64, 2**13 // width), 32, 8, 2
    elif large_shared_memory(x.device):
        rows, columns, chunk, warps, stages = (128 if width <= 128 else 64), 64, 128, 8, 3
        columns = columns if width <= 256 else 32
    else:
        rows, columns, chunk, warps, stages = (64 if width <= 256 else 32), 32, 64, 4, 1
    return {
        "BLOCK_M": rows,
        "BLOCK_N": columns,
        "BLOCK_D": width,
        "CHUNK": min(chunk, width),
        "PRECISION": float32_precision(),
        "num_warps": warps,
        "num_stages": stages,
    }


def float32_precision():
    """How the products of float32 rows are computed, in tl.dot's words."""
    try:
        return PRECISION[torch.get_float32_matmul_precision()]
    except RuntimeError:  # it was set to "tf32" as torch.backends.cuda.matmul.fp32_precision
        return "tf32"


def tensor_cores(device):
    """Whether tl.dot has tensor cores to use: Triton knows those from A100 on, and none before (T4, V100)."""
    return not INTERPRETED and torch.cuda.get_device_capability(device) >= (8, 0)


def large_shared_memory(device):
    """A100, H100, B200 and their kin; a desktop card has less than half of theirs."""
    return torch.cuda.get_device_capability(device) in {(8, 0), (9, 0), (10, 0)}


def grid(x, y, blocks):
    """(row blocks, parts of the columns, columns in a part): about two programs a multiprocessor or more."""
    processors = 4 if INTERPRETED else torch.cuda.get_device_properties(x.device).multi_processor_count
    row_blocks = triton.cdiv(len(x), blocks["BLOCK_M"])
    steps = triton.cdiv(len(y), blocks["BLOCK_N"])
    parts = max(1, min(2 * processors // row_blocks, steps))
    steps_a_part = triton.cdiv(steps, parts)
    return row_blocks, triton.cdiv(steps, steps_a_part), steps_a_part * blocks["BLOCK_N"]
