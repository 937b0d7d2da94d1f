"""The losses without the matrix: similarities come and go one tile at a time, in plain torch on any device.

The loss of a row is log(1 + exp(gap)), its gap the log of the sum of exp(scale * s) over its negatives less
its positive. Sums and gradients are sums over tiles of S = rows @ columns.T: two tiles are all that is ever
held.

* A tile serves two directions. Along its rows it belongs to the row features, down its columns to the
  column features. Views against themselves have a symmetric S, so half of the tiles are enough.
* Both gradients are products with the same weights, W @ columns and W.T @ rows, where W_ij = exp(scale *
  s_ij) * (g_i / sum_i + g_j / sum_j) and a pair has -(g_i + g_j). Each tile is computed again instead of
  stored: 2 units of 2 M^2 D flops in all, where autograd on the full matrix needs 3. Small problems keep
  their tiles.
* A query's gradient needs no second look: the weighted sum of the keys builds up beside the sum of the
  weights.
* No maximum is subtracted. A cosine lies in [-1, 1], so exp(scale * s) lies in [exp(-scale), exp(scale)]:
  float32 holds that, and its sums, up to a scale of 50, float64 up to 600.

Rows have unit length, as contrast.py makes them; `scale` is 1 / temperature, a number or a 0-d tensor;
`raw`, the rows before they were normalised, is for the GPU kernels only.
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


def within(views, scale, raw=None):
    """[2N, D], rows k and k + N a pair -> [2N] losses: each row looks for its partner among the others."""
    return _Pairs.apply(views, None, scale, torch.is_grad_enabled())


def between(rows, columns, scale, raw=None):
    """[N, D] twice, row k of both a pair -> [2, N] losses: rows look for columns, columns look for rows."""
    return _Pairs.apply(rows, columns, scale, torch.is_grad_enabled())


def against(queries, positives, keys, scale, raw=None):
    """[B, D], [B, D], [K, D] -> [B] losses: each query looks for its positive among that one and the keys."""
    log_sum = _Queries.apply(queries, keys, scale, torch.is_grad_enabled())
    return F.softplus(log_sum - scale * (queries * positives).sum(dim=1), threshold=SURE).to(queries.dtype)


class _Pairs(Function):
    """Rows against columns, read both ways; columns=None: against themselves, where both ways are one."""

    @staticmethod
    def forward(ctx, rows, columns, scale, gradient_follows):
        alone = columns is None
        columns = rows if alone else columns
        count = len(rows) // 2 if alone else len(rows)
        # Of a row's negatives and of a column's, or of view a's and view b's.
        sums = _zero_sums(rows, 2, count)
        row_sum, column_sum = (sums.view(-1), sums.view(-1)) if alone else sums
        positive = torch.empty_like(sums[0])
        keep = gradient_follows and len(rows) * len(columns) <= KEPT_NUMBERS
        tiles = _pair_tiles(rows, columns, scale, alone, positive, reuse=not keep)
        tiles = list(tiles) if keep else tiles
        for i, j, tile in tiles:
            row_sum[i] += tile.sum(dim=1)
            if not (alone and i == j):
                column_sum[j] += tile.sum(dim=0)
        gap = sums.log() - positive
        ctx.save_for_backward(rows, columns, sums, gap)
        ctx.scale, ctx.alone, ctx.kept = scale, alone, tiles if keep else None
        losses = F.softplus(gap, threshold=SURE).to(rows.dtype)
        return losses.view(-1) if alone else losses

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        rows, columns, sums, gap = ctx.saved_tensors
        scale, alone, dtype = float(ctx.scale), ctx.alone, _tile_dtype(rows, ctx.scale)
        # The pull on the log-sum; the positive gets it with the other sign.
        pull = grad.view(gap.shape) * gap.sigmoid()
        share, partner_weight = (pull / sums).to(dtype), -pull.sum(dim=0).to(dtype)
        row_share, column_share = (share.view(-1), share.view(-1)) if alone else share
        for_rows = torch.zeros_like(rows)
        for_columns = for_rows if alone else torch.zeros_like(columns)
        buffer = _buffer(rows, columns, dtype)
        for i, j, tile in ctx.kept or _pair_tiles(rows, columns, scale, alone):
            weights = _corner(buffer, tile.shape)
            torch.add(row_share[i, None], column_share[j], out=weights).mul_(tile)
            for diagonal, pairs in _pair_diagonals(weights, i, j, gap.shape[1], alone):
                diagonal.copy_(partner_weight[pairs])
            weights = weights.to(rows.dtype)
            for_rows[i].addmm_(weights, columns[j], alpha=scale)
            if not (alone and i == j):
                for_columns[j].addmm_(weights.T, rows[i], alpha=scale)
        for_scale = scale_gradient(ctx.scale, rows, for_rows, ways=2 if alone else 1)
        return for_rows, None if alone else for_columns, for_scale, None


class _Queries(Function):
    """[B] log-sums of queries against keys; a query's gradient, a weighted mean of keys, is ready at once."""

    @staticmethod
    def forward(ctx, queries, keys, scale, gradient_follows):
        total = _zero_sums(queries, len(queries))
        mean = torch.zeros_like(queries, dtype=_tile_dtype(queries, scale))
        wants_mean = gradient_follows and (ctx.needs_input_grad[0] or ctx.needs_input_grad[2])
        for i, j, tile in _tiles(queries, keys, scale):
            total[i] += tile.sum(dim=1)
            if wants_mean:
                mean[i].addmm_(tile, keys[j].to(tile.dtype))
        mean = (mean / total[:, None].to(mean.dtype)).to(queries.dtype)
        ctx.save_for_backward(queries, keys, total, mean)
        ctx.scale = scale
        return total.log()

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        queries, keys, total, mean = ctx.saved_tensors
        scale = float(ctx.scale)
        for_queries = mean * (scale * grad[:, None]).to(mean.dtype)
        for_scale = scale_gradient(ctx.scale, queries, for_queries, ways=1)
        for_keys = None
        # Keys from a queue are constants and cost nothing; keys with a gradient cost 2 units more.
        if ctx.needs_input_grad[1]:
            for_keys = torch.zeros_like(keys)
            share = grad / total
            for i, j, tile in _tiles(queries, keys, scale):
                weights = tile.mul_(share[i, None].to(tile.dtype)).to(keys.dtype)
                for_keys[j].addmm_(weights.T, queries[i], alpha=scale)
        return for_queries, for_keys, for_scale, None


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


def _tiles(queries, keys, scale):
    """Yields (i, j, exp(scale * S[i, j])) for slices i of queries and j of keys, each over the one before."""
    buffer = _buffer(queries, keys, queries.dtype)
    for i, j in product(_slices(queries), _slices(keys)):
        yield i, j, _scaled(queries[i], keys[j], scale, buffer).to(_tile_dtype(queries, scale)).exp_()


def _pair_tiles(rows, columns, scale, alone, positive=None, reuse=True):
    """The same where rows have partners: they go to `positive`, and 0 stands where a tile has no negative."""
    count = len(rows) // 2 if alone else len(rows)
    slices = _slices(rows)
    buffer = _buffer(rows, columns, rows.dtype)
    for i, j in combinations_with_replacement(slices, 2) if alone else product(slices, slices):
        tile = _scaled(rows[i], columns[j], scale, buffer if reuse else torch.empty_like(buffer))
        for diagonal, pairs in _pair_diagonals(tile, i, j, count, alone):
            if positive is not None:
                positive[pairs] = diagonal
            diagonal.fill_(-torch.inf)
        if alone and i == j:
            tile.diagonal().fill_(-torch.inf)
        yield i, j, tile.to(_tile_dtype(rows, scale)).exp_()


def _pair_diagonals(tile, i, j, count, alone):
    """Yields (diagonal of the tile S[i, j] that holds pairs, the pairs' numbers as a slice)."""
    for distance in (count, -count) if alone else (0,):  # from a row's number to that of its partner's column
        offset = i.start + distance - j.start
        if -tile.shape[0] < offset < tile.shape[1]:
            diagonal = tile.diagonal(offset)
            first = i.start + max(0, -offset) + min(0, distance)
            yield diagonal, slice(first, first + len(diagonal))


def _scaled(x, y, scale, buffer):
    return _corner(buffer, (len(x), len(y))).addmm_(x, y.T, beta=0, alpha=float(scale))


def _slices(rows):
    edge = _edge(rows)
    return [slice(k, min(k + edge, len(rows))) for k in range(0, len(rows), edge)]


def _edge(rows):
    return TILE if rows.device.type == "cpu" else GPU_TILE


def _zero_sums(rows, *shape):
    # float64 where there is one: it costs nothing beside the tiles and keeps the digits of a tiny loss.
    dtype = torch.float32 if rows.device.type == "mps" else torch.float64
    return torch.zeros(shape, dtype=dtype, device=rows.device)


def _tile_dtype(rows, scale):
    return rows.dtype if scale <= FLOAT32_SCALE else torch.float64


def _buffer(rows, columns, dtype):
    edge = _edge(rows)
    return rows.new_empty(min(len(rows), edge) * min(len(columns), edge), dtype=dtype)


def _corner(buffer, shape):
    return buffer[: shape[0] * shape[1]].view(shape)
