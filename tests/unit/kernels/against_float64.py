"""A fast loss against contrast.py in float64, on the GPU where there is one."""

import torch

from course_utils import contrast, kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, WIDTHS, TEMPERATURES = (4, 6, 130, 514, 1000), (2, 64, 128, 200), (0.01, 0.07, 0.5, 1.0)
LOSSES = ("nt_xent", "clip_loss", "info_nce")
# Half precision: a gradient comes back rounded to 8 or 11 bits, as its weights were for the tensor cores.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2, torch.float16: 2e-2}


def features(count, width, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(DEVICE, dtype)


def inputs(loss, rows, width, dtype):
    """Random features; rows counts the candidates: 2N views, N of either kind, or queries and a queue."""
    n = rows // 2
    a, b = (features(n, width, seed, dtype) for seed in (1, 2))
    return (a, b, features(rows + 3, width, 3, dtype)) if loss == "info_nce" else (a, b)


def value_and_gradients(loss, inputs, temperature, **options):
    """(loss, [gradients of the inputs and of 1 / temperature]); the rows of the loss weigh unevenly."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    scale = torch.tensor(1 / temperature, dtype=torch.float64, device=DEVICE, requires_grad=True)
    function = getattr(options.pop("module", kernels), loss)
    rows = function(*inputs, scale if loss == "clip_loss" else 1 / scale, reduction="none", **options)
    weights = torch.linspace(0.5, 1.5, len(rows), dtype=torch.float64, device=DEVICE)
    value = (rows * weights).mean()
    value.backward()
    return value.detach(), [x.grad for x in (*inputs, scale)]


def relative_errors(loss, inputs, temperature, **options):
    """Relative errors of the value and the gradients (inputs, 1 / temperature), against float64."""
    value, gradients = value_and_gradients(loss, inputs, temperature, **options)
    exact = [x.double() for x in inputs]
    exact_value, exact_gradients = value_and_gradients(loss, exact, temperature, module=contrast)
    pairs = zip([value, *gradients], [exact_value, *exact_gradients], strict=True)
    errors = [((ours.double() - true).norm() / true.norm()).item() for ours, true in pairs]
    # The last is a mean of differences of cosines: where they cancel, 0.01 stands for what is left.
    errors[-1] *= min(1, abs(exact_gradients[-1].item()) / 0.01)
    return errors


def too_large(errors, dtype):
    """The errors beyond tolerance."""
    return [error for error in errors if not error < TOLERANCE[dtype]]
