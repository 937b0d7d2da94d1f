"""v, v': batched augmentation in which every picture draws its own parameters, and keeps them to be read.

A policy says what may happen, ``draw_parameters`` says what happens to each picture, ``apply_view`` does it:

    policy --draw_parameters--> ViewParameters --apply_view(images)--> view

Each operation is a small function on float32 [B, 3, H, W] in [0, 1] with one parameter per picture; given the
same parameters it equals its namesake in torchvision.transforms.v2.functional. The order of operations is
fixed: crop and resize, flip, colour jitter, grey, blur. The order of the four colour changes is drawn for
each picture."""

import math
import numbers
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch.nn.functional import pad

COLOUR_CHANGES = ("brightness", "contrast", "saturation", "hue")  # ViewParameters.order counts in this order
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
LUMINANCE = (0.2989, 0.587, 0.114)  # of red, green and blue: ITU-R BT.601, with torchvision's digits
CROP_TRIES = 10


# --- Policies: what may happen ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Policy:
    """How views are drawn: ranges and probabilities, as named data.

    crop_scale: share of the picture's area, uniform in this range; crop_ratio: width / height, log-uniform.
    flip, jitter, grey, blur: the probability that the operation happens to a picture.
    brightness, contrast, saturation: strength b draws a factor from [max(0, 1 - b), 1 + b]; hue: strength h
    draws a turn of the colour circle from [-h, h], h at most 0.5; blur_sigma: in pixels of the view, uniform.
    Raises ValueError for a range or probability that cannot be drawn from.

    >>> POLICIES["simclr_cifar"].operations
    ('crop', 'flip', 'colour', 'grey')
    """

    name: str
    source: str
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    blur_sigma: tuple[float, float] = (0.1, 2.0)

    def __post_init__(self):
        for field in ("crop_scale", "crop_ratio", "blur_sigma"):
            most = 1 if field == "crop_scale" else math.inf
            if not _is_range(getattr(self, field), most):
                raise ValueError(
                    f"policy {self.name!r}: {field} is {getattr(self, field)!r}; expected a pair (low, high) "
                    f"with 0 < low <= high{' <= 1' if most == 1 else ''}."
                )
        limits = {"flip": 1, "jitter": 1, "grey": 1, "blur": 1, "hue": 0.5}
        for field in ("flip", "jitter", "grey", "blur", *COLOUR_CHANGES):
            value, limit = getattr(self, field), limits.get(field, math.inf)
            if not isinstance(value, numbers.Real) or not 0 <= value <= limit or value == math.inf:
                raise ValueError(
                    f"policy {self.name!r}: {field} is {value!r}; expected a number in [0, {limit}]."
                )

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations that can change a picture under this policy, in the order they are applied."""
        active = {
            "crop": self.crop_scale != (1, 1) or self.crop_ratio != (1, 1),
            "flip": self.flip > 0,
            "colour": self.jitter > 0 and any(getattr(self, change) > 0 for change in COLOUR_CHANGES),
            "grey": self.grey > 0,
            "blur": self.blur > 0,
        }
        return tuple(operation for operation, is_active in active.items() if is_active)

    def without(self, operation: str) -> "Policy":
        """This policy with one operation left out; all other draws keep their values under the same seed.

        operation: one of ``self.operations``. Without "crop" the whole picture is used (of a picture that is
        not square, the largest central square). Raises ValueError where there is nothing to leave out.

        >>> POLICIES["simclr_cifar"].without("grey").name
        'simclr_cifar without grey'
        """
        if operation not in self.operations:
            raise ValueError(
                f"policy {self.name!r} has no {operation!r} to leave out; "
                f"it has {', '.join(self.operations)}."
            )
        switched_off = {
            "crop": {"crop_scale": (1.0, 1.0), "crop_ratio": (1.0, 1.0)},
            "flip": {"flip": 0.0},
            "colour": {"jitter": 0.0},
            "grey": {"grey": 0.0},
            "blur": {"blur": 0.0},
        }
        return replace(self, name=f"{self.name} without {operation}", **switched_off[operation])


def _is_range(pair, most) -> bool:
    """Whether this is (low, high) with 0 < low <= high <= most, both finite."""
    return (
        isinstance(pair, tuple)
        and len(pair) == 2
        and all(isinstance(bound, numbers.Real) for bound in pair)
        and 0 < pair[0] <= pair[1] <= most
        and pair[1] < math.inf
    )


POLICIES = {
    policy.name: policy
    for policy in (
        Policy(
            name="simclr_cifar",
            source="Chen et al. 2020 (SimCLR), appendix B.9: crop, flip, colour at strength 0.5, grey; no "
            "blur. Probabilities and crop range: appendix A. Resize: bilinear here, bicubic in their code.",
            jitter=0.8,
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.1,
            grey=0.2,
        ),
        Policy(
            name="no_colour",
            source="Ours: simclr_cifar with colour jitter and grey left out: colours survive in both views.",
        ),
        Policy(
            name="grey",
            source="Ours: crop and flip, every view grey, so no colour is left to match.",
            grey=1.0,
        ),
        Policy(
            name="strong",
            source="Chen et al. 2020 (SimCLR), appendix A: the ImageNet default, colour at strength 1, blur "
            "with a kernel of a tenth of the edge. Resize: bilinear here, bicubic in their code.",
            jitter=0.8,
            brightness=0.8,
            contrast=0.8,
            saturation=0.8,
            hue=0.2,
            grey=0.2,
            blur=0.5,
        ),
        Policy(
            name="moco_v1",
            source="He et al. 2020 (MoCo), section 3.3; the numbers are in main_moco.py of the authors' "
            "code (no --aug-plus). They turn grey before the colour jitter; here, as everywhere, after it.",
            crop_scale=(0.2, 1.0),
            jitter=1.0,
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.4,
            grey=0.2,
        ),
        Policy(
            name="moco_v2",
            source="Chen et al. 2020 (MoCo v2), section 3 (aug+); the numbers are in main_moco.py of the "
            "authors' code (--aug-plus). Their blur is not cut off; here its kernel is a tenth of the edge.",
            crop_scale=(0.2, 1.0),
            jitter=0.8,
            brightness=0.4,
            contrast=0.4,
            saturation=0.4,
            hue=0.1,
            grey=0.2,
            blur=0.5,
        ),
    )
}


# --- Parameters: what happens to each picture ---------------------------------------------------------------


@dataclass(frozen=True)
class ViewParameters:
    """What happens to each of B pictures; every field is a tensor with leading axis B.

    top, left, height, width: int64 [B], the crop in pixels of the picture; flip, colour, grey, blur: bool
    [B], whether the operation happens; brightness, contrast, saturation: float32 [B] factors (1 where colour
    is False); hue: float32 [B], in turns of the colour circle (0 where colour is False); order: int64 [B, 4],
    the colour changes in the order they are applied, as positions in COLOUR_CHANGES; sigma: float32 [B], in
    pixels of the view (0 where blur is False). ``parameters[index]`` selects pictures (an int keeps the
    leading axis)."""

    top: torch.Tensor
    left: torch.Tensor
    height: torch.Tensor
    width: torch.Tensor
    flip: torch.Tensor
    colour: torch.Tensor
    brightness: torch.Tensor
    contrast: torch.Tensor
    saturation: torch.Tensor
    hue: torch.Tensor
    order: torch.Tensor
    grey: torch.Tensor
    blur: torch.Tensor
    sigma: torch.Tensor

    def __post_init__(self):
        shapes = {field.name: list(getattr(self, field.name).shape) for field in fields(self)}
        count = len(self.top)
        if any(shape != ([count, 4] if name == "order" else [count]) for name, shape in shapes.items()):
            raise ValueError(f"view parameters have shapes {shapes}; expected [B] for all but order, [B, 4].")

    def __len__(self) -> int:
        return len(self.top)

    def __getitem__(self, index) -> "ViewParameters":
        if isinstance(index, int):
            index = [index]
        return self._map(lambda tensor: tensor[index])

    def to(self, device) -> "ViewParameters":
        """The same parameters on another device."""
        if self.top.device == torch.device(device):
            return self
        return self._map(lambda tensor: tensor.to(device))

    def table(self) -> pd.DataFrame:
        """One readable row per picture; crop is "top,left,height,width", a change that does not happen is
        blank."""
        on_cpu = self.to("cpu")
        boxes = torch.stack([on_cpu.top, on_cpu.left, on_cpu.height, on_cpu.width], dim=1)
        rows = {
            "crop": [",".join(map(str, box)) for box in boxes.tolist()],
            "flip": on_cpu.flip.tolist(),
            "colour order": [
                " > ".join(COLOUR_CHANGES[change] for change in order) if happens else ""
                for order, happens in zip(on_cpu.order.tolist(), on_cpu.colour.tolist(), strict=True)
            ],
            **{change: getattr(on_cpu, change).tolist() for change in COLOUR_CHANGES},
            "grey": on_cpu.grey.tolist(),
            "blur": on_cpu.blur.tolist(),
            "sigma": on_cpu.sigma.tolist(),
        }
        return pd.DataFrame(rows)

    def _map(self, function) -> "ViewParameters":
        return ViewParameters(**{field.name: function(getattr(self, field.name)) for field in fields(self)})


def draw_parameters(count, height, width, policy, generator) -> ViewParameters:
    """Draw for each of `count` pictures of height x width pixels what a view does to it, independently.

    policy: a Policy or a name in POLICIES. generator: a torch.Generator; the parameters lie on its device, so
    a CPU generator gives the same parameters whatever device the pictures are on. Every picture takes the
    same number of random numbers, whether an operation happens or not: leaving one out leaves all others as
    they were. Distributions are those of torchvision's RandomResizedCrop, RandomHorizontalFlip,
    RandomApply(ColorJitter), RandomGrayscale and RandomApply(GaussianBlur).

    >>> parameters = draw_parameters(2, 32, 32, "no_colour", torch.Generator().manual_seed(0))
    >>> parameters.table()[["crop", "flip", "grey"]]
             crop  flip   grey
    0  6,10,24,22  True  False
    1  4,13,11,10  True  False
    """
    policy = _policy(policy)
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is {generator!r}; expected torch.Generator().manual_seed(a number).")
    for name, value in {"count": count, "height": height, "width": width}.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1: give a batch with pictures in it.")
    numbers = 2 * CROP_TRIES + 15  # a picture
    uniform = torch.rand(count, numbers, generator=generator, device=generator.device, dtype=torch.float32)
    area, ratio, place, coins, strengths, order, sigma = uniform.split(
        [CROP_TRIES, CROP_TRIES, 2, 4, 4, 4, 1], dim=1
    )
    chances = coins.new_tensor([policy.flip, policy.jitter, policy.grey, policy.blur])
    flip, colour, grey, blur = (coins < chances).unbind(dim=1)
    factors = (policy.brightness, policy.contrast, policy.saturation)
    ranges = [*((max(0.0, 1 - strength), 1 + strength) for strength in factors), (-policy.hue, policy.hue)]
    least = strengths.new_tensor([low for low, _ in ranges])
    spread = strengths.new_tensor([high - low for low, high in ranges])
    neutral = strengths.new_tensor([1, 1, 1, 0])
    drawn = torch.where(colour[:, None], least + spread * strengths, neutral)
    brightness, contrast, saturation, hue = drawn.unbind(dim=1)
    top, left, crop_height, crop_width = _draw_boxes(area, ratio, place, height, width, policy)
    return ViewParameters(
        top=top,
        left=left,
        height=crop_height,
        width=crop_width,
        flip=flip,
        colour=colour,
        brightness=brightness,
        contrast=contrast,
        saturation=saturation,
        hue=hue,
        order=order.argsort(dim=1),
        grey=grey,
        blur=blur,
        sigma=torch.where(blur, _between(*policy.blur_sigma, sigma[:, 0]), 0.0),
    )


def _draw_boxes(area, ratio, place, height, width, policy):
    """The first of ten tried boxes that fits; else the largest central box that keeps to the policy's ratios.

    area, ratio: uniform numbers [B, 10]; place: [B, 2]. Returns top, left, height, width, each int64 [B].
    """
    area = height * width * _between(*policy.crop_scale, area)
    ratio = _between(*map(math.log, policy.crop_ratio), ratio).exp()
    tried = torch.stack([area / ratio, area * ratio], dim=2).sqrt_().round_()  # [B, 10, height and width]
    edges = place.new_tensor([height, width])
    fits = ((tried >= 1) & (tried <= edges)).all(dim=2)
    first = torch.take_along_dim(tried, fits.int().argmax(dim=1)[:, None, None], dim=1)[:, 0]

    narrowest, widest = policy.crop_ratio
    central = [min(height, round(width / narrowest)), min(width, round(height * widest))]
    one_fits = fits.any(dim=1, keepdim=True)
    box = torch.where(one_fits, first, first.new_tensor(central))
    free = edges - box
    corner = torch.where(one_fits, place * (free + 1), free // 2)
    return *corner.long().unbind(dim=1), *box.long().unbind(dim=1)


def _between(low, high, uniform):
    return low + (high - low) * uniform


def _policy(policy) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"unknown policy {policy!r}; choose one of {', '.join(POLICIES)}, or give a Policy.")
    return POLICIES[policy]


# --- Views --------------------------------------------------------------------------------------------------


class TwoViews(NamedTuple):
    """Two views of each picture, float32 [B, 3, S, S] in [0, 1], and what was drawn for each of them."""

    view_a: torch.Tensor
    view_b: torch.Tensor
    parameters_a: ViewParameters
    parameters_b: ViewParameters


def two_views(images, policy, generator, size=None) -> TwoViews:
    """Two independently drawn views of each picture, with the parameters that made them.

    images: uint8 [B, 3, H, W] or float in [0, 1]; policy: a Policy or a name in POLICIES; generator: see
    draw_parameters; size: the views' edge S in pixels (default: the pictures' own, where they are square).

    >>> cups = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> views = two_views(cups, "simclr_cifar", torch.Generator().manual_seed(0))
    >>> views.view_a.shape, views.parameters_a.grey.shape
    (torch.Size([4, 3, 32, 32]), torch.Size([4]))
    """
    images, policy = _as_float(images), _policy(policy)
    count, _, height, width = images.shape
    if policy.blur > 0 and (height if size is None else size) == 1:
        raise ValueError(
            f"pictures of {height} x {width} pixels with size={size} give views of one pixel, too small for "
            f"the blur of policy {policy.name!r}; make them larger with size=, or leave the blur out."
        )
    parameters_a = draw_parameters(count, height, width, policy, generator)
    parameters_b = draw_parameters(count, height, width, policy, generator)
    return TwoViews(
        apply_view(images, parameters_a, size),
        apply_view(images, parameters_b, size),
        parameters_a,
        parameters_b,
    )


def apply_view(images, parameters, size=None):
    """Make one view of each picture as its parameters say: crop and resize, flip, colour, grey, blur.

    images: uint8 [B, 3, H, W] or float in [0, 1]; parameters: B of them, on any device; size: the views' edge
    S in pixels (default: the pictures' own, where they are square). Returns float32 [B, 3, S, S] in [0, 1] on
    the images' device. The blur's kernel is a tenth of the edge (SimCLR, appendix A), odd and at least 3
    pixels. Raises TypeError or ValueError for images, boxes or a number of parameters that cannot be right.
    """
    images = _as_float(images)
    size = _edge(images, size)
    p = parameters.to(images.device)
    # Half precision would cost the pictures their low bits.
    with torch.autocast(images.device.type, enabled=False):
        views = crop_and_resize(images, p.top, p.left, p.height, p.width, size, p.flip)
        _jitter(views, p.colour, (p.brightness, p.contrast, p.saturation, p.hue), p.order)
        _where(p.grey, views, greyscale)
        _where(p.blur, views, blur, p.sigma, kernel_size=_kernel_size(size))
    return views.clamp_(0, 1)  # the resize may pass 1 by a rounding error


def fused_view(images, parameters, size=None):
    """A fast stand-in for apply_view, with the same arguments, parameters and errors.

    Crop, resize, flip and blur are one matrix for the rows and one for the columns of each picture; colour
    jitter and grey are a matrix for its colours and an offset. The views lie in memory channels last, as a
    convolution wants them. They come from another distribution than apply_view's: nothing is cut off at 0 and
    1 before the end, contrast sees the mean of the blurred view, and hue is a rotation about the grey axis
    instead of a way around HSV's hexagon (they agree at thirds of a turn, where nothing is cut off). Crop,
    flip, grey and blur are the same, and so is each of brightness, contrast and saturation alone. The first
    call on a CPU takes some seconds more: numba compiles fused_loops.py, and keeps what it made.
    """
    _check_images(images)
    size = _edge(images, size)
    p = parameters.to(images.device)
    boxes = torch.cat(_boxes(images, p.top, p.left, p.height, p.width, size), dim=1)
    kernel = _fused_kernel(p, size)
    views = torch.empty(len(images), size, size, 3, device=images.device, dtype=torch.float32)
    with torch.autocast(images.device.type, enabled=False):
        colours, pull = _colour_matrices(p)
        if images.dtype == torch.uint8:
            colours, pull = colours / 255, pull / 255
        else:
            images = images.float()
        make = _fused_on_cpu if images.device.type == "cpu" else _fused
        make(images, boxes, p.flip, kernel, colours, pull, views)
    return views.permute(0, 3, 1, 2)


def _fused_kernel(p, size):
    """Each picture's kernel of the blur, [B, K]: 1 in its middle where none happens, K = 1 if none does."""
    if not p.blur.any():
        return p.sigma.new_ones(len(p), 1)
    _check_kernel(_kernel_size(size), size, size)
    sigma = torch.where(p.blur, p.sigma, 0).clamp(min=1e-3)  # so narrow that the neighbours have no share
    return _gaussian(sigma, _kernel_size(size))


def _fused_on_cpu(*tensors):
    """_fused, one picture after the other, on as many threads as torch has: a core has its own cache."""
    from course_utils import fused_loops  # here, because numba takes most of a second to import

    threads = torch.get_num_threads()
    arrays = [np.array_split(tensor.contiguous().numpy(), threads) for tensor in tensors]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fused_loops.make_views, *arrays))


def _fused(images, boxes, flip, kernel, colours, pull, views):
    """The views of all pictures at once, written to views [B, S, S, 3].

    images: uint8 or float32; boxes: int64 [B, 4], top, left, height and width; kernel: [B, K]; colours and
    pull: see _colour_matrices, in the units of images.
    """
    count, _, height, width = images.shape
    size, reach = views.shape[1], kernel.shape[1] // 2
    pixel, centre = _places(*boxes.split(2, dim=1), max(height, width), size, flip)
    if reach:  # the view is mirrored beyond its edges
        centre = pad(centre, (reach, reach), mode="reflect")
    shares = _shares(pixel, centre).unfold(2, size, 1)  # [B, 2, K, edge, S]
    blurred = torch.einsum("bk,bakes->base", kernel, shares)
    rows, columns = _rows_and_columns(blurred, height, width)
    narrow = torch.bmm(images.float().flatten(1, 2), columns.mT)  # [B, 3 H, S]
    mean = narrow.mean(dim=2).view(count, 3, height)
    offset = pull @ mean @ rows.mean(dim=1)[:, :, None]
    # With the channels behind them, the rows need one product a picture instead of three.
    mixed = torch.bmm(narrow.view(count, 3, -1).mT, colours.mT)  # [B, H S, 3]
    views = views.flatten(2)
    torch.baddbmm(offset, rows, mixed.view(count, height, -1), out=views).clamp_(0, 1)


def _edge(images, size):
    height, width = images.shape[-2:]
    if size is None and height != width:
        raise ValueError(
            f"images are {height} x {width} pixels, not square; give size=, the edge of the views."
        )
    return height if size is None else size


def _kernel_size(size):
    return max(3, size // 20 * 2 + 1)


def _where(chosen, images, operation, *parameters, **settings):
    """Apply an operation, in place, to the pictures for which it was drawn."""
    chosen = chosen.nonzero().squeeze(1)
    if len(chosen):
        changed = operation(
            images.index_select(0, chosen), *(parameter[chosen] for parameter in parameters), **settings
        )
        images.index_copy_(0, chosen, changed)


def _check_images(images):
    kind = images.dtype if isinstance(images, torch.Tensor) else type(images).__name__
    if kind != torch.uint8 and not (isinstance(images, torch.Tensor) and images.is_floating_point()):
        raise TypeError(f"images is of type {kind}; expected a tensor, uint8 or floating: convert it first.")
    if images.ndim != 4 or images.shape[1] != 3 or images.numel() == 0:
        raise ValueError(
            f"images has shape {list(images.shape)}; expected [B, 3, H, W] with at least one picture "
            f"(one picture of shape [3, H, W]: add the leading axis with images[None])."
        )
    if images.dtype == torch.uint8:
        return
    low, high = images.aminmax()
    if not (low >= 0 and high <= 1):  # a NaN fails both
        raise ValueError(
            f"images holds values from {low.item():g} to {high.item():g}; expected floats in [0, 1] "
            f"without NaN: give uint8 pictures as they are, and normalise after the views are made."
        )


def _as_float(images):
    _check_images(images)
    return images.float().div_(255) if images.dtype == torch.uint8 else images.float()


# --- Operations: float32 [B, 3, H, W] in [0, 1] and one parameter per picture -------------------------------


def crop_and_resize(images, top, left, height, width, size, flip=None):
    """Cut a box out of each picture and resize it to size x size, bilinear with antialias.

    top, left, height, width: int64 [B], in pixels, inside the picture; flip: bool [B], whether to mirror left
    and right. Returns [B, 3, size, size]. A resize is linear in the rows and in the columns, so a box is two
    small matrices: rows @ picture @ columns.T"""
    boxes = _boxes(images, top, left, height, width, size)
    height, width = images.shape[2:]
    shares = _shares(*_places(*boxes, max(height, width), size, flip))
    return _resize(images, *_rows_and_columns(shares, height, width))


def _boxes(images, top, left, height, width, size):
    """The boxes, checked: start and length int64 [B, 2], of the rows and of the columns."""
    if not isinstance(size, numbers.Integral) or size < 1:
        raise ValueError(f"size is {size!r}; expected the views' edge in whole pixels, at least 1.")
    for values in (top, left, height, width):
        _check_count(values, images, "a crop box")
    start, length = torch.stack([top, left], dim=1), torch.stack([height, width], dim=1)
    edges = start.new_tensor(images.shape[2:])
    outside = (start < 0) | (length < 1) | (start + length > edges)
    if outside.any():
        k = outside.any(dim=1).nonzero()[0].item()
        raise ValueError(
            f"picture {k}: the box top={top[k].item()}, left={left[k].item()}, "
            f"height={height[k].item()}, width={width[k].item()} does not lie inside its "
            f"{images.shape[2]} x {images.shape[3]} pixels; draw boxes for this height and width."
        )
    return start, length


def _places(start, length, edge, size, flip=None):
    """Where the rows and columns of a picture [B, 2, edge] and those of its resized box [B, 2, size] lie.

    Counted in half-widths of the triangle in which a pixel's share falls off with its distance: a pixel, and
    where the box is shrunk as many as become one, so that none of the box is skipped. edge: the longer one of
    the picture's. flip: bool [B], whether the columns of the box are read backwards.
    """
    at = partial(torch.arange, dtype=torch.float32, device=start.device)
    start, length = start[:, :, None], length[:, :, None]
    step = length.float() / size  # pixels of the box per pixel of the view
    width = step.clamp(min=1)
    pixel = at(edge) + 0.5 - start
    inside = (pixel > 0) & (pixel < length)
    pixel = torch.where(inside, pixel / width, math.inf)  # beyond the box: too far away to have a share
    centre = step * (at(size) + 0.5) / width
    if flip is not None:
        columns = centre[:, 1]
        centre[:, 1] = torch.where(flip[:, None], columns.flip(1), columns)
    return pixel, centre


def _shares(pixel, centre):
    """[B, 2, size, edge]: the share of each pixel of the picture in each pixel of the resized box."""
    distance = (pixel[:, :, None] - centre[:, :, :, None]).abs_()
    minus_share = distance.sub_(1).clamp_(max=0)  # in place; minus cancels in the division
    return minus_share.div_(minus_share.sum(dim=3, keepdim=True))


def _rows_and_columns(shares, height, width):
    """[B, size, height] and [B, size, width]: the shares of the picture's rows and of its columns."""
    return shares[:, 0, :, :height], shares[:, 1, :, :width]


def _resize(images, rows, columns):
    """rows [B, S, H] @ picture @ columns [B, T, W].T, for each picture and channel."""
    narrow = rows.to(images)[:, None] @ images
    return (narrow.flatten(1, 2) @ columns.to(images).mT).unflatten(1, narrow.shape[1:3])


def colour_jitter(images, brightness, contrast, saturation, hue, order):
    """Change brightness, contrast, saturation and hue of each picture, in the picture's own order.

    brightness, contrast, saturation: float [B] factors >= 0; hue: float [B], in turns of the colour circle;
    order: int64 [B, 4], each row a permutation of 0..3, positions in COLOUR_CHANGES.
    """
    jittered = images.clone()
    everywhere = torch.ones(len(images), dtype=torch.bool, device=images.device)
    _jitter(jittered, everywhere, (brightness, contrast, saturation, hue), order)
    return jittered


def _jitter(images, chosen, amounts, order):
    """colour_jitter, in place, of the chosen pictures.

    Pictures that turn their hue first go together, then those that turn it second, and so on: their other
    changes are one operation, whichever they are, and all four come one after the other while the pictures
    lie in the cache.
    """
    for amount in amounts:
        _check_count(amount, images, "a parameter")
    amounts, least = torch.stack(amounts, dim=1), amounts[0].new_tensor([0, 0, 0, -math.inf])
    right = (amounts >= least) & amounts.isfinite()
    if not right.all():
        k = (~right).any(dim=0).nonzero()[0].item()
        name, given = COLOUR_CHANGES[k], amounts[:, k].tolist()
        raise ValueError(f"{name} is {given}; expected finite numbers, none below {least[k]:g}.")
    stretches = _stretches(order, amounts.gather(1, order))
    for place, change in enumerate(order.unbind(dim=1)):
        _where(chosen & (change == HUE), images, _change_in_order, *stretches, amounts[:, HUE], hue_at=place)


def _change_in_order(images, colours, pull, hue, hue_at):
    """The four colour changes of pictures that all turn their hue at the same place, 0 to 3."""
    for place in range(4):
        if place == hue_at:
            images = adjust_hue(images, hue)
        else:
            images = _mix(images, colours[:, place], pull[:, place])
    return images


def adjust_brightness(images, factor):
    """Multiply each picture by its factor [B]: 0 is black, 1 the picture itself."""
    return _adjust(BRIGHTNESS, images, factor)


def adjust_contrast(images, factor):
    """Stretch each picture's distance from its mean grey by its factor [B]: 0 is flat grey, 1 the picture
    itself."""
    return _adjust(CONTRAST, images, factor)


def adjust_saturation(images, factor):
    """Stretch each pixel's distance from its own grey by its picture's factor [B]: 0 is grey, 1 the picture
    itself."""
    return _adjust(SATURATION, images, factor)


def _adjust(change, images, factor):
    _check_count(factor, images, "a parameter")
    return _mix(images, *_stretches(torch.full_like(factor, change), factor))


def _stretches(change, factor):
    """Each stretch of a pixel's distance from black, from the mean grey or from its own grey, for _mix.

    change, factor: [...], the positions in COLOUR_CHANGES and how far. Returns colours [..., 3, 3] and pull
    [..., 1, 3].
    """
    change, factor = change[..., None, None], factor[..., None, None]
    grey = factor.new_tensor([LUMINANCE])
    rest = (1 - factor) * grey
    itself = torch.eye(3, dtype=factor.dtype, device=factor.device)
    return factor * itself + rest * (change == SATURATION), rest * (change == CONTRAST)


def _mix(images, colours, pull):
    """colours [B, 3, 3] @ each pixel + pull [B, 1, 3] @ the mean pixel, cut off at 0 and 1."""
    pixels, colours, pull = images.flatten(2), colours.to(images), pull.to(images)
    offset = torch.bmm(pull, pixels.mean(dim=2, keepdim=True))
    return torch.baddbmm(offset, colours, pixels).clamp_(0, 1).view_as(images)


def adjust_hue(images, turn):
    """Turn each picture's colours around the colour circle by turn [B], 1 a whole turn; HSV value and chroma
    stay.

    On the circle red stands at 0, green at a third, blue at two thirds. A channel is at its highest within a
    sixth of its own place, at its lowest beyond a third, and a straight ramp in between. Read backwards, the
    three channels give the angle from red: its size from 1 + g + b - r (each channel's height between the
    lowest and the highest, 0 to 1; sixths of a turn), its side from the larger one of green and blue."""
    red, green, blue = images.unbind(dim=1)
    lowest, chroma = images.amin(dim=1), images.amax(dim=1)
    chroma = chroma.sub_(lowest).clamp_(min=torch.finfo(images.dtype).tiny)  # a grey pixel: any angle will do
    below = lowest.sub_(chroma)  # each channel comes to lie between below + chroma and below + 2 chroma
    angle = (green + blue).sub_(red).sub_(below).div_(chroma).copysign_(green - blue)  # in sixths
    # The turn from each channel's place, the short way round: three sixths at most, as the angle itself.
    turn = _per_picture(turn, images) - images.new_tensor([0, 1 / 3, 2 / 3]).view(3, 1, 1)
    turn = turn.sub_(turn.round()).mul_(6)
    distance = (angle[:, None] + turn).abs_()  # of the turned colour from the channel's place: 0 to 6
    return distance.sub_(3).abs_().clamp_(1, 2).mul_(chroma[:, None]).add_(below[:, None])


def _colour_matrices(p):
    """Each picture's colour jitter and grey: view = colours [B, 3, 3] @ pixel + pull [B, 1, 3] @ mean pixel.

    Brightness and contrast multiply, whatever their place; saturation keeps the luminance, hue keeps grey. So
    the order decides one thing alone: whether contrast and saturation see the luminance before or after the
    turn of the hue.
    """
    brightness, contrast, saturation, hue = (getattr(p, change).view(-1, 1, 1) for change in COLOUR_CHANGES)
    thirds = hue.new_tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0]])  # of a turn, from channel to channel
    turned = torch.cos(2 * math.pi * (hue + thirds / 3)).mul_(2 / 3).add_(1 / 3)
    place = p.order.argsort(dim=1)[:, :, None, None]
    sees_turned = place > place[:, HUE:]
    grey = hue.new_tensor([LUMINANCE])
    luminance = torch.where(sees_turned[:, SATURATION], grey @ turned, grey)
    colours = saturation * turned + (1 - saturation) * luminance
    luminance = torch.where(sees_turned[:, CONTRAST], grey @ colours, grey)
    pull = brightness * (1 - contrast) * luminance
    colours = brightness * contrast * colours
    return torch.where(p.grey.view(-1, 1, 1), grey @ colours, colours), pull


def greyscale(images):
    """Replace each pixel's three channels by its luminance."""
    return _luminance(images).expand_as(images)


def _luminance(images):
    red, green, blue = images.split(1, dim=1)
    of_red, of_green, of_blue = LUMINANCE
    return (of_red * red).add_(green, alpha=of_green).add_(blue, alpha=of_blue)


def blur(images, sigma, kernel_size):
    """Gaussian blur with each picture's own sigma [B], in pixels, > 0; the picture is mirrored beyond its
    edges.

    kernel_size: odd, pixels; the Gaussian is cut off there. It must fit: kernel_size // 2 < height and width.
    """
    height, width = images.shape[-2:]
    _check_kernel(kernel_size, height, width)
    _check_count(sigma, images, "a sigma")
    if not (sigma > 0).all():
        raise ValueError(
            f"sigma goes down to {sigma.min().item():g}; expected more than 0 pixels for each picture."
        )
    kernel = _gaussian(sigma, kernel_size)
    rows = _blur_matrix(kernel, height)
    columns = rows if width == height else _blur_matrix(kernel, width)
    return _resize(images, rows, columns)


def _check_kernel(kernel_size, height, width):
    if kernel_size % 2 == 0 or not 0 < kernel_size < 2 * min(height, width):
        raise ValueError(
            f"kernel_size is {kernel_size} for pictures of {height} x {width} pixels; expected an odd "
            f"number below {2 * min(height, width)}."
        )


def _gaussian(sigma, kernel_size):
    """[B, kernel_size]: the share of a pixel and its neighbours in the blurred pixel."""
    offset = torch.arange(kernel_size, device=sigma.device) - kernel_size // 2
    return torch.softmax(-0.5 * (offset / sigma[:, None]) ** 2, dim=1)


def _blur_matrix(kernel, edge):
    """[B, edge, edge]: the share of each pixel of a row in each pixel of the blurred row."""
    kernel_size = kernel.shape[1]
    source = torch.eye(edge, dtype=kernel.dtype, device=kernel.device)[None]
    mirrored = pad(source, (kernel_size // 2, kernel_size // 2), mode="reflect")[0]
    return torch.einsum("bk,jik->bij", kernel, mirrored.unfold(1, kernel_size, 1))


def _per_picture(values, images):
    """[B] as [B, 1, 1, 1], to meet images [B, 3, H, W]."""
    _check_count(values, images, "a parameter")
    return values[:, None, None, None]


def _check_count(values, images, what):
    if values.shape != images.shape[:1]:
        raise ValueError(
            f"{what} of shape {list(values.shape)} came with images of shape {list(images.shape)}; expected "
            f"one value per picture, shape [{len(images)}]."
        )
