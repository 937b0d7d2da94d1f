"""The Triton kernels against float64: on a GPU where there is one, else in Triton's interpreter."""

from itertools import product

import against_float64 as compare
import pytest
import torch
from against_float64 import DEVICE, LOSSES, ROWS, TEMPERATURES, WIDTHS, features

pytest.importorskip("triton", reason="triton is not installed")
from course_utils.kernels import triton_kernels

# Rows and widths, ragged in every direction: a few for the interpreter, all of them on a GPU.
SIZES = [(4, 2), (6, 64), (130, 200), (66, 128), (282, 33), (34, 512)]
if DEVICE == "cuda":
    SIZES += product(ROWS, (*WIDTHS, 512))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("loss", LOSSES)
def test_value_and_gradient(loss, temperature, dtype):
    for rows, width in SIZES if dtype == torch.float32 or DEVICE == "cuda" else SIZES[:4]:
        inputs = compare.inputs(loss, rows, width, dtype)
        errors = compare.relative_errors(loss, inputs, temperature, implementation="triton")
        assert not compare.too_large(errors, dtype), (rows, width, errors)


def test_few_queries_against_many_keys_are_split():
    """The columns go to several programs; their parts are put together again."""
    x, y = features(5, 16, 1, torch.float32), features(2000, 16, 2, torch.float32)
    assert triton_kernels.grid(x, y, triton_kernels.tile_shape(x))[1] > 1
    inputs = (x, features(5, 16, 3, torch.float32), y)
    for temperature in (0.01, 0.5):
        errors = compare.relative_errors("info_nce", inputs, temperature, implementation="triton")
        assert not compare.too_large(errors, torch.float32), errors


def test_mixed_dtypes_meet_in_float32():
    a, b = features(20, 8, 1, torch.bfloat16), features(20, 8, 2, torch.float32)
    for loss in ("nt_xent", "clip_loss"):
        errors = compare.relative_errors(loss, (a, b), 0.07, implementation="triton")
        assert (
            errors[0] < 1e-5 and errors[2] < 1e-5 and errors[1] < 5e-3
        )  # a's gradient is rounded to bfloat16


def test_rows_of_any_length_enter_half_precision_exactly():
    unit = torch.nn.functional.normalize(features(50, 24, 1, torch.float32), dim=1)
    for dtype in (torch.float16, torch.bfloat16):
        raw = (unit * torch.logspace(-2, 3, 50, device=DEVICE)[:, None]).to(dtype)
        rows, factor = triton_kernels.operand(unit, [raw], dtype)
        power = rows.double().norm(dim=1) / raw.double().norm(dim=1)
        torch.testing.assert_close(rows.double(), raw.double() * power[:, None], rtol=1e-12, atol=0)
        length = rows.double().norm(dim=1)
        assert ((length >= 1) & (length < 2)).all()
        torch.testing.assert_close(factor.double() * length, torch.ones_like(length), rtol=1e-6, atol=0)


def poisoned(x):
    """x at the start of memory that goes on with NaN."""
    buffer = torch.full((x.numel() + 4096,), torch.nan, device=x.device)
    buffer[: x.numel()] = x.flatten()
    return buffer[: x.numel()].view(x.shape)


@pytest.mark.parametrize(
    "rows, columns, width, period", [(66, 66, 5, 33), (70, 70, 20, 70), (5, 131, 3, None)]
)
def test_what_lies_behind_the_rows_is_never_read(rows, columns, width, period):
    x = torch.nn.functional.normalize(features(rows, width, 1, torch.float32), dim=1)
    y = torch.nn.functional.normalize(features(columns, width, 2, torch.float32), dim=1)
    results = []
    for wrap in (lambda v: v, poisoned):
        one = torch.ones(rows, device=DEVICE), torch.ones(columns, device=DEVICE)
        sides = [(wrap(v), wrap(f)) for v, f in zip((x, y), one, strict=True)]
        row_log, column_log = triton_kernels.log_sums(*sides[0], *sides[1], 10.0, period, period is not None)
        column_log = triton_kernels.no_weight(y)[1] if column_log is None else column_log
        gradient = triton_kernels.gradient(
            *sides[0],
            one[0].double(),
            row_log,
            *sides[1],
            one[1].double() * (period is not None),
            column_log,
            10.0,
            period,
        )
        assert row_log.isfinite().all() and gradient.isfinite().all()
        results.append((row_log, column_log, gradient))
    assert all(torch.equal(clean, dirty) for clean, dirty in zip(*results, strict=True))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_same_input_gives_the_same_bits(loss):
    inputs = compare.inputs(loss, 130, 16, torch.float32)
    once, again = (compare.value_and_gradients(loss, inputs, 0.1, implementation="triton") for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert all(torch.equal(a, b) for a, b in zip(once[1], again[1], strict=True))


def test_float32_products_follow_torch_in_its_older_words():
    try:
        for word, expected in [("high", "tf32x3"), ("medium", "tf32"), ("highest", "ieee")]:
            torch.set_float32_matmul_precision(word)
            assert triton_kernels.float32_precision() == expected
    finally:
        torch.set_float32_matmul_precision("highest")


def test_float32_products_follow_torch_in_its_newer_words():
    matmul = torch.backends.cuda.matmul
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip(f"torch {torch.__version__} has no fp32_precision yet")
    inputs = compare.inputs("nt_xent", 130, 16, torch.float32)
    try:
        matmul.fp32_precision = "tf32"  # torch.get_float32_matmul_precision() now raises
        assert triton_kernels.float32_precision() == "tf32"
        value, _ = compare.value_and_gradients("nt_xent", inputs, 0.5, implementation="triton")
        exact, _ = compare.value_and_gradients("nt_xent", inputs, 0.5, implementation="reference")
        assert value.item() == pytest.approx(exact.item(), rel=1e-3)
        matmul.fp32_precision = "ieee"
        assert triton_kernels.float32_precision() == "ieee"
    finally:
        torch.set_float32_matmul_precision("highest")
