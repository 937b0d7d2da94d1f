"""Every method learns; runs repeat, resume and stop as they should; no checkpoint is lost or mixed up."""

import copy
import math
import os
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from course_utils import contrast, records, runtime, training
from course_utils.environment import ROOT
from course_utils.images import shapes
from course_utils.memory import Trace
from course_utils.networks import ProjectionHead, SmallEncoder, TextTower, fingerprint
from course_utils.training import (
    BYOL,
    CLIP,
    BarlowTwins,
    Budget,
    CheckpointError,
    Diverged,
    MoCo,
    SimCLR,
    SimSiam,
    rate_at,
    train,
)
from course_utils.views import POLICIES

PICTURES = shapes.make(64, size=16)
CAPTIONS = torch.stack([PICTURES.labels["shape"] + 1, PICTURES.labels["hue"] + 7], dim=1)
TINY = Budget(epochs=3, batch=16, rate=3e-3)  # 12 steps


class TinyEncoder(nn.Sequential):
    width = 16

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


def head():
    return ProjectionHead("mlp", 16, width=8, hidden=16)


def method_networks(method):
    """(encoder, head) of MoCo's queries, then of its keys."""
    return (method.encoder, method.head), (method.key_encoder, method.key_head)


METHODS = {
    "SimCLR": lambda: SimCLR(TinyEncoder(), head(), temperature=0.5),
    "MoCo": lambda: MoCo(TinyEncoder(), head(), queue=40, momentum=0.9, temperature=0.5),
    "BYOL": lambda: BYOL(TinyEncoder(), head(), momentum=0.9),
    "SimSiam": lambda: SimSiam(TinyEncoder(), head()),
    "BarlowTwins": lambda: BarlowTwins(TinyEncoder(), head()),
    "CLIP": lambda: CLIP(TinyEncoder(), head(), TextTower(12, width=16), head()),
}


@pytest.fixture(autouse=True)
def quiet_cpu(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COURSE_DEVICE", "cpu")


@pytest.fixture
def threads():
    """A function that sets torch's number of threads; afterwards it is what it was."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run_of(name, budget=TINY, **options):
    captions = CAPTIONS if name == "CLIP" else None
    return train(METHODS[name], PICTURES, budget, captions=captions, **options)


def files(folder):
    return sorted(path.name for path in (folder / "runs").iterdir())


# --- what is learned ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_lowers_its_loss(name):
    losses = run_of(name, Budget(epochs=15, batch=32, rate=1e-2, warm_up=0), policy="no_colour").history[
        "loss"
    ]
    assert losses[-6:].mean() < losses[:6].mean() - losses[:6].std() / 2


@pytest.mark.parametrize("name", METHODS)
def test_a_run_says_what_it_was(name):
    run = run_of(name, seed=3)
    assert run.finished and not any(module.training for module in run.method.modules())
    assert run.history["step"].tolist() == list(range(1, 13))
    assert run.history["epoch"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    assert run.protocol["method"].startswith(name) and run.protocol["seed"] == 3
    assert run.protocol["weights"] == fingerprint(run.method) != run.protocol["start"]
    assert run.protocol["data"]["source"] == PICTURES.source and run.protocol["data"]["count"] == 64
    assert run.protocol["policy"]["grey"] == POLICIES["simclr_cifar"].grey
    assert run.protocol["machines"] == [records.machine("cpu")] and run.protocol["seconds"] > 0
    wanting = set(records.PROTOCOL) - {"readout", "runs"} | set(records.RUN)
    assert wanting <= run.protocol.keys()


def test_pictures_as_they_are_without_a_policy():
    view = partial(training.draw_view, policy=None, fused=False, size=None, generator=None)
    view_a, view_b = training.draw_pair(PICTURES.images, None, torch.tensor([5, 2]), view)
    assert torch.equal(view_a, PICTURES.images[[5, 2]] / 255) and torch.equal(view_a, view_b)


def test_a_pair_is_a_picture_s_view_and_its_own_caption():
    draw = partial(training.draw_view, policy="grey", fused=False, size=12, generator=runtime.generator(0))
    view, caption = training.draw_pair(PICTURES.images, CAPTIONS, torch.tensor([5, 2]), draw)
    assert view.shape == (2, 3, 12, 12) and view.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(caption, CAPTIONS[[5, 2]])


def test_each_epoch_takes_each_picture_once_in_another_order(monkeypatch):
    seen = []
    original = training.draw_pair

    def spy(images, captions, batch, **settings):
        seen.append(batch)
        return original(images, captions, batch, **settings)

    monkeypatch.setattr(training, "draw_pair", spy)
    run_of("SimCLR", Budget(epochs=2, batch=16))
    first, second = torch.cat(seen).chunk(2)
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(64))
    assert first.tolist() != second.tolist()


def test_two_views_are_those_drawn_one_after_the_other():
    settings = {"policy": "simclr_cifar", "fused": False, "size": None, "generator": runtime.generator(0)}
    view = partial(training.draw_view, **settings)
    batch = torch.arange(9, 64)
    one_by_one = view(PICTURES.images[batch]), view(PICTURES.images[batch])
    settings["generator"].manual_seed(0)
    view_a, view_b = training.draw_pair(PICTURES.images, None, batch, view)
    torch.testing.assert_close((view_a, view_b), one_by_one, rtol=0, atol=1e-6)  # but for rounding
    assert (view_a - view_b).abs().mean() > 0.05
    assert view_b.is_contiguous(memory_format=torch.channels_last)


def test_the_learning_rate_rises_in_a_line_and_falls_along_a_cosine():
    budget = Budget(epochs=1, rate=2.0, warm_up=0.2)
    rates = [rate_at(step, 20, budget) for step in range(21)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[12] == pytest.approx(1.0) and rates[20] == pytest.approx(0, abs=1e-12)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_biases_norms_and_scales_are_not_decayed():
    method = METHODS["CLIP"]()
    decayed, free = training.adamw(method, Budget(epochs=1, weight_decay=0.1)).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2, 4} and {p.ndim for p in free["params"]} == {0, 1}
    assert len(decayed["params"]) + len(free["params"]) == len(list(method.parameters()))


# --- what each method does that no other does ---------------------------------------------------------------


def batch_of_views(seed=0, count=16):
    draws = torch.Generator().manual_seed(seed)
    return torch.rand(2, count, 3, 16, 16, generator=draws).unbind()


def test_moco_s_step_has_the_order_of_the_paper():
    """EMA, keys, logits against the old queue, optimiser, enqueue: each compared with a copy made before."""
    method = METHODS["MoCo"]()
    with torch.no_grad():
        method.encoder[0].weight.mul_(1.5)  # so that the EMA has something to do
    before = copy.deepcopy(method)
    view_a, view_b = batch_of_views()
    loss = method.loss(view_a, view_b)

    expected = 0.9 * before.key_encoder[0].weight + 0.1 * before.encoder[0].weight
    torch.testing.assert_close(method.key_encoder[0].weight, expected)
    before.key_encoder.load_state_dict(method.key_encoder.state_dict())  # the EMA's result
    before.key_head.load_state_dict(method.key_head.state_dict())
    keys = nn.functional.normalize(before.key_head(before.key_encoder(view_b)))
    torch.testing.assert_close(method.made[0], keys)
    query = before.head(before.encoder(view_a))
    torch.testing.assert_close(loss, contrast.info_nce(query, keys, before.queue.keys, 0.5))

    assert torch.equal(method.queue.keys, before.queue.keys)
    loss.backward()
    method.after_step()
    torch.testing.assert_close(method.queue.keys[:16], keys)
    assert torch.equal(method.queue.keys[16:], before.queue.keys[16:]) and method.queue.pointer == 16


def test_moco_s_keys_have_no_gradient_and_follow_the_closed_form(monkeypatch):
    """theta_k(t) = m^t theta_k(0) + (1 - m) sum over i < t of m^i theta_q(t - i), parameter by parameter."""
    trace = []
    original = training.ema_update

    def spy(follower, leader, momentum):
        if isinstance(leader, TinyEncoder):
            trace.append([p.detach().clone() for p in leader.parameters()])
        original(follower, leader, momentum)

    monkeypatch.setattr(training, "ema_update", spy)
    run = run_of("MoCo", seed=1)
    keys = [*run.method.key_encoder.parameters(), *run.method.key_head.parameters()]
    assert all(p.grad is None and not p.requires_grad for p in keys)
    assert len(trace) == 12
    start = training.seeded(METHODS["MoCo"], 1).key_encoder.parameters()
    for number, (key, first) in enumerate(zip(run.method.key_encoder.parameters(), start, strict=True)):
        expected = 0.9**12 * first.double()
        for i in range(12):
            expected = expected + 0.1 * 0.9**i * trace[11 - i][number].double()
        torch.testing.assert_close(key.double(), expected, rtol=1e-5, atol=1e-6)  # 12 float32 roundings
    assert not torch.equal(trace[0][0], trace[11][0])


def test_moco_s_keys_know_their_pictures_views_and_steps():
    method = METHODS["MoCo"]()
    for step in (1, 2, 3):
        method.loss(*batch_of_views(step), pictures=torch.arange(16) + 100 * step, views=step).backward()
        method.after_step()
    assert method.queue.pictures.tolist() == [
        *range(308, 316),
        *range(108, 116),
        *range(200, 216),
        *range(300, 308),
    ]
    assert (
        method.queue.births.tolist() == method.queue.views.tolist() == [3] * 8 + [1] * 8 + [2] * 16 + [3] * 8
    )


def test_moco_without_start_entries_compares_with_real_keys_only():
    method = MoCo(TinyEncoder(), head(), queue=40, momentum=0.9, temperature=0.5, start=False)
    loss = method.loss(*batch_of_views(1))
    loss.backward()
    assert loss.item() == 0 and all(not p.grad.any() for p in method.encoder.parameters())
    method.after_step()
    keys = method.queue.keys[:16].clone()
    view_a, view_b = batch_of_views(2)
    query = copy.deepcopy(method).project(view_a)
    loss = method.loss(view_a, view_b)
    torch.testing.assert_close(loss, contrast.info_nce(query, method.made[0], keys, 0.5))
    assert "start=False" in method.extra_repr() and "start" not in METHODS["MoCo"]().extra_repr()


def test_moco_s_trace_says_what_each_stage_changed_and_changes_nothing():
    def two_steps(traced):
        torch.manual_seed(0)
        method = METHODS["MoCo"]()
        optimiser = torch.optim.SGD(method.parameters(), lr=0.1)
        if traced:
            query, key = map(nn.ModuleList, method_networks(method))
            method.trace = Trace(query=query, key=key, queue=method.queue)
        for step in (1, 2):
            optimiser.zero_grad()
            method.loss(*batch_of_views(step)).backward()
            optimiser.step()
            method.after_step()
        return method

    trace = two_steps(traced=True).trace
    assert [(event.step, event.stage, event.changed) for event in trace.events] == [
        (1, "EMA", ()),  # both networks start alike
        (1, "keys", ("key statistics",)),
        (1, "logits", ("query statistics",)),
        (1, "optimiser", ("query",)),
        (1, "enqueue", ("queue",)),
        (2, "EMA", ("key",)),
        (2, "keys", ("key statistics",)),
        (2, "logits", ("query statistics",)),
        (2, "optimiser", ("query",)),
        (2, "enqueue", ("queue",)),
    ]
    assert trace.events[2].detail["loss"] > 0 and trace.events[4].detail == {"pointer": 16}
    traced, plain = two_steps(True), two_steps(False)
    assert fingerprint(traced) == fingerprint(plain) and plain.trace is None


def test_moco_s_key_statistics_are_its_own():
    method = run_of("MoCo").method
    assert not torch.equal(method.key_encoder[1].running_mean, method.encoder[1].running_mean)
    assert method.key_encoder[1].num_batches_tracked == 12


def test_byol_s_loss_is_symmetric_and_its_target_follows_after_the_step():
    method = METHODS["BYOL"]()
    before = copy.deepcopy(method)
    view_a, view_b = batch_of_views()
    loss = method.loss(view_a, view_b)
    views = torch.cat([view_a, view_b])
    targets = before.target_head(before.target_encoder(views))
    predictions = before.predictor(before.head(before.encoder(views)))
    pairs = [(predictions[k], targets[(k + 16) % 32]) for k in range(32)]
    expected = sum(2 - 2 * cosine_similarity(p, t, dim=0) for p, t in pairs) / 32
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(method.loss(view_b, view_a), loss)

    loss.backward()
    assert all(
        p.grad is None for p in [*method.target_encoder.parameters(), *method.target_head.parameters()]
    )
    with torch.no_grad():
        method.encoder[0].weight.add_(1)
    method.after_step()
    expected = 0.9 * before.target_encoder[0].weight + 0.1 * (before.encoder[0].weight + 1)
    torch.testing.assert_close(method.target_encoder[0].weight, expected)


def test_byol_without_its_predictor():
    bare = BYOL(TinyEncoder(), head(), predictor=False)
    view_a, view_b = batch_of_views()
    z = bare.project(torch.cat([view_a, view_b]))
    target = bare.target_head(bare.target_encoder(torch.cat([view_a, view_b]))).roll(16, dims=0)
    torch.testing.assert_close(bare.loss(view_a, view_b), 2 - 2 * cosine_similarity(z, target).mean())
    assert len(bare.predictor) == 0 and "predictor=none" in repr(bare)


def test_simsiam_stops_the_gradient_through_the_predicted_side():
    method = METHODS["SimSiam"]()
    view_a, view_b = batch_of_views()
    z = method.project(torch.cat([view_a, view_b]))
    other = z.detach().roll(16, dims=0)
    expected = -sum(cosine_similarity(method.predictor(z)[k], other[k], dim=0) for k in range(32)) / 32
    torch.testing.assert_close(method.loss(view_a, view_b), expected)
    gradients = torch.autograd.grad(expected, list(method.parameters()))
    method.zero_grad()
    method.loss(view_a, view_b).backward()
    for p, gradient in zip(method.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-6)  # 32 terms added in another order


def test_simsiam_without_its_parts():
    view_a, view_b = batch_of_views()
    open_ended = SimSiam(TinyEncoder(), head(), stop_gradient=False)
    z = open_ended.project(torch.cat([view_a, view_b]))
    expected = -cosine_similarity(open_ended.predictor(z), z.roll(16, dims=0)).mean()
    for ours, right in zip(
        torch.autograd.grad(open_ended.loss(view_a, view_b), list(open_ended.parameters())),
        torch.autograd.grad(expected, list(open_ended.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-6)
    bare = SimSiam(TinyEncoder(), head(), predictor=False)
    z = bare.project(torch.cat([view_a, view_b]))
    torch.testing.assert_close(bare.loss(view_a, view_b), -cosine_similarity(z[:16], z[16:]).mean())


def test_barlow_twins_loss_by_loops():
    method = METHODS["BarlowTwins"]()
    view_a, view_b = batch_of_views()
    z = method.project(torch.cat([view_a, view_b])).detach().numpy()
    c = np.corrcoef(z[:16].T, z[16:].T)[:8, 8:]
    expected = sum((1 - c[i, j]) ** 2 if i == j else 5e-3 * c[i, j] ** 2 for i in range(8) for j in range(8))
    assert method.loss(view_a, view_b).item() == pytest.approx(expected, rel=1e-4)


def test_what_watches_is_called_after_every_step():
    seen = []
    run = run_of("SimSiam", watch=lambda method: seen.append(fingerprint(method)))
    assert len(seen) == len(set(seen)) == len(run.history)


def test_clip_s_scale_starts_at_14_and_stays_below_100():
    method = METHODS["CLIP"]()
    assert method.t.exp().item() == pytest.approx(14.2857, abs=5e-5)
    with torch.no_grad():
        method.t.fill_(9.0)
    method.after_step()
    assert method.t.exp().item() == pytest.approx(100)
    assert fingerprint(run_of("CLIP").method.t) != fingerprint(METHODS["CLIP"]().t)


# --- the same again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_weights(name):
    torch.manual_seed(99)  # whatever happened before
    first = run_of(name, seed=1)
    undisturbed = torch.rand(1)
    torch.manual_seed(99)
    assert torch.equal(undisturbed, torch.rand(1))
    assert run_of(name, seed=1).protocol["weights"] == first.protocol["weights"]
    assert run_of(name, seed=2).protocol["start"] != first.protocol["start"]


def interrupt_at(monkeypatch, step):
    """Ctrl-C while a step is at work."""
    original = training.take_step

    def take_step(state, *rest):
        if state.step == step:
            raise KeyboardInterrupt
        original(state, *rest)

    monkeypatch.setattr(training, "take_step", take_step)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_equals_one_that_was_never_interrupted(monkeypatch, tmp_path, threads, name, count):
    threads(count)
    whole = run_of(name)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 6)  # in the middle of the second epoch
        part = run_of(name, checkpoint="one")
    assert not part.finished and len(part.history) == 6
    resumed = run_of(name, checkpoint="one")
    assert resumed.finished and resumed.history.equals(whole.history)
    assert resumed.protocol["weights"] == whole.protocol["weights"]
    assert files(tmp_path) == ["one.pt"]


def test_a_finished_checkpoint_is_the_run(monkeypatch):
    first = run_of("MoCo", checkpoint="one")
    monkeypatch.setattr(training, "take_step", None)
    again = run_of("MoCo", checkpoint="one")
    assert again.protocol == first.protocol and again.history.equals(first.history)
    assert not again.method.training


def test_a_run_that_was_resumed_elsewhere_says_so(monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        run_of("SimCLR", checkpoint="one")
    here, other = records.machine("cpu"), {**records.machine("cpu"), "threads": 64}
    with monkeypatch.context() as patch:
        patch.setattr(records, "machine", lambda _: other)
        assert run_of("SimCLR", checkpoint="one").protocol["machines"] == [here, other]
    assert run_of("SimCLR", checkpoint="one").protocol["machines"] == [here, other]  # nothing left to compute


@pytest.mark.parametrize("step", [0, 1, 7])
def test_an_interrupted_run_is_usable(monkeypatch, capsys, step):
    interrupt_at(monkeypatch, step)
    run = run_of("SimCLR")
    assert len(run.history) == step and not run.finished
    assert f"Interrupted after step {step} of 12" in capsys.readouterr().out
    h = run.encoder(PICTURES.images / 255)
    assert h.shape == (64, 16) and h.isfinite().all()
    with pytest.raises(records.RecordError, match="did not finish"):
        records.merge([run.protocol])


def test_an_interrupted_write_leaves_the_last_checkpoint(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 4)
        run_of("SimCLR", checkpoint="one")
    before = (tmp_path / "runs" / "one.pt").read_bytes()

    def save(_, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", save)
        assert len(run_of("SimCLR", checkpoint="one").history) == 8
    assert (tmp_path / "runs" / "one.pt").read_bytes() == before and files(tmp_path) == ["one.pt"]
    assert run_of("SimCLR", checkpoint="one").protocol["weights"] == run_of("SimCLR").protocol["weights"]


# --- drawing ahead ------------------------------------------------------------------------------------------


def note_draws(monkeypatch, fail_at=None):
    """A list that grows by the thread of each draw of a pair; one of the draws fails."""
    seen = []
    original = training.draw_pair

    def draw_pair(*arguments, **settings):
        seen.append(threading.current_thread())
        if len(seen) == fail_at:
            raise OSError("the disk is gone")
        return original(*arguments, **settings)

    monkeypatch.setattr(training, "draw_pair", draw_pair)
    return seen


def threads_of_a_new_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("name", METHODS)
def test_one_thread_and_two_begin_alike(threads, name):
    losses = []
    for count in (1, 2):
        threads(count)
        losses.append(run_of(name).history.loss.head(4))
    np.testing.assert_allclose(*losses, rtol=1e-3)  # the order of a sum may differ, the pairs may not


def test_one_other_thread_draws_and_is_one_batch_ahead(monkeypatch, threads):
    threads(3)
    seen, drawn = note_draws(monkeypatch), []
    original = training.take_step

    def take_step(*arguments):
        original(*arguments)
        drawn.append(len(seen))

    monkeypatch.setattr(training, "take_step", take_step)
    run_of("SimCLR")
    assert len(set(seen)) == 1 and threading.main_thread() not in seen
    assert all(step + 1 <= count <= step + 2 for step, count in enumerate(drawn))
    assert drawn[3::4] == [4, 8, 12]  # when a checkpoint is written, nothing of the next epoch is drawn


class Counting(SimCLR):
    """SimCLR that notes torch's number of threads, forward and backward."""

    def __init__(self, seen):
        super().__init__(SmallEncoder(), ProjectionHead("mlp", 128))
        self.seen = seen

    def loss(self, first, second):
        self.seen.add(("forward", torch.get_num_threads()))
        loss = super().loss(first, second)
        loss.register_hook(lambda _: self.seen.add(("backward", torch.get_num_threads())))
        return loss


@pytest.mark.parametrize("views, spared", [("exact", 1), ("fused", 0), ("none", 0)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_forward_pass_spares_the_thread_that_draws_and_the_backward_pass_has_all(
    threads, count, views, spared
):
    threads(count)
    seen = set()
    policy = None if views == "none" else "simclr_cifar"
    train(partial(Counting, seen), PICTURES, TINY, policy=policy, fused=views == "fused")
    assert seen == {("forward", max(1, count - spared)), ("backward", count)}


def test_the_threads_come_back_after_a_loss_that_fails(threads):
    threads(2)
    with pytest.raises(ZeroDivisionError), training.one_thread_spared():
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("count, settings", [(1, {}), (2, {"fused": True}), (2, {"policy": None})])
def test_no_second_thread_where_there_is_none_to_spare_or_little_to_draw(
    monkeypatch, threads, count, settings
):
    threads(count)
    seen = note_draws(monkeypatch)
    run_of("SimCLR", **settings)
    assert set(seen) == {threading.main_thread()}


def test_on_a_gpu_no_thread_is_spared(threads):
    threads(2)
    assert training.one_thread_draws(torch.device("cpu"), "simclr_cifar", fused=False)
    assert not training.one_thread_draws(torch.device("cuda"), "simclr_cifar", fused=False)


def test_an_error_in_a_draw_comes_out_and_the_run_goes_on_from_the_checkpoint(monkeypatch, threads):
    threads(2)
    whole = run_of("SimCLR")
    with monkeypatch.context() as patch:
        note_draws(patch, fail_at=7)
        with pytest.raises(OSError, match="the disk is gone"):
            run_of("SimCLR", checkpoint="one")
    resumed = run_of("SimCLR", checkpoint="one")
    assert resumed.protocol["weights"] == whole.protocol["weights"]


@pytest.mark.parametrize("end", ["finished", "interrupted", "diverged", "failed"])
def test_afterwards_the_threads_are_what_they_were(monkeypatch, threads, end):
    threads(2)
    if end == "interrupted":
        interrupt_at(monkeypatch, 6)
    if end == "failed":
        note_draws(monkeypatch, fail_at=7)
    make = partial(Poisoned, "loss") if end == "diverged" else METHODS["SimCLR"]
    expected = {"diverged": pytest.raises(Diverged), "failed": pytest.raises(OSError)}
    with expected.get(end, nullcontext()):
        train(make, PICTURES, TINY)
    assert not [thread.name for thread in threading.enumerate() if "Pool" in thread.name]
    assert torch.get_num_threads() == threads_of_a_new_thread() == 2


# --- what is refused ----------------------------------------------------------------------------------------


def damage_of(whole):
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    return {
        "flipped": flipped,
        "truncated": whole[:middle],
        "short": whole[:-1],
        "empty": b"",
        "text": b"not a zip",
    }


@pytest.mark.parametrize("kind", ["flipped", "truncated", "short", "empty", "text"])
def test_a_damaged_checkpoint_is_refused_by_name_and_stays(tmp_path, kind):
    run_of("SimCLR", checkpoint="one")
    path = tmp_path / "runs" / "one.pt"
    broken = damage_of(path.read_bytes())[kind]
    path.write_bytes(broken)
    with pytest.raises(CheckpointError, match=f"{re.escape(str(path))} is damaged, or no checkpoint"):
        run_of("SimCLR", checkpoint="one")
    assert path.read_bytes() == broken and files(tmp_path) == ["one.pt"]


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": {}}, {"definition": {}}, torch.ones(3)])
def test_a_file_of_another_program_is_refused(tmp_path, content):
    path = tmp_path / "runs" / "one.pt"
    path.parent.mkdir()
    torch.save(content, path)
    with pytest.raises(CheckpointError, match="no checkpoint of this course"):
        run_of("SimCLR", checkpoint="one")


FOREIGN = {
    "seed": {"seed": 1},
    "policy": {"policy": "grey"},
    "budget": {"budget": Budget(epochs=4, batch=16, rate=3e-3)},
    "method": {"make": lambda: SimCLR(TinyEncoder(), head(), temperature=0.1)},
    "networks": {"make": lambda: SimCLR(SmallEncoder(), ProjectionHead("mlp", 128), temperature=0.5)},
    "data": {"pictures": shapes.make(64, seed=1, size=16)},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_checkpoint_of_another_run_is_refused_by_name_and_stays(tmp_path, what):
    run_of("SimCLR", checkpoint="one")
    path = tmp_path / "runs" / "one.pt"
    before = path.read_bytes()
    call = {"make": METHODS["SimCLR"], "pictures": PICTURES, "budget": TINY, "checkpoint": "one"} | FOREIGN[
        what
    ]
    with pytest.raises(CheckpointError, match=rf"one\.pt belongs to another run: .*{what} \("):
        train(**call)
    assert path.read_bytes() == before


class Poisoned(SimCLR):
    """A loss that is no number, or whose features are none, from a step on."""

    def __init__(self, how):
        super().__init__(TinyEncoder(), head())
        self.how, self.calls = how, 0

    def loss(self, view_a, view_b):
        self.calls += 1
        loss = super().loss(view_a, view_b)
        if self.calls < 6:
            return loss
        if self.how == "features":
            return contrast.nt_xent(view_a.flatten(1) * math.nan, view_b.flatten(1), 0.5)
        if self.how == "gradient":  # sqrt at 0: the value is a number, its slope is not
            return loss + (self.encoder[0].weight * 0).abs().sum().sqrt()
        return loss * math.nan


@pytest.mark.parametrize("how", ["loss", "gradient", "features"])
def test_training_stops_before_what_is_no_number_reaches_the_weights(how):
    made = []

    def make():
        made.append(Poisoned(how))
        return made[0]

    with pytest.raises(Diverged, match=r"^Step 6: .*ordinary size") as stopped:
        train(make, PICTURES, TINY)
    before, whole = stopped.value.history, run_of("SimCLR").history
    pd.testing.assert_frame_equal(before.drop(columns="loss"), whole.head(5).drop(columns="loss"))
    assert before.loss.gt(0).all()
    assert all(p.isfinite().all() for p in made[0].parameters())


def test_a_learning_rate_that_is_too_high_is_named():
    def make():
        return SimSiam(nn.Sequential(nn.Flatten(), nn.Linear(768, 16)), ProjectionHead("linear", 16, width=8))

    with pytest.raises(Diverged, match=r"^Step \d+: .*learning rate, .*, is too high; try a tenth"):
        train(make, PICTURES, Budget(epochs=20, batch=16, rate=1e18, warm_up=0))


def test_a_mistake_in_the_first_step_is_reported_as_it_is():
    with pytest.raises(ValueError, match="temperature is -1"):
        train(lambda: SimCLR(TinyEncoder(), head(), temperature=-1), PICTURES, TINY)
    with pytest.raises(ValueError, match="unknown policy 'simclr_cifra'"):
        run_of("SimCLR", policy="simclr_cifra")
    with pytest.raises(ValueError, match=r"keys has shape \[16, 8\]; expected \[B, 8\] with 1 <= B <= 8"):
        train(lambda: MoCo(TinyEncoder(), head(), queue=8), PICTURES, TINY)


def test_what_cannot_be_trained_is_refused():
    with pytest.raises(ValueError, match="64 pictures do not fill a batch of 65"):
        run_of("SimCLR", Budget(epochs=1, batch=65))
    with pytest.raises(ValueError, match=r"captions has shape \[63, 2\]; expected \[64, L\]"):
        train(METHODS["CLIP"], PICTURES, TINY, captions=CAPTIONS[1:])
    with pytest.raises(TypeError, match="got a SimCLR; expected a function that makes one"):
        train(METHODS["SimCLR"](), PICTURES, TINY)
    for wrong in ({"epochs": 0}, {"batch": 1}, {"rate": 0}, {"warm_up": 1}, {"rate": math.nan}):
        with pytest.raises(ValueError, match="expected epochs >= 1"):
            Budget(**{"epochs": 1, **wrong})


def test_fused_views_are_another_run_that_says_so_and_learns(tmp_path):
    exact = run_of("SimCLR", checkpoint="one")
    fused = run_of("SimCLR", fused=True)
    assert (exact.protocol.get("views"), fused.protocol["views"]) == (None, "fused")
    assert fused.protocol["weights"] != exact.protocol["weights"]
    with pytest.raises(CheckpointError, match=r"another run: it differs in views \(None there, fused here\)"):
        run_of("SimCLR", fused=True, checkpoint="one")
    run_of("SimCLR", fused=True, checkpoint="two")
    with pytest.raises(CheckpointError, match=r"another run: it differs in views \(fused there, None here\)"):
        run_of("SimCLR", checkpoint="two")
    losses = run_of("SimCLR", Budget(epochs=15, batch=32, rate=1e-2), fused=True).history["loss"]
    assert losses[-6:].mean() < losses[:6].mean()


def test_half_precision_is_another_run_that_says_so_and_learns():
    run_of("SimCLR", checkpoint="one")
    with pytest.raises(CheckpointError, match=r"differs in precision \(None there, bfloat16 here\)"):
        run_of("SimCLR", half=True, checkpoint="one")
    run = run_of("SimCLR", Budget(epochs=15, batch=32, rate=1e-2), policy="no_colour", half=True)
    losses = run.history["loss"]
    assert run.protocol["precision"] == "bfloat16" and losses[-6:].mean() < losses[:6].mean()


@pytest.mark.parametrize("imitated", [True, False])
def test_half_precision_is_the_default_where_a_gpu_has_it(monkeypatch, imitated):
    def is_bf16_supported(including_emulation=True):
        return imitated and including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    assert not training.has_bfloat16(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert training.has_bfloat16(torch.device("cuda")) and not training.has_bfloat16(torch.device("cpu"))


def test_a_compiled_encoder_is_another_run_that_says_so_and_learns_the_same(monkeypatch):
    plain = run_of("SimCLR", checkpoint="one")
    modes, original = [], torch.compile

    def compile(forward, mode):
        modes.append(mode)
        return original(forward, backend="eager")  # traced, but no C++ compiler is needed

    monkeypatch.setattr(torch, "compile", compile)
    run = run_of("SimCLR", compiled=True)
    assert modes == ["default"] and run.protocol["encoder"] == "compiled"
    assert run.protocol["weights"] == plain.protocol["weights"]
    assert "forward" not in vars(run.encoder)
    with pytest.raises(CheckpointError, match=r"differs in encoder \(None there, compiled here\)"):
        run_of("SimCLR", compiled=True, checkpoint="one")


def test_on_a_gpu_a_compiled_encoder_is_one_graph_and_gone_after_an_error(monkeypatch):
    encoder, modes = SmallEncoder(), []
    monkeypatch.setattr(torch, "compile", lambda forward, mode: modes.append(mode))
    with pytest.raises(ZeroDivisionError), training.compiled_forward(encoder, torch.device("cuda")):
        raise ZeroDivisionError
    assert modes == ["reduce-overhead"] and "forward" not in vars(encoder)


def test_progress_shows_loss_rate_and_time_left(capsys):
    run_of("SimCLR")
    bar = capsys.readouterr().err.split("\r")[-1]
    assert re.search(r"192/192 \[\d\d:\d\d<\d\d:\d\d, .* pictures/s, loss=\d\.\d{3}\]", bar)


def test_a_run_among_several_shows_no_bar(capsys):
    assert run_of("SimCLR", progress=False).finished
    assert capsys.readouterr().err == ""


def test_progress_can_be_switched_off():
    code = (
        "from course_utils.images import shapes; from course_utils.training import *; "
        "from course_utils.networks import *; "
        "run = train(lambda: SimCLR(SmallEncoder(), ProjectionHead('mlp', 128)), shapes.make(4), "
        "Budget(epochs=1, batch=4), device='cpu'); print(run.finished)"
    )
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
