"""The Triton kernels against float64: on a GPU where there is one, else in Triton's interpreter."""

import against_float64 as compare
import pytest
import torch
from against_float64 import LOSSES, features

pytest.importorskip("triton", reason="triton is not installed")
from course_utils.kernels import triton_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = [(4, 2), (6, 64), (130, 200), (282, 33), (66, 512)]  # rows, width: ragged in every direction


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_value_and_gradient(loss, temperature, dtype):
    for rows, width in SIZES if dtype == torch.float32 else SIZES[:3]:
        inputs = compare.inputs(loss, rows, width, dtype, DEVICE)
        errors = compare.relative_errors(loss, inputs, temperature, implementation="triton")
        assert not compare.too_large(errors, dtype), (rows, width, errors)


def test_few_queries_against_many_keys_are_split():
    """The columns go to several programs; their parts are put together again."""
    x, y = features(5, 16, 1, torch.float32, DEVICE), features(2000, 16, 2, torch.float32, DEVICE)
    assert triton_kernels.grid(x, y, triton_kernels.tile_shape(x))[1] > 1
    inputs = (x, features(5, 16, 3, torch.float32, DEVICE), y)
    for temperature in (0.01, 0.5):
        errors = compare.relative_errors("info_nce", inputs, temperature, implementation="triton")
        assert not compare.too_large(errors, torch.float32), errors


def test_mixed_dtypes_meet_in_float32():
    a, b = features(20, 8, 1, torch.bfloat16, DEVICE), features(20, 8, 2, torch.float32, DEVICE)
    for loss in ("nt_xent", "clip_loss"):
        errors = compare.relative_errors(loss, (a, b), 0.07, implementation="triton")
        assert (
            errors[0] < 1e-5 and errors[2] < 1e-5 and errors[1] < 5e-3
        )  # a's gradient is rounded to bfloat16


def test_rows_of_any_length_enter_half_precision_exactly():
    unit = torch.nn.functional.normalize(features(50, 24, 1, torch.float32, DEVICE), dim=1)
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
    x = torch.nn.functional.normalize(features(rows, width, 1, torch.float32, DEVICE), dim=1)
    y = torch.nn.functional.normalize(features(columns, width, 2, torch.float32, DEVICE), dim=1)
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
    inputs = compare.inputs(loss, 130, 16, torch.float32, DEVICE)
    once, again = (compare.value_and_gradients(loss, inputs, 0.1, implementation="triton") for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert all(torch.equal(a, b) for a, b in zip(once[1], again[1], strict=True))
