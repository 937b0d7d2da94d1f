import dataclasses
from functools import lru_cache
from math import pi

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import RidgeClassifier

from course_utils.images import shapes
from course_utils.images.shapes import HUES, SHAPE_NAMES, SHAPES, draw_factors, make, render

PLAIN = {"x": 0.0, "y": 0.0, "turn": 0.0, "background": 0.0, "tint": 0.0, "light_strength": 0.0, "noise": 0.0}


def plain(**changes):
    """One picture of every shape: red, in the middle, size 0.5, on flat black without light or noise."""
    count = len(SHAPES)
    values = {"shape": torch.arange(count), "hue": torch.zeros(count, dtype=torch.int64)}
    for name, value in {**PLAIN, "size": 0.5, **changes}.items():
        values[name] = torch.full((count,), value)
    return dataclasses.replace(draw_factors(count, seed=0), **values)


def coverage(pictures):
    """How much of each pixel a red shape on black covers: float64 [B, H, W]."""
    return pictures.images[:, 0].double() / (255 * HUES["red"][0])


def test_every_shape_covers_the_area_of_the_disc_that_size_names():
    edge = 256
    areas = coverage(render(plain(), edge)).sum((1, 2)) * (2 / edge) ** 2
    # An edge pixel is off by a few percent at most, and there are about 1000 of them in 12,800.
    torch.testing.assert_close(areas, torch.full_like(areas, pi * 0.5**2), rtol=0.01, atol=0)


def test_the_centre_of_every_shape_is_where_x_and_y_say():
    edge = 128
    covered = coverage(render(plain(x=0.2, y=-0.3, turn=1.0, size=0.4), edge))
    places = (torch.arange(edge, dtype=torch.float64) + 0.5) * 2 / edge - 1
    weight = covered.sum((1, 2))
    x, y = (covered.sum(1) * places).sum(1) / weight, (covered.sum(2) * places).sum(1) / weight
    # A tenth of a pixel (2 / 128).
    torch.testing.assert_close(x, torch.full_like(x, 0.2), rtol=0, atol=0.0016)
    torch.testing.assert_close(y, torch.full_like(y, -0.3), rtol=0, atol=0.0016)


def test_a_quarter_turn_is_the_picture_turned_clockwise():
    straight, turned = render(plain()).images, render(plain(turn=pi / 2)).images
    difference = (turned.int() - straight.rot90(-1, (2, 3)).int()).abs()
    assert difference.max() <= 1  # float32 rounding may tip a value over to the next of 256 levels


def test_a_move_by_whole_pixels_moves_the_pixels():
    still, moved = render(plain(size=0.3)).images, render(plain(size=0.3, x=5 * 2 / 32, y=-3 * 2 / 32)).images
    assert (moved.int() - still.roll((-3, 5), (2, 3)).int()).abs().max() <= 1


def test_shapes_differ_by_more_than_a_turn():
    turns = [coverage(render(plain(turn=float(turn)), 32)) for turn in torch.arange(0, 2 * pi, 0.1)]
    upright = turns[0]
    for a in range(len(SHAPES)):
        for b in range(a):
            closest = min((upright[a] - turned[b]).abs().sum() for turned in turns)
            assert closest > 0.1 * upright[a].sum(), (SHAPE_NAMES[a], SHAPE_NAMES[b])


def test_edges_are_smooth_and_the_inside_is_the_named_colour():
    for hue, colour in enumerate(HUES.values()):
        factors = dataclasses.replace(plain(), hue=torch.full((len(SHAPES),), hue))
        square = render(factors).images[SHAPE_NAMES.index("square")]
        expected = 255 * torch.tensor(colour)
        torch.testing.assert_close(
            square[:, 16, 16].float(), expected, rtol=0, atol=0.501
        )  # the nearest of 256 levels
    partial = coverage(render(plain(turn=0.3)))
    assert (((partial > 0.02) & (partial < 0.98)).sum((1, 2)) > 20).all()


def test_light_comes_from_the_direction_it_names():
    right = plain(background=0.5, size=0.1, light_strength=0.4, light_direction=0.0)
    down = plain(background=0.5, size=0.1, light_strength=0.4, light_direction=pi / 2)
    right, down = render(right).images.double(), render(down).images.double()
    assert (right[:, :, 0, -1] > right[:, :, 0, 0] + 50).all() and (
        right[:, :, 0, 0] == right[:, :, -1, 0]
    ).all()
    assert (down[:, :, -1, 0] > down[:, :, 0, 0] + 50).all()


def test_noise_has_the_named_deviation_and_stays_when_another_factor_changes():
    factors, silent = plain(size=0.3, background=0.5, noise=0.04), plain(size=0.3, background=0.5)
    grain = render(factors).images.double() - render(silent).images.double()
    corner = grain[:, :, :6]  # above the shape
    # 6 x 3 x 6 x 32 values: the standard error of a deviation is 1.2 %; 5 % is four of them.
    assert corner.std() == pytest.approx(0.04 * 255, rel=0.05)
    assert abs(torch.corrcoef(corner.flatten(1)).triu(1)).max() < 0.2  # sqrt(1/576) is .04, five of them

    recoloured = dataclasses.replace(factors, hue=torch.full_like(factors.hue, 3))
    same = (render(factors).images == render(recoloured).images)[:, :, :6]
    assert same.all()


def test_the_same_seed_gives_the_same_pixels_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = make(50, seed=1), make(50, seed=1), make(50, seed=2)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.images, again.images)
    assert not (first.images == other.images).flatten(1).all(1).any()


def test_a_shorter_draw_is_the_beginning_of_a_longer_one():
    short, long = draw_factors(7, seed=3), draw_factors(1000, seed=3)[:7]
    for part in dataclasses.fields(short):
        assert torch.equal(getattr(short, part.name), getattr(long, part.name)), part.name


@lru_cache
def all_at_once(size):
    return make(300, seed=4, size=size)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 299), max_size=12), st.sampled_from([8, 31, 32, 50]))
def test_a_subset_of_the_factors_gives_those_pixels_in_that_order(rows, size):
    index = torch.tensor(rows, dtype=torch.int64)
    factors = draw_factors(300, seed=4)
    everything, part = all_at_once(size), render(factors[index], size)
    assert torch.equal(part.images, everything.images[index])
    assert all(torch.equal(part.labels[kind], everything.labels[kind][index]) for kind in part.labels)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("size", [32, 50])
def test_a_gpu_gives_the_same_pixels(size):
    here, there = make(2000, seed=6, size=size), make(2000, seed=6, size=size, device="cuda")
    assert there.images.is_cuda and torch.equal(here.images, there.images.cpu())


def test_no_picture_and_no_fewer():
    assert make(0).images.shape == (0, 3, 32, 32)
    for count in (-3, 2.5, "two"):
        with pytest.raises(ValueError, match=f"count must be a whole number, 0 or more, got {count!r}"):
            make(count)


def test_factors_are_drawn_evenly_independently_and_inside_their_bands():
    factors = draw_factors(12_000, seed=8)
    pictures = render(factors[:600])
    for kind, count in (("shape", len(SHAPES)), ("hue", len(HUES)), ("size_band", 2), ("background_band", 3)):
        counts = torch.bincount(getattr(factors, kind), minlength=count).double()
        expected = 12_000 / count
        assert (counts - expected).abs().max() < 4.5 * expected**0.5, kind
    for band, bands in ((factors.size_band, shapes.SIZES), (factors.background_band, shapes.BACKGROUNDS)):
        value = factors.size if bands is shapes.SIZES else factors.background
        for i, (low, high) in enumerate(bands.values()):
            inside = value[band == i]
            assert low - 1e-6 <= inside.min() and inside.max() <= high + 1e-6
    assert ((factors.x.abs() + factors.size <= 1) & (factors.y.abs() + factors.size <= 1)).all()
    floats = torch.stack(
        [factors.x, factors.y, factors.turn, factors.tint, factors.noise, factors.shape, factors.hue]
    )
    correlation = torch.corrcoef(floats.double()).fill_diagonal_(0).abs()
    assert correlation.max() < 5 / 12_000**0.5
    assert torch.equal(pictures.labels["size"], factors.size_band[:600])
    assert pictures.named("background")[0] == list(shapes.BACKGROUNDS)[factors.background_band[0]]


def test_the_table_says_the_factors_in_words():
    factors = draw_factors(20, seed=9)
    table = factors.table(5)
    assert len(table) == 5 and len(draw_factors(2, seed=0).table()) == 2
    assert list(table["shape"]) == [SHAPE_NAMES[i] for i in factors.shape[:5]]
    assert list(table["hue"]) == list(render(factors[:5]).named("hue"))
    assert table["turn (degrees)"].between(0, 360).all()
    word, number = table["size"][0].split()
    assert word == ("small", "large")[factors.size_band[0]] and float(number) == pytest.approx(
        factors.size[0].item(), abs=0.005
    )


@pytest.mark.parametrize(
    "name, value, what",
    [
        ("size", torch.tensor([0.3, -0.5]), r"'size'.*\[-0\.5\]"),
        ("size", torch.tensor([0.3, float("nan")]), r"'size'.*nan"),
        ("x", torch.tensor([float("inf"), 0.0]), r"'x'.*inf"),
        ("turn", torch.tensor([float("nan"), 0.0]), r"'turn'.*nan"),
        ("shape", torch.tensor([0, 6]), r"'shape' must lie in 0 to 5, got \[6\]"),
        ("hue", torch.tensor([-1, 0]), r"'hue' must lie in 0 to 5, got \[-1\]"),
        ("shape", torch.tensor([0.0, 1.0]), r"'shape' must be torch.int64 .*float32"),
        (
            "noise",
            torch.tensor([0.0, 0.1], dtype=torch.float64),
            r"'noise' must be torch.float32 \[2\], got torch.float64",
        ),
        ("y", torch.zeros(3), r"'y' must be torch.float32 \[2\], got torch.float32 \[3\]"),
    ],
)
def test_factors_out_of_range_are_repeated_in_the_error(name, value, what):
    with pytest.raises(ValueError, match=what):
        dataclasses.replace(draw_factors(2, seed=0), **{name: value})


@pytest.mark.parametrize("size", [0, -32, 7, 32.5, "big"])
def test_a_size_that_no_picture_can_have_is_refused(size):
    with pytest.raises(ValueError, match=f"got {size!r}"):
        render(draw_factors(1, seed=0), size)


def test_hue_can_be_read_from_raw_pixels_and_shape_cannot():
    """What the later notebooks rest on: a linear readout needs features for the shape, none for the hue."""
    pictures = make(4096, seed=10, size=16)
    pixels = pictures.images.flatten(1).float().numpy() / 255
    for kind, low, high in (("shape", 0.0, 0.35), ("hue", 0.8, 1.0)):
        label = pictures.labels[kind].numpy()
        accuracy = (
            RidgeClassifier(alpha=100.0).fit(pixels[:3072], label[:3072]).score(pixels[3072:], label[3072:])
        )
        assert low <= accuracy <= high, (kind, accuracy)
