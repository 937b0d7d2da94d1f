"""The losses of ``contrast.py``, fast: same names, same arguments, same errors, and ``implementation=``.

``implementation`` is "reference" (contrast.py itself), "blocked" (plain torch on any device: blocked.py),
"triton" (GPU: triton_kernels.py) or "auto": the reference for a handful of rows, else triton on a GPU that
has it, else blocked. The fast ones never hold the matrix of similarities and have no second derivative.
"""

import importlib.util
import os

import torch

from course_utils import contrast
from course_utils.kernels import blocked

SMALL = 2**12  # up to this many similarities the definition itself is the fastest


def info_nce(query, positive_key, negative_keys, temperature, reduction="mean", implementation="auto"):
    """``contrast.info_nce`` without its [B, K] matrix; keys that need no gradient cost none.

    Raises what contrast.info_nce raises, and ValueError for an implementation that cannot run here.

    >>> same = torch.ones(4, 8)
    >>> info_nce(same, same, torch.ones(7, 8), 0.1, implementation="blocked").exp().round(decimals=4)
    tensor(8.)
    """
    inputs = _with_lengths(contrast.info_nce_inputs, query, positive_key, negative_keys, temperature)
    scale = 1 / temperature
    backend = _choose(implementation, inputs, scale)
    if backend is None:
        return contrast.info_nce(query, positive_key, negative_keys, temperature, reduction)
    return contrast.reduce(backend.against(*inputs, scale), reduction)


def nt_xent(view_a, view_b, temperature, reduction="mean", implementation="auto"):
    """``contrast.nt_xent`` without its [2N, 2N] matrix.

    Raises what contrast.nt_xent raises, and ValueError for an implementation that cannot run here.

    >>> same = torch.ones(4, 8)
    >>> nt_xent(same, same, temperature=0.5, implementation="blocked").exp().round(decimals=4)
    tensor(7.)
    """
    inputs = _with_lengths(contrast.nt_xent_inputs, view_a, view_b, temperature)
    scale = 1 / temperature
    backend = _choose(implementation, inputs, scale)
    if backend is None:
        return contrast.nt_xent(view_a, view_b, temperature, reduction)
    return contrast.reduce(backend.within(*inputs, scale), reduction)


def clip_loss(image, text, logit_scale, reduction="mean", implementation="auto"):
    """``contrast.clip_loss`` without its [N, N] matrix; one pass serves both directions.

    Raises what contrast.clip_loss raises, and ValueError for an implementation that cannot run here.

    >>> same = torch.ones(4, 8)
    >>> clip_loss(same, same, logit_scale=14.2857, implementation="blocked").exp().round(decimals=4)
    tensor(4.)
    """
    inputs = _with_lengths(contrast.clip_inputs, image, text, logit_scale)
    backend = _choose(implementation, inputs, logit_scale)
    if backend is None:
        return contrast.clip_loss(image, text, logit_scale, reduction)
    return contrast.reduce(backend.between(*inputs, logit_scale).mean(dim=0), reduction)


def _with_lengths(checked, *arguments):
    """The features among the arguments as pairs: rows as they came, lengths as contrast.py takes them."""
    with torch.no_grad():  # whoever divides by the lengths has the gradient
        lengths = [length for _, length in checked(*arguments)]
    return list(zip(arguments, lengths, strict=False))


def _choose(implementation, inputs, scale):
    """The module that serves, or None for the reference."""
    (rows, lengths), (columns, _) = inputs[0], inputs[-1]
    if implementation == "auto":
        # Off the GPU the kernels run in an interpreter, to be studied: only for those who ask for it by name.
        if len(rows) * len(columns) <= SMALL:
            implementation = "reference"
        elif rows.is_cuda and not _why_not_triton(rows, lengths.dtype):
            implementation = "triton"
        else:
            implementation = "reference" if _why_not_blocked(rows, scale) else "blocked"
    if implementation == "reference":
        return None
    if implementation == "blocked":
        why_not = _why_not_blocked(rows, scale)
    elif implementation == "triton":
        why_not = _why_not_triton(rows, lengths.dtype)
    else:
        raise ValueError(
            f'implementation is {implementation!r}; expected "auto", "reference", "blocked" or "triton".'
        )
    if why_not:
        raise ValueError(f'implementation="{implementation}" cannot run: {why_not}; "auto" can.')
    if implementation == "blocked":
        return blocked
    # Imported here, because triton may be missing and is slow to import.
    from course_utils.kernels import triton_kernels

    return triton_kernels


def _why_not_triton(rows, dtype):
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not rows.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return (
            f"the features lie on {rows.device}, not on a GPU (TRITON_INTERPRET=1 steps through it on a CPU)"
        )
    if dtype == torch.float64 or rows.shape[1] > 512:
        return f"it takes float32, bfloat16 and float16 rows up to 512 wide, not {dtype} {list(rows.shape)}"
    return None


def _why_not_blocked(rows, scale):
    # Apple's GPUs have no float64.
    limit = blocked.FLOAT32_SCALE if rows.device.type == "mps" else blocked.FLOAT64_SCALE
    if scale > limit:
        return f"exp(1 / temperature) overflows at 1 / temperature = {scale:.4g}, it serves up to {limit:.0f}"
    return None
