"""Without a GPU the Triton kernels run in Triton's interpreter, which must be chosen before any import of triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
