"""The ring of keys and the EMA against N8: order, layout, ages, closed form."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import normalize

from course_utils.memory import KeyQueue, ema_update


def keys(*numbers):
    """A unit vector for each number, by which it can be told from all others."""
    angle = torch.tensor(numbers, dtype=torch.float32)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def test_two_new_keys_take_the_places_of_the_two_oldest():
    queue = KeyQueue(size=6, width=2)
    queue.enqueue(keys(1, 2, 3, 4, 5, 6))
    assert queue.pointer == 0
    queue.enqueue(keys(7, 8))
    torch.testing.assert_close(queue.keys, keys(7, 8, 3, 4, 5, 6))
    assert queue.pointer == 2


@given(size=st.integers(1, 9), batches=st.lists(st.integers(1, 9), max_size=8))
def test_a_queue_holds_the_last_keys_whatever_the_batches(size, batches):
    queue, told = KeyQueue(size, width=2), []
    for number, batch in enumerate(batches):
        batch = min(batch, size)
        new = [number + k / 16 for k in range(batch)]
        queue.enqueue(keys(*new))
        told += new
    newest = [(int(queue.pointer) - 1 - k) % size for k in range(min(size, len(told)))]
    expected = keys(*told[::-1][: len(newest)]) if told else torch.empty(0, 2)
    torch.testing.assert_close(queue.keys[newest], expected)


def test_a_queue_starts_with_unit_vectors_and_stores_unit_vectors():
    queue = KeyQueue(size=5, width=3)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(5))
    assert len(queue.keys.unique(dim=0)) == 5
    long = torch.tensor([[3.0, 4.0, 0.0]])
    queue.enqueue(long)
    torch.testing.assert_close(queue.keys[0], normalize(long)[0])


@pytest.mark.parametrize("shape", [(7, 2), (3, 3), (2,)])
def test_keys_that_do_not_fit_leave_the_queue_as_it_was(shape):
    queue = KeyQueue(size=6, width=2)
    queue.enqueue(keys(1, 2))
    before, pointer = queue.keys.clone(), int(queue.pointer)
    with pytest.raises(ValueError, match=r"keys has shape .*; expected \[B, 2\] with B <= 6"):
        queue.enqueue(torch.ones(shape))
    assert torch.equal(queue.keys, before) and queue.pointer == pointer


def test_a_queue_is_saved_with_its_pointer():
    queue, other = KeyQueue(size=6, width=2), KeyQueue(size=6, width=2)
    queue.enqueue(keys(1, 2))
    other.load_state_dict(queue.state_dict())
    assert torch.equal(other.keys, queue.keys) and other.pointer == 2
    assert not list(queue.parameters())


def test_the_ema_lags_behind_a_steady_drift_as_its_closed_form_says():
    leader, follower = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for network in (leader, follower):
        nn.init.zeros_(network.weight)
    lags = []
    for _ in range(4):
        with torch.no_grad():
            leader.weight += 1
        ema_update(follower, leader, momentum=0.9)
        lags.append((leader.weight - follower.weight).item())
    assert lags == pytest.approx([0.9, 1.71, 2.439, 3.0951], rel=1e-6)  # N8; float32


def test_the_ema_leaves_buffers_and_gradients_alone():
    leader, follower = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    leader(torch.randn(8, 3) + 5)
    before = follower.running_mean.clone()
    ema_update(follower, leader, momentum=0.5)
    assert torch.equal(follower.running_mean, before) and not torch.equal(leader.running_mean, before)
    assert follower.weight.grad is None


def test_networks_of_different_architecture_are_refused():
    with pytest.raises(ValueError):
        ema_update(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), 0.9)
