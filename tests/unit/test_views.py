"""views.py against torchvision, picture by picture, and its draws against the distributions they claim."""

import math
import re
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as tv

from course_utils import views
from course_utils.images import shapes
from course_utils.views import (
    COLOUR_CHANGES,
    POLICIES,
    Policy,
    apply_view,
    draw_parameters,
    fused_view,
    two_views,
)

# float32 carries 6e-8 on [0, 1]; some tens of roundings, amplified by hue ramps of slope 6, stay below:
CLOSE = 1e-5
# a view chains up to seven operations, and hue multiplies what came before by up to 6 where chroma is small:
CLOSE_CHAIN = 1e-4
SHARE_DRAWS = 20_000
EVERYTHING = Policy(
    "everything",
    "this test",
    jitter=0.8,
    brightness=0.8,
    contrast=0.8,
    saturation=0.8,
    hue=0.5,
    grey=0.3,
    blur=0.5,
)

quick = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pictures(count, height, width, seed=0):
    """Noise, with the awkward ones first: black, white, grey noise, pure colours, two equal channels."""
    images = torch.rand(count, 3, height, width, generator=generator(seed))
    awkward = [
        torch.zeros_like(images[0]),
        torch.ones_like(images[0]),
        images[0, :1].expand(3, -1, -1),
        images[0].round(),
        images[0, [0, 1, 1]],
    ]
    for k, image in enumerate(awkward[: count - 1]):
        images[k] = image
    return images


def difference(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.isfinite().all() and theirs.isfinite().all()
    return (ours - theirs).abs().max().item()


def each(operation, images, *parameters):
    return torch.stack(
        [operation(image, *(p[k].item() for p in parameters)) for k, image in enumerate(images)]
    )


# --- Each operation equals torchvision's --------------------------------------------------------------------


@st.composite
def edges_and_box(draw):
    """An edge, and a start and length inside it: 1-pixel boxes and whole edges included."""
    edge = draw(st.integers(1, 40))
    length = draw(st.integers(1, edge))
    return edge, draw(st.integers(0, edge - length)), length


def resized_crops(images, boxes, size):
    return each(
        lambda image, *box: tv.resized_crop(image, *box, [size, size], antialias=True), images, *boxes
    )


@quick
@given(vertical=edges_and_box(), horizontal=edges_and_box(), size=st.integers(1, 48), seed=seeds)
def test_crop_and_resize(vertical, horizontal, size, seed):
    (edge_y, top, height), (edge_x, left, width) = vertical, horizontal
    images = torch.rand(2, 3, edge_y, edge_x, generator=generator(seed))
    boxes = torch.tensor([[top, left, height, width], [0, 0, edge_y, edge_x]]).T
    assert difference(views.crop_and_resize(images, *boxes, size), resized_crops(images, boxes, size)) < CLOSE


@pytest.mark.parametrize(
    ("edge", "size"), [((224, 224), 96), ((224, 224), 32), ((300, 200), 64), ((16, 16), 96), ((32, 32), 32)]
)
def test_crop_and_resize_at_the_sizes_the_course_uses(edge, size):
    images = torch.rand(6, 3, *edge, generator=generator())
    p = draw_parameters(6, *edge, "simclr_cifar", generator(1))
    box = (p.top, p.left, p.height, p.width)
    assert difference(views.crop_and_resize(images, *box, size), resized_crops(images, box, size)) < CLOSE


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("brightness", 0, 2), ("contrast", 0, 2), ("saturation", 0, 2), ("hue", -0.5, 0.5)],
)
@quick
@given(data=st.data(), edge=st.integers(1, 33), seed=seeds)
def test_colour_changes(name, low, high, data, edge, seed):
    amounts = torch.tensor(data.draw(st.lists(st.floats(low, high, width=32), min_size=6, max_size=9)))
    images = pictures(len(amounts), edge, edge + 1, seed)
    ours = getattr(views, f"adjust_{name}")(images, amounts)
    assert difference(ours, each(getattr(tv, f"adjust_{name}"), images, amounts)) < CLOSE


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_colour_changes_take_factors_of_another_precision(name):
    change, images, factors = getattr(views, f"adjust_{name}"), pictures(4, 9, 9), torch.linspace(0, 2, 4)
    wanted = change(images, factors)
    assert torch.equal(change(images, factors.double()), wanted)
    assert difference(change(images.double(), factors).float(), wanted) < CLOSE


def test_hue_on_every_colour_of_a_coarse_cube_and_the_twelfths_of_the_circle():
    """All ties between channels, all corners: where a rule of six cases would go wrong."""
    level = torch.linspace(0, 1, 6)
    cube = torch.stack(torch.meshgrid(level, level, level, indexing="ij")).reshape(1, 3, 12, 18)
    turns = torch.linspace(-0.5, 0.5, 13)
    images = cube.expand(13, -1, -1, -1)
    assert difference(views.adjust_hue(images, turns), each(tv.adjust_hue, images, turns)) < CLOSE


def test_a_flipped_box_is_its_mirror_image():
    images = torch.rand(6, 3, 30, 40, generator=generator())
    p = draw_parameters(6, 30, 40, "simclr_cifar", generator(1))
    box, flip = (p.top, p.left, p.height, p.width), torch.tensor([True, False] * 3)
    whole, some = (views.crop_and_resize(images, *box, 24, flip) for flip in (~flip | flip, flip))
    plain = views.crop_and_resize(images, *box, 24)
    assert difference(whole, tv.horizontal_flip(plain)) < CLOSE
    assert torch.equal(some[flip], whole[flip]) and torch.equal(some[~flip], plain[~flip])


def test_greyscale():
    images = pictures(8, 17, 23)
    assert difference(views.greyscale(images), tv.rgb_to_grayscale(images, num_output_channels=3)) < CLOSE


@quick
@given(data=st.data(), height=st.integers(2, 40), width=st.integers(2, 40), seed=seeds)
def test_blur(data, height, width, seed):
    kernel_size = 2 * data.draw(st.integers(0, min(height, width) - 1)) + 1
    sigma = torch.tensor(data.draw(st.lists(st.floats(0.125, 3, width=32), min_size=2, max_size=6)))
    images = pictures(len(sigma), height, width, seed)
    theirs = each(lambda image, s: tv.gaussian_blur(image, [kernel_size] * 2, [s] * 2), images, sigma)
    assert difference(views.blur(images, sigma, kernel_size), theirs) < CLOSE


def test_colour_jitter_keeps_to_every_pictures_own_order():
    orders = torch.cartesian_prod(*[torch.arange(4)] * 4)
    orders = orders[orders.sort(dim=1).values.eq(torch.arange(4)).all(dim=1)]
    assert len(orders) == 24
    images = torch.rand(24, 3, 9, 9, generator=generator())
    amounts = [torch.rand(24, generator=generator(k)) + 0.5 for k in range(3)]
    amounts.append(torch.rand(24, generator=generator(3)) - 0.5)
    theirs = torch.stack([one_by_one(images[k], amounts, orders[k].tolist(), k) for k in range(24)])
    assert difference(views.colour_jitter(images, *amounts, orders), theirs) < CLOSE_CHAIN
    # and the order matters, or this test could not fail:
    assert difference(views.colour_jitter(images, *amounts, orders.roll(1, 0)), theirs) > 0.05


def one_by_one(image, amounts, order, k):
    for change in order:
        image = getattr(tv, f"adjust_{COLOUR_CHANGES[change]}")(image, amounts[change][k].item())
    return image


# --- A whole view -------------------------------------------------------------------------------------------


def torchvision_view(image, parameters, k, size):
    """The k-th picture's view through torchvision, one operation after the other, as the parameters say."""
    p = {field.name: getattr(parameters, field.name)[k].tolist() for field in fields(parameters)}
    image = tv.resized_crop(image, p["top"], p["left"], p["height"], p["width"], [size, size], antialias=True)
    if p["flip"]:
        image = tv.horizontal_flip(image)
    if p["colour"]:
        for change in p["order"]:
            name = COLOUR_CHANGES[change]
            image = getattr(tv, f"adjust_{name}")(image, p[name])
    if p["grey"]:
        image = tv.rgb_to_grayscale(image, num_output_channels=3)
    if p["blur"]:
        edge = 2 * (size // 20) + 1 if size >= 20 else 3
        image = tv.gaussian_blur(image, [edge, edge], [p["sigma"], p["sigma"]])
    return image


@pytest.mark.parametrize("policy", [*POLICIES.values(), EVERYTHING], ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    ("edge", "size"), [((32, 32), None), ((48, 36), 64), ((224, 224), 96)], ids=["32", "48x36-64", "224-96"]
)
def test_a_view_equals_torchvisions_pipeline(policy, edge, size):
    images = torch.randint(256, (24, 3, *edge), dtype=torch.uint8, generator=generator(1))
    parameters = draw_parameters(24, *edge, policy, generator(2))
    ours = apply_view(images, parameters, size)
    assert ours.dtype == torch.float32 and ours.min() >= 0 and ours.max() <= 1
    theirs = torch.stack(
        [torchvision_view(image / 255, parameters, k, size or edge[0]) for k, image in enumerate(images)]
    )
    assert difference(ours, theirs) < CLOSE_CHAIN


# --- fused views --------------------------------------------------------------------------------------------

STILL = Policy("still", "this test", crop_scale=(1, 1), crop_ratio=(1, 1), flip=0.0)
THE_SAME = {
    "geometry": replace(STILL, crop_scale=(0.08, 1.0), crop_ratio=(3 / 4, 4 / 3), flip=0.5, blur=0.5),
    "grey": replace(STILL, grey=0.5),
    **{name: replace(STILL, jitter=0.8, **{name: 0.8}) for name in ("brightness", "contrast", "saturation")},
}


@pytest.fixture(params=["loops", "tensors"])
def form(request, monkeypatch):
    """fused_view as a CPU has it, and as a GPU does."""
    if request.param == "tensors":
        monkeypatch.setattr(views, "_fused_on_cpu", views._fused)


@pytest.mark.parametrize("edge, size", [(32, 32), (32, 24), (40, 64), (9, 2), (2, 1)])
@pytest.mark.parametrize("policy", THE_SAME.values(), ids=THE_SAME.keys())
def test_one_fused_operation_is_the_exact_one(policy, edge, size, form):
    if size == 1:
        policy = replace(policy, blur=0.0)  # refused, see below
    images = pictures(64, edge, edge)
    parameters = draw_parameters(64, edge, edge, policy, generator())
    assert difference(fused_view(images, parameters, size), apply_view(images, parameters, size)) < CLOSE


def test_fused_views_of_oblong_pictures_however_they_lie_in_memory(form):
    images = torch.randint(256, (20, 3, 30, 44), dtype=torch.uint8, generator=generator())
    parameters = draw_parameters(20, 30, 44, THE_SAME["geometry"], generator())
    ours = fused_view(images, parameters, 24)
    assert difference(ours, apply_view(images, parameters, 24)) < CLOSE
    assert ours.is_contiguous(memory_format=torch.channels_last)
    for same in (images.contiguous(memory_format=torch.channels_last), images.flip(3).flip(3), images / 255):
        assert difference(ours, fused_view(same, parameters, 24)) < CLOSE


def turned(images, turn):
    """The exact and the fused view of pictures whose colours alone are turned."""
    neutral = draw_parameters(len(images), 16, 16, STILL, generator())
    parameters = replace(neutral, colour=~neutral.colour, hue=torch.full([len(images)], turn))
    return apply_view(images, parameters), fused_view(images, parameters)


def test_a_fused_turn_is_exact_at_thirds_and_close_elsewhere(form):
    images = shapes.make(300, size=16).images
    for turn in (-1 / 3, 0.0, 1 / 3):
        assert difference(*turned(images, turn)) < CLOSE
    for turn in (-0.1, 0.1):
        exact, fused = turned(images, turn)
        _, the_wrong_way = turned(images, -turn)
        assert (fused - exact).abs().mean() < 0.03
        assert (fused - exact).abs().mean() < (the_wrong_way - exact).abs().mean() / 2


def facts(views):
    """Of each view: brightness, contrast, colourfulness, and which way its colour leans."""
    red, green, blue = views.mean(dim=(2, 3)).T
    grey = views.mean(dim=1)
    return {
        "brightness": grey.mean(dim=(1, 2)),
        "contrast": grey.flatten(1).std(dim=1),
        "colourfulness": (views.amax(dim=1) - views.amin(dim=1)).mean(dim=(1, 2)),
        "red against green": red - green,
        "yellow against blue": (red + green) / 2 - blue,
    }


@pytest.mark.parametrize(
    "policy",
    [
        *(
            replace(STILL, name=name, jitter=1.0, **{name: 0.1 if name == "hue" else 0.4})
            for name in COLOUR_CHANGES
        ),
        *POLICIES.values(),
    ],
    ids=lambda policy: policy.name,
)
def test_fused_views_have_the_mean_and_spread_of_exact_ones(policy):
    """Each factor alone, then each policy: over many views of the rendered pictures, within a tenth of the
    exact views' spread."""
    images = shapes.make(2000, size=24).images
    parameters = draw_parameters(2000, 24, 24, policy, generator())
    exact, fused = (facts(make(images, parameters)) for make in (apply_view, fused_view))
    for name, of_exact in exact.items():
        spread = of_exact.std()
        assert abs(fused[name].mean() - of_exact.mean()) < 0.1 * spread + 1e-6, name
        assert abs(fused[name].std() - spread) < 0.1 * spread + 1e-6, name


def test_each_fused_view_keeps_to_its_own_order_and_parameters(form):
    images = pictures(24, 16, 16) * 0.2 + 0.4  # so that nothing is cut off at 0 or 1
    mild = replace(STILL, jitter=1.0, brightness=0.3, contrast=0.3, saturation=0.3)
    parameters = draw_parameters(24, 16, 16, mild, generator())
    assert len(parameters.order.unique(dim=0)) > 8
    assert difference(fused_view(images, parameters), apply_view(images, parameters)) < CLOSE
    alone = torch.cat([fused_view(images[k : k + 1], parameters[k]) for k in range(24)])
    assert difference(alone, fused_view(images, parameters)) < CLOSE


def test_fused_views_refuse_what_exact_views_refuse():
    images, parameters = pictures(4, 8, 8), draw_parameters(4, 8, 8, "strong", generator())
    with pytest.raises(TypeError, match="images is of type"):
        fused_view(images.long(), parameters)
    with pytest.raises(ValueError, match="does not lie inside"):
        fused_view(images, replace(parameters, top=parameters.top + 8))
    with pytest.raises(ValueError, match="one value per picture"):
        fused_view(images[:3], parameters)
    with pytest.raises(ValueError, match="not square; give size="):
        fused_view(pictures(4, 8, 9), parameters)
    blurred = replace(parameters, blur=parameters.blur | True, sigma=torch.ones(4))
    for make in (apply_view, fused_view):
        with pytest.raises(ValueError, match="kernel_size is 3 for pictures of 1 x 1 pixels"):
            make(images, blurred, size=1)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=lambda policy: policy.name)
@pytest.mark.parametrize("height, width, size", [(32, 32, 32), (17, 23, 30), (100, 64, 96)])
def test_the_loops_give_what_the_tensors_give(policy, height, width, size, monkeypatch):
    images = torch.randint(256, (24, 3, height, width), dtype=torch.uint8, generator=generator())
    parameters = draw_parameters(24, height, width, policy, generator())
    looped = fused_view(images, parameters, size)
    monkeypatch.setattr(views, "_fused_on_cpu", views._fused)
    assert difference(looped, fused_view(images, parameters, size)) < CLOSE


@pytest.mark.parametrize("count", [1, 3, 50])
def test_threads_share_the_pictures_of_a_fused_view(count):
    images, parameters = pictures(count, 32, 32), draw_parameters(count, 32, 32, "strong", generator())
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):  # also more of them than pictures
            torch.set_num_threads(threads)
            found.append(fused_view(images, parameters))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_uint8_and_float_pictures_give_the_same_view_and_are_left_alone():
    stored = torch.randint(256, (16, 3, 32, 32), dtype=torch.uint8, generator=generator())
    parameters = draw_parameters(16, 32, 32, EVERYTHING, generator())
    as_float = stored / 255
    kept = as_float.clone()
    assert torch.equal(apply_view(stored, parameters), apply_view(as_float, parameters))
    assert torch.equal(as_float, kept)
    assert apply_view(as_float.double(), parameters).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(apply_view(stored, parameters), apply_view(as_float, parameters))


@quick
@given(cut=st.integers(1, 19), seed=seeds)
def test_a_pictures_view_does_not_depend_on_its_company(cut, seed):
    images = pictures(20, 24, 24, seed)
    parameters = draw_parameters(20, 24, 24, EVERYTHING, generator(seed))
    whole = apply_view(images, parameters)
    parts = [apply_view(images[part], parameters[part]) for part in (slice(cut), slice(cut, None))]
    # sums may be taken in another order (matrix products, the mean in contrast), hence not bitwise:
    assert difference(whole, torch.cat(parts)) < CLOSE_CHAIN
    assert difference(whole[7:8], apply_view(images[7:8], parameters[7])) < CLOSE_CHAIN
    backwards = torch.arange(19, -1, -1)
    assert difference(whole.flip(0), apply_view(images[backwards], parameters[backwards])) < CLOSE_CHAIN


def test_two_views_are_the_views_of_the_parameters_that_come_with_them():
    images = torch.randint(256, (12, 3, 32, 32), dtype=torch.uint8, generator=generator())
    a, b, parameters_a, parameters_b = two_views(images, "strong", generator(5), size=40)
    assert torch.equal(a, apply_view(images, parameters_a, 40))
    assert torch.equal(b, apply_view(images, parameters_b, 40))
    assert a.shape == (12, 3, 40, 40) and difference(a, b) > 0.1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: no second device to compare with")
def test_views_on_a_gpu_are_those_on_the_cpu():
    images = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator())
    here = two_views(images, EVERYTHING, generator(1))
    there = two_views(images.cuda(), EVERYTHING, generator(1))
    assert there.view_a.is_cuda and same(here.parameters_a, there.parameters_a)
    assert difference(here.view_a, there.view_a.cpu()) < CLOSE_CHAIN


# --- Draws --------------------------------------------------------------------------------------------------


def same(a, b, but=()):
    return all(torch.equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name not in but)


def assert_share(happened, expected):
    """Within four standard errors: a right draw misses once in 16,000 seeds, and the seed is fixed."""
    error = math.sqrt(expected * (1 - expected) / len(happened))
    assert abs(happened.double().mean().item() - expected) <= 4 * error


def assert_uniform(values, low, high, rounding=1e-6):
    """Kolmogorov-Smirnov's distance from uniform is below its 0.01 % point, 2.23 / sqrt(n), inside the range.

    rounding: how far a value may pass the range's ends, as a share of the range.
    """
    values = (values.double().sort().values - low) / (high - low)
    assert values.min() >= -rounding and values.max() <= 1 + rounding
    expected = (torch.arange(len(values)) + 0.5) / len(values)
    assert (values - expected).abs().max().item() < 2.23 / math.sqrt(len(values))


def correlation(a, b):
    return torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1].abs().item()


@pytest.fixture(scope="module")
def drawn():
    return draw_parameters(SHARE_DRAWS, 224, 224, "strong", generator(3))


def test_shares_of_flip_colour_grey_and_blur(drawn):
    for name, expected in {"flip": 0.5, "colour": 0.8, "grey": 0.2, "blur": 0.5}.items():
        assert_share(getattr(drawn, name), expected)
    for policy in POLICIES.values():
        p = draw_parameters(SHARE_DRAWS, 32, 32, policy, generator(4))
        for name in ("flip", "grey", "blur"):
            assert_share(getattr(p, name), getattr(policy, name))
        assert_share(p.colour, policy.jitter)


def test_colour_factors_and_sigma_are_uniform_where_they_happen_and_neutral_elsewhere(drawn):
    for name in ("brightness", "contrast", "saturation"):
        assert_uniform(getattr(drawn, name)[drawn.colour], 0.2, 1.8)
        assert (getattr(drawn, name)[~drawn.colour] == 1).all()
    assert_uniform(drawn.hue[drawn.colour], -0.2, 0.2)
    assert (drawn.hue[~drawn.colour] == 0).all()
    assert_uniform(drawn.sigma[drawn.blur], 0.1, 2.0)
    assert (drawn.sigma[~drawn.blur] == 0).all()
    above_one = replace(EVERYTHING, brightness=1.5, jitter=1.0)
    assert_uniform(draw_parameters(SHARE_DRAWS, 8, 8, above_one, generator()).brightness, 0, 2.5)


def test_each_of_the_24_orders_is_as_likely(drawn):
    assert torch.equal(drawn.order.sort(dim=1).values, torch.arange(4).expand(SHARE_DRAWS, 4))
    orders, counts = drawn.order.unique(dim=0, return_counts=True)
    assert len(orders) == 24
    for count in counts.tolist():
        assert_share(torch.arange(SHARE_DRAWS) < count, 1 / 24)


def test_crops_lie_inside_and_are_uniform_in_area_and_log_uniform_in_ratio():
    """Where every try fits (small area, large picture) the draw is what it claims, up to whole pixels."""
    small = Policy("small", "this test", crop_scale=(0.05, 0.5))
    p = draw_parameters(SHARE_DRAWS, 1000, 1000, small, generator(6))
    assert (p.top >= 0).all() and (p.top + p.height <= 1000).all()
    assert (p.left >= 0).all() and (p.left + p.width <= 1000).all()
    # edges of 193 to 817 pixels are rounded by up to half a pixel: below 1 % of either range
    assert_uniform(p.height * p.width / 1000**2, 0.05, 0.5, rounding=0.01)
    assert_uniform((p.width / p.height).log(), math.log(3 / 4), math.log(4 / 3), rounding=0.01)
    assert_uniform((p.top + 0.5) / (1001 - p.height), 0, 1)
    assert_uniform((p.left + 0.5) / (1001 - p.width), 0, 1)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (60, 40), (25, 100)])
def test_crops_are_distributed_as_random_resized_crop(height, width):
    """Two-sample Kolmogorov-Smirnov against torchvision's own loop, fallback included (0.01 % point)."""
    from torchvision.transforms import RandomResizedCrop

    count = 3000
    torch.manual_seed(0)
    picture = torch.zeros(1, height, width)
    theirs = torch.tensor(
        [RandomResizedCrop.get_params(picture, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(count)]
    ).T
    p = draw_parameters(count, height, width, "simclr_cifar", generator(7))
    for name, them in zip(("top", "left", "height", "width"), theirs, strict=True):
        us = getattr(p, name)
        grid = torch.arange(max(height, width) + 1)[:, None]
        distance = ((us <= grid).double().mean(1) - (them <= grid).double().mean(1)).abs().max().item()
        assert distance < 2.23 * math.sqrt(2 / count), name


@pytest.mark.parametrize(
    ("height", "width", "box"),
    [
        (100, 20, (36, 0, 27, 20)),  # too tall: width stays, height = 20 / (3/4)
        (20, 100, (0, 36, 20, 27)),  # too wide: height stays, width = 20 * 4/3
        (20, 24, (0, 0, 20, 24)),  # in between: the whole picture
    ],
)
def test_fallback_is_the_largest_central_box(height, width, box):
    """An area of the whole picture at a ratio it cannot have never fits in ten tries."""
    whole = Policy("whole", "this test", crop_scale=(1.0, 1.0))
    p = draw_parameters(50, height, width, whole, generator())
    fell_back = torch.ones(50, dtype=torch.bool) if height != 20 or width != 24 else p.height * p.width == 480
    assert fell_back.any()
    boxes = torch.stack([p.top, p.left, p.height, p.width], dim=1)[fell_back]
    assert (boxes == torch.tensor(box)).all()


def test_fallback_share_is_the_chance_that_ten_tries_fail():
    """One try at area = 1 fits a square picture only at ratio 1, up to whole pixels: count that share
    exactly."""
    whole = Policy("whole", "this test", crop_scale=(0.97, 1.0))
    area = torch.linspace(0.97, 1, 2001, dtype=torch.float64)[:, None] * 100**2
    ratio = torch.linspace(math.log(3 / 4), math.log(4 / 3), 2001, dtype=torch.float64).exp()
    one_try = (
        (((area * ratio).sqrt().round() <= 100) & ((area / ratio).sqrt().round() <= 100)).double().mean()
    )
    p = draw_parameters(SHARE_DRAWS, 100, 100, whole, generator(8))
    # the fallback is the whole picture; a try that fits gives it too, with the share counted the same way:
    all_of_it = ((area * ratio).sqrt().round() == 100) & ((area / ratio).sqrt().round() == 100)
    fails = (1 - one_try) ** 10
    expected = fails + (1 - fails) * all_of_it.double().mean() / one_try
    assert 0.05 < fails < 0.95
    assert_share((p.height == 100) & (p.width == 100), expected.item())


def test_views_and_neighbours_are_drawn_independently():
    """A correlation of n independent pairs has standard error 1 / sqrt(n)."""
    images = torch.zeros(5000, 3, 4, 4, dtype=torch.uint8)
    _, _, a, b = two_views(images, replace(EVERYTHING, jitter=1.0), generator(9))
    bound = 4 / math.sqrt(5000 - 1)
    for name in ("flip", "colour", "grey", "blur", *COLOUR_CHANGES):
        first, second = getattr(a, name).double(), getattr(b, name).double()
        if name != "colour":  # always on here
            assert correlation(first, second) < bound, name
            assert correlation(first[1:], first[:-1]) < bound, name
    columns = torch.stack([getattr(a, n).double() for n in ("flip", "grey", "blur", *COLOUR_CHANGES)])
    assert (torch.corrcoef(columns) - torch.eye(7)).abs().max() < bound
    assert not same(a, b)


def test_same_seed_same_parameters_and_another_seed_others():
    first, again, other = (draw_parameters(64, 32, 32, "strong", generator(seed)) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)


# --- Policies -----------------------------------------------------------------------------------------------


def test_policies_are_as_published():
    facts = {  # crop from, jitter p, (brightness, contrast, saturation, hue), grey p, blur p
        "simclr_cifar": (0.08, 0.8, (0.4, 0.4, 0.4, 0.1), 0.2, 0.0),
        "no_colour": (0.08, 0.0, (0.0, 0.0, 0.0, 0.0), 0.0, 0.0),
        "grey": (0.08, 0.0, (0.0, 0.0, 0.0, 0.0), 1.0, 0.0),
        "strong": (0.08, 0.8, (0.8, 0.8, 0.8, 0.2), 0.2, 0.5),
        "moco_v1": (0.2, 1.0, (0.4, 0.4, 0.4, 0.4), 0.2, 0.0),
        "moco_v2": (0.2, 0.8, (0.4, 0.4, 0.4, 0.1), 0.2, 0.5),
    }
    assert list(POLICIES) == list(facts)
    for name, (crop_from, jitter, strengths, grey, blur) in facts.items():
        p = POLICIES[name]
        assert p.name == name and p.source
        assert (p.crop_scale, p.crop_ratio, p.flip) == ((crop_from, 1.0), (3 / 4, 4 / 3), 0.5)
        assert (p.jitter, tuple(getattr(p, c) for c in COLOUR_CHANGES)) == (jitter, strengths)
        assert (p.grey, p.blur, p.blur_sigma) == (grey, blur, (0.1, 2.0))


LEFT_OUT = {
    "crop": {"top", "left", "height", "width"},
    "flip": {"flip"},
    "colour": {"colour", *COLOUR_CHANGES},
    "grey": {"grey"},
    "blur": {"blur", "sigma"},
}


@pytest.mark.parametrize("operation", LEFT_OUT)
def test_leaving_one_out_leaves_all_other_draws_as_they_were(operation):
    strong = POLICIES["strong"]
    without = strong.without(operation)
    assert without.name == f"strong without {operation}"
    assert without.operations == tuple(o for o in strong.operations if o != operation)
    before, after = (draw_parameters(200, 32, 32, policy, generator(1)) for policy in (strong, without))
    assert same(before, after, but=LEFT_OUT[operation])
    assert not same(before, after)
    if operation == "crop":
        assert (after.height == 32).all() and (after.width == 32).all()
        assert (after.top == 0).all() and (after.left == 0).all()
    else:
        assert not getattr(after, operation).any()


def test_leaving_everything_out_gives_the_picture_back():
    policy = POLICIES["strong"]
    for operation in policy.operations:
        policy = policy.without(operation)
    images = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8, generator=generator())
    assert policy.operations == ()
    assert difference(two_views(images, policy, generator()).view_a, images / 255) < CLOSE


def test_leaving_out_what_is_not_there_is_an_error():
    with pytest.raises(ValueError, match=r"'simclr_cifar' has no 'blur'.*it has crop, flip, colour, grey"):
        POLICIES["simclr_cifar"].without("blur")


# --- The parameters as a table ------------------------------------------------------------------------------


def test_the_table_says_what_happened():
    p = draw_parameters(40, 32, 32, "strong", generator(1))
    table = p.table()
    assert len(table) == len(p) == 40
    for k, row in table.iterrows():
        assert row["crop"] == f"{p.top[k]},{p.left[k]},{p.height[k]},{p.width[k]}"
        assert (row["flip"], row["grey"], row["blur"]) == (
            p.flip[k].item(),
            p.grey[k].item(),
            p.blur[k].item(),
        )
        names = [COLOUR_CHANGES[change] for change in p.order[k]]
        assert row["colour order"] == (" > ".join(names) if p.colour[k] else "")
        for column in (*COLOUR_CHANGES, "sigma"):
            assert row[column] == getattr(p, column)[k].item()


@pytest.mark.parametrize(
    "index", [3, -1, slice(2, 9, 3), torch.tensor([5, 0, 5]), torch.arange(40) % 2 == 0], ids=str
)
def test_selecting_parameters(index):
    p = draw_parameters(40, 32, 32, "strong", generator(1))
    rows = torch.arange(40)[[index] if isinstance(index, int) else index]
    assert (
        p[index].table().reset_index(drop=True).equals(p.table().iloc[rows.tolist()].reset_index(drop=True))
    )


# --- Errors -------------------------------------------------------------------------------------------------

GOOD = torch.zeros(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        ([[0.0]], TypeError, "type list; expected a tensor"),
        (GOOD.long(), TypeError, "type torch.int64; expected a tensor, uint8 or floating"),
        (GOOD[0], ValueError, r"\[3, 8, 8\]; expected \[B, 3, H, W\].*images\[None\]"),
        (GOOD[:, :1], ValueError, r"\[2, 1, 8, 8\]"),
        (GOOD.permute(0, 2, 3, 1), ValueError, r"\[2, 8, 8, 3\]"),
        (GOOD[:0], ValueError, r"\[0, 3, 8, 8\].*at least one picture"),
        (GOOD + 2, ValueError, r"from 2 to 2; expected floats in"),
        (GOOD - 0.1, ValueError, "from -0.1 to -0.1"),
        (GOOD * torch.nan, ValueError, "without NaN"),
        (GOOD[:, :, :5], ValueError, "5 x 8 pixels, not square; give size="),
    ],
)
def test_wrong_pictures(images, error, message):
    parameters = draw_parameters(2, 8, 8, "grey", generator())
    with pytest.raises(error, match=message):
        apply_view(images, parameters)
    with pytest.raises(error, match=message):
        two_views(images, "grey", generator())


def test_wrong_parameters():
    parameters = draw_parameters(3, 8, 8, EVERYTHING, generator())
    with pytest.raises(
        ValueError, match=r"\[3\] came with images of shape \[2, 3, 8, 8\]; expected one value per"
    ):
        apply_view(GOOD, parameters)
    with pytest.raises(ValueError, match=r"'flip': \[2\].*expected \[B\]"):
        replace(parameters, flip=parameters.flip[:2])
    with pytest.raises(ValueError, match="size is 0"):
        apply_view(GOOD, parameters[:2], size=0)
    with pytest.raises(ValueError, match=r"size is 16\.5; expected .* whole pixels"):
        apply_view(GOOD, parameters[:2], size=16.5)
    always, nan = torch.ones(3, dtype=torch.bool), torch.full([3], torch.nan)
    with pytest.raises(ValueError, match=r"brightness is .*nan"):
        apply_view(GOOD, replace(parameters, colour=always, brightness=nan)[:2])


@pytest.mark.parametrize(
    "box", [(-1, 0, 4, 4), (0, 5, 4, 4), (0, 0, 0, 4), (0, 0, 4, 0), (7, 0, 2, 1), (0, 0, 4, 9)]
)
def test_a_box_outside_the_picture(box):
    boxes = torch.tensor([(0, 0, 8, 8), box]).T
    top, left, height, width = box
    message = f"picture 1: the box top={top}, left={left}, height={height}, width={width} does not lie inside"
    with pytest.raises(ValueError, match=message):
        views.crop_and_resize(GOOD, *boxes, 8)


@pytest.mark.parametrize(("sigma", "kernel_size", "message"), [
    ([1.0, 0.0], 3, "sigma goes down to 0"),
    ([1.0, 1.0], 4, "kernel_size is 4"),
    ([1.0, 1.0], 17, "odd number below 16"),
    ([1.0], 3, r"sigma of shape \[1\]"),
])  # fmt: skip
def test_wrong_blur(sigma, kernel_size, message):
    with pytest.raises(ValueError, match=message):
        views.blur(GOOD, torch.tensor(sigma), kernel_size)


@pytest.mark.parametrize(("edge", "size"), [(1, None), (8, 1)])
def test_views_too_small_to_blur_name_picture_size_and_policy(edge, size):
    pictures = GOOD[:, :, :edge, :edge]
    with pytest.raises(ValueError, match=f"{edge} x {edge} pixels with size={size} .*policy 'strong'"):
        two_views(pictures, "strong", generator(), size)
    assert two_views(pictures, "strong", generator(), size=2).view_a.shape == (2, 3, 2, 2)
    assert two_views(pictures, "simclr_cifar", generator(), size=1).view_a.shape == (2, 3, 1, 1)


def test_wrong_draws():
    with pytest.raises(ValueError, match="unknown policy 'simclr'; choose one of simclr_cifar, "):
        draw_parameters(2, 8, 8, "simclr", generator())
    for policy in (["strong"], {"name": "strong"}, None):
        with pytest.raises(ValueError, match=f"unknown policy {re.escape(repr(policy))}; choose one of"):
            draw_parameters(2, 8, 8, policy, generator())
    with pytest.raises(ValueError, match="count is 0"):
        draw_parameters(0, 8, 8, "grey", generator())
    with pytest.raises(TypeError, match="generator is 0; expected torch"):
        draw_parameters(2, 8, 8, "grey", 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("crop_scale", (0.0, 1.0)),
        ("crop_scale", (0.5, 1.5)),
        ("crop_scale", (0.9, 0.1)),
        ("crop_scale", 0.5),
        ("crop_scale", (0.1, 0.5, 1.0)),
        ("crop_ratio", (0.0, 1.0)),
        ("crop_ratio", "12"),
        ("crop_ratio", (1.0, math.inf)),
        ("blur_sigma", (0.0, 1.0)),
        ("blur_sigma", ("0.1", "2")),
        ("flip", 1.5),
        ("flip", "often"),
        ("brightness", (0.6, 1.4)),
        ("jitter", -0.1),
        ("hue", 0.6),
        ("brightness", math.nan),
        ("contrast", math.inf),
    ],
)
def test_a_policy_that_cannot_be_drawn_from(field, value):
    with pytest.raises(ValueError, match=f"policy 'bad': {field} is .*; expected"):
        Policy("bad", "this test", **{field: value})


def test_views_do_not_depend_on_the_default_dtype():
    pictures = torch.randint(
        256, (6, 3, 24, 24), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    expected = two_views(pictures, "strong", torch.Generator().manual_seed(2))
    fused = fused_view(pictures, expected.parameters_a)
    torch.set_default_dtype(torch.float64)
    try:
        again = two_views(pictures, "strong", torch.Generator().manual_seed(2))
        fused_again = fused_view(pictures, expected.parameters_a)
    finally:
        torch.set_default_dtype(torch.float32)
    assert again.view_a.dtype == fused_again.dtype == torch.float32
    # Some weights are then rounded from float64: one part in 10^7, times a hue's steepest ramp.
    torch.testing.assert_close(again.view_a, expected.view_a, rtol=0, atol=1e-5)
    torch.testing.assert_close(fused_again, fused, rtol=0, atol=1e-5)
