"""Figures for notebooks: one palette, alt text on every picture, shape or word beside every colour.

Every function that draws is pure: values in, a matplotlib `Figure` (or, where a slider redraws it, an SVG
string) out; `picture` alone puts it on the page.
"""

import base64
import html
import io
import sys
from itertools import pairwise
from numbers import Integral

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from PIL import Image

from course_utils import contrast
from course_utils.show.tables import Shown, cell_text

# Okabe & Ito 2008, distinguishable with any colour vision.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION = "#0072B2", "#D55E00"
GREY = "#6E6E6E"

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
}
PIXELS_PER_INCH = 100  # on the page; the file holds twice as many, for sharp screens
PNG_BYTES = 100_000  # photographs that PNG cannot keep below this go out as JPEG


def new_figure(width: float = 7.0, height: float = 3.5, rows: int = 1, columns: int = 1, **subplots):
    """A figure in the house style and its axes, as `Figure.subplots` returns them; an inch is 100 pixels.

    >>> figure, axes = new_figure(6, 3, columns=2)
    >>> len(axes)
    2
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, **subplots)


def picture(figure: Figure | str, alt: str, width: int | None = None) -> Shown:
    """A figure as an `<img>` that carries its own pixels and its description.

    figure: a matplotlib figure, or an SVG as a string (`<svg ...>`). alt: what a reader who cannot see it
    needs to know, a sentence. width: in pixels on the page; default the figure's own. White ground, so it
    reads on a dark page too. Raises TypeError for anything else than a figure, ValueError without alt.
    """
    if not isinstance(figure, (Figure, str)):
        raise TypeError(
            f"figure is a {type(figure).__name__}; expected a matplotlib Figure (the first of the two that "
            "new_figure returns) or an SVG as a string."
        )
    if not alt or not alt.strip():
        raise ValueError(f"alt is {alt!r}; a picture needs a sentence for those who cannot see it.")
    if isinstance(figure, str):
        kind, data, size = "svg+xml", figure.encode(), ""
    else:
        kind, data = _pixels(figure)
        wide, high = figure.get_size_inches()
        width = width or round(wide * PIXELS_PER_INCH)
        size = f' height="{round(width * high / wide)}"'
    size = f' width="{width}"{size}' if width else ""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return Shown(
        f'<figure style="margin: 0.5em 0;"><img alt="{html.escape(alt)}"{size} '
        'style="max-width: 100%; height: auto; '
        f'background: white; border-radius: 4px;" src="{source}"></figure>',
        f"[picture: {alt}]",
    )


def svg(figure: Figure, alt: str) -> str:
    """A figure as an SVG that can be kept as a file and scaled, `alt` inside it; for `picture` as well.

    The same figure gives the same text: no date, no random names. Words stay words.
    """
    raw = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": "two-views", "svg.fonttype": "none"}):
        figure.savefig(raw, format="svg", metadata={"Date": None, "Title": alt})
    return raw.getvalue()[raw.getvalue().index("<svg") :]


def _pixels(figure):
    """The figure's image type and file: a drawing in 256 colours, photographs in all of theirs."""
    dpi, canvas = figure.dpi, figure.canvas
    with rc_context(STYLE):
        figure.set_dpi(2 * PIXELS_PER_INCH)
        drawn = FigureCanvasAgg(figure)
        drawn.draw()  # once; savefig would draw twice, and a reader waits for it at every move of a slider
    figure.set_dpi(dpi)
    figure.set_canvas(canvas)
    if "matplotlib.pyplot" in sys.modules:  # or the cell would show a pyplot figure a second time
        sys.modules["matplotlib.pyplot"].close(figure)
    image = Image.fromarray(np.asarray(drawn.buffer_rgba())).convert("RGB")
    if any(shown.get_array().ndim == 3 for axes in figure.axes for shown in axes.images):
        if len(file := _file(image, "PNG")) <= PNG_BYTES:
            return "png", file
        return "jpeg", _file(image, "JPEG", quality=85)
    return "png", _file(image.quantize(256, dither=Image.Dither.NONE), "PNG")


def _file(image, kind, **settings):
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def candidate_bars(table) -> str:
    """Similarity, probability and gradient of every candidate as an SVG, for `picture`.

    table: from `contrast.candidate_table`. The positive is hatched and framed and bears its name. Drawn as
    text and not by matplotlib because an explorer redraws it at every move of a slider.

    >>> from course_utils.contrast import candidate_table
    >>> candidate_bars(candidate_table([0.8, 0.4, 0.2], positive=0, temperature=0.5))[:4]
    '<svg'
    """
    push = max(1.0, table["gradient"].abs().max())
    # The probability axis goes beyond 1 so that the value has room behind the longest bar.
    panels = {"similarity": (-1.0, 1.0), "probability": (0.0, 1.3), "gradient": (-push, push)}
    first, wide, gap, row, top = 96, 190, 24, 26, 34
    width, height = first + len(panels) * (wide + gap), top + row * len(table) + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="13">',
        '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{SKY}"/>'
        f'<path d="M0 0V6" stroke="{BLACK}" stroke-width="2"/></pattern>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, name in enumerate(table["candidate"]):
        weight = "bold" if place == table.attrs["positive"] else "normal"
        parts.append(_svg_text(first - 10, top + row * place + 17, name, "end", weight=weight))
    for place, (column, limits) in enumerate(panels.items()):
        start = first + place * (wide + gap)
        parts.append(_svg_text(start, 20, PANEL_NAMES[column], weight="bold"))
        parts.append(_svg_bars(table, column, *limits, start, wide, row, top))
    parts.append(_svg_text(start, height - 8, "◀ pulled closer", colour=GREY))
    parts.append(_svg_text(start + wide, height - 8, "pushed away ▶", "end", colour=GREY))
    return "".join([*parts, "</svg>"])


PANEL_NAMES = {"similarity": "similarity s", "probability": "probability p", "gradient": "gradient dL/ds"}


def _svg_bars(table, column, low, high, start, wide, row, top):
    """One column of the table as bars from a line at zero, each with its value where no bar is."""
    scale = wide / (high - low)
    zero = start - low * scale
    parts = [f'<path d="M{zero:.1f} {top - 4}V{top + row * len(table)}" stroke="{GREY}"/>']
    for place, value in enumerate(table[column]):
        fill = f'"url(#hatch)" stroke="{BLACK}"' if place == table.attrs["positive"] else f'"{BLUE}"'
        x, y, length = min(zero, zero + value * scale), top + row * place + 4, abs(value) * scale
        parts.append(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{row - 8}" fill={fill}/>')
        beyond = low == 0 or value < 0
        across = max(zero, x + length) + 5 if beyond else zero - 5
        parts.append(_svg_text(across, y + 13, cell_text(float(value)), "start" if beyond else "end"))
    return "".join(parts)


def gradient_curves(similarities, positive, temperature) -> str:
    """The strength of pull and pushes at every temperature from 0.01 to 10 as an SVG, for `picture`.

    similarities, positive, temperature: as for `contrast.candidate_table`. Both axes are logarithmic and
    always the same. The positive's curve is thick; a line stands at the temperature, a dot where the pull is
    strongest (no dot where it grows without end).

    >>> gradient_curves([0.8, 0.4, 0.2], positive=0, temperature=0.5)[:4]
    '<svg'
    """
    left, top, wide, high = 96, 30, 520, 190
    width, height = left + wide + 40, top + high + 44

    def across(x):
        return left + (np.log10(x) + 2) / 3 * wide  # 0.01 to 10

    def down(y):
        return top + (2 - np.log10(np.maximum(y, 1e-9))) / 4 * high  # 100 to 0.01

    temperatures = np.logspace(-2, 1, 121)
    logits = np.asarray(similarities, dtype=float)[:, None] / temperatures
    weights = np.exp(logits - logits.max(axis=0))
    probabilities = weights / weights.sum(axis=0)
    probabilities[positive] = np.delete(probabilities, positive, axis=0).sum(axis=0)  # 1 - p+, no digit lost
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<clipPath id="frame"><rect x="{left}" y="{top}" width="{wide}" height="{high}"/></clipPath>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _svg_text(left, 18, "strength of pull and pushes |dL/ds| (thick line: the positive)", weight="bold"),
        _svg_text(left + wide, height - 8, "temperature (log scale)", "end", colour=GREY),
    ]
    for x in (0.01, 0.1, 1, 10):
        parts.append(_svg_text(across(x), top + high + 18, f"{x:g}", "middle"))
    for y in (0.01, 0.1, 1, 10, 100):
        parts.append(_svg_text(left - 8, round(down(y) + 4, 1), f"{y:g}", "end"))
        parts.append(f'<path d="M{left} {down(y):.1f}H{left + wide}" stroke="#DDDDDD"/>')
    parts.append(f'<path d="M{left} {top}V{top + high}H{left + wide}" fill="none" stroke="{GREY}"/>')
    for place in sorted(range(len(logits)), key=lambda place: place == positive):
        points = zip(across(temperatures), down(probabilities[place] / temperatures), strict=True)
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        pen = f'stroke="{BLACK}" stroke-width="3"' if place == positive else f'stroke="{BLUE}"'
        parts.append(f'<polyline points="{line}" fill="none" clip-path="url(#frame)" {pen}/>')
    x, anchor = across(temperature), "start" if temperature < 5 else "end"
    parts.append(f'<path d="M{x:.1f} {top}V{top + high}" stroke="{VERMILION}" stroke-dasharray="5 3"/>')
    parts.append(
        _svg_text(
            x + (5 if anchor == "start" else -5),
            top + 12,
            f"now {temperature:g}",
            anchor,
            "normal",
            VERMILION,
        )
    )
    best, pull = contrast.strongest_pull(similarities, positive)
    if best >= 0.01:
        x, y = across(best), down(pull)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{GREEN}" stroke="{BLACK}"/>')
        label = _svg_text(x, round(y - 10, 1), f"strongest pull at {cell_text(best)}", "middle")
        halo = label.replace("<text", '<text stroke="white" stroke-width="5"', 1)  # over the lines behind it
        parts += [halo, label]
    return "".join([*parts, "</svg>"])


def _svg_text(x, y, words, anchor="start", weight="normal", colour=BLACK):
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y}" {style}>{html.escape(str(words))}</text>'


def symmetric_tiles(blocks: int, row: int, column: int) -> str:
    """A symmetric matrix cut into blocks x blocks tiles, and the two directions that one serves: an SVG.

    Tiles on and above the diagonal are computed, those below are hatched. Followed is tile (row, column), or
    its mirror image if it lies below the diagonal: its row sums go to the right, its column sums down. Raises
    ValueError for a tile outside the matrix.

    >>> symmetric_tiles(8, 1, 5)[:4]
    '<svg'
    """
    if not (0 <= row < blocks and 0 <= column < blocks):
        raise ValueError(
            f"tile ({row}, {column}) is not one of {blocks} x {blocks}; expected 0 to {blocks - 1}."
        )
    left, top, edge, cell = 70, 40, 288, 288 / blocks
    first, second = min(row, column), max(row, column)
    line_y, line_x = top + (first + 0.5) * cell, left + (second + 0.5) * cell
    strip_x, strip_y = left + edge + 60, top + edge + 45  # the same sums, drawn upright and lying
    stairs = "".join(
        f"M{left + k * cell:.1f} {top + k * cell:.1f}H{left + edge}v{cell:.1f}H{left + k * cell:.1f}Z"
        for k in range(blocks)
    )
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="560" height="415" viewBox="0 0 560 415" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        '<marker id="tip" viewBox="0 0 4 4" refX="2" refY="2" markerWidth="4" markerHeight="4" '
        'orient="auto"><path d="M0 0L4 2L0 4Z"/></marker>',
        '<pattern id="mirror" width="7" height="7" patternUnits="userSpaceOnUse">'
        f'<path d="M0 7L7 0" stroke="{GREY}" stroke-width="0.7"/></pattern>',
        '<rect width="560" height="415" fill="white"/>',
        _svg_box(left, top, edge, edge, 'fill="url(#mirror)"'),
        f'<path d="{stairs}" fill="#D6ECF8"/>',
        _svg_box(left, top, edge, edge, f'fill="none" stroke="{BLACK}"'),
        _svg_text(
            left, top - 22, "S, M x M. Hatched tiles are not computed; dashed: the dark tile's mirror image"
        ),
        _svg_text(left + edge / 2, top - 6, "block j", "middle", colour=GREY),
        _svg_text(left - 8, top + edge / 2, "block i", "end", colour=GREY),
        _svg_box(strip_x, top, 14, edge, f'fill="white" stroke="{BLACK}"'),
        _svg_box(strip_x, top + first * cell, 14, cell, f'fill="{BLUE}"'),
        _svg_arrow(left + (second + 1) * cell, line_y, strip_x - 6, line_y, BLUE),
        _svg_text(strip_x + 24, line_y - 4, "row sums"),
        _svg_text(strip_x + 24, line_y + 12, f"for block {first}"),
    ]
    if blocks <= 32:  # beyond, the lines would be all there is
        lines = "".join(
            f"M{left + k * cell:.1f} {top}v{edge}M{left} {top + k * cell:.1f}h{edge}"
            for k in range(1, blocks)
        )
        parts.append(f'<path d="{lines}" stroke="{GREY}" stroke-width="0.5" fill="none"/>')
    if first != second:
        mirror = f'fill="white" stroke="{VERMILION}" stroke-width="3" stroke-dasharray="5 3"'
        parts += [
            _svg_box(left, strip_y, edge, 14, f'fill="white" stroke="{BLACK}"'),
            _svg_box(left + second * cell, strip_y, cell, 14, f'fill="{VERMILION}"'),
            _svg_arrow(line_x, top + (first + 1) * cell, line_x, strip_y - 6, VERMILION),
            _svg_text(left + edge + 12, strip_y + 12, f"column sums for block {second}"),
            _svg_box(left + first * cell, top + second * cell, cell, cell, mirror),
        ]
    dark = f'fill="{BLUE}" stroke="{BLACK}" stroke-width="1.5"'
    parts.append(_svg_box(left + second * cell, top + first * cell, cell, cell, dark))
    return "".join([*parts, "</svg>"])


def _svg_box(x, y, width, height, style):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {style}/>'


def _svg_arrow(x1, y1, x2, y2, colour):
    way = f"M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"
    return f'<path d="{way}" stroke="{colour}" stroke-width="3" marker-end="url(#tip)"/>'


def similarity_matrix(
    matrix,
    positives=None,
    excluded=None,
    labels=None,
    title=None,
    cell_label="similarity",
    pictures=None,
) -> Figure:
    """A matrix of similarities (or probabilities, or gradients) with what each cell is for.

    matrix: [R, C]. positives, excluded: bool [R, C]; a positive is framed, an excluded cell (a view with
    itself) is greyed and crossed out. labels: (row names, column names), or one list for both. title: stands
    above the legend. cell_label: what a cell holds, beside the colour bar. pictures: [R, 3, H, W] in [0, 1],
    shown beside the rows and above the columns of a square matrix. Values are written in up to 144 cells.
    Raises ValueError that repeats the shapes or counts that do not fit.
    """
    matrix = torch.as_tensor(matrix).detach().cpu().double().numpy()
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValueError(f"matrix has shape {list(matrix.shape)}; expected [R, C], at least one cell.")
    rows, columns = matrix.shape
    nothing = np.zeros((rows, columns), dtype=bool)
    positives, excluded = (
        nothing if mask is None else np.asarray(mask, dtype=bool) for mask in (positives, excluded)
    )
    if positives.shape != matrix.shape or excluded.shape != matrix.shape:
        raise ValueError(
            f"matrix is {matrix.shape}, positives {positives.shape}, excluded {excluded.shape}; "
            "expected three of the same shape."
        )
    edge = max(4.6, min(0.62 * columns + 1.6, 9.0))
    figure, axes = new_figure(edge + 1.2, max(2.2, edge * rows / columns + 0.5))
    largest = max(np.abs(np.where(excluded, 0, matrix)).max(), 1e-12)
    low = 0.0 if (matrix >= 0).all() else -largest
    shown = axes.imshow(np.where(excluded, np.nan, matrix), cmap="cividis", vmin=low, vmax=largest)
    written = rows * columns <= 144
    for row, column in np.ndindex(rows, columns):
        if excluded[row, column]:
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor="#DDDDDD"))
            axes.plot([column - 0.4, column + 0.4], [row - 0.4, row + 0.4], color=GREY, linewidth=1)
            axes.plot([column - 0.4, column + 0.4], [row + 0.4, row - 0.4], color=GREY, linewidth=1)
        elif written:
            bright = (matrix[row, column] - low) / (largest - low) > 0.55
            axes.text(
                column,
                row,
                cell_text(matrix[row, column], 2),
                ha="center",
                va="center",
                fontsize=9,
                color="black" if bright else "white",
                fontweight="bold" if positives[row, column] else "normal",
            )
        if positives[row, column]:
            axes.add_patch(
                FancyBboxPatch(
                    (column - 0.44, row - 0.44),
                    0.88,
                    0.88,
                    boxstyle="square,pad=0",
                    fill=False,
                    edgecolor=VERMILION,
                    linewidth=2.5,
                )
            )
    _name_axes(axes, rows, columns, labels)
    if pictures is not None:
        _heads(axes, pictures, rows, columns)
    legend = [
        words
        for words, mask in (("framed: positive", positives), ("crossed out: no candidate", excluded))
        if mask.any()
    ]
    axes.set_title("\n".join(part for part in (title, " · ".join(legend)) if part), loc="left")
    figure.colorbar(shown, ax=axes, label=cell_label, shrink=0.8)
    return figure


def _heads(axes, pictures, rows, columns):
    """Each picture beside its row and above its column, in the matrix's own coordinates."""
    pictures = torch.as_tensor(pictures).detach().cpu()
    if pictures.ndim != 4 or pictures.shape[1] != 3 or not len(pictures) == rows == columns:
        raise ValueError(
            f"pictures has shape {list(pictures.shape)}, matrix [{rows}, {columns}]; expected [R, 3, H, W] "
            "and [R, R], a picture a row."
        )
    pixels = pictures.float().clamp(0, 1).permute(0, 2, 3, 1).numpy()
    for place, pixel in enumerate(pixels):
        axes.imshow(pixel, extent=(-1.5, -0.6, place + 0.45, place - 0.45))
        axes.imshow(pixel, extent=(place - 0.45, place + 0.45, -0.6, -1.5))
    axes.set(xlim=(-1.55, len(pixels) - 0.5), ylim=(len(pixels) - 0.5, -1.55))


def _name_axes(axes, rows, columns, labels):
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if labels is None:
        return
    names = labels if isinstance(labels, tuple) else (labels, labels)
    if [len(those) for those in names] != [rows, columns]:
        raise ValueError(
            f"labels is {labels!r} for a matrix [{rows}, {columns}]; expected a list with a name for each "
            "row and column, or a tuple (row names, column names)."
        )
    axes.set_yticks(range(rows), names[0])
    axes.set_xticks(range(columns), names[1], rotation=45 if columns > 6 else 0)


def image_grid(images, titles=None, columns=8, edge: float | None = None) -> Figure:
    """A batch of pictures in rows of `columns`, each with its title; pixels of small pictures stay square.

    images: uint8 or float in [0, 1], [B, 3, H, W] or [B, 1, H, W]. titles: B strings. columns: pictures a
    row, at least 1. edge: inches a picture (default 0.9, or 1.8 for pictures above 64 pixels).
    """
    images = torch.as_tensor(images).detach().cpu()
    if images.ndim != 4 or images.shape[1] not in (1, 3) or len(images) == 0:
        raise ValueError(
            f"images has shape {list(images.shape)}; expected [B, 3, H, W] or [B, 1, H, W] with B >= 1."
        )
    if not isinstance(columns, Integral) or columns < 1:
        raise ValueError(f"columns is {columns!r}; expected how many pictures stand in a row, at least 1.")
    if titles is not None and len(titles) != len(images):
        raise ValueError(f"{len(images)} images, but {len(titles)} titles: {list(titles)}.")
    pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float().clamp(0, 1)
    pixels = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    small = images.shape[-1] <= 64
    edge = edge or (0.9 if small else 1.8)
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    lines = max((title.count("\n") + 1 for title in titles), default=0) if titles is not None else 0
    shape = images.shape[-2] / images.shape[-1]
    figure, axes = new_figure(
        columns * edge, rows * (edge * shape + 0.17 * lines + 0.04), rows, columns, squeeze=False
    )
    for place, cell in enumerate(axes.flat):
        cell.set_axis_off()
        if place < len(images):
            cell.imshow(pixels[place], interpolation="nearest" if small else "antialiased", vmin=0, vmax=1)
            if titles is not None:
                cell.set_title(titles[place], fontsize=9, pad=2)
    return figure


def data_flow() -> Figure:
    """The course's map: from picture to update, each box with the notebooks that treat it."""
    figure, axes = new_figure(11, 3.9)
    axes.set_axis_off()
    axes.set(xlim=(0, 110), ylim=(0, 39))
    centres = [7 + 16 * place for place in range(7)]
    way = [
        ("picture", "x", "01"),
        ("views", "v, v'", "01"),
        ("encoder", "h", "04"),
        ("head", "z", "04"),
        ("candidates", "s, p", "02, 03"),
        ("loss", "L", "02, 07"),
        ("gradients", "update", "02, 03"),
    ]
    beside = [
        ("readout", "accuracy", "08"),
        ("text tower", "CLIP", "06"),
        ("memory", "FIFO + EMA", "05"),
        ("fused kernels", "the same L, fast", "10"),
        ("no negatives", "BYOL, SimSiam", "09"),
    ]
    for centre, box in zip(centres, way, strict=True):
        _box(axes, centre, 24, *box, SKY)
    for centre, box in zip(centres[2:], beside, strict=True):
        _box(axes, centre, 6, *box, ORANGE)
    for start, end in pairwise(centres):
        _arrow(axes, (start + 6, 24), (end - 6, 24))
    _arrow(axes, (centres[2], 19), (centres[2], 11))
    _arrow(axes, (centres[3] + 3, 11), (centres[4] - 4, 19))
    for centre in centres[4:]:
        _arrow(axes, (centre, 11), (centre, 19))
    axes.plot([centres[6], centres[6], centres[2]], [29, 33, 33], color="black", linewidth=1)
    for centre in centres[2:4]:
        _arrow(axes, (centre, 33), (centre, 29))
    axes.text(
        centres[4] + 8, 33.7, "the update changes encoder and head", ha="center", va="bottom", fontsize=9
    )
    axes.text(1, 36, "The way of the data", weight="bold", va="center", fontsize=12)
    axes.text(1, 6, "In each box: its symbol and\nthe notebooks that treat it", va="center", fontsize=9)
    return figure


def _box(axes, x, y, name, symbol, notebook, colour):
    axes.add_patch(
        FancyBboxPatch(
            (x - 6, y - 5),
            12,
            10,
            boxstyle="round,pad=0,rounding_size=1.2",
            facecolor=colour,
            alpha=0.35,
            edgecolor="none",
        )
    )
    axes.add_patch(
        FancyBboxPatch((x - 6, y - 5), 12, 10, boxstyle="round,pad=0,rounding_size=1.2", fill=False)
    )
    axes.text(x, y + 2.6, name, ha="center", va="center", weight="bold")
    axes.text(x, y - 0.3, symbol, ha="center", va="center", fontsize=9)
    axes.text(x, y - 3.2, notebook, ha="center", va="center", family="monospace")


def _arrow(axes, start, end, **style):
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0, **style},
    )
