"""MoCo's queue and steps, drawn: a ring with its FIFO view, a trace, and explorers that go step by step."""

import html
import math

import torch
from ipywidgets import Button, HBox, IntSlider, Play, jslink
from matplotlib import colormaps
from matplotlib.colors import to_hex
from torch.nn.functional import normalize

from course_utils.memory import KeyQueue
from course_utils.show.figures import GREY, ORANGE, VERMILION, new_figure, picture
from course_utils.show.widgets import Explorer

# --- Pictures -----------------------------------------------------------------------------------------------


def queue_picture(table, oldest_first, gone=(), come=()) -> str:
    """A small queue as an SVG, for `picture`: above in order of age, below as the ring that it is stored in.

    table: from `KeyQueue.table()`, up to about ten places; its column "name" is what stands in a slot.
    oldest_first: places in the order of age. gone, come: names of the keys that the last step took out and
    put in; those that came are framed. A slot's colour and its words both tell the age.
    """
    oldest = max(table["age"].max(), 2)
    slots = [
        {
            "name": row.name_,
            "age": "start" if row.start else f"age {row.age}",
            "fill": to_hex(colormaps["cividis"](0.92 - 0.8 * (row.age - 1) / (oldest - 1))),
            "text": "white" if row.age - 1 > 0.5 * (oldest - 1) else "black",
            "new": row.name_ in come,
        }
        for row in table.rename(columns={"name": "name_"}).itertuples()
    ]
    wide, high, gap, side = 66, 48, 6, 92
    width = 2 * side + len(slots) * (wide + gap)
    down = max(92, 14 * len(slots))  # the ring's radii
    across = 1.7 * down
    middle, centre = width / 2, 142 + down + high / 2
    height = centre + down + high / 2 + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" font-family="Helvetica, Arial, sans-serif" font-size="13">',
        '<marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto">'
        f'<path d="M0 0L6 3L0 6Z" fill="{VERMILION}"/></marker>',
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>',
        _text(8, 18, "first in, first out: the oldest stands left", "start", bold=True),
    ]
    row = 34
    for number, place in enumerate(oldest_first):
        parts.append(_slot(side + number * (wide + gap), row, wide, high, slots[place]))
    for x, title, names in ((side / 2 - 4, "◀ out", gone), (width - side / 2 + 4, "in ◀", come)):
        parts += [_text(x, row + 20, title, bold=True), _text(x, row + 38, _span(names))]
    parts.append(_text(8, row + high + 34, "the ring: a key stays where it was written", "start", bold=True))
    for place, slot in enumerate(slots):
        turn = 2 * math.pi * place / len(slots) - math.pi / 2

        def at(inwards, turn=turn):  # a point between the slot's middle and the ring's
            return middle + (across - 2.0 * inwards) * math.cos(turn), centre + (down - inwards) * math.sin(
                turn
            )

        x, y = at(0)
        parts.append(_slot(x - wide / 2, y - high / 2, wide, high, slot))
        x, y = at(38)
        parts.append(_text(x, y + 4, f"place {place}", colour=GREY, size=11))
        if table["next"][place]:
            x, y = at(52)
            parts.append(
                f'<path d="M{middle:.1f} {centre:.1f}L{x:.1f} {y:.1f}" stroke="{VERMILION}" stroke-width="3" '
                'marker-end="url(#tip)"/>'
            )
    parts.append(f'<circle cx="{middle:.1f}" cy="{centre:.1f}" r="4" fill="{VERMILION}"/>')
    parts.append(_text(width - 8, height - 10, "The arrow is the pointer: written next.", "end", VERMILION))
    return "".join([*parts, "</svg>"])


def _span(names):
    names = list(names)
    return f"{names[0]} … {names[-1]}" if len(names) > 2 else ", ".join(names) or "nothing"


def _slot(x, y, wide, high, slot):
    frame = f'stroke="{VERMILION}" stroke-width="4"' if slot["new"] else f'stroke="{GREY}"'
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide}" height="{high}" rx="6" fill="{slot["fill"]}" {frame}/>'
        + _text(x + wide / 2, y + 20, slot["name"], colour=slot["text"], bold=True, size=15)
        + _text(x + wide / 2, y + 38, slot["age"], colour=slot["text"], size=12)
    )


def _text(x, y, words, anchor="middle", colour="black", bold=False, size=13):
    style = f'text-anchor="{anchor}" font-weight="{"bold" if bold else "normal"}" fill="{colour}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {style}>{html.escape(words)}</text>'


def step_trace(trace):
    """A trace as a figure: a column an event, a row for each thing watched, a box where it changed.

    trace: memory.Trace with at least one event; up to about ten are legible. Raises ValueError without one.
    """
    names, events = list(trace.watched), trace.events
    if not events:
        raise ValueError(
            "the trace has no event; expected one that saw a step: call its note after each stage."
        )
    figure, axes = new_figure(2.0 + 1.05 * len(events), 1.1 + 0.42 * len(names))
    axes.set(xlim=(-0.5, len(events) - 0.5), ylim=(len(names) - 0.5, -0.5))
    axes.set_xticks(range(len(events)), [event.stage for event in events])
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row in range(len(names)):
        axes.axhline(row, color="#DDDDDD", linewidth=1, zorder=0)
    for column, event in enumerate(events):
        if column and event.step != events[column - 1].step:
            axes.axvline(column - 0.5, color=GREY, linewidth=1, linestyle=":")
        for name in event.changed:
            axes.text(
                *(column, names.index(name), "changed"),
                **{"ha": "center", "va": "center", "fontsize": 9, "weight": "bold"},
                bbox={"boxstyle": "round,pad=0.35", "facecolor": ORANGE, "edgecolor": "black"},
            )
    firsts = {event.step: column for column, event in reversed(list(enumerate(events)))}
    for step, column in firsts.items():
        axes.text(column - 0.45, len(names) - 0.45, f"step {step}", va="top", fontsize=9, color=GREY)
    return figure


# --- Explorers ----------------------------------------------------------------------------------------------


class StepExplorer(Explorer):
    """An explorer with a control "step" that can also be gone back and forth with buttons, or played.

    controls: as in Explorer, and among them an IntSlider "step". Player and slider are linked in the browser;
    one of its ticks changes the result once. Everything has the keyboard's focus in turn.
    """

    def _arranged(self):
        slider = self.controls["step"]
        self.player = Play(
            **{name: getattr(slider, name) for name in ("value", "min", "max")},
            **{"interval": 1200, "description": "play the steps"},
        )
        jslink((self.player, "value"), (slider, "value"))
        self.back, self.forward = (
            Button(description=words, tooltip=words) for words in ("one step back", "one step forward")
        )
        self.back.on_click(lambda button: self._move(-1))
        self.forward.on_click(lambda button: self._move(1))
        return [*super()._arranged(), HBox([self.back, self.forward, self.player])]

    def _move(self, by):
        slider = self.controls["step"]
        slider.value = min(max(slider.value + by, slider.min), slider.max)


def six_places() -> StepExplorer:
    """The queue of six places step by step, with one to six new keys a step."""
    return StepExplorer(
        _six_places_at,
        {
            "step": IntSlider(1, 0, 9, description="step"),
            "batch": IntSlider(2, 1, 6, description="new keys a step"),
        },
        frames=[{"step": 0}, {"step": 1}, {"step": 2}],
        title="Six places, step by step",
    )


def _six_places_at(step, batch):
    queue = KeyQueue(6, 2)
    number = 1
    for size in [2, 2, 2] + [batch] * step:
        before = _named(queue)
        pictures = torch.arange(number, number + size)
        queue.enqueue(normalize(torch.ones(size, 2)), pictures=pictures)
        number += size
    table = _named(queue)
    come = [f"k{picture}" for picture in pictures.tolist()] if step else []
    kept = set(table["name"])
    gone = [name for name in before["name"][before["picture"].argsort()] if name not in kept] if step else []
    line = (
        f"Step {step}: {_listed(come)} in, {_listed(gone)} out. "
        if step
        else "Before the first step, k1 is the oldest. "
    ) + f"The pointer is at place {queue.pointer}."
    slots = "; ".join(
        f"place {row.place} {row.name_}, age {row.age}"
        for row in table.rename(columns={"name": "name_"}).itertuples()
    )
    alt = f"The queue in order of age and as a ring. {slots}. An arrow points to place {queue.pointer}."
    return (
        f'<p role="status">{line}</p>'
        + picture(queue_picture(table, queue.order().tolist(), gone, come), alt).data
    )


def _named(queue):
    table = queue.table()
    return table.assign(name=["start" if p < 0 else f"k{p}" for p in table["picture"]])


def _listed(names):
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "nothing"
