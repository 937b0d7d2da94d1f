"""The exercises of notebook 05: right answers written differently pass, unknown wrong ones fail."""

from collections import deque

import pytest
import torch
from torch.nn.functional import cosine_similarity, normalize

from course_utils.exercises import moco
from course_utils.feedback import check


def status(name, function):
    return check(name, function).status


# Right, written differently


def ring_by_index(ring, batches):
    ring, pointer = ring.clone(), 0
    for batch in batches:
        places = (pointer + torch.arange(len(batch))) % len(ring)
        ring[places] = batch
        pointer = (pointer + len(batch)) % len(ring)
    return ring


def ring_key_by_key(ring, batches):
    rows = list(ring)
    for number, key in enumerate(batches.flatten(0, 1)):
        rows[number % len(rows)] = key
    return torch.stack(rows)


def ring_from_a_deque(ring, batches):
    """The last Q of all keys ever, each at its number modulo Q."""
    keys = [*ring, *batches.flatten(0, 1)]
    last = deque(enumerate(keys), maxlen=len(ring))
    return torch.stack([key for _, key in sorted(last, key=lambda entry: entry[0] % len(ring))])


def ring_by_roll(ring, batches):
    pointer = 0
    for batch in batches:
        turned = ring.roll(-pointer, dims=0)
        ring = torch.cat([batch, turned[len(batch) :]]).roll(pointer, dims=0)
        pointer += len(batch)
    return ring


@pytest.mark.parametrize("function", [ring_by_index, ring_key_by_key, ring_from_a_deque, ring_by_roll])
def test_right_rings(function):
    assert status("ring_enqueue", function) == "right"


@pytest.mark.parametrize(
    "function",
    [
        lambda key, query, momentum: key + (1 - momentum) * (query - key),
        lambda key, query, momentum: query + momentum * (key - query),
        lambda key, query, momentum: key.lerp(query, 1 - momentum),
        lambda key, query, momentum: key.clone().mul_(momentum).add_(query, alpha=1 - momentum),
        lambda key, query, momentum: (
            torch.stack([key, query], -1) @ torch.tensor([momentum, 1 - momentum]).to(key)
        ),
    ],
)
def test_right_averages(function):
    assert status("ema", function) == "right"


def logits_in_loops(query, positive_key, queue, temperature):
    rows = []
    for q, k in zip(query, positive_key.detach(), strict=True):
        candidates = [k / k.norm(), *queue.detach()]
        rows.append(torch.stack([(q / q.norm()) @ key / temperature for key in candidates]))
    return torch.stack(rows)


def logits_by_einsum(query, positive_key, queue, temperature):
    with torch.no_grad():
        k = normalize(positive_key, dim=1)
        queue = queue.clone()
    q = normalize(query, dim=1)
    return torch.cat([torch.einsum("nc,nc->n", q, k)[:, None], torch.einsum("nc,kc->nk", q, queue)], 1).div(
        temperature
    )


def logits_by_cosine_similarity(query, positive_key, queue, temperature):
    keys = torch.cat([positive_key.detach()[:, None], queue.detach().expand(len(query), -1, -1)], dim=1)
    return cosine_similarity(query[:, None], keys, dim=2) / temperature


@pytest.mark.parametrize("function", [logits_in_loops, logits_by_einsum, logits_by_cosine_similarity])
def test_right_logits(function):
    assert status("moco_logits", function) == "right"


# Wrong in ways that no list knows


@pytest.mark.parametrize(
    "function",
    [
        lambda ring, batches: ring_by_index(ring, batches[-2:]),
        lambda ring, batches: ring_by_index(ring, batches).flip(0),
        lambda ring, batches: ring_by_index(ring, batches[:, :3]),
        lambda ring, batches: torch.cat([batches.flatten(0, 1), ring])[: len(ring)],
    ],
)
def test_rings_that_are_right_at_some_inputs_only(function):
    assert status("ring_enqueue", function) == "wrong"


def test_the_ring_that_was_given_is_not_to_be_changed():
    def in_place(ring, batches):
        moco.write_ring(ring, 0, batches[0])
        return ring

    assert "changes its input ring in place" in check("ring_enqueue", in_place).headline


@pytest.mark.parametrize(
    "function",
    [
        lambda key, query, momentum: key.lerp(query, min(1 - momentum, 0.1)),
        lambda key, query, momentum: momentum * key + (1 - momentum) * query + 1e-3,
        lambda key, query, momentum: (momentum * key + (1 - momentum) * query).clamp(-1, 5),
    ],
)
def test_averages_that_are_right_at_some_inputs_only(function):
    assert status("ema", function) == "wrong"


def without_detaching(query, positive_key, queue, temperature):
    q, k = normalize(query, dim=1), normalize(positive_key, dim=1)
    return torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], dim=1) / temperature


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (without_detaching, "positive_key and queue"),
        (lambda q, k, queue, tau: without_detaching(q, k.detach(), queue, tau), "queue"),
        (lambda q, k, queue, tau: without_detaching(q, k, queue.detach(), tau), "positive_key"),
    ],
)
def test_a_gradient_into_the_keys_is_called_by_its_name(function, names):
    verdict = check("moco_logits", function)
    assert verdict.status == "wrong" and verdict.headline.startswith(f"Misconception: gradient into {names}.")


def test_a_query_that_is_detached_is_found():
    verdict = check(
        "moco_logits", lambda q, k, queue, tau: without_detaching(q.detach(), k.detach(), queue, tau)
    )
    assert verdict.status == "wrong" and "no gradient comes through" in verdict.headline


def test_the_first_inputs_can_be_typed_again():
    verdict = check("ring_enqueue", moco._by_batch(moco._what_fits))
    assert verdict.headline.startswith("Misconception: the pointer does not wrap.")
    assert verdict.lines[0].startswith(
        "Smallest input: ring = [[-1], [-2], [-3], [-4]], batches = [[[1], [2]], "
    )
