"""Views a second on a CPU: ours, exact and fused, beside torchvision's pipeline of PIL pictures.

    python tests/benchmarks/bench_views.py

Each makes one view of every picture of a batch of 512 rendered pictures of 32 x 32 pixels, drawing included,
under the policy "strong" (crop, flip, colour, grey, blur). torchvision works in a DataLoader of two workers.
Ours works in one call with one torch thread (as training draws, while another one learns), in one call with
two, or as two threads with a batch and one torch thread each. All take turns, each with a start that does not
count: workers and threads begin, and memory that the loader's fork has marked as shared is touched again. The
median counts. Writes data/benchmarks/views.json and the same as a Markdown table.
"""

import argparse
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported, as runtime.ready does

import torch
from PIL import Image
from torchvision import transforms as tv

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import machine  # noqa: E402

from course_utils import runtime  # noqa: E402
from course_utils.images import shapes  # noqa: E402
from course_utils.views import POLICIES, apply_view, draw_parameters, fused_view  # noqa: E402

EDGE, BATCH, BATCHES, REPEATS, WORKERS = 32, 512, 8, 11, 2
POLICY = POLICIES["strong"]
PIL = "torchvision on PIL, DataLoader of 2 workers"
WANTED = {"exact": 9, "fused": 40}


class PilViews(torch.utils.data.Dataset):
    """The policy as torchvision's transforms, picture by picture."""

    def __init__(self, images):
        self.pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).numpy()]
        p = POLICY
        jitter = tv.ColorJitter(p.brightness, p.contrast, p.saturation, p.hue)
        self.transform = tv.Compose(
            [
                tv.RandomResizedCrop(EDGE, p.crop_scale, p.crop_ratio),
                tv.RandomHorizontalFlip(p.flip),
                tv.RandomApply([jitter], p.jitter),
                tv.RandomGrayscale(p.grey),
                tv.RandomApply([tv.GaussianBlur(3, p.blur_sigma)], p.blur),
                tv.ToTensor(),
            ]
        )

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, k):
        return self.transform(self.pictures[k])


class Loader:
    """Views a second of a DataLoader that runs all the while; one call takes a few batches from it."""

    def __init__(self, images):
        endless = torch.utils.data.RandomSampler(range(len(images)), replacement=True, num_samples=10**9)
        self.loader = torch.utils.data.DataLoader(
            PilViews(images), BATCH, sampler=endless, num_workers=WORKERS, prefetch_factor=1
        )

    def __call__(self):
        batches = iter(self.loader)
        for _ in range(WORKERS + 1):  # the workers' start, and what they made before they were asked
            next(batches)
        began = time.perf_counter()
        for _ in range(4):
            next(batches)
        seconds = time.perf_counter() - began
        del batches
        return 4 * BATCH / seconds


def make_batch(make, images, generator):
    make(images, draw_parameters(BATCH, EDGE, EDGE, POLICY, generator))


def one_call(make, images, threads):
    torch.set_num_threads(threads)
    generator = runtime.generator(0)
    make_batch(make, images, generator)  # the start
    began = time.perf_counter()
    for _ in range(BATCHES):
        make_batch(make, images, generator)
    return BATCHES * BATCH / (time.perf_counter() - began)


def two_threads(make, images):
    """Two threads, each with one torch thread."""

    def make_batches(seeds):
        for done in [pool.submit(make_batch, make, images, runtime.generator(seed)) for seed in seeds]:
            done.result()

    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=[1]) as pool:
        make_batches(range(4))  # the start
        began = time.perf_counter()
        make_batches(range(2 * BATCHES))
        return 2 * BATCHES * BATCH / (time.perf_counter() - began)


def measure(repeats):
    images = shapes.make(BATCH, size=EDGE).images
    runtime.keep_memory()  # as train does
    contestants = {PIL: Loader(images)}
    for name, make in {"exact": apply_view, "fused": fused_view}.items():
        contestants[f"{name}, one call on 1 thread"] = partial(one_call, make, images, 1)
        contestants[f"{name}, one call on 2 threads"] = partial(one_call, make, images, 2)
        contestants[f"{name}, 2 threads with a batch each"] = partial(two_threads, make, images)
    speeds = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            speeds[name].append(contestant())
            print(f"{name}: {speeds[name][-1]:,.0f} views/s", flush=True)
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    return [
        {
            "form": name,
            "views a second": round(medians[name]),
            "times torchvision": round(medians[name] / medians[PIL], 2),
            "wanted": WANTED.get(name.split(",")[0]),
            "repeats": repeats,
        }
        for name in contestants
    ]


def as_markdown(record):
    lines = [
        "# Views on a CPU",
        "",
        f"{machine.in_words(record['machine'])} One view each of {BATCH} pictures of {EDGE} x {EDGE} pixels "
        f"under the policy {POLICY.name!r}, drawing included: median of interleaved repeats.",
        "",
        "| form | views a second | times torchvision | wanted |",
        "|---|---:|---:|---:|",
    ]
    for row in record["rows"]:
        wanted = f"{row['wanted']}x" if row["wanted"] else ""
        lines.append(
            f"| {row['form']} | {row['views a second']:,} | {row['times torchvision']:.1f}x | {wanted} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "benchmarks" / "views.json")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    record = {
        "machine": machine.facts("torch", "torchvision", "numba", "pillow"),
        "rows": measure(options.repeats),
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(as_markdown(record))
    print("\n" + as_markdown(record))


if __name__ == "__main__":
    main()
