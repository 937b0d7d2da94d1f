"""Training on a CPU: the course's train beside lightly's SimCLR, end to end, in pictures a second.

    python tests/benchmarks/bench_training.py

Both learn with the recipe of the quick budget: the same encoder, head, batch, optimiser and policy. lightly
has its SimCLRTransform on PIL pictures in a DataLoader with two workers, and its NTXentLoss; once with one
torch thread beside the workers, once with two. All take turns; the median counts. Says as well which share of
a step of ours is spent outside the encoder's forward and backward. Writes data/benchmarks/training.json and
the same as a Markdown table.
"""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported, as runtime.ready does
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import machine  # noqa: E402

from course_utils import training  # noqa: E402
from course_utils.images import shapes  # noqa: E402
from course_utils.networks import ProjectionHead, SmallEncoder  # noqa: E402
from course_utils.training import Budget, SimCLR, train  # noqa: E402
from course_utils.views import POLICIES  # noqa: E402

BUDGET = Budget(epochs=2, batch=256, rate=6e-3, size=24)
POLICY = replace(POLICIES["simclr_cifar"], name="crops of at least a fifth", crop_scale=(0.2, 1))
STEPS, REPEATS, TEMPERATURE, THREADS = 8, 11, 0.1, 2
OURS = "course_utils.training.train"


def simclr():
    return SimCLR(SmallEncoder(), ProjectionHead("mlp", 128), temperature=TEMPERATURE)


# --- ours ---------------------------------------------------------------------------------------------------


class Watch:
    """Adds up the seconds that a method's encoder spends forward and backward."""

    def __init__(self):
        self.seconds, self.began = 0.0, 0.0

    def start(self, *_):
        self.began = time.perf_counter()

    def stop(self):
        self.seconds += time.perf_counter() - self.began

    def method(self):
        """simclr, watched: its backward ends where the loop looks at the gradient's length."""
        method = simclr()
        method.encoder.register_forward_pre_hook(self.start)
        method.encoder.register_forward_hook(self.forward_is_done)
        return method

    def forward_is_done(self, encoder, views, h):
        self.stop()
        h.register_hook(self.start)


def ours(pictures, threads, **settings):
    """(pictures a second, share of the time outside the encoder)."""
    torch.set_num_threads(threads)
    watch, original = Watch(), training.get_total_norm

    def get_total_norm(gradients):
        watch.stop()
        return original(gradients)

    training.get_total_norm = get_total_norm
    try:
        run = train(watch.method, pictures, BUDGET, policy=POLICY, device="cpu", **settings)
    finally:
        training.get_total_norm = original
    seconds = run.protocol["seconds"]
    return len(run.history) * BUDGET.batch / seconds, 1 - watch.seconds / seconds


# --- lightly ------------------------------------------------------------------------------------------------


class PilPictures(torch.utils.data.Dataset):
    def __init__(self, images, transform):
        self.pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).numpy()]
        self.transform = transform

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, k):
        return self.transform(self.pictures[k])


def lightly(pictures, threads, half=False):
    """(pictures a second, None), once the workers are at work and what they had made before is used up."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform

    transform = SimCLRTransform(
        input_size=BUDGET.size,
        cj_prob=POLICY.jitter,
        cj_strength=1,
        cj_bright=POLICY.brightness,
        cj_contrast=POLICY.contrast,
        cj_sat=POLICY.saturation,
        cj_hue=POLICY.hue,
        min_scale=POLICY.crop_scale[0],
        random_gray_scale=POLICY.grey,
        gaussian_blur=POLICY.blur,
        hf_prob=POLICY.flip,
        normalize=None,
    )
    torch.set_num_threads(threads)
    loader = torch.utils.data.DataLoader(
        PilPictures(pictures.images, transform), BUDGET.batch, shuffle=True, drop_last=True, num_workers=2
    )
    method = simclr().to(memory_format=torch.channels_last).train()
    optimiser, criterion = training.adamw(method, BUDGET), NTXentLoss(temperature=TEMPERATURE)
    views_of = iter(loader)
    before = 5  # two batches for each of two workers are made ahead
    for step in range(before + STEPS):
        if step == before:
            began = time.perf_counter()
        view_a, view_b = next(views_of)[:2]
        views = torch.cat([view_a, view_b]).contiguous(memory_format=torch.channels_last)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = criterion(*method.project(views).chunk(2))
        loss.backward()
        optimiser.step()
    seconds = time.perf_counter() - began
    del views_of
    return STEPS * BUDGET.batch / seconds, None


# --- the record ---------------------------------------------------------------------------------------------


def measure(repeats):
    pictures = shapes.make((5 + STEPS) * BUDGET.batch, size=32)
    contestants = {
        OURS: partial(ours, pictures, THREADS),
        f"{OURS}, fused views": partial(ours, pictures, THREADS, fused=True),
        f"{OURS}, fused views, compiled encoder": partial(ours, pictures, THREADS, fused=True, compiled=True),
        f"{OURS}, fused views, bfloat16": partial(ours, pictures, THREADS, fused=True, half=True),
        f"{OURS}, one thread": partial(ours, pictures, 1),
        f"{OURS}, one thread, fused views": partial(ours, pictures, 1, fused=True),
        "lightly, 2 workers and 1 torch thread": partial(lightly, pictures, 1),
        "lightly, 2 workers and 2 torch threads": partial(lightly, pictures, 2),
        "lightly, 2 workers and 1 torch thread, bfloat16": partial(lightly, pictures, 1, half=True),
    }
    found = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            found[name].append(contestant())
            print(f"{name}: {found[name][-1][0]:,.0f} pictures/s", flush=True)
    speeds = {name: statistics.median(speed for speed, _ in rows) for name, rows in found.items()}
    shares = {name: [share for _, share in rows] for name, rows in found.items()}
    best_of_lightly = max(speed for name, speed in speeds.items() if name.startswith("lightly"))
    return [
        {
            "form": name,
            "pictures a second": round(speed),
            "times lightly": round(speed / best_of_lightly, 2),
            "share outside the encoder": (
                None if None in shares[name] else round(statistics.median(shares[name]), 3)
            ),
            "repeats": repeats,
        }
        for name, speed in speeds.items()
    ]


def as_markdown(record):
    lines = [
        "# Training on a CPU",
        "",
        f"{machine.in_words(record['machine'])} SimCLR with the small encoder, two views of {BUDGET.size} x "
        f"{BUDGET.size} pixels of each of {BUDGET.batch} rendered pictures a step: median of interleaved "
        "repeats. Wanted: at least 3 times lightly, at most 25% of a step's wall time outside the encoder's "
        "forward and backward.",
        "",
        "| form | pictures a second | times lightly's best | outside the encoder |",
        "|---|---:|---:|---:|",
    ]
    for row in record["rows"]:
        share = row["share outside the encoder"]
        share = "" if share is None else f"{share:.0%}"
        lines.append(
            f"| {row['form']} | {row['pictures a second']:,} | {row['times lightly']:.2f}x | {share} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "benchmarks" / "training.json")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    record = {"machine": machine.facts("torch", "torchvision", "lightly"), "rows": measure(options.repeats)}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(as_markdown(record))
    print("\n" + as_markdown(record))


if __name__ == "__main__":
    main()
