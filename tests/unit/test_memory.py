"""The ring of keys against a deque, the EMA against N8, the trace against steps whose changes are known."""

import copy
import math
from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import normalize

from course_utils.memory import UNKNOWN, KeyQueue, Trace, ema_update, write_ring
from course_utils.networks import fingerprint


def keys(*numbers):
    """A unit vector for each number, by which it can be told from all others."""
    angle = torch.tensor(numbers, dtype=torch.float32)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def numbers(*values):
    return torch.tensor(values)


# --- FIFO ---------------------------------------------------------------------------------------------------


def test_two_new_keys_take_the_places_of_the_two_oldest():
    queue = KeyQueue(size=6, width=2)
    queue.enqueue(keys(1, 2, 3, 4, 5, 6))
    assert queue.pointer == 0
    queue.enqueue(keys(7, 8))
    assert torch.equal(queue.keys, keys(7, 8, 3, 4, 5, 6))  # N8: the ring after that step
    assert queue.pointer == 2
    assert torch.equal(queue.keys[queue.order()], keys(3, 4, 5, 6, 7, 8))


@given(size=st.integers(1, 9), batches=st.lists(st.integers(1, 9), max_size=12))
def test_a_ring_and_a_deque_hold_the_same_whatever_the_batches(size, batches):
    queue, told = KeyQueue(size, width=2), deque(maxlen=size)
    for step, batch in enumerate((min(batch, size) for batch in batches), start=1):
        made = range(10 * step, 10 * step + batch)
        queue.enqueue(keys(*made), pictures=torch.tensor(made), views=step)
        told.extend((number, step) for number in made)
    assert queue.filled == len(told) and queue.steps == len(batches)
    real = queue.order()[size - len(told) :]
    assert queue.pictures[real].tolist() == [number for number, _ in told]
    assert queue.views[real].tolist() == queue.births[real].tolist() == [step for _, step in told]
    assert torch.equal(queue.keys[real], keys(*(number for number, _ in told)))
    assert queue.ages[real].tolist() == [len(batches) + 1 - step for _, step in told]
    # What is left are start entries, and without them the candidates are the real keys.
    assert sorted(real.tolist()) == (queue.births > 0).nonzero()[:, 0].tolist()
    assert torch.equal(queue.candidates(start=False), queue.keys[queue.births > 0])
    assert queue.pictures[queue.births == 0].tolist() == [UNKNOWN] * (size - len(told))


@given(size=st.integers(1, 9), place=st.integers(0, 8), count=st.integers(0, 9))
def test_a_ring_is_written_from_a_place_on(size, place, count):
    place, count = place % size, min(count, size)
    ring, expected = torch.zeros(size), torch.zeros(size)
    for k in range(count):
        expected[(place + k) % size] = k + 1
    write_ring(ring, place, torch.arange(1.0, count + 1))
    assert torch.equal(ring, expected)


@pytest.mark.parametrize(("size", "batch"), [(6, 2), (64, 4), (96, 16)])
def test_ages_are_uniform_up_to_the_number_of_batches(size, batch):
    queue, spans = KeyQueue(size, width=2), size // batch
    for _ in range(2 * spans):
        queue.enqueue(keys(*range(batch)))
    ages = queue.ages.double()
    assert ages.sort().values.tolist() == [age for age in range(1, spans + 1) for _ in range(batch)]
    assert ages.mean() == (spans + 1) / 2  # N8
    assert ages.var(correction=0).item() == pytest.approx((spans**2 - 1) / 12)
    assert (queue.keys is queue.candidates()) and len(queue.candidates(start=False)) == size


def test_a_queue_starts_with_unit_vectors_that_are_marked():
    queue = KeyQueue(size=5, width=3)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    assert len(queue.keys.unique(dim=0)) == 5
    assert queue.table()["start"].all() and len(queue.candidates(start=False)) == 0
    queue.enqueue(normalize(torch.ones(2, 3)))
    assert queue.table()["start"].tolist() == [False, False, True, True, True]
    assert queue.table()["age"].tolist() == [1, 1, 2, 2, 2]
    assert queue.table()["next"].tolist() == [False, False, True, False, False]
    queue.verify()


WRONG = {
    "too large a batch": (torch.eye(2).repeat(4, 1)[:7], {}, r"keys has shape \[7, 2\]; expected \[B, 2\]"),
    "an empty batch": (torch.ones(0, 2), {}, r"shape \[0, 2\]; expected \[B, 2\] with 1 <= B <= 6"),
    "wrong width": (torch.eye(3), {}, r"shape \[3, 3\]; expected \[B, 2\]"),
    "one key without its row": (torch.ones(2), {}, r"shape \[2\]"),
    "whole numbers": (torch.eye(2, dtype=torch.int64), {}, "keys is torch.int64 on cpu; expected floating"),
    "another device": (torch.empty(2, 2, device="meta"), {}, "on meta; expected .* on cpu"),
    "not normalised": (2 * torch.eye(2), {}, "row 0 has length 2; expected finite rows of length 1"),
    "nearly normalised": (torch.tensor([[1, 0], [1.002, 0]]), {}, "row 1 has length 1.002"),
    "NaN": (torch.tensor([[1, 0], [math.nan, 0]]), {}, "row 1 has length nan"),
    "infinite": (torch.tensor([[1, 0], [math.inf, 0]]), {}, "row 1 has length inf"),
    "too few pictures": (torch.eye(2), {"pictures": numbers(1)}, r"pictures has shape \[1\]; expected \[2\]"),
    "pictures in a matrix": (torch.eye(2), {"pictures": numbers([1, 2])}, r"pictures has shape \[1, 2\]"),
    "half a view": (torch.eye(2), {"views": 0.5}, "views is torch.float32; expected whole numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_leaves_the_queue_bit_for_bit_as_it_was(case):
    wrong, identity, message = WRONG[case]
    queue = KeyQueue(size=6, width=2)
    queue.enqueue(keys(1, 2, 3, 4, 5), pictures=numbers(1, 2, 3, 4, 5), views=9)
    before = fingerprint(queue)
    with pytest.raises((ValueError, TypeError), match=message):
        queue.enqueue(wrong, **identity)
    assert fingerprint(queue) == before
    assert (queue.pointer, queue.filled, queue.steps) == (5, 5, 1)


def test_a_queue_without_places_is_refused():
    for size, width in ((0, 2), (2, 0)):
        with pytest.raises(ValueError, match=f"size is {size}, width {width}; expected at least one"):
            KeyQueue(size, width)


def test_a_key_that_went_bad_in_the_queue_is_found():
    queue = KeyQueue(size=4, width=2)
    queue.keys[2] = math.nan
    with pytest.raises(ValueError, match=r"the queue's keys, shape .*: row 2 has length nan"):
        queue.verify()


def test_nothing_in_a_step_waits_for_a_device():
    """A tensor on the meta device has no values: whatever would read one on the host raises here."""
    queue, follower, leader = KeyQueue(6, 2).to("meta"), nn.BatchNorm1d(3).to("meta"), nn.BatchNorm1d(3)
    new = torch.empty(4, 2, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(new.any())
    for step in range(3):
        queue.enqueue(new, pictures=torch.arange(4), views=step)
        assert queue.candidates(start=False).shape == (min(4 * step + 4, 6), 2)
        for buffers in ("own", "copy", "average"):
            ema_update(follower, leader.to("meta"), 0.9, buffers)
    assert queue.pointer == 0 and queue.ages.shape == queue.order().shape == (6,)


def test_a_queue_is_copied_moved_and_saved_whole():
    queue, other = KeyQueue(size=6, width=2), KeyQueue(size=6, width=2)
    queue.enqueue(keys(1, 2), pictures=numbers(5, 6), views=3)
    other.load_state_dict(queue.state_dict())
    for same in (other, copy.deepcopy(queue), queue.to(torch.float64)):
        assert torch.equal(same.keys.float(), queue.keys.float())
        assert (same.pointer, same.filled, same.steps) == (2, 2, 1)
        assert same.pictures.tolist() == [5, 6, *[UNKNOWN] * 4] and same.births.dtype == torch.int64
    assert not list(queue.parameters())


def test_keys_with_a_gradient_or_in_half_precision_are_stored_as_constants():
    queue, made = KeyQueue(size=4, width=2), keys(1, 2).requires_grad_()
    queue.enqueue(made)
    assert not queue.keys.requires_grad and torch.equal(queue.keys[:2], made)
    queue.enqueue(torch.eye(2).bfloat16())
    assert queue.keys.dtype == torch.float32 and torch.equal(queue.keys[2:], torch.eye(2))


# --- EMA ----------------------------------------------------------------------------------------------------


def scalars(leader, follower):
    """Two networks with one weight each."""
    networks = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for network, value in zip(networks, (leader, follower), strict=True):
        nn.init.constant_(network.weight, value)
        network.double()
    return networks


def test_the_ema_lags_behind_a_steady_drift_as_its_closed_form_says():
    leader, follower = scalars(0, 0)
    lags = []
    for _ in range(4):
        with torch.no_grad():
            leader.weight += 1
        ema_update(follower, leader, momentum=0.9)
        lags.append((leader.weight - follower.weight).item())
    assert lags == pytest.approx([0.9, 1.71, 2.439, 3.0951], rel=1e-12)  # N8


@pytest.mark.parametrize(
    ("momentum", "steps"), [(0.9, 6.58), (0.99, 68.97), (0.996, 172.94), (0.999, 692.80)]
)
def test_half_of_a_gap_is_left_after_a_half_life(momentum, steps):
    assert round(math.log(0.5) / math.log(momentum), 2) == steps  # N8
    leader, follower = scalars(1, 0)
    for _ in range(math.floor(steps)):
        ema_update(follower, leader, momentum)
    assert follower.weight.item() <= 0.5
    ema_update(follower, leader, momentum)
    assert follower.weight.item() >= 0.5


@given(momentum=st.floats(0, 1), values=st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_the_ema_is_its_closed_form(momentum, values):
    """theta_k(t) = m^t theta_k(0) + (1 - m) sum over i < t of m^i theta_q(t - i)."""
    leader, follower = scalars(0, 2)
    for value in values:
        nn.init.constant_(leader.weight, value)
        ema_update(follower, leader, momentum)
    newest_first = enumerate(reversed(values))
    expected = momentum ** len(values) * 2 + sum((1 - momentum) * momentum**i * v for i, v in newest_first)
    assert follower.weight.item() == pytest.approx(expected, abs=1e-12)


def statistics():
    """Two batch norms whose statistics differ."""
    leader, follower = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    for _ in range(2):
        leader(torch.randn(8, 3) + 5)
    return leader, follower


@pytest.mark.parametrize("buffers", ["own", "copy", "average"])
def test_buffers_are_left_copied_or_averaged(buffers):
    leader, follower = statistics()
    nn.init.constant_(leader.weight, 3)
    before = follower.running_mean.clone()
    ema_update(follower, leader, 0.75, buffers)
    expected = {
        "own": before,
        "copy": leader.running_mean,
        "average": 0.75 * before + 0.25 * leader.running_mean,
    }
    torch.testing.assert_close(follower.running_mean, expected[buffers])
    assert follower.num_batches_tracked == (0 if buffers == "own" else 2)
    torch.testing.assert_close(follower.weight, torch.full((3,), 1.5))  # 0.75 * 1 + 0.25 * 3
    assert follower.weight.grad is None


def test_what_is_no_pair_of_networks_leaves_the_follower_as_it_was():
    leader, follower = nn.Linear(2, 2), nn.Linear(2, 2)
    before = fingerprint(follower)
    for other, message in (
        (nn.Linear(2, 2, bias=False), r"differ in bias \(\[2\] and not there\)"),
        (nn.Linear(2, 1), r"differ in weight \(\[2, 2\] and \[1, 2\]\), bias \(\[2\] and \[1\]\)"),
        (nn.Sequential(leader), "differ in weight .* 0.weight"),
    ):
        with pytest.raises(ValueError, match=message):
            ema_update(follower, other, 0.9)
    for momentum, buffers in ((1.1, "own"), (-0.1, "own"), (math.nan, "own"), (0.9, "both")):
        with pytest.raises(ValueError, match=r"expected a number in .* and one of own, copy, average"):
            ema_update(follower, leader, momentum, buffers)
    assert fingerprint(follower) == before
    norm, other = nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)
    ema_update(norm, other, 0.9)  # its parameters match, and buffers are its own
    with pytest.raises(ValueError, match="differ in running_mean"):
        ema_update(norm, other, 0.9, buffers="copy")


# --- Trace --------------------------------------------------------------------------------------------------


def test_a_trace_finds_what_changed_between_two_stages():
    network, queue, number = nn.BatchNorm1d(2), KeyQueue(4, 2), torch.zeros(3)
    trace = Trace(network=network, queue=queue, number=number)
    network(torch.randn(5, 2))
    trace.note("keys", batch=5)
    queue.enqueue(keys(1, 2))
    number += 2
    trace.note("enqueue", loss=torch.tensor(0.25))
    trace.note("keys")
    with torch.no_grad():
        network.weight += 1
    trace.note("optimiser")
    assert [(event.step, event.stage, event.changed) for event in trace.events] == [
        (1, "keys", ("network statistics",)),
        (1, "enqueue", ("queue", "number")),
        (2, "keys", ()),
        (2, "optimiser", ("network",)),
    ]
    assert trace.events[1].norms["number"] == pytest.approx(12**0.5)
    assert trace.events[3].norms["network"] == pytest.approx(8**0.5)
    assert str(trace).splitlines()[1] == "1  enqueue    changed: queue, number; loss 0.25"
    table = trace.table()
    assert table["changed"].tolist() == ["network statistics", "queue, number", "nothing", "network"]
    assert table["loss"].tolist()[1] == 0.25 and table["|number|"].tolist()[0] == 0


def test_an_empty_trace_has_nothing_to_say():
    trace = Trace(number=torch.zeros(1))
    assert str(trace) == "" and trace.table().empty and trace.events == []
