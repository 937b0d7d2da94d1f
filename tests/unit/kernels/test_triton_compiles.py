"""The Triton kernels through the real compiler, for cards that are not here: their tiles must fit.

The interpreter takes code that the compiler refuses, and tiles of any size.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
# Compute capability -> KiB of shared memory that a block may have: a T4, desktop cards, an H100.
KIB = {75: 64, 86: 99, 90: 227}
CASES = [  # those that take the most, or are all alone in what they do
    ("gradient_kernel", 75, "float32", 256),
    ("gradient_kernel", 75, "float32", 512),
    ("gradient_kernel", 86, "float32", 512),
    ("gradient_kernel", 86, "bfloat16", 512),
    ("gradient_kernel", 90, "bfloat16", 512),
    ("log_sum_kernel", 75, "float32", 128),
    ("log_sum_kernel", 90, "bfloat16", 128),
]


def test_tiles_fit_the_shared_memory_of_cards_that_are_not_here(tmp_path):
    triton = pytest.importorskip("triton", reason="triton is not installed")
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8):
        pytest.skip(f"the compiler of triton {triton.__version__} may be called in another way than 3.8's")
    # A fresh process, because in this one Triton may be the interpreter.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}  # compiled here and now
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)
    assert len(taken) == len(CASES)
    for case, size in zip(CASES, taken, strict=True):
        assert 0 < size <= 1024 * KIB[case[1]], (case, size)


def shared_memory(kernel, capability, dtype, width):
    """Bytes of shared memory that a block of this kernel takes on such a card."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from course_utils.kernels import triton_kernels

    torch.cuda.get_device_capability = lambda device: divmod(capability, 10)
    tiles = triton_kernels.tile_shape(torch.empty(2, width, dtype=getattr(torch, dtype)))
    options = {name: tiles.pop(name) for name in ("num_warps", "num_stages")}
    constants = {"PAIRED": True, "COLUMNS": True, "BOUNDED": True, **tiles}
    kernel = getattr(triton_kernels, kernel)
    signature, values = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name], values[place,] = "constexpr", constants[name]
        elif name.endswith("_ptr"):
            rows = name in ("x_ptr", "y_ptr") and dtype == "bfloat16"
            signature[name] = "*bf16" if rows else "*fp32"
        else:
            signature[name] = "fp32" if name == "scale" else "i32"
    source = ASTSource(kernel, signature, values)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared


if __name__ == "__main__":
    print(json.dumps([shared_memory(*case) for case in CASES]))
