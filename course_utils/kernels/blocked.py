"""The losses without the matrix: similarities come and go one tile at a time, in plain torch on any device.

The loss of a row is log(1 + exp(gap)), its gap the log of the sum of exp(scale * s) over its negatives less
its positive. Sums and gradients are sums over tiles of S = rows @ columns.T: two tiles are all that is ever
held, of queries against keys one that is four times as large.

* A tile serves two directions. Along its rows it belongs to the row features, down its columns to the
  column features. Views against themselves have a symmetric S, so half of the tiles are enough.
* Both gradients are products with the same weights, W @ columns and W.T @ rows. A negative has W_ij =
  exp(scale * s_ij) * (g_i / whole_i + g_j / whole_j), where whole is the sum with the positive in it; a pair
  has what its negatives have, with the other sign. Each tile is computed again instead of stored: 2 units of
  2 M^2 D flops in all, where autograd on the full matrix needs 3. Small problems keep their tiles.
* A pair's similarity and gradient come from its two rows alone. In a tile its place is 0, as a row's own is.
* A query's gradient needs no second look: the weighted sum of the keys builds up beside the sum of the
  weights. Keys are divided by their lengths a block at a time, beside the tile that needs them; keys of
  length 1, as a queue holds them, are taken as they are.
* No maximum is subtracted. A cosine lies in [-1, 1], so exp(scale * s) lies in [exp(-scale), exp(scale)]:
  float32 holds that, and its sums, up to a scale of 50. Beyond, where a cosine's last digit moves exp(scale *
  s) by more than the sixth, all is computed in float64, which reaches to 600.

Features come as pairs (rows, lengths), as contrast.py checked them; `scale` is 1 / temperature, a number or a
0-d tensor.
"""

from itertools import combinations_with_replacement, product

import torch
import torch.nn.functional as F
from torch.autograd import Function

TILE = 512  # rows and columns of a tile: 1 MiB in float32, at home in a core's cache
GPU_TILE = 4096  # 64 MiB: fewer, larger launches
KEPT_NUMBERS = 2**19  # a problem of at most this many similarities keeps its tiles for the backward pass
FLOAT32_SCALE, FLOAT64_SCALE = 50.0, 600.0
SURE = 40  # log(1 + exp(40)) is 40 in every digit, even of float64


def within(view_a, view_b, scale):
    """[N, D] twice, row k of both a pair -> [2N] losses: each row looks for its partner among the others."""
    return _both_ways(view_a, view_b, scale, alone=True)


def between(rows, columns, scale):
    """[N, D] twice, row k of both a pair -> [2, N] losses: rows look for columns, columns look for rows."""
    return _both_ways(rows, columns, scale, alone=False)


def _both_ways(first, second, scale, alone):
    (a, a_lengths), (b, b_lengths) = exact(first, scale), exact(second, scale)
    lengths = torch.cat([a_lengths, b_lengths])
    return _Pairs.apply(a, b, lengths, scale, alone, torch.is_grad_enabled()).to(first[1].dtype)


def against(queries, positives, keys, scale):
    """[B, D], [B, D], [K, D] -> [B] losses: each query looks for its positive among that one and the keys."""
    q, p = (unit(*exact(features, scale)) for features in (queries, positives))
    keys, lengths = exact(keys, scale)
    if keys.requires_grad:
        keys, lengths = unit(keys, lengths), None
    elif keys.dtype == lengths.dtype and (lengths - 1).abs().max() <= 2 * torch.finfo(lengths.dtype).eps:
        lengths = None  # 1 but for rounding
    log_sum = _Queries.apply(q, keys, lengths, scale, torch.is_grad_enabled())
    return F.softplus(log_sum - scale * (q * p).sum(dim=1), threshold=SURE).to(queries[1].dtype)


def exact(features, scale):
    """The same features, in float64 where scale asks for it."""
    if scale <= FLOAT32_SCALE:
        return features
    rows = features[0].double()
    return rows, torch.linalg.vector_norm(rows.detach(), dim=1, keepdim=True)


def unit(rows, lengths):
    """[N, D] rows over their lengths [N, 1], in the lengths' dtype."""
    return _Unit.apply(rows, lengths)


class _Unit(Function):
    """rows / lengths."""

    @staticmethod
    def forward(ctx, rows, lengths):
        units = rows / lengths
        ctx.save_for_backward(units, lengths)
        return units

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        return across(grad.clone(), *ctx.saved_tensors), None


def across(grad, units, lengths):
    """Turns the gradient of units, in place, into that of rows: what is along a row does not turn it."""
    along = (grad * units).sum(dim=1, keepdim=True)
    return grad.addcmul_(units, along, value=-1).div_(lengths)


class _Pairs(Function):
    """The first against the second, read both ways; alone: all against all, where both ways are one."""

    @staticmethod
    def forward(ctx, first, second, lengths, scale, alone, gradient_follows):
        units = torch.cat([first.to(lengths.dtype), second.to(lengths.dtype)]).div_(lengths)
        a, b = units.chunk(2)
        rows, columns = (units, units) if alone else (a, b)
        positive = (a * b).sum(dim=1).mul_(float(scale))
        # Of a row's negatives and of a column's, or of view a's and view b's.
        sums = rows.new_zeros(2, len(a))
        row_sums, column_sums = map(_blocks, (sums.view(-1), sums.view(-1)) if alone else sums)
        ones = _blocks(rows.new_ones(len(rows)))
        keep = gradient_follows and len(rows) * len(columns) <= KEPT_NUMBERS
        tiles = _pair_tiles(rows, columns, scale, alone, reuse=not keep)
        tiles = list(tiles) if keep else tiles
        for p, q, tile in tiles:
            row_sums[p].addmv_(tile, ones[q])
            if not (alone and p == q):
                column_sums[q].addmv_(tile.T, ones[p])
        losses = F.softplus(sums.log().sub_(positive), threshold=SURE)
        ctx.save_for_backward(units, lengths, sums, positive.exp_().add(sums))
        ctx.scale, ctx.alone, ctx.kept = scale, alone, tiles if keep else None
        return losses.view(-1) if alone else losses

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        units, lengths, sums, whole = ctx.saved_tensors
        scale, alone = float(ctx.scale), ctx.alone
        a, b = units.chunk(2)
        rows, columns = (units, units) if alone else (a, b)
        share = grad.view(whole.shape) / whole
        row_shares, column_shares = map(_blocks, (share.view(-1), share.view(-1)) if alone else share)
        row_shares = [block[:, None] for block in row_shares]
        for_units = torch.zeros_like(units)
        for_a, for_b = for_units.chunk(2)
        for_rows, for_columns = (for_units, for_units) if alone else (for_a, for_b)
        x, y, for_x, for_y = map(_blocks, (rows, columns, for_rows, for_columns))
        buffer = rows.new_empty(len(x[0]), len(y[0]))
        for p, q, tile in ctx.kept or _pair_tiles(rows, columns, scale, alone):
            weights = _corner(buffer, *tile.shape)
            torch.add(row_shares[p], column_shares[q], out=weights).mul_(tile)
            for_x[p].addmm_(weights, y[q], alpha=scale)
            if not (alone and p == q):
                for_y[q].addmm_(weights.T, x[p], alpha=scale)
        del tile, buffer  # their room is needed below
        # What all negatives get together; the positive gets it with the other sign.
        weights = (share * sums).sum(dim=0)[:, None]
        for_a.addcmul_(weights, b, value=-scale)
        for_b.addcmul_(weights, a, value=-scale)
        for_scale = scale_gradient(ctx.scale, units, for_units, ways=2)
        # Autograd rounds both halves to the dtypes of the features.
        return *across(for_units, units, lengths).chunk(2), None, for_scale, None, None


class _Queries(Function):
    """[B] log-sums of queries against keys; a query's gradient, a weighted mean of keys, is ready at once."""

    @staticmethod
    def forward(ctx, queries, keys, lengths, scale, gradient_follows):
        total, mean = queries.new_zeros(len(queries)), queries.new_zeros(queries.T.shape).T
        totals, means = _blocks(total), _blocks(mean)
        ones = queries.new_ones(len(keys))
        wants_mean = gradient_follows and (ctx.needs_input_grad[0] or ctx.needs_input_grad[3])
        for p, j, tile, unit_keys in _query_tiles(queries, keys, lengths, scale):
            totals[p].addmv_(tile, ones[j])
            if wants_mean:
                means[p].addmm_(tile, unit_keys)
        mean = (mean / total[:, None]).contiguous()
        ctx.save_for_backward(queries, keys, lengths, total, mean)
        ctx.scale = scale
        return total.log()

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        queries, keys, lengths, total, mean = ctx.saved_tensors
        scale, grad = float(ctx.scale), grad.to(queries.dtype)
        for_queries = mean * (scale * grad[:, None])
        for_scale = scale_gradient(ctx.scale, queries, for_queries, ways=1)
        for_keys = None
        # Keys from a queue are constants and cost nothing; keys with a gradient cost 2 units more.
        if ctx.needs_input_grad[1]:
            for_keys = torch.zeros_like(keys)
            share, x = _blocks((grad / total)[:, None]), _blocks(queries)
            for p, j, tile, _ in _query_tiles(queries, keys, lengths, scale):
                for_keys[j].addmm_(tile.mul_(share[p]).T, x[p], alpha=scale)
        return for_queries, for_keys, None, for_scale, None


def refuse_double_backward():
    if torch.is_grad_enabled():  # only create_graph=True runs a backward pass with gradients switched on
        raise RuntimeError(
            "The fast losses have no second derivative, and create_graph=True asked for one. "
            'Use implementation="reference" there.'
        )


def scale_gradient(scale, rows, for_rows, ways):
    """The losses know S only as scale * S, so scale's gradient can be read off that of the features."""
    if isinstance(scale, torch.Tensor) and scale.requires_grad:
        return ((rows * for_rows).sum() / (ways * float(scale))).to(scale)


def _pair_tiles(rows, columns, scale, alone, reuse=True):
    """Yields (p, q, exp(scale * S)) for block p of rows and q of columns; 0 where there is no negative.

    With reuse each tile is written over the one before.
    """
    x, y_t, scale = _blocks(rows), [block.T for block in _blocks(columns)], float(scale)
    # From a row's number to those of the columns that are its pair or itself.
    distances = (0, len(rows) // 2, -(len(rows) // 2)) if alone else (0,)
    numbers = range(len(x))
    buffer = None
    for p, q in combinations_with_replacement(numbers, 2) if alone else product(numbers, numbers):
        if buffer is None or not reuse:
            buffer = x[p].new_empty(len(x[p]), y_t[q].shape[1])
        tile = _corner(buffer, len(x[p]), y_t[q].shape[1])
        tile.addmm_(x[p], y_t[q], beta=0, alpha=scale).exp_()
        for distance in distances:
            offset = (p - q) * len(x[0]) + distance
            if -tile.shape[0] < offset < tile.shape[1]:
                tile.diagonal(offset).zero_()
        yield p, q, tile


def _query_tiles(queries, keys, lengths, scale):
    """Yields (p, j, exp(scale * S), unit keys) for block p of queries and slice j of keys.

    lengths: those of the keys, None where all are 1.
    """
    x, scale = _blocks(queries), float(scale)
    # The fewer the queries, the more keys; neither the tile nor the keys beside it outgrow four square tiles.
    edge = max(1, 4 * _edge(queries) ** 2 // max(x[0].shape))
    most = min(edge, len(keys))
    unit_keys = None if lengths is None else queries.new_empty(most, keys.shape[1])
    buffer = queries.new_empty(most, len(x[0])).T  # by columns: a CPU's products are faster so
    for start in range(0, len(keys), edge):
        j = slice(start, min(start + edge, len(keys)))
        y = keys[j] if lengths is None else torch.div(keys[j], lengths[j], out=unit_keys[: j.stop - start])
        for p in range(len(x)):
            tile = _corner(buffer, len(x[p]), len(y))
            yield p, j, tile.addmm_(x[p], y.T, beta=0, alpha=scale).exp_(), y


def _blocks(rows):
    # Ten splits into a single block would take a tenth of a step at N = 256.
    return rows.split(_edge(rows)) if len(rows) > _edge(rows) else (rows,)


def _edge(rows):
    return TILE if rows.device.type == "cpu" else GPU_TILE


def _corner(buffer, rows, columns):
    # Most tiles are whole, and to slice for each of them would cost as much as to add up its rows.
    return buffer if buffer.shape == (rows, columns) else buffer[:rows, :columns]
