"""Explorers: controls that move one result; a page without a kernel shows a few frames of it."""

import html
import math
from collections.abc import Callable, Mapping, Sequence

import ipywidgets
from ipywidgets import HTML, Dropdown, FloatSlider, HBox, IntSlider, Layout, SelectionSlider, VBox

from course_utils import contrast
from course_utils.show.figures import candidate_bars, gradient_curves, picture
from course_utils.show.tables import cell_text, show_table

# Round numbers over three decades; in the browser a FloatLogSlider would snap 0.5 to 0.501, 0.07 to 0.0708.
TEMPERATURES = (
    *(0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07),
    *(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7),
    *(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0),
)

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class WithFallback(VBox):
    """A box of widgets whose display bundle also carries HTML and text for pages without a kernel.

    A subclass defines `fallback()`, a string of HTML, and `summary()`, one line of text; both depend on what
    the notebook's text says only, never on what a reader did, so that a stored output can be compared.
    """

    _ipython_display_ = None  # ipywidgets 7 would use it in place of the bundle below

    def fallback(self) -> str:
        raise NotImplementedError

    def summary(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.summary()

    def _repr_mimebundle_(self, **kwargs):
        view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
        return {"text/plain": self.summary(), "text/html": self.fallback(), WIDGET_VIEW: view}


class Explorer(WithFallback):
    """Controls beside a result: one move of one control changes the result exactly once.

    Args:
        render: a pure function from the controls' values (by name) to HTML, a string or an object with
            `.data` such as `show_table` and `picture` return. Put what a screen reader should say after a
            move into `<p role="status">...</p>`.
        controls: name -> core ipywidgets control with a description.
        frames: for pages without a kernel, some dicts of values (name -> value); a name left out keeps the
            control's value.
        title: what the explorer is about.

    Attributes:
        error: the exception of the present values, or None; it is also shown in place of the result.

    Raises:
        ValueError: no control, no frame, a control without description, a frame with a name that no control
            has.

    >>> square = Explorer(lambda x: f"x squared is {x * x}", {"x": ipywidgets.IntSlider(2, description="x")},
    ...                   frames=[{"x": 1}, {"x": 3}], title="Squares")
    >>> square.set(x=5)
    >>> "x squared is 25" in square.html, square
    (True, Explorer('Squares'))
    """

    def __init__(
        self,
        render: Callable[..., object],
        controls: Mapping[str, ipywidgets.Widget],
        frames: Sequence[Mapping[str, object]],
        title: str,
    ):
        nameless = [name for name, control in controls.items() if not control.description]
        if not controls or not frames or nameless:
            raise ValueError(
                f"An explorer needs controls (got {list(controls)}), each with a description (none on "
                f"{nameless}), and at least one frame for pages without a kernel (got {len(frames)})."
            )
        self.render, self.controls, self.title = render, dict(controls), title
        for frame in frames:
            self._known(frame)
        self.frames = [{**self._values_of_controls(), **frame} for frame in frames]
        self.error = None
        self.output = HTML(layout=Layout(overflow="auto"))
        super().__init__(
            [
                HTML(f"<strong>{html.escape(title)}</strong>"),
                HBox(self._arranged(), layout=Layout(flex_flow="row wrap")),
                self.output,
            ]
        )
        self._observe()
        self._show()
        self._raise()

    @property
    def values(self) -> dict[str, object]:
        """The controls' present values by name."""
        return self._values_of_controls()

    @property
    def html(self) -> str:
        """The result as it stands on the page."""
        return self.output.value

    def set(self, **values) -> None:
        """Move controls from code, all at once: one new result; what `render` raises is raised here too."""
        self._known(values)
        self._observe(False)
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._observe()
        self._show()
        self._raise()

    def fallback(self) -> str:
        frames = "".join(
            f'<figure style="margin: 0.5em 0;"><figcaption>{html.escape(self._label(frame))}</figcaption>'
            f"{_string(self.render(**frame))}</figure>"
            for frame in self.frames
        )
        return f"<section><strong>{html.escape(self.title)}</strong>{frames}</section>"

    def summary(self) -> str:
        return f"{type(self).__name__}({self.title!r})"

    def _values_of_controls(self):
        return {name: control.value for name, control in self.controls.items()}

    def _known(self, values):
        unknown = [name for name in values if name not in self.controls]
        if unknown:
            raise ValueError(
                f"The explorer {self.title!r} has no control {unknown}; it has {list(self.controls)}."
            )

    def _arranged(self):
        """The controls with their descriptions whole and of one width, so that they stand in columns."""
        width = 0.5 * max(len(control.description) for control in self.controls.values()) + 1
        for control in self.controls.values():
            if control.has_trait("tooltip"):  # ipywidgets 8 would show "null" over the description
                control.tooltip = control.description
            control.style.description_width = f"{width:.1f}em"
            control.layout.width = f"{width + max(16, _longest_option(control)):.1f}em"
        return list(self.controls.values())

    def _observe(self, on=True):
        for control in self.controls.values():
            (control.observe if on else control.unobserve)(self._show, "value")

    def _show(self, change=None):
        try:
            result, self.error = _string(self.render(**self.values)), None
        except (
            Exception
        ) as error:  # shown to the reader and kept in .error: a callback's exception is seen nowhere else
            self.error = error
            result = (
                f'<p role="alert">This setting failed: {html.escape(f"{type(error).__name__}: {error}")}</p>'
            )
        label = html.escape(f"{self.title}: result")
        self.output.value = (
            f'<div role="region" aria-label="{label}" style="line-height: 1.4;">{result}</div>'
        )

    def _raise(self):
        if self.error is not None:
            raise self.error

    def _label(self, frame):
        return ", ".join(
            f"{self.controls[name].description} = {_short(value)}" for name, value in frame.items()
        )


def _longest_option(control):
    """How wide a list has to be, in em, for its longest option; 0 for any other control."""
    if not isinstance(control, Dropdown):
        return 0
    labels = (option[0] if isinstance(option, tuple) else option for option in control.options)
    return 0.5 * max(len(str(label)) for label in labels) + 4


def _string(result):
    return result if isinstance(result, str) else result.data


def _short(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class CandidateExplorer(Explorer):
    """One comparison, with a slider for every similarity and one for the temperature.

    similarities: at least two numbers in [-1, 1], the start values. positive: index of the partner.
    temperature: > 0.
    Controls: "s0", "s1", ... and "temperature", which takes the round numbers of `TEMPERATURES` and the start
    value.
    """

    def __init__(self, similarities: Sequence[float], positive: int = 0, temperature: float = 0.5):
        names = contrast.candidate_table(similarities, positive, temperature)["candidate"]
        controls = {
            f"s{place}": similarity_slider(name, value)
            for place, (name, value) in enumerate(zip(names, similarities, strict=True))
        }
        controls["temperature"] = temperature_slider(temperature)
        super().__init__(
            lambda temperature, **sliders: candidates_html(
                contrast.candidate_table(list(sliders.values()), positive, temperature)
            ),
            controls,
            frames=[{"temperature": 1.0}, {"temperature": 0.1}],
            title="Candidates, probabilities and gradients",
        )


class TemperatureExplorer(Explorer):
    """One comparison at every temperature, with up to eight negatives and the place of the strongest pull.

    similarities: the positive's, then at least one negative's, in [-1, 1]. names: of those candidates, if not
    positive, negative 1, ... temperature: > 0. Controls: "temperature", "negatives" (how many take part: the
    sliders of the others are not shown) and "s0" (the positive) to "s8". Negatives that join later begin at a
    similarity of 0.
    """

    MOST = 8

    def __init__(
        self, similarities, names=None, temperature=0.5, title="One comparison at every temperature"
    ):
        count = len(similarities) - 1
        names = [*(names or ["positive", *_negatives(1, count)]), *_negatives(count + 1, self.MOST)]
        starts = [*similarities, *[0.0] * (self.MOST - count)]
        controls = {
            "temperature": temperature_slider(temperature),
            "negatives": IntSlider(count, min=1, max=self.MOST, description="number of negatives"),
        }
        for place, (name, value) in enumerate(zip(names, starts, strict=True)):
            controls[f"s{place}"] = similarity_slider(name, value)
        super().__init__(
            lambda temperature, negatives, **sliders: temperature_html(
                list(sliders.values())[: negatives + 1], names[: negatives + 1], temperature
            ),
            controls,
            frames=[{"temperature": 1.0}, {"temperature": 0.1}],
            title=title,
        )
        controls["negatives"].observe(self._show_sliders, "value")
        self._show_sliders()

    def _show_sliders(self, change=None):
        _, box, _ = self.children
        box.children = list(self.controls.values())[: self.controls["negatives"].value + 3]


def _negatives(first, last):
    return [f"negative {number}" for number in range(first, last + 1)]


def similarity_slider(name: str, value: float) -> FloatSlider:
    """A slider from -1 to 1 for the similarity of the candidate with this name."""
    return FloatSlider(float(value), min=-1, max=1, step=0.01, description=f"similarity of {name}")


def temperature_slider(value: float) -> SelectionSlider:
    """A slider over the round numbers of `TEMPERATURES` and the start value, evenly spaced on a log scale.

    A FloatLogSlider would turn 0.5 into 0.501, and the tables of the text would never come out.
    """
    options = [(f"{option:g}", option) for option in sorted({*TEMPERATURES, value})]
    return SelectionSlider(options=options, value=value, description="temperature")


def candidates_html(table, note="") -> str:
    """What an explorer shows of a comparison: one line and a note, the table, and its bars.

    table: from `contrast.candidate_table`, in any case with its columns.
    """
    line = (
        f"Loss {cell_text(table.attrs['loss'])} nats. Effective number of candidates "
        f"{cell_text(table.attrs['effective_candidates'], 2)} of {len(table)}.{note}"
    )
    bars = "; ".join(
        f"{row.candidate} {cell_text(row.probability, 2)} and {cell_text(row.gradient, 2)}"
        for row in table.itertuples()
    )
    return (
        f'<p role="status">{line}</p>'
        + show_table(table, mark={table.attrs["positive"]: "partner"}).data
        + picture(
            candidate_bars(table),
            f"Bars of each candidate's similarity, probability and gradient. Probability and "
            f"gradient: {bars}.",
        ).data
    )


def temperature_html(similarities: Sequence[float], names: Sequence[str], temperature: float) -> str:
    """What the temperature explorer shows; the positive is the first candidate."""
    table = contrast.candidate_table(similarities, 0, temperature)
    push = table["gradient"].where(table.index > 0)
    table["candidate"], table["share of push"] = names, push / push.sum()
    best, pull = contrast.strongest_pull(similarities, 0)
    strongest = (
        f"strongest at temperature {cell_text(best)}, where it is {cell_text(pull)}"
        if best > 0
        else "which grows without end as the temperature falls: the positive does not lead"
    )
    entropy = math.log(table.attrs["effective_candidates"])
    note = f" Entropy {cell_text(entropy)} nats. Pull {cell_text(-table['gradient'][0])}, {strongest}."
    return (
        candidates_html(table, note)
        + picture(
            gradient_curves(similarities, 0, temperature),
            f"Curves of pull and pushes against the temperature. The pull on the positive: {strongest}.",
        ).data
    )
