import base64
import configparser
import io
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import rc_context
from PIL import Image

from course_utils.contrast import candidate_table
from course_utils.images import photo
from course_utils.show import picture
from course_utils.show.figures import (
    PIXELS_PER_INCH,
    STYLE,
    candidate_bars,
    data_flow,
    gradient_curves,
    image_grid,
    new_figure,
    similarity_matrix,
    svg,
    symmetric_tiles,
)


def pixels(shown):
    return Image.open(io.BytesIO(base64.b64decode(re.search(r"image/png;base64,([^\"]*)", shown.data)[1])))


def words(figure):
    """Every text of a figure with its size in points."""
    figure.draw_without_rendering()
    return [
        (text.get_text(), text.get_fontsize())
        for text in figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
        if text.get_text().strip()
    ]


@pytest.mark.parametrize("alt", ["", "  ", None])
def test_a_picture_without_alt_text_is_refused(alt):
    with pytest.raises(ValueError, match="alt is"):
        picture(new_figure()[0], alt)


@pytest.mark.parametrize("nothing", [None, (1, 2)])
def test_what_is_no_figure_is_refused(nothing):
    with pytest.raises(
        TypeError, match=f"figure is a {type(nothing).__name__}; expected a matplotlib Figure"
    ):
        picture(nothing, "a square")


def test_a_picture_carries_alt_size_and_pixels():
    figure, axes = new_figure(4, 2)
    axes.plot([0, 1], [0, 1])
    shown = picture(figure, 'A "straight" line <up>')
    assert 'alt="A &quot;straight&quot; line &lt;up&gt;"' in shown.data
    assert 'width="400" height="200"' in shown.data
    assert pixels(shown).size == (800, 400)
    assert repr(shown) == '[picture: A "straight" line <up>]'
    assert 'width="200" height="100"' in picture(figure, "smaller", width=200).data


def test_a_picture_is_what_savefig_draws_and_leaves_the_figure_as_it_was():
    figure, axes = new_figure(3, 2, columns=2)
    for one in axes:
        one.plot([0, 1], [1, 0], "o-", label="a line")
        one.set(xlabel="x", title="a title")
        one.legend()
    canvas, dpi = figure.canvas, figure.dpi
    shown = pixels(picture(figure, "two lines")).convert("RGB")
    assert figure.canvas is canvas and figure.dpi == dpi
    raw = io.BytesIO()
    with rc_context(STYLE):
        figure.savefig(raw, format="png", dpi=2 * PIXELS_PER_INCH)
    drawn = Image.open(raw).convert("RGB").quantize(256, dither=Image.Dither.NONE).convert("RGB")
    assert np.array_equal(np.asarray(shown), np.asarray(drawn))


def test_small_pictures_keep_every_colour_and_photographs_stay_small():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8, generator=generator)
    shown = {colour for _, colour in pixels(picture(image_grid(images), "noise")).getcolors(2**24)}
    assert shown >= {tuple(pixel.tolist()) for pixel in images[0].flatten(1).T}
    photographs = torch.cat([photo.cup(size=256).images, photo.cat(size=256).images])
    data = picture(image_grid(photographs), "a cup and a cat").data
    assert "image/jpeg" in data and len(data) < 110_000


def test_pyplot_figures_are_closed_so_that_the_cell_does_not_show_them_again():
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, _ = pyplot.subplots()
    picture(figure, "empty axes")
    assert figure.number not in pyplot.get_fignums()


def test_house_style_does_not_leak():
    import matplotlib

    before = dict(matplotlib.rcParams)
    picture(data_flow(), "the map")
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize(
    "figure",
    [
        data_flow(),
        similarity_matrix(torch.eye(4), labels=list("abcd"), title="t"),
        image_grid(torch.zeros(3, 3, 8, 8), list("abc")),
    ],
    ids=["data_flow", "similarity_matrix", "image_grid"],
)
def test_figures_are_small_readable_and_never_wrong_twice(figure):
    assert min(size for _, size in words(figure)) >= 9
    assert len(picture(figure, "a figure").data) < 110_000  # 80 KB of PNG as base64


def test_the_map_names_every_notebook_of_the_course():
    text = " ".join(word for word, _ in words(data_flow()))
    assert set(re.findall(r"\b\d\d\b", text)) == {f"{number:02d}" for number in range(1, 11)}


def test_candidate_bars_are_as_long_as_their_values():
    table = candidate_table([0.8, 0.4, -0.2], positive=0, temperature=0.5)
    svg = ElementTree.fromstring(candidate_bars(table))
    space = "{http://www.w3.org/2000/svg}"
    bars = [rect for rect in svg.findall(f"{space}rect") if rect.get("x")]
    lengths = np.array([float(bar.get("width")) for bar in bars]).reshape(3, 3)
    for drawn, column in zip(lengths, ["similarity", "probability", "gradient"], strict=True):
        values = table[column].abs().to_numpy()
        np.testing.assert_allclose(
            drawn / drawn.max(), values / values.max(), atol=0.005
        )  # drawn to a tenth of a pixel
    text = [element.text for element in svg.iter(f"{space}text")]
    assert {"positive", "negative 1", "-0.2000", f"{table['probability'][0]:.4f}"} <= set(text)
    hatched = [bar.get("fill") == "url(#hatch)" for bar in bars]
    assert hatched == [True, False, False] * 3


@pytest.mark.parametrize("row, column", [(1, 5), (5, 1)])
def test_a_tile_off_the_diagonal_serves_two_directions_whichever_side_is_named(row, column):
    svg = ElementTree.fromstring(symmetric_tiles(8, row, column))
    text = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "for block 1" in text and "column sums for block 5" in text
    dashed = [box for box in svg.iter("{http://www.w3.org/2000/svg}rect") if box.get("stroke-dasharray")]
    dark = [box for box in svg.iter("{http://www.w3.org/2000/svg}rect") if box.get("stroke-width") == "1.5"]
    assert len(dashed) == len(dark) == 1
    # One is the other turned over at the diagonal, which begins at (70, 40).
    assert float(dark[0].get("x")) - 70 == pytest.approx(float(dashed[0].get("y")) - 40)
    assert float(dark[0].get("y")) - 40 == pytest.approx(float(dashed[0].get("x")) - 70)


def test_a_tile_on_the_diagonal_serves_one():
    text = symmetric_tiles(4, 2, 2)
    assert "for block 2" in text and "column sums" not in text and "stroke-dasharray" not in text


@pytest.mark.parametrize("blocks", [1, 3, 256])
def test_tiles_stay_inside_the_drawing(blocks):
    svg = ElementTree.fromstring(symmetric_tiles(blocks, 0, blocks - 1))
    for box in svg.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.get("x") or 0) + float(box.get("width")) <= float(svg.get("width"))
        assert float(box.get("y") or 0) + float(box.get("height")) <= float(svg.get("height"))


def test_a_tile_outside_the_matrix_is_refused():
    with pytest.raises(ValueError, match=r"tile \(8, 0\) is not one of 8 x 8; expected 0 to 7"):
        symmetric_tiles(8, 8, 0)


@pytest.mark.parametrize("temperature", [0.01, 10])
def test_candidate_bars_stay_inside_at_extreme_temperatures(temperature):
    svg = ElementTree.fromstring(
        candidate_bars(candidate_table([-1.0, 1.0, 0.0], positive=0, temperature=temperature))
    )
    wide = float(svg.get("width"))
    for rect in svg.iter("{http://www.w3.org/2000/svg}rect"):
        x = float(rect.get("x", 0))
        assert x >= 0 and x + float(rect.get("width")) <= wide


def test_similarity_matrix_shows_each_picture_at_its_row_and_column():
    pictures = torch.rand(3, 3, 8, 8)
    axes = similarity_matrix(torch.eye(3), pictures=pictures).figure.axes[0]
    heads = [image.get_extent() for image in axes.images[1:]]
    assert len(heads) == 6
    for place in range(3):
        left, right, bottom, top = heads[2 * place]
        assert right < -0.5 and top < place < bottom, "beside its row"
        left, right, bottom, top = heads[2 * place + 1]
        assert bottom < -0.5 and left < place < right, "above its column"
    assert axes.get_xlim()[0] <= -1.5 and axes.get_ylim()[1] <= -1.5


def test_similarity_matrix_frames_positives_and_crosses_out_self():
    itself = torch.eye(4, dtype=torch.bool)
    figure = similarity_matrix(torch.full((4, 4), 0.25), positives=itself.roll(2, 1), excluded=itself)
    axes = figure.axes[0]
    assert sum(not patch.get_fill() for patch in axes.patches) == 4
    assert sum(patch.get_fill() for patch in axes.patches) == 4
    assert len(axes.lines) == 8
    assert [text.get_text() for text in axes.texts] == ["0.25"] * 12
    assert "framed: positive" in axes.get_title(loc="left") and "crossed out" in axes.get_title(loc="left")


def test_similarity_matrix_repeats_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"\(4, 4\).*\(3, 3\)"):
        similarity_matrix(torch.eye(4), positives=torch.eye(3).bool())


@pytest.mark.parametrize("shape", [(4,), (1, 2, 2), (0, 3)])
def test_similarity_matrix_repeats_a_wrong_shape(shape):
    with pytest.raises(ValueError, match=re.escape(f"matrix has shape {list(shape)}; expected [R, C]")):
        similarity_matrix(torch.zeros(shape))


@pytest.mark.parametrize("labels", [["a"], (["a", "b"], ["a", "b"]), (["a"] * 2, ["b"] * 3, ["c"])])
def test_similarity_matrix_counts_its_labels(labels):
    with pytest.raises(ValueError, match=re.escape(f"labels is {labels!r} for a matrix [2, 3]")):
        similarity_matrix(torch.zeros(2, 3), labels=labels)


@pytest.mark.parametrize(
    ("matrix", "shape"), [((3, 3), (2, 3, 8, 8)), ((2, 3), (2, 3, 8, 8)), ((3, 3), (3, 8, 8))]
)
def test_similarity_matrix_counts_its_pictures(matrix, shape):
    with pytest.raises(
        ValueError, match=re.escape(f"pictures has shape {list(shape)}, matrix {list(matrix)}")
    ):
        similarity_matrix(torch.zeros(matrix), pictures=torch.zeros(shape))


def test_image_grid_shows_uint8_and_float_alike_and_small_pictures_by_the_pixel():
    images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    grid, same = image_grid(images, columns=3), image_grid(images.double() / 255, columns=3)
    assert len(grid.axes) == 6
    for first, second in zip(grid.axes[:5], same.axes[:5], strict=True):
        np.testing.assert_allclose(first.images[0].get_array(), second.images[0].get_array(), atol=1e-6)
        assert first.images[0].get_interpolation() == "nearest"


@pytest.mark.parametrize("shape", [(3, 32, 32), (0, 3, 8, 8), (2, 4, 8, 8)])
def test_image_grid_repeats_a_wrong_shape(shape):
    with pytest.raises(ValueError, match=re.escape(str(list(shape)))):
        image_grid(torch.zeros(shape))


def test_image_grid_counts_its_titles():
    with pytest.raises(ValueError, match="2 images, but 1 titles"):
        image_grid(torch.zeros(2, 3, 8, 8), ["a"])


@pytest.mark.parametrize("columns", [0, -1, 2.5])
def test_image_grid_repeats_impossible_columns(columns):
    with pytest.raises(ValueError, match=f"columns is {columns}; expected"):
        image_grid(torch.zeros(2, 3, 8, 8), columns=columns)


def test_the_sanitiser_of_the_notebook_tests_takes_out_the_pixels_and_nothing_else():
    config = configparser.ConfigParser(interpolation=None)
    config.read(Path(__file__).parents[2] / "notebooks" / "sanitize.cfg")
    pattern, replacement = config["picture"]["regex"], config["picture"]["replace"]
    for figure in (new_figure(1, 1)[0], candidate_bars(candidate_table([0.8, 0.4], 0, 0.5))):
        data = picture(figure, "the alt text").data
        cleaned = re.sub(pattern, replacement, data)
        assert f'src="{replacement}"' in cleaned and len(cleaned) < 300
        assert data.split("src=")[0] == cleaned.split("src=")[0] and 'alt="the alt text"' in cleaned


SVG = "{http://www.w3.org/2000/svg}"


def curve(drawing, thick):
    """The points of the curves of an SVG that are thick, or are not."""
    lines = ElementTree.fromstring(drawing).findall(f"{SVG}polyline")
    return [
        np.array([point.split(",") for point in line.get("points").split()], dtype=float)
        for line in lines
        if (line.get("stroke-width") == "3") == thick
    ]


def test_gradient_curves_mark_the_peak_of_the_thick_line():
    drawing = gradient_curves([0.8, 0.4, 0.2], 0, 0.5)
    [pull] = curve(drawing, thick=True)
    assert len(curve(drawing, thick=False)) == 2
    dot = ElementTree.fromstring(drawing).find(f"{SVG}circle")
    top = pull[pull[:, 1].argmin()]
    assert abs(float(dot.get("cx")) - top[0]) < 5 and abs(float(dot.get("cy")) - top[1]) < 1
    assert "strongest pull at 0.3245" in drawing and "now 0.5" in drawing


def test_a_pull_without_end_has_no_dot():
    drawing = gradient_curves([0.3, 0.4, 0.2], 0, 10)
    [pull] = curve(drawing, thick=True)
    assert (np.diff(pull[:, 1]) > 0).all(), "lower and lower on the page as the temperature rises"
    assert ElementTree.fromstring(drawing).find(f"{SVG}circle") is None


def test_a_drawing_as_svg_is_the_same_each_time_and_says_what_it_shows():
    def draw():
        figure, axes = new_figure(4, 2)
        axes.plot([0, 1], [0, 1], label="a line")
        axes.legend()
        return svg(figure, "A line that <rises>")

    drawing = draw()
    assert drawing == draw() and drawing.startswith("<svg")
    root = ElementTree.fromstring(drawing)
    assert "A line that <rises>" in "".join(root.itertext()) and "a line" in "".join(root.itertext())
    assert 'src="data:image/svg+xml' in picture(drawing, "A line").data
