"""Without a GPU the Triton kernels run in its interpreter, chosen before anything imports triton."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
