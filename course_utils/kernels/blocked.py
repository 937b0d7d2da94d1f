"""The losses without the matrix: similarities come and go one tile at a time, in plain torch on any device.

The loss of a row is log(1 + exp(gap)), its gap the log of the sum of exp(scale * s) over its negatives less
its positive. Sums and gradients are sums over tiles of S = rows @ columns.T: two tiles are all that is ever
held.

* A tile serves two directions. Along its rows it belongs to the row features, down its columns to the
  column features. Views against themselves have a symmetric S, so half of the tiles are enough.
* Both gradients are products with the same weights, W @ columns and W.T @ rows. A negative has W_ij =
  exp(scale * s_ij) * (g_i / whole_i + g_j / whole_j), where whole is the sum with the positive in it; a pair
  has what its negatives have, with the other sign. Each tile is computed again instead of stored: 2 units of
  2 M^2 D flops in all, where autograd on the full matrix needs 3. A small problem is one tile, of whatever
  size, and keeps it; half of it would be enough, but takes more calls than it saves.
* On a CPU a tile is cut into bands, one for each thread, and every product is a batch of bands: so a core
  finds in its own cache what it wrote there. Pairs cut the rows, queries cut the keys. What is summed over a
  tile's bands, each band sums up by itself first.
* exp(x) is computed as 2 ** (x * log2(e)): a power of 2 costs less on some processors, and the factor
  nothing, for it goes into the product with the scale.
* A pair's similarity and gradient come from its two rows alone. In a tile its place is 0, as a row's own is;
  a tile that is kept serves the pairs as well.
* A query's gradient needs no second look: the weighted sum of the keys builds up beside the sum of the
  weights. Keys are divided by their lengths a block at a time, beside the tile that needs them; keys of
  length 1, as a queue holds them, are taken as they are.
* No maximum is subtracted. A cosine lies in [-1, 1], so exp(scale * s) lies in [exp(-scale), exp(scale)]:
  float32 holds that, and its sums, up to a scale of 50. Beyond, where a cosine's last digit moves exp(scale *
  s) by more than the sixth, all is computed in float64, which reaches to 600.

Features come as pairs (rows, lengths), as contrast.py checked them; `scale` is 1 / temperature, a number or a
0-d tensor.
"""

import math

import torch
import torch.nn.functional as F
from torch.autograd import Function

TILE = 512  # rows and columns of a tile: 1 MiB in float32, at home in a core's cache
GPU_TILE = 4096  # 64 MiB: fewer, larger launches
KEPT_NUMBERS = 2**19  # a problem of at most this many similarities is one tile, and keeps it
FLOAT32_SCALE, FLOAT64_SCALE = 50.0, 600.0
LOG2_E = 1 / math.log(2)
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
    pairs = _KeptPairs if (len(a) * (2 if alone else 1)) ** 2 <= KEPT_NUMBERS else _Pairs
    return pairs.apply(a, b, lengths, scale, alone).to(first[1].dtype)


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


class _KeptPairs(Function):
    """_Pairs for a few of them: all similarities are one tile, and the backward pass finds it as it was."""

    @staticmethod
    def forward(ctx, first, second, lengths, scale, alone):
        n = len(first)
        units = torch.cat([first, second]).to(lengths.dtype).div_(lengths)
        rows, columns = (units, units) if alone else (units[:n], units[n:])
        tile = rows.new_empty(len(rows), len(columns))
        tile.addmm_(rows, columns.mT, beta=0, alpha=float(scale) * LOG2_E)
        positive = tile.diagonal(n if alone else 0) / LOG2_E
        self_and_pair = tile.exp2_().view(len(rows) // n, n, -1, n).diagonal(dim1=1, dim2=3)
        self_and_pair.fill_(0)
        sums = tile.sum(dim=1).view(2, n) if alone else torch.stack([tile.sum(dim=1), tile.sum(dim=0)])
        gaps = sums.log().sub_(positive)
        losses = F.softplus(gaps, threshold=SURE)
        ctx.save_for_backward(units, lengths, sums, gaps, tile)
        ctx.scale, ctx.alone = scale, alone
        return losses.view(-1) if alone else losses

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        units, lengths, sums, gaps, tile = ctx.saved_tensors
        scale, alone, n = float(ctx.scale), ctx.alone, gaps.shape[1]
        together = _for_negatives(gaps, grad)
        pair = together.sum(dim=0).neg_()
        share = together.div_(sums)  # grad / whole
        row_shares, column_shares = (share.view(-1), share.view(-1)) if alone else share
        weights = torch.add(row_shares[:, None], column_shares).mul_(tile)
        for offset in (n, -n) if alone else (0,):
            weights.diagonal(offset).copy_(pair)
        for_units = torch.empty_like(units)
        if alone:
            for_units.addmm_(weights, units, beta=0, alpha=scale)
        else:
            for_units[:n].addmm_(weights, units[n:], beta=0, alpha=scale)
            for_units[n:].addmm_(weights.mT, units[:n], beta=0, alpha=scale)
        for_scale = scale_gradient(ctx.scale, units, for_units, ways=2)
        return *across(for_units, units, lengths).view(2, n, -1), None, for_scale, None


class _Pairs(Function):
    """The first against the second, read both ways; alone: all against all, where both ways are one."""

    @staticmethod
    def forward(ctx, first, second, lengths, scale, alone):
        units = torch.cat([first, second]).to(lengths.dtype).div_(lengths)
        a, b = units[: len(first)], units[len(first) :]
        rows, columns = (units, units) if alone else (a, b)
        positive = (a * b).sum(dim=1)
        # Of a row's negatives and of a column's, or of view a's and view b's.
        sums = rows.new_zeros(2, len(a))
        row_sums, column_sums = (sums.view(-1), sums.view(-1)) if alone else sums
        bands = _count_bands(rows)
        row_sums, column_sums = _blocks(row_sums, bands), _blocks(column_sums)
        for q, column in _pair_tiles(rows, columns, scale, alone, bands):
            for_column = column_sums[q] if bands == 1 else sums.new_zeros(bands, len(column_sums[q]))
            for p, tile in column:
                row_sums[p].add_(tile.sum(dim=-1))
                if not (alone and p == q):
                    for_column.add_(tile.sum(dim=-2))
            if bands > 1:
                column_sums[q].add_(for_column.sum(dim=0))
        gaps = sums.log().sub_(positive, alpha=float(scale))
        losses = F.softplus(gaps, threshold=SURE)
        ctx.save_for_backward(units, lengths, sums, gaps)
        ctx.scale, ctx.alone, ctx.bands = scale, alone, bands
        return losses.view(-1) if alone else losses

    @staticmethod
    def backward(ctx, grad):
        refuse_double_backward()
        units, lengths, sums, gaps = ctx.saved_tensors
        scale, alone, bands = float(ctx.scale), ctx.alone, ctx.bands
        together = _for_negatives(gaps, grad)
        # The positive gets the same with the other sign.
        z = units.view(2, -1, units.shape[1])
        for_z = z.flip(0).mul_(together.sum(dim=0).mul_(-scale)[:, None])
        for_units = for_z.view(units.shape)
        rows, columns, for_rows, for_columns = (units, units, for_units, for_units) if alone else (*z, *for_z)
        share = together.div_(sums)  # grad / whole
        row_shares, column_shares = (share.view(-1), share.view(-1)) if alone else share
        row_shares, column_shares = _blocks(row_shares[:, None], bands), _blocks(column_shares)
        x, y = _blocks(rows, bands), _facing(columns, bands)
        for_x, for_y = _blocks(for_rows, bands), _blocks(for_columns)
        room = rows.new_empty(bands, *for_y[0].shape) if bands > 1 else None
        weights, add_product = None, _add_product(bands)
        for q, column in _pair_tiles(rows, columns, scale, alone, bands):
            for_column = for_y[q] if bands == 1 else room[:, : len(for_y[q])].zero_()
            for p, tile in column:
                if weights is None or weights.shape != tile.shape:
                    weights = torch.empty_like(tile)
                torch.add(row_shares[p], column_shares[q], out=weights).mul_(tile)
                add_product(for_x[p], weights, y[q], alpha=scale)
                if not (alone and p == q):
                    add_product(for_column, weights.mT, x[p], alpha=scale)
            if bands > 1:
                for band in for_column:
                    for_y[q].add_(band)
        del tile, weights, room, for_column  # their room is needed below
        for_scale = scale_gradient(ctx.scale, units, for_units, ways=2)
        for block in zip(*map(_blocks, (for_units, units, lengths)), strict=True):
            across(*block)
        # Autograd rounds both halves to the dtypes of the features.
        return *for_z, None, for_scale, None


def _for_negatives(gaps, grad):
    """What a row's negatives get together: sigmoid(gap) is the probability of all of them."""
    return gaps.sigmoid().mul_(grad.view(gaps.shape))


class _Queries(Function):
    """[B] log-sums of queries against keys; a query's gradient, a weighted mean of keys, is ready at once."""

    @staticmethod
    def forward(ctx, queries, keys, lengths, scale, gradient_follows):
        bands = _count_bands(keys)
        total, mean = queries.new_zeros(bands, len(queries)), queries.new_zeros(bands, *queries.shape)
        totals, means = (sums.split(_edge(queries), dim=1) for sums in (total, mean))
        wants_mean = gradient_follows and (ctx.needs_input_grad[0] or ctx.needs_input_grad[3])
        for p, _, tile, unit_keys in _query_tiles(queries, keys, lengths, scale, bands):
            totals[p].add_(tile.sum(dim=2))
            if wants_mean:
                means[p].baddbmm_(tile, unit_keys)
        total = total.sum(dim=0)
        mean = mean.sum(dim=0).div_(total[:, None])
        ctx.save_for_backward(queries, keys, lengths, total, mean)
        ctx.scale, ctx.bands = scale, bands
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
            weighted = _blocks(queries * (scale * grad / total)[:, None])
            for p, j, tile, _ in _query_tiles(queries, keys, lengths, scale, ctx.bands):
                banded = for_keys[j].view(ctx.bands, -1, keys.shape[1])
                banded.baddbmm_(tile.mT, weighted[p].expand(ctx.bands, -1, -1))
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


def _pair_tiles(rows, columns, scale, alone, bands):
    """Yields (q, pairs (p, exp(scale * S))): block q of columns, p of rows; 0 where there is no negative.

    Each tile is written over the one before.
    """
    x, y, scale = _blocks(rows, bands), _facing(columns, bands), float(scale) * LOG2_E
    heights, edge, add_product = [block.shape[:-1] for block in x], y[0].shape[-2], _add_product(bands)
    # From a row's number to those of the columns that are its pair or itself.
    distances = (0, len(rows) // 2, -(len(rows) // 2)) if alone else (0,)
    tile = shape = None

    def column(q):
        nonlocal tile, shape
        y_t, width = y[q].mT, y[q].shape[-2]
        for p in range(q + 1 if alone else len(x)):
            if shape != (*heights[p], width):
                shape = (*heights[p], width)
                tile = rows.new_empty(shape)
            add_product(tile, x[p], y_t, beta=0, alpha=scale).exp2_()
            for distance in distances:
                offset = (p - q) * edge + distance
                if -edge < offset < edge:
                    tile.view(-1, width).diagonal(offset).fill_(0)
            yield p, tile

    return ((q, column(q)) for q in range(len(y)))


def _query_tiles(queries, keys, lengths, scale, bands):
    """Yields (p, j, exp(scale * S), unit keys): block p of queries, slice j of keys; the last two banded.

    lengths: those of the keys, None where all are 1. Each tile is written over the one before.
    """
    x, scale = [block.expand(bands, -1, -1) for block in _blocks(queries)], float(scale) * LOG2_E
    # The fewer the queries, the more keys; neither the tile nor the keys beside it outgrow a square tile.
    width = max(1, _edge(queries) ** 2 // (bands * max(x[0].shape[1:])))  # keys of a band
    most = min(bands * width, len(keys))
    unit_keys = None if lengths is None else queries.new_empty(most, keys.shape[1])
    room = queries.new_empty(most * x[0].shape[1])
    for start in range(0, len(keys), most):
        j = slice(start, min(start + most, len(keys)))
        y = keys[j] if lengths is None else torch.div(keys[j], lengths[j], out=unit_keys[: j.stop - start])
        y = y.view(bands, -1, keys.shape[1])
        for p, rows in enumerate(x):
            tile = room[: rows.shape[1] * (j.stop - start)].view(bands, rows.shape[1], -1)
            yield p, j, tile.baddbmm_(rows, y.mT, beta=0, alpha=scale).exp2_(), y


def _blocks(rows, bands=1):
    """[M, ...] -> blocks [edge, ...], the last one shorter; with several bands [bands, edge / bands, ...]."""
    # Ten splits into a single block would take a tenth of a step at N = 256.
    blocks = rows.split(_edge(rows)) if len(rows) > _edge(rows) else (rows,)
    return blocks if bands == 1 else [block.view(bands, -1, *block.shape[1:]) for block in blocks]


def _facing(columns, bands):
    """The blocks of columns as a product with those of rows takes them: every band meets all of a block."""
    blocks = _blocks(columns)
    return blocks if bands == 1 else [block.expand(bands, -1, -1) for block in blocks]


def _add_product(bands):
    return torch.Tensor.addmm_ if bands == 1 else torch.Tensor.baddbmm_


def _count_bands(rows):
    # A single block is too small to gain by it, and a GPU has no caches of its own for each band.
    if len(rows) <= _edge(rows) or rows.device.type != "cpu":
        return 1
    return math.gcd(len(rows), _edge(rows), torch.get_num_threads())


def _edge(rows):
    return TILE if rows.device.type == "cpu" else GPU_TILE
