"""A fast loss against contrast.py in float64: what the unit tests and the benchmark on a GPU both call."""

import torch

from course_utils import contrast, kernels

ROWS, WIDTHS, TEMPERATURES = (4, 6, 130, 514, 1000), (2, 64, 128, 200), (0.01, 0.07, 0.5, 1.0)
LOSSES = ("nt_xent", "clip_loss", "info_nce")
# Half precision: a gradient comes back rounded to 8 or 11 bits, as its weights were for the tensor cores.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-2}


def features(count, width, seed, dtype=torch.float64, device="cpu"):
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(device, dtype)


def inputs(loss, rows, width, dtype, device="cpu"):
    """Random features; rows counts the candidates: 2N views, N of either kind, or queries and a queue."""
    n = rows // 2
    a, b = (features(n, width, seed, dtype, device) for seed in (1, 2))
    return (a, b, features(rows + 3, width, 3, dtype, device)) if loss == "info_nce" else (a, b)


def value_and_gradients(loss, inputs, temperature, **options):
    """(loss, [gradients of the inputs and of 1 / temperature]); the rows of the loss weigh unevenly."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    scale = torch.tensor(1 / temperature, dtype=torch.float64, device=inputs[0].device, requires_grad=True)
    function = getattr(options.pop("module", kernels), loss)
    rows = function(*inputs, scale if loss == "clip_loss" else 1 / scale, reduction="none", **options)
    weights = torch.linspace(0.5, 1.5, len(rows), device=rows.device, dtype=torch.float64)
    value = (rows * weights).mean()
    value.backward()
    return value.detach(), [x.grad for x in (*inputs, scale)]


def relative_errors(loss, inputs, temperature, **options):
    """Relative error of the value and of each input's gradient, against the definition in float64."""
    value, gradients = value_and_gradients(loss, inputs, temperature, **options)
    exact = [x.double() for x in inputs]
    exact_value, exact_gradients = value_and_gradients(loss, exact, temperature, module=contrast)
    pairs = zip([value, *gradients[:-1]], [exact_value, *exact_gradients[:-1]], strict=True)
    return [((ours.double() - true).norm() / true.norm()).item() for ours, true in pairs]


def too_large(errors, dtype):
    """The errors beyond tolerance."""
    return [error for error in errors if not error < TOLERANCE[dtype]]
