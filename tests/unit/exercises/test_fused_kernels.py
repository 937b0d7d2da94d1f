"""Notebook 10's exercises: right answers written differently pass, mistakes are named however written."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from course_utils.exercises import fused_kernels
from course_utils.feedback import check


def headline(name, function):
    verdict = check(name, function)
    return verdict.status if verdict.status == "right" else verdict.headline


# Log-sum-exp over chunks


def by_logaddexp(logits, width):
    chunks = logits.split(width, dim=1)
    answer = chunks[0].logsumexp(dim=1)
    for chunk in chunks[1:]:
        answer = torch.logaddexp(answer, chunk.logsumexp(dim=1))
    return answer


def with_an_infinity_that_is_caught(logits, width):
    top = torch.full((len(logits),), -torch.inf, dtype=logits.dtype)
    total = torch.zeros_like(top)
    for start in range(0, logits.shape[1], width):
        chunk = logits[:, start : start + width]
        new = torch.maximum(top, chunk.max(dim=1).values)
        shift = torch.where(new.isfinite(), new, torch.zeros_like(new))
        total = total * torch.exp(top - shift) + torch.exp(chunk - shift[:, None]).sum(dim=1)
        top = new
    return top + total.log()


def row_by_row(logits, width):
    answers = []
    for row in logits:
        top, total = torch.tensor(-1e30, dtype=row.dtype), torch.zeros((), dtype=row.dtype)
        for x in row:
            if x > top:
                total, top = total * (top - x).exp() + 1, x
            else:
                total = total + (x - top).exp()
        answers.append(top + total.log())
    return torch.stack(answers)


@pytest.mark.parametrize("function", [by_logaddexp, with_an_infinity_that_is_caught, row_by_row])
def test_right_logsumexps(function):
    assert headline("online_logsumexp", function) == "right"


def sum_kept_as_it_was(logits, width):
    top, total = logits[:, :width].max(dim=1)[0], 0
    for start in range(0, logits.shape[1], width):
        chunk = logits[:, start : start + width]
        top = torch.maximum(top, chunk.max(dim=1)[0])
        total = total + sum((x - top).exp() for x in chunk.T)
    return top + torch.log(total)


def the_largest_of_the_batch(logits, width):
    top, total = torch.tensor(-1e9, dtype=logits.dtype), 0
    for chunk in logits.split(width, dim=1):
        new = max(top, chunk.max())
        total = total * torch.exp(top - new) + torch.exp(chunk - new).sum(dim=1)
        top = new
    return top + torch.log(total)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (sum_kept_as_it_was, "the running sum is not rescaled"),
        (the_largest_of_the_batch, "one maximum serves all rows"),
        (lambda logits, width: (logits.double().exp().sum(1)).log(), "no maximum is taken off"),
    ],
)
def test_a_mistake_with_logsumexp_written_differently(function, name):
    assert headline("online_logsumexp", function).startswith(f"Misconception: {name}.")


# Row sums over symmetric tiles


def by_padded_blocks(views, edge, temperature):
    """Each tile once, the self-pairs taken off at the end: exp(0) = 1 a row."""
    count = len(views)
    sums = torch.zeros(count, dtype=views.dtype)
    for i in range(0, count, edge):
        for j in range(i, count, edge):
            tile = torch.exp((views[i : i + edge] @ views[j : j + edge].T - 1) / temperature)
            sums[i : i + edge] += tile.sum(1)
            if j > i:
                sums[j : j + edge] += tile.sum(0)
    itself = torch.exp(((views * views).sum(1) - 1) / temperature)
    return sums - itself


def by_loops(views, edge, temperature):
    sums = [0.0] * len(views)
    for i, row in enumerate(views):
        for j in range(i + 1, len(views)):
            weight = ((row @ views[j] - 1) / temperature).exp()
            sums[i], sums[j] = sums[i] + weight, sums[j] + weight
    return torch.stack(sums)


def by_distances(views, edge, temperature):
    """Of unit rows, s - 1 is half the squared distance, with a minus."""
    squares = (views[:, None] - views).square().sum(dim=2)
    return (-squares / (2 * temperature)).exp().fill_diagonal_(0).sum(dim=1)


def less_one(views, edge, temperature):
    return ((views @ views.T - 1) / temperature).exp().sum(dim=1) - 1


@pytest.mark.parametrize("function", [by_loops, by_padded_blocks, by_distances, less_one])
def test_right_row_sums(function):
    assert headline("symmetric_row_sums", function) == "right"


def diagonal_tile_both_ways(views, edge, temperature):
    weights = ((views @ views.T - 1) / temperature).exp() * (1 - torch.eye(len(views), dtype=views.dtype))
    block = torch.arange(len(views)) // edge
    return (weights * (1 + (block[:, None] == block).to(weights))).sum(dim=1)


def upper_half(views, edge, temperature):
    weights = ((views @ views.T - 1) / temperature).exp() * (1 - torch.eye(len(views), dtype=views.dtype))
    block = torch.arange(len(views)) // edge
    return (weights * (block[:, None] <= block)).sum(dim=1)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (diagonal_tile_both_ways, "the diagonal tile is counted twice"),
        (upper_half, "the mirrored tiles are forgotten"),
    ],
)
def test_a_mistake_with_tiles_written_differently(function, name):
    assert headline("symmetric_row_sums", function).startswith(f"Misconception: {name}.")


# The gradient's weights of one tile


def by_loops_over_the_tile(similarities, log_sums, rows, columns, temperature):
    count = len(log_sums)
    weights = torch.zeros_like(similarities)
    for a, i in enumerate(rows.tolist()):
        for b, j in enumerate(columns.tolist()):
            if i != j:
                logit = similarities[a, b] / temperature
                weights[a, b] = (logit - log_sums[i]).exp() + (logit - log_sums[j]).exp()
                weights[a, b] -= 2 * (abs(i - j) == count // 2)
    return weights / temperature / count


def by_two_masks(similarities, log_sums, rows, columns, temperature):
    distance = (rows[:, None] - columns).abs()
    logits = (similarities / temperature).masked_fill(distance == 0, -torch.inf)
    p = (logits - log_sums[rows].unsqueeze(1)).exp() + (logits - log_sums[columns].unsqueeze(0)).exp()
    return (p - 2.0 * (distance == len(log_sums) // 2)) / (temperature * len(log_sums))


def by_a_fixed_shift(similarities, log_sums, rows, columns, temperature):
    """One exponential a cosine, as the notebook has it for whole rows."""
    count, share = len(log_sums), (1 / temperature - log_sums).exp()
    weights = ((similarities - 1) / temperature).exp() * (share[rows, None] + share[columns])
    weights = weights - 2 * ((rows[:, None] - columns).abs() == count // 2).to(weights)
    return weights.masked_fill(rows[:, None] == columns, 0) / (temperature * count)


@pytest.mark.parametrize("function", [by_loops_over_the_tile, by_two_masks, by_a_fixed_shift])
def test_right_weights(function):
    assert headline("tile_weights", function) == "right"


def one_way(similarities, log_sums, rows, columns, temperature):
    distance = (rows[:, None] - columns).abs()
    p = (similarities / temperature - log_sums[rows].unsqueeze(1)).exp()
    p = p - (distance == len(log_sums) // 2).to(p)
    return p * (distance != 0) / temperature / len(log_sums)


def exponential_first(similarities, log_sums, rows, columns, temperature):
    weights = (similarities / temperature).exp()
    weights = weights * (1 / log_sums.exp()[rows][:, None] + 1 / log_sums.exp()[columns][None])
    distance = (rows[:, None] - columns).abs()
    weights[distance == len(log_sums) // 2] -= 2
    weights[distance == 0] = 0
    return weights / (temperature * len(log_sums))


def partner_without_the_wrap(similarities, log_sums, rows, columns, temperature):
    logits, count = similarities / temperature, len(log_sums)
    weights = (logits - log_sums[rows, None]).exp() + (logits - log_sums[columns]).exp()
    weights[columns - rows[:, None] == count // 2] -= 2
    return weights * (rows[:, None] != columns) / temperature / count


def diagonal_of_the_tile_overwritten(similarities, log_sums, rows, columns, temperature):
    logits, count = similarities / temperature, len(log_sums)
    weights = (logits - log_sums[rows, None]).exp() + (logits - log_sums[columns]).exp()
    weights -= 2 * ((rows[:, None] - columns).abs() == count // 2)
    return weights.fill_diagonal_(0) / temperature / count


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (one_way, "only the row's share is there"),
        (exponential_first, "exp overflows at a small temperature"),
        (partner_without_the_wrap, "only view a's rows find their partners"),
        (diagonal_of_the_tile_overwritten, "the tile's own diagonal is set to 0"),
    ],
)
def test_a_mistake_with_weights_written_differently(function, name):
    assert headline("tile_weights", function).startswith(f"Misconception: {name}.")


def test_the_weights_are_those_of_autograd():
    """The reference of the exercise beside the definition, not beside another formula."""
    views = fused_kernels._unit_views(6, 5, seed=8)
    temperature, everything = 0.1, torch.arange(12)
    leaf = views.clone().requires_grad_()
    logits = (leaf @ leaf.T / temperature).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf)
    cross_entropy(logits, everything.roll(6)).backward()
    weights = fused_kernels.TILE_WEIGHTS.reference(
        views @ views.T, logits.detach().logsumexp(dim=1), everything, everything, temperature
    )
    assert torch.allclose(weights @ views, leaf.grad, atol=1e-12)
