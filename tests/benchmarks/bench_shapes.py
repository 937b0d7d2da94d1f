"""Rendered pictures a second: python tests/benchmarks/bench_shapes.py [device]. Needs a quiet machine."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from course_utils.images.shapes import make

COUNT, REPEATS = 20_000, 5


def images_per_second(size: int, count: int, device: str) -> float:
    """The median of REPEATS runs, drawing the factors included; one run before them is not counted."""
    times = []
    for repeat in range(REPEATS + 1):
        start = time.perf_counter()
        make(count, seed=repeat, size=size, device=device).images[-1].cpu()  # waits for a GPU
        times.append(time.perf_counter() - start)
    return count / sorted(times[1:])[REPEATS // 2]


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, median of {REPEATS} runs")
    for size, count in ((32, COUNT), (64, COUNT // 4), (224, COUNT // 50)):
        print(f"{size:4d} x {size:<4d} {images_per_second(size, count, device):10,.0f} images/s")
