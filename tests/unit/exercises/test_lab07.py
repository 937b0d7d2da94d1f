"""LAB 07's exercises: right code written differently passes, each mistake is named, at any seed."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from course_utils.exercises import lab07
from course_utils.feedback import ANSWERED, NOT_ATTEMPTED, RIGHT, WRONG, check, judge
from course_utils.labs.grading import NotAttempted, Wrong, grade

FUNCTIONS = [lab07.ENQUEUE, lab07.EMA, lab07.LOGITS, lab07.PREPARE, lab07.STEP]
SEEDS = (21, 22, 23)


def by_name(exercise):
    return exercise.name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise", FUNCTIONS, ids=by_name)
def test_other_inputs_tell_the_mistakes_apart_as_well(exercise, seed):
    """References and known mistakes take the cases as they are, without `adapt`."""
    redrawn = replace(exercise.redrawn(seed), adapt=None)
    assert str(redrawn.cases) != str(exercise.cases)
    assert judge(redrawn, redrawn.reference).status == RIGHT
    for mistake in exercise.misconceptions:
        for function in (mistake.function, *mistake.also) if mistake.function else ():
            assert judge(redrawn, function).status == WRONG or function in mistake.also
        if mistake.function:
            assert f"Misconception: {mistake.name}." in judge(redrawn, mistake.function).headline


# --- Right, written differently -----------------------------------------------------------------------------


def by_index(ring, pointer, keys):
    places = (pointer + torch.arange(len(keys))) % len(ring)
    ring[places] = keys
    return ring, (pointer + len(keys)) % len(ring)


def in_two_slices(ring, pointer, keys):
    ring = ring.clone()
    fits = min(len(keys), len(ring) - pointer)
    ring[pointer : pointer + fits] = keys[:fits]
    ring[: len(keys) - fits] = keys[fits:]
    return [ring, torch.tensor((pointer + len(keys)) % len(ring))]


def by_roll(ring, pointer, keys):
    turned = torch.roll(ring, -pointer, dims=0)
    ring = torch.cat([keys, turned[len(keys) :]]).roll(pointer, dims=0)
    return ring, (pointer + len(keys)) % len(ring)


def key_by_key(ring, pointer, keys):
    for key in keys:
        ring[pointer] = key
        pointer = pointer + 1 if pointer + 1 < len(ring) else 0
    return ring, pointer


@torch.no_grad()
def lerp(key_network, query_network, momentum, buffers):
    for key, query in zip(key_network.parameters(), query_network.parameters(), strict=True):
        key.lerp_(query, 1 - momentum)
    if buffers == "copy":
        for key, query in zip(key_network.buffers(), query_network.buffers(), strict=True):
            key.copy_(query)


def through_data(key_network, query_network, momentum, buffers):
    for key, query in zip(key_network.parameters(), query_network.parameters(), strict=True):
        key.data = momentum * key.data + (1 - momentum) * query.data
    if buffers == "copy":
        theirs = dict(query_network.named_buffers())
        for name, buffer in key_network.named_buffers():
            buffer.data = theirs[name].clone()


def through_the_state(key_network, query_network, momentum, buffers):
    names = {name for name, _ in key_network.named_parameters()}
    old, new = key_network.state_dict(), query_network.state_dict()
    for name in old:
        if name in names:
            old[name] = old[name] * momentum + new[name] * (1 - momentum)
        elif buffers == "copy":
            old[name] = new[name]
    key_network.load_state_dict(old)


def in_one_product(query, positive_key, queue, temperature):
    q = query / query.norm(dim=1, keepdim=True)
    k = F.normalize(positive_key.detach(), dim=-1)
    positive = torch.einsum("nd,nd->n", q, k)[:, None]
    return torch.hstack([positive, torch.einsum("nd,kd->nk", q, queue.clone().detach())]).div(temperature)


def with_no_grad(query, positive_key, queue, temperature):
    with torch.no_grad():
        candidates = torch.cat(
            [F.normalize(positive_key, dim=1)[:, None], queue.expand(len(query), -1, -1)], dim=1
        )
    return (candidates @ F.normalize(query, dim=1)[:, :, None]).squeeze(2) / temperature


def one_by_one(query_network, rate):
    optimiser = torch.optim.Adam(list(query_network.parameters()), lr=rate)
    key_network = copy.deepcopy(query_network)
    for parameter in key_network.parameters():
        parameter.requires_grad = False
    return key_network, optimiser


def a_step(state, view_a, view_b, ema, logits, enqueue):
    ema(state.key_network, state.query_network, momentum=state.momentum, buffers="own")
    queries = state.query_network(view_a)
    keys = state.key_network(view_b).detach()
    keys = keys / keys.norm(dim=1, keepdim=True)
    scores = logits(queries, keys, state.ring, state.temperature)
    loss = (scores.logsumexp(dim=1) - scores[:, 0]).mean()
    loss.backward()
    state.optimiser.step()
    state.optimiser.zero_grad()
    state.ring, state.pointer = enqueue(state.ring, state.pointer, keys)
    return loss.item()


def a_step_without_the_tools(state, view_a, view_b, ema, logits, enqueue):
    lerp(state.key_network, state.query_network, state.momentum, "own")
    with torch.inference_mode():
        keys = F.normalize(state.key_network(view_b), dim=1)
    keys = keys.clone()
    queries = F.normalize(state.query_network(view_a), dim=1)
    scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ state.ring.T], 1) / state.temperature
    loss = -scores.log_softmax(dim=1)[:, 0].mean()
    state.optimiser.zero_grad(set_to_none=False)
    loss.backward()
    state.optimiser.step()
    state.ring, state.pointer = by_index(state.ring, state.pointer, keys)
    return loss


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("exercise", "function"),
    [
        *((lab07.ENQUEUE, function) for function in (by_index, in_two_slices, by_roll, key_by_key)),
        *((lab07.EMA, function) for function in (lerp, through_data, through_the_state)),
        *((lab07.LOGITS, function) for function in (in_one_product, with_no_grad)),
        (lab07.PREPARE, one_by_one),
        *((lab07.STEP, function) for function in (a_step, a_step_without_the_tools)),
    ],
)
def test_right_code_written_differently(exercise, function, seed):
    verdict = judge(exercise.redrawn(seed), function)
    assert verdict.status == RIGHT, verdict


# --- Wrong, by name -----------------------------------------------------------------------------------------


def lifo(ring, pointer, keys):
    pointer = min(pointer, len(ring) - len(keys))
    ring[pointer : pointer + len(keys)] = keys
    return ring, min(pointer + len(keys), len(ring) - 1)


def newest_replaced(ring, pointer, keys):
    start = min(pointer, len(ring) - len(keys))
    ring[start : start + len(keys)] = keys
    return ring, start if start + len(keys) >= len(ring) else start + len(keys)


def no_wrap(ring, pointer, keys):
    ring[pointer : pointer + len(keys)] = keys
    return ring, pointer + len(keys)


def no_wrap_by_index(ring, pointer, keys):
    ring[pointer + torch.arange(len(keys))] = keys
    return ring, pointer + len(keys)


def pointer_alone_not_wrapped(ring, pointer, keys):
    ring, _ = by_index(ring, pointer, keys)
    return ring, pointer + len(keys)


def slice_not_wrapped(ring, pointer, keys):
    ring[pointer : pointer + len(keys)] = keys
    return ring, (pointer + len(keys)) % len(ring)


def overflow_dropped(ring, pointer, keys):
    fits = min(len(keys), len(ring) - pointer)
    ring[pointer : pointer + fits] = keys[:fits]
    return ring, (pointer + len(keys)) % len(ring)


def overflow_dropped_and_back(ring, pointer, keys):
    fits = min(len(keys), len(ring) - pointer)
    ring[pointer : pointer + fits] = keys[:fits]
    return ring, 0 if pointer + len(keys) >= len(ring) else pointer + len(keys)


def transposed(ring, pointer, keys):
    ring, pointer = by_index(ring, pointer, keys)
    return ring.T, pointer


def columns(ring, pointer, keys):
    places = (pointer + torch.arange(len(keys))) % ring.shape[1]
    ring[:, places] = keys.T
    return ring, (pointer + len(keys)) % ring.shape[1]


def columns_in_a_slice(ring, pointer, keys):
    ring[:, pointer : pointer + len(keys)] = keys.T
    return ring, (pointer + len(keys)) % ring.shape[1]


def deque_like(ring, pointer, keys):
    return torch.cat([ring[len(keys) :], keys]), (pointer + len(keys)) % len(ring)


def ema_with(rule, buffers=True):
    @torch.no_grad()
    def ema(key_network, query_network, momentum, asked):
        for key, query in zip(key_network.parameters(), query_network.parameters(), strict=True):
            key.copy_(rule(key, query, momentum))
        if buffers and asked == "copy":
            for key, query in zip(key_network.buffers(), query_network.buffers(), strict=True):
                key.copy_(query)

    return ema


def swapped(key, query, momentum):
    return (1 - momentum) * key + momentum * query


def right_rule(key, query, momentum):
    return momentum * key + (1 - momentum) * query


def wrong_network(key_network, query_network, momentum, buffers):
    lerp(query_network, key_network, momentum, buffers)


def with_its_graph(key_network, query_network, momentum, buffers):
    for key, query in zip(key_network.parameters(), query_network.parameters(), strict=True):
        key.mul_(momentum).add_(query * (1 - momentum))


@torch.no_grad()
def all_of_the_state(key_network, query_network, momentum, buffers):
    for key, query in zip(
        key_network.state_dict().values(), query_network.state_dict().values(), strict=True
    ):
        key.copy_(right_rule(key, query, momentum))


def logits_with(change=None, joined=None, keys=None, detached=True):
    def logits(query, positive_key, queue, temperature):
        q = F.normalize(query, dim=1)
        k = positive_key if keys == "as they are" else F.normalize(positive_key, dim=1)
        if detached:
            k, queue = k.detach(), queue.detach()
        positive, negatives = (q * k).sum(1, keepdim=True), q @ queue.T
        parts = change(positive, negatives, temperature) if change else (positive, negatives)
        parts = tuple(parts) if change else tuple(part / temperature for part in parts)
        return torch.cat(parts[::-1] if joined else parts, dim=1)

    return logits


def trains_both(query_network, rate):
    key_network = copy.deepcopy(query_network)
    both = [*query_network.parameters(), *key_network.parameters()]
    return key_network.requires_grad_(False), torch.optim.AdamW(both, lr=rate)


def no_copy(query_network, rate):
    return query_network, torch.optim.AdamW(query_network.parameters(), lr=rate)


def gradient_left_on(query_network, rate):
    return copy.deepcopy(query_network), torch.optim.AdamW(query_network.parameters(), lr=rate)


def anew(query_network, rate):
    key_network = copy.deepcopy(query_network).requires_grad_(False)
    for parameter in key_network.parameters():
        parameter.normal_()
    return key_network, torch.optim.AdamW(query_network.parameters(), lr=rate)


def enqueued_first_and_not_normalised(state, view_a, view_b, ema, logits, enqueue):
    ema(state.key_network, state.query_network, state.momentum, "own")
    keys = state.key_network(view_b).detach()
    state.ring, state.pointer = enqueue(state.ring, state.pointer, keys)
    loss = F.cross_entropy(
        logits(state.query_network(view_a), keys, state.ring, state.temperature),
        torch.zeros(len(keys)).long(),
    )
    state.optimiser.zero_grad()
    loss.backward()
    state.optimiser.step()
    return loss


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize(
    ("exercise", "function", "name"),
    [
        (lab07.ENQUEUE, newest_replaced, "the newest keys are overwritten (LIFO)"),
        (lab07.ENQUEUE, no_wrap, "the pointer does not wrap"),
        (lab07.ENQUEUE, no_wrap_by_index, "the pointer does not wrap"),
        (lab07.ENQUEUE, pointer_alone_not_wrapped, "the pointer does not wrap"),
        (lab07.ENQUEUE, slice_not_wrapped, "the pointer does not wrap"),
        (lab07.ENQUEUE, overflow_dropped, "the overflow is dropped at the wrap"),
        (lab07.ENQUEUE, overflow_dropped_and_back, "the overflow is dropped, and the pointer set to 0"),
        (lab07.ENQUEUE, transposed, "the queue is stored on the wrong axis"),
        (lab07.ENQUEUE, columns, "the queue is stored on the wrong axis"),
        (lab07.ENQUEUE, columns_in_a_slice, "the queue is stored on the wrong axis"),
        (lab07.ENQUEUE, deque_like, "all keys are shifted"),
        (lab07.EMA, ema_with(swapped), "m and 1 - m are swapped"),
        (lab07.EMA, ema_with(swapped, buffers=False), "m and 1 - m are swapped"),
        (lab07.EMA, ema_with(right_rule, buffers=False), "the buffers are forgotten"),
        (lab07.EMA, all_of_the_state, "the buffers are averaged"),
        (lab07.EMA, wrong_network, "the query network is moved"),
        (lab07.EMA, with_its_graph, "gradient into the key network"),
        (lab07.EMA, lambda *_: 0, "the key's weights stay as they are"),
        (lab07.LOGITS, logits_with(joined=True), "the positive is not in column 0"),
        (lab07.LOGITS, logits_with(lambda p, n, t: (p / t, n)), "the temperature divides the positive only"),
        (lab07.LOGITS, logits_with(lambda p, n, t: (p, n / t)), "the temperature divides the negatives only"),
        (lab07.LOGITS, logits_with(keys="as they are"), "the positive key is not normalised"),
        (lab07.LOGITS, logits_with(detached=False), "gradient into positive_key and queue"),
        (lab07.PREPARE, trains_both, "the key encoder is trained by the optimiser"),
        (lab07.PREPARE, no_copy, "the key network is the query network itself"),
        (lab07.PREPARE, gradient_left_on, "gradient into the key network"),
        (lab07.PREPARE, anew, "the key network starts elsewhere"),
        (
            lab07.STEP,
            lab07.stages("EMA", "keys", "enqueue", "logits", "optimiser"),
            "the keys are enqueued before the logits",
        ),
        (lab07.STEP, enqueued_first_and_not_normalised, "the keys are enqueued before the logits"),
        *(
            (lab07.STEP, lab07.stages(*order), "the EMA comes after the keys")
            for order in (
                ("keys", "EMA", "logits", "optimiser", "enqueue"),
                ("keys", "logits", "optimiser", "EMA", "enqueue"),
                ("keys", "logits", "optimiser", "enqueue", "EMA"),
            )
        ),
        (
            lab07.STEP,
            lab07.stages("keys", "logits", "EMA", "optimiser", "enqueue", unit=False),
            "the EMA comes after the keys",
        ),
        (lab07.STEP, lab07.stages(*lab07.ORDER, unit=False), "un-normalised keys are enqueued"),
        (lab07.STEP, lab07.stages(*lab07.ORDER, kept=False), "the queue stays as it was"),
    ],
)
def test_a_mistake_is_named_and_not_the_tests_code(exercise, function, name, seed):
    headline = judge(exercise.redrawn(seed), function).headline
    assert f"Misconception: {name}" in headline and "\n" not in headline and "run(" not in headline


def test_lifo_with_another_pointer_is_wrong_too():
    assert judge(lab07.ENQUEUE, lifo).status == WRONG


# --- Not attempted, and questions ---------------------------------------------------------------------------


def stub(*arguments):
    raise NotImplementedError


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=by_name)
def test_a_stub_is_not_attempted(exercise):
    assert judge(exercise, stub).status == NOT_ATTEMPTED
    with pytest.raises(NotAttempted):
        grade(exercise.name, stub, seed=1)


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=by_name)
def test_a_stub_left_at_the_end_is_not_called_right(exercise):
    with pytest.raises(Wrong):
        grade(exercise.name, lambda *arguments: 3, seed=1)


def answers(**changed):
    return lab07.TICKET.right | changed


def test_right_answers_are_right_and_a_check_does_not_tell():
    assert judge(lab07.TICKET, answers()).status == RIGHT
    assert check("lab07_ticket", answers(**{"changed by the EMA": "queue"})).status == ANSWERED


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"changed by the gradient": ["query network", "key network"]}, "gradient into keys or queue"),
        ({"changed by the EMA": "query network"}, "the EMA moves the wrong network"),
        ({"candidates of one query": "Q"}, "the positive is not counted"),
        ({"candidates of one query": "2B - 1"}, "candidates from the batch"),
        ({"whether the run was useful is said by": "the loss, which fell"}, "the loss taken for the readout"),
        (
            {"whether the run was useful is said by": "the readout of h alone"},
            "a readout without a control",
        ),
    ],
)
def test_a_wrong_answer_is_named(changed, name):
    assert f"Misconception: {name}" in judge(lab07.TICKET, answers(**changed)).headline
