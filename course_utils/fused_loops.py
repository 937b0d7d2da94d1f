"""The loops of views.fused_view for a CPU: one picture after the other, compiled by numba.

    box --columns--> narrow --colours--> mixed --rows--> view

Whatever becomes of a picture stays in the core's first cache, and a row or column of the view has shares of
few pixels: all other shares are 0 and cost nothing. Tensors that hold a batch, as views.fused_view has them
for a GPU, give the same numbers up to rounding.
"""

import math

import numpy as np
from numba import njit

# nogil: a second thread draws or learns meanwhile. cache: compiled once for all processes, in __pycache__.
compiled = njit(nogil=True, cache=True, fastmath=True)


@compiled
def make_views(images, boxes, flips, kernels, colours, pulls, views):
    """Write a view of each picture to views, float32 [B, S, S, 3].

    images: uint8 or float32 [B, 3, H, W]; boxes: int64 [B, 4], top, left, height and width; flips: bool [B];
    kernels: float32 [B, K], those of the blur; colours [B, 3, 3] and pulls [B, 1, 3]: float32, in the units
    of images. All contiguous, and as views.fused_view has checked them.
    """
    size = views.shape[1]
    for b in range(len(images)):
        top, left, height, width = boxes[b]
        box = images[b, :, top : top + height, left : left + width]
        rows = _shares(height, size, False, kernels[b])
        columns = _shares(width, size, flips[b], kernels[b])
        narrow = np.zeros((size, 3 * height), np.float32)
        _add_product(narrow, columns, _across(box))
        mixed, offset = _mix(narrow, rows, colours[b], pulls[b, 0])
        view = views[b].reshape(size, -1)
        view[:] = offset
        _add_product(view, rows, mixed)
        _clamp(view)


@compiled
def _shares(length, size, flip, kernel):
    """[size, length]: the share of each of the box's pixels in each pixel of the resized and blurred box."""
    shares = np.zeros((size, length), np.float32)
    step = length / size  # pixels of the box per pixel of the view
    reach = max(1.0, step)  # how far from a centre a pixel still has a share
    for place in range(size):
        centre = step * (place + 0.5) - 0.5  # where the first pixel is 0, the second 1
        first, last = max(0, math.ceil(centre - reach)), min(length - 1, math.floor(centre + reach))
        total = 0.0
        for pixel in range(first, last + 1):
            total += reach - abs(pixel - centre)
        row = size - 1 - place if flip else place
        for pixel in range(first, last + 1):
            shares[row, pixel] = (reach - abs(pixel - centre)) / total
    return shares if kernel[len(kernel) // 2] == 1 else _blur(shares, kernel)


@compiled
def _blur(shares, kernel):
    """The weighted sums of every row's neighbours; beyond its edges the view is mirrored."""
    size, length = shares.shape
    blurred = np.zeros_like(shares)
    for row in range(size):
        for k in range(len(kernel)):
            source = abs(row + k - len(kernel) // 2)
            source = min(source, 2 * (size - 1) - source)
            for pixel in range(length):
                blurred[row, pixel] += kernel[k] * shares[source, pixel]
    return blurred


@compiled
def _across(box):
    """[width, 3 height]: a column's three channels, one after the other."""
    channels, height, width = box.shape
    across = np.empty((width, channels * height), np.float32)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                across[x, c * height + y] = box[c, y, x]
    return across


@compiled
def _add_product(target, shares, source):
    """target += shares @ source."""
    for place in range(len(shares)):
        for k in range(len(source)):
            share = shares[place, k]
            if share != 0:
                for j in range(source.shape[1]):
                    target[place, j] += share * source[k, j]


@compiled
def _mix(narrow, rows, colours, pull):
    """[height, 3 S], the mixed colours of a pixel side by side, and the offset: pull @ the view's mean."""
    size, height = rows.shape
    mixed = np.empty((height, 3 * size), np.float32)
    weights = np.zeros(height, np.float32)  # of the rows in the mean
    for place in range(size):
        for y in range(height):
            weights[y] += rows[place, y] / (size * size)
    offset = np.float32(0)
    for x in range(size):
        for y in range(height):
            red, green, blue = narrow[x, y], narrow[x, height + y], narrow[x, 2 * height + y]
            offset += weights[y] * (pull[0] * red + pull[1] * green + pull[2] * blue)
            for c in range(3):
                mixed[y, 3 * x + c] = colours[c, 0] * red + colours[c, 1] * green + colours[c, 2] * blue
    return mixed, offset


@compiled
def _clamp(view):
    """Cut off at 0 and 1, in place."""
    low, high = np.float32(0), np.float32(1)  # 0 and 1 would make float64 of it
    for y in range(view.shape[0]):
        for x in range(view.shape[1]):
            view[y, x] = min(max(view[y, x], low), high)
