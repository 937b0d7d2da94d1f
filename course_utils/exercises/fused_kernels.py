"""Notebook 10: log-sum-exp over chunks, sums over symmetric tiles, and the gradient's weights of one tile."""

import torch
from torch.nn.functional import normalize

from course_utils.exercises.exercise import Case, Exercise, Misconception

LOWEST = -1e30  # below every logit; unlike -inf it can be subtracted from itself


# Log-sum-exp over chunks


def _logsumexp(logits, width):
    return logits.logsumexp(dim=1)


def _scan(step, finish=lambda top, total: top + total.log(), lowest=LOWEST):
    """step(top, total, chunk) -> (top, total), over the chunks from left to right."""

    def function(logits, width):
        top = torch.full_like(logits[:, 0], lowest)
        total = torch.zeros_like(top)
        for chunk in logits.split(width, dim=1):
            top, total = step(top, total, chunk)
        return finish(top, total)

    return function


def _sum_at(chunk, top):
    return (chunk - top[:, None]).exp().sum(dim=1)


def _right_step(top, total, chunk):
    new_top = top.maximum(chunk.amax(dim=1))
    return new_top, total * (top - new_top).exp() + _sum_at(chunk, new_top)


def _not_rescaled(top, total, chunk):
    new_top = top.maximum(chunk.amax(dim=1))
    return new_top, total + _sum_at(chunk, new_top)


def _rescaled_the_wrong_way(top, total, chunk):
    new_top = top.maximum(chunk.amax(dim=1))
    return new_top, total * (new_top - top).exp() + _sum_at(chunk, new_top)


def _all_rescaled(top, total, chunk):
    new_top = top.maximum(chunk.amax(dim=1))
    return new_top, (total + _sum_at(chunk, new_top)) * (top - new_top).exp()


def _own_maximum(top, total, chunk):
    chunk_top = chunk.amax(dim=1)
    return chunk_top, total + _sum_at(chunk, chunk_top)


def _one_maximum_for_all(top, total, chunk):
    new_top = top.maximum(chunk.max().expand_as(top))
    return new_top, total * (top - new_top).exp() + _sum_at(chunk, new_top)


def _from_the_first_chunk(step):
    """The same step, but the first chunk sets the maximum and the sum."""

    def function(logits, width):
        first, *others = logits.split(width, dim=1)
        top = first.amax(dim=1)
        total = _sum_at(first, top)
        for chunk in others:
            top, total = step(top, total, chunk)
        return top + total.log()

    return function


def _added_logarithms(logits, width):
    return sum(chunk.logsumexp(dim=1) for chunk in logits.split(width, dim=1))


def _full_chunks_only(logits, width):
    kept = logits.shape[1] // width * width
    return logits[:, :kept].logsumexp(dim=1)


def _last_chunk_only(logits, width):
    return logits.split(width, dim=1)[-1].logsumexp(dim=1)


def _logits(*rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


def _random_logits(rows, columns, seed, scale=5.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, columns, generator=generator) * scale).round(decimals=2).to(dtype)


INF = float("inf")

ONLINE_LOGSUMEXP = Exercise(
    name="online_logsumexp",
    reference=_logsumexp,
    cases=tuple(
        Case({"logits": logits, "width": width})
        for logits, width in [
            (_logits([1.0, 3.0]), 1),
            (_logits([3.0, 1.0]), 1),
            (_logits([-2.0, 1.0, 0.5], [0.5, 0.5, 2.5]), 2),
            (_logits([-900.0, -901.0, -899.5]), 1),
            (_logits([1000.0, 998.0, 999.0]), 2),
            (_logits([-INF, 2.0, 1.0], [2.0, -INF, 1.0], [1.0, 2.0, -INF]), 1),
            (_logits([800.0, 799.0], [-800.0, -799.0]), 1),
            (_random_logits(3, 10, seed=0, dtype=torch.float32), 4),
            (_random_logits(4, 9, seed=1, scale=60.0), 3),
            (_random_logits(5, 7, seed=2), 100),
        ]
    ),
    misconceptions=(
        Misconception(
            "the running sum is not rescaled",
            "When a larger maximum arrives, the sum so far is still relative to the old one. Multiply it by "
            "exp(old maximum - new maximum) before the new chunk is added.",
            _scan(_not_rescaled),
            also=(_from_the_first_chunk(_not_rescaled), _scan(_not_rescaled, lowest=0.0)),
        ),
        Misconception(
            "the rescaling is turned round",
            "The sum so far is multiplied by exp(new - old). Its terms are exp(x - old) and shall become "
            "exp(x - new): the factor is exp(old - new), never above 1.",
            _from_the_first_chunk(_rescaled_the_wrong_way),
            also=(_scan(_rescaled_the_wrong_way), _scan(_rescaled_the_wrong_way, lowest=-INF)),
        ),
        Misconception(
            "the new chunk is rescaled as well",
            "The chunk is already relative to the new maximum. Only the old sum is multiplied by exp(old - "
            "new).",
            _from_the_first_chunk(_all_rescaled),
            also=(_scan(_all_rescaled), _scan(_all_rescaled, lowest=-INF)),
        ),
        Misconception(
            "each chunk has a maximum of its own",
            "The sums of the chunks are relative to different maxima when they are added. Carry the largest "
            "logit so far from chunk to chunk.",
            _scan(_own_maximum),
        ),
        Misconception(
            "one maximum serves all rows",
            "A row whose logits lie far below those of another loses everything: exp of the gap is 0, and "
            "its logarithm -inf. Take the maximum of each row (amax over dim=1).",
            _scan(_one_maximum_for_all),
            also=(_from_the_first_chunk(_one_maximum_for_all), _scan(_one_maximum_for_all, lowest=-INF)),
        ),
        Misconception(
            "the maximum is not added back",
            "This is the logarithm of the sum relative to the maximum. log(sum of exp(x)) = maximum + "
            "log(sum of exp(x - maximum)).",
            _scan(_right_step, finish=lambda top, total: total.log()),
        ),
        Misconception(
            "the sum in place of its logarithm",
            "The exponentials are added up, and the logarithm at the end is missing.",
            _scan(_right_step, finish=lambda top, total: total * top.exp()),
            also=(lambda logits, width: logits.exp().sum(dim=1),),
        ),
        Misconception(
            "the sum is returned without its maximum",
            "This is the sum relative to the running maximum. What is asked for is maximum + log(sum).",
            _scan(_right_step, finish=lambda top, total: total),
        ),
        Misconception(
            "the chunks' logarithms are added",
            "The logarithm of a sum is not the sum of logarithms: that would multiply the chunks' sums. "
            "torch.logaddexp joins two of them.",
            _added_logarithms,
        ),
        Misconception(
            "the last, shorter chunk is left out",
            "The number of columns need not be a multiple of the width; what is left at the end counts too.",
            _full_chunks_only,
        ),
        Misconception(
            "only the last chunk counts",
            "Maximum and sum start afresh at every chunk. Carry both along.",
            _last_chunk_only,
        ),
        Misconception(
            "no maximum is taken off",
            "The formula is right, but exp(1000) is larger than any float64 number, and exp(-900) is 0. "
            "Subtract the running maximum first.",
            lambda logits, width: logits.exp().sum(dim=1).log(),
        ),
        Misconception(
            "the running maximum begins at 0",
            "If all logits lie far below 0, the maximum stays at 0, every exponential is 0, and the "
            "logarithm -inf. Begin below every logit.",
            _scan(_right_step, lowest=0.0),
        ),
        Misconception(
            "minus infinity taken from itself",
            "A chunk may hold no candidate at all: its maximum is -inf. If the running maximum is -inf too, "
            "their difference is nan. Begin at a large negative number such as -1e30, which can be "
            "subtracted from itself.",
            _scan(_right_step, lowest=-INF),
            also=(_from_the_first_chunk(_right_step),),
        ),
    ),
    guarantees=(
        "Your result is the log-sum-exp of whole rows whatever the width of the chunks, also where logits "
        "are very large, very small or missing (-inf). (That it looks at one chunk at a time, the loop "
        "shows; the check sees numbers only.)"
    ),
    hints=(
        "Which two numbers a row do you have to remember between two chunks?",
        "The largest logit so far, and the sum of exp(x - largest so far). When the largest changes, what "
        "becomes of the sum?",
        "new = maximum(top, chunk.amax(dim=1)); total = total * exp(top - new) + exp(chunk - new[:, "
        "None]).sum(dim=1); top = new. Begin with top = -1e30, return top + log(total).",
    ),
)


# Row sums over symmetric tiles


def _unit_views(count, width, seed, noise=0.4, dtype=torch.float64):
    """2 * count unit rows, rows k and k + count alike."""
    generator = torch.Generator().manual_seed(seed)
    pictures = torch.randn(count, width, generator=generator, dtype=torch.float64)
    other = torch.randn(2 * count, width, generator=generator, dtype=torch.float64)
    return normalize(pictures.repeat(2, 1) + noise * other, dim=1).to(dtype)


def _row_sums(views, edge, temperature):
    weights = ((views @ views.T - 1) / temperature).exp()
    return weights.fill_diagonal_(0).sum(dim=1)


def _blocks(count, edge):
    return [slice(start, min(start + edge, count)) for start in range(0, count, edge)]


def _tile_loop(
    weigh=lambda s, temperature: ((s - 1) / temperature).exp(),
    diagonal_ways=1,
    mirrored=True,
    every_tile=False,
    without=lambda tile, on_diagonal: tile.fill_diagonal_(0) if on_diagonal else tile,
    blocks=_blocks,
):
    """The loop over tiles; each argument changes one thing that can go wrong."""

    def function(views, edge, temperature):
        sums = torch.zeros_like(views[:, 0])
        slices = blocks(len(views), edge)
        for place, i in enumerate(slices):
            for j in slices if every_tile else slices[place:]:
                tile = without(weigh(views[i] @ views[j].T, temperature), i == j)
                if i == j:
                    sums[i] += diagonal_ways * tile.sum(dim=1)
                    continue
                sums[i] += tile.sum(dim=1)
                if mirrored:
                    sums[j] += tile.sum(dim=0)
        return sums

    return function


def _cosine_zero_on_the_diagonal(views, edge, temperature):
    return ((views @ views.T).fill_diagonal_(0).sub(1) / temperature).exp().sum(dim=1)


SYMMETRIC_ROW_SUMS = Exercise(
    name="symmetric_row_sums",
    reference=_row_sums,
    cases=tuple(
        Case({"views": views, "edge": edge, "temperature": temperature})
        for views, edge, temperature in [
            (_unit_views(1, 2, seed=0), 1, 1.0),
            (_unit_views(2, 2, seed=1), 2, 0.5),
            (_unit_views(2, 3, seed=2), 4, 0.5),
            (_unit_views(3, 4, seed=3), 2, 0.2),
            (_unit_views(4, 4, seed=4), 3, 0.1),
            (_unit_views(5, 8, seed=5, dtype=torch.float32), 4, 0.07),
            (_unit_views(6, 3, seed=6), 5, 0.02),
            (_unit_views(7, 16, seed=7), 100, 2.0),
        ]
    ),
    misconceptions=(
        Misconception(
            "the diagonal tile is counted twice",
            "A tile on the diagonal is its own mirror image: its rows and its columns are the same views. "
            "Add its row sums, and not its column sums as well.",
            _tile_loop(diagonal_ways=2),
        ),
        Misconception(
            "the mirrored tiles are forgotten",
            "Only the tiles on and above the diagonal were computed, and only their row sums were added. "
            "Their column sums are the row sums of the tiles below the diagonal.",
            _tile_loop(mirrored=False),
        ),
        Misconception(
            "every tile is computed and mirrored too",
            "Each pair is added twice: once by its own tile, once by the mirrored one. Begin the inner loop "
            "at the diagonal.",
            _tile_loop(every_tile=True),
            also=(_tile_loop(every_tile=True, diagonal_ways=2),),
        ),
        Misconception(
            "the diagonal tiles are left out",
            "The views of one block are candidates of each other as well. Only a view with itself is not.",
            _tile_loop(diagonal_ways=0),
        ),
        Misconception(
            "a view is its own candidate",
            "The diagonal of S is still in the sums, with exp(0) = 1 a row. Set it to 0 in the tiles on the "
            "diagonal.",
            _tile_loop(without=lambda tile, on_diagonal: tile),
        ),
        Misconception(
            "the diagonal of every tile is left out",
            "Only in a tile on the diagonal of S does the tile's own diagonal hold views with themselves. In"
            " the other tiles these are ordinary candidates.",
            _tile_loop(without=lambda tile, on_diagonal: tile.fill_diagonal_(0)),
        ),
        Misconception(
            "the cosine of a view with itself is set to 0",
            "Then exp((0 - 1) / temperature) of it is still added. Set the exponential to 0, or the cosine "
            "to -inf.",
            _cosine_zero_on_the_diagonal,
        ),
        Misconception(
            "the last, smaller block is left out",
            "The number of views need not be a multiple of the edge.",
            _tile_loop(blocks=lambda count, edge: _blocks(count // edge * edge, edge)),
        ),
        Misconception(
            "the shift is forgotten",
            "The sums are those of exp(s / temperature). Asked for is exp((s - 1) / temperature), which "
            "never exceeds 1.",
            _tile_loop(weigh=lambda s, temperature: (s / temperature).exp()),
        ),
        Misconception(
            "1 is subtracted after the division",
            "exp(s / temperature - 1): the largest logit is 1 / temperature, not 1.",
            _tile_loop(weigh=lambda s, temperature: (s / temperature - 1).exp()),
        ),
        Misconception(
            "the temperature multiplies",
            "A logit is similarity / temperature.",
            _tile_loop(weigh=lambda s, temperature: ((s - 1) * temperature).exp()),
        ),
        Misconception(
            "the temperature is not used",
            "The result is the same at every temperature.",
            _tile_loop(weigh=lambda s, temperature: (s - 1).exp()),
        ),
    ),
    guarantees=(
        "Your sums are those of the whole matrix, for edges that divide the number of views and edges that "
        "do not. (Whether you computed each tile only once, the check cannot see; the loop can.)"
    ),
    hints=(
        "Which pairs of blocks (i, j) do you have to visit if the tile (j, i) is the tile (i, j) turned "
        "over?",
        "Visit j from i on. A tile adds its row sums to the views of block i. What does it add to the views "
        "of block j, and when must it not?",
        "tile = exp((views[i] @ views[j].T - 1) / temperature); if i == j, tile.fill_diagonal_(0); sums[i] "
        "+= tile.sum(dim=1); if i != j, sums[j] += tile.sum(dim=0).",
    ),
)


# The gradient's weights of one tile


def _tile_case(count, width, seed, rows, columns, temperature, dtype=torch.float64, tolerance=None):
    views = _unit_views(count, width, seed)
    logits = (views @ views.T / temperature).fill_diagonal_(-INF)
    rows, columns = torch.arange(*rows), torch.arange(*columns)
    return Case(
        {
            "similarities": (views[rows] @ views[columns].T).to(dtype),
            "log_sums": logits.logsumexp(dim=1).to(dtype),
            "rows": rows,
            "columns": columns,
            "temperature": temperature,
        },
        tolerance,
    )


@torch.no_grad()
def _masks(log_sums, rows, columns):
    """(itself, partner): bool [rows, columns]."""
    partner = (rows + len(log_sums) // 2) % len(log_sums)
    return rows[:, None] == columns, partner[:, None] == columns


def _weights(
    shares=lambda s, own, other, temperature: (s / temperature - own).exp() + (s / temperature - other).exp(),
    positives=2,
    leave_out=True,
    scale=lambda count, temperature: 1 / (temperature * count),
    masks=_masks,
):
    """The weights; each argument changes one thing that can go wrong."""

    def function(similarities, log_sums, rows, columns, temperature):
        itself, partner = masks(log_sums, rows, columns)
        share = shares(similarities, log_sums[rows, None], log_sums[columns], temperature)
        weights = share - positives * partner.to(share)
        weights = weights.masked_fill(itself, 0) if leave_out else weights
        return weights * scale(len(log_sums), temperature)

    return function


def _partners_on_the_tiles_diagonal(log_sums, rows, columns):
    itself, _ = _masks(log_sums, rows, columns)
    return itself, torch.eye(len(rows), len(columns), dtype=torch.bool)


def _partners_next_to_each_other(log_sums, rows, columns):
    itself, _ = _masks(log_sums, rows, columns)
    return itself, (rows ^ 1)[:, None] == columns


def _partners_behind_only(log_sums, rows, columns):
    itself, _ = _masks(log_sums, rows, columns)
    return itself, (rows + len(log_sums) // 2)[:, None] == columns


def _the_tiles_diagonal_as_itself(log_sums, rows, columns):
    _, partner = _masks(log_sums, rows, columns)
    return torch.eye(len(rows), len(columns), dtype=torch.bool), partner


def _unshifted(s, own, other, temperature):
    weights = (s / temperature).exp()
    return weights / own.exp() + weights / other.exp()


def _one_exponential(s, own, other, temperature):
    return (s / temperature).exp() * (1 / own.exp() + 1 / other.exp())


def _own_share(s, own, other, temperature):
    return (s / temperature - own).exp()


def _other_share(s, own, other, temperature):
    return (s / temperature - other).exp()


TILE_WEIGHTS = Exercise(
    name="tile_weights",
    reference=_weights(),
    cases=(
        _tile_case(1, 2, 0, (0, 2), (0, 2), 1.0),
        _tile_case(2, 2, 1, (0, 2), (2, 4), 0.5),
        _tile_case(2, 2, 1, (0, 1), (1, 3), 0.5),
        _tile_case(3, 4, 2, (0, 3), (0, 3), 0.2),
        _tile_case(3, 4, 3, (0, 4), (2, 6), 0.1),
        _tile_case(4, 8, 4, (2, 5), (5, 8), 0.02),
        _tile_case(5, 4, 5, (4, 10), (0, 6), 0.5, torch.float32),
        _tile_case(5, 8, 6, (0, 5), (5, 10), 0.01, torch.float32),
        # Logits near 1000 are right to 1e-13, and the weights divide by 0.008: rounding is near 1e-11.
        _tile_case(4, 8, 7, (0, 4), (4, 8), 0.001, tolerance=1e-9),
    ),
    misconceptions=(
        Misconception(
            "only the row's share is there",
            "E / l_i is the pull that view i feels as a query. But z_i also stands among the candidates of "
            "view j, whose softmax has the sum l_j: the weight is E (1 / l_i + 1 / l_j).",
            _weights(shares=_own_share),
            also=(_weights(shares=_own_share, positives=1),),
        ),
        Misconception(
            "only the column's share is there",
            "E / l_j is view i as a candidate of j. As a query it has the share E / l_i as well.",
            _weights(shares=_other_share),
            also=(_weights(shares=_other_share, positives=1),),
        ),
        Misconception(
            "the positive's term is forgotten",
            "Both views of a pair lie in each other's numerators: where j is the partner of i, the weight is"
            " smaller by 2 (before the factors 1 / temperature and 1 / 2N).",
            _weights(positives=0),
        ),
        Misconception(
            "the positive is counted once",
            "Each pair has two losses: i looks for j and j looks for i. Both have -s_ij / temperature in "
            "them, so 2 is subtracted.",
            _weights(positives=1),
        ),
        Misconception(
            "the positive pushes",
            "2 is added in place of subtracted. The positive's term pulls: its gradient is negative.",
            _weights(positives=-2),
        ),
        Misconception(
            "a view weighs itself",
            "A view is not its own candidate: where row and column are the same view the weight is 0.",
            _weights(leave_out=False),
        ),
        Misconception(
            "partners are sought on the tile's own diagonal",
            "The diagonal of the tile is not that of S. `rows` and `columns` say which views these are; the "
            "partner of view i is (i + N) % 2N.",
            _weights(masks=_partners_on_the_tiles_diagonal),
        ),
        Misconception(
            "partners stand next to each other",
            "The views come as all of view a, then all of view b: the partner of view i is (i + N) % 2N.",
            _weights(masks=_partners_next_to_each_other),
        ),
        Misconception(
            "only view a's rows find their partners",
            "View i + N has a partner too, view i: (i + N) % 2N leads there from both.",
            _weights(masks=_partners_behind_only),
        ),
        Misconception(
            "the tile's own diagonal is set to 0",
            "Only in a tile on the diagonal of S does the tile's own diagonal hold views with themselves. "
            "Compare `rows` with `columns`.",
            _weights(masks=_the_tiles_diagonal_as_itself),
        ),
        Misconception(
            "the factor 1 / temperature is forgotten",
            "The loss sees s / temperature; the chain rule divides by the temperature once more.",
            _weights(scale=lambda count, temperature: 1 / count),
        ),
        Misconception(
            "divided by the number of pictures",
            "The loss is the mean over 2N views, not over N pictures: these weights are twice as large.",
            _weights(scale=lambda count, temperature: 2 / (temperature * count)),
        ),
        Misconception(
            "the sum over the views in place of their mean",
            "The loss is the mean over 2N views: divide by their number, len(log_sums).",
            _weights(scale=lambda count, temperature: 1 / temperature),
        ),
        Misconception(
            "half of it",
            "These weights are too small by a factor of 2: each view is query and candidate, and both count "
            "in full.",
            _weights(scale=lambda count, temperature: 0.5 / (temperature * count)),
        ),
        Misconception(
            "the sums are added before they divide",
            "E / (l_i + l_j) is not E / l_i + E / l_j.",
            _weights(
                shares=lambda s, own, other, temperature: (
                    s / temperature - torch.logaddexp(own, other)
                ).exp()
            ),
        ),
        Misconception(
            "divided by the logarithm of the sum",
            "log_sums holds log(l). E / l is exp(s / temperature - log(l)).",
            _weights(
                shares=lambda s, own, other, temperature: (s / temperature).exp() * (1 / own + 1 / other)
            ),
        ),
        Misconception(
            "exp overflows at a small temperature",
            "The formula is right, but exp(s / temperature) is larger than any number of this type. Subtract"
            " log_sums in the exponent first: exp(s / temperature - log_sums).",
            _weights(shares=_unshifted),
            also=(_weights(shares=_one_exponential),),
        ),
    ),
    guarantees=(
        "Your weights are those of autograd on the whole matrix, for tiles on the diagonal and off it, with "
        "partners in them or without; off the diagonal down to a temperature of 0.001."
    ),
    hints=(
        "In how many of the 2N losses does s_ij occur? Count view i as a query, and as a candidate of j.",
        "Two softmaxes: exp(s_ij / temperature) / l_i in the loss of i, / l_j in the loss of j. And the "
        "positive's term, in how many losses does it stand?",
        "(exp(s / temperature - log_sums[rows, None]) + exp(s / temperature - log_sums[columns]) - 2 where "
        "the column is the row's partner) / (temperature * len(log_sums)), and 0 where row and column are "
        "the same.",
    ),
)

EXERCISES = (ONLINE_LOGSUMEXP, SYMMETRIC_ROW_SUMS, TILE_WEIGHTS)
