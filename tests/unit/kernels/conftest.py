"""Without a GPU the Triton kernels run in Triton's interpreter, chosen before triton is imported."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
