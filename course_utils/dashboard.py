"""How a run's z lie while it is trained, whatever the method: the measures that tell a collapse.

    held-out pictures --two views, drawn once--> z --after every so many steps--> spread, rank, ...

A dashboard is what `train` calls `watch`:

    >>> from course_utils.images import shapes
    >>> from course_utils.networks import ProjectionHead, SmallEncoder
    >>> from course_utils.training import Budget, SimSiam, train
    >>> def simsiam():
    ...     return SimSiam(SmallEncoder(), ProjectionHead("mlp", width_in=128))
    >>> board = Dashboard(shapes.make(16, seed=1), every=2)
    >>> run = train(simsiam, shapes.make(64), Budget(epochs=2, batch=16), watch=board)
    >>> board.table["step"].tolist()
    [1, 2, 4, 6, 8]
"""

import copy

import pandas as pd
import torch

from course_utils import contrast, runtime
from course_utils.show.figures import BLACK, BLUE, GREEN, GREY, ORANGE, SKY, VERMILION, new_figure
from course_utils.views import POLICIES, two_views

# What is measured, each from 0 (all z coincide) up, but for uniformity: there 0 is the highest value.
MEASURES = ("spread", "effective rank", "alignment", "uniformity")
LINES = (
    *((BLUE, "o", "-"), (VERMILION, "s", "-"), (GREEN, "^", "-"), (BLACK, "D", "-"), (ORANGE, "v", "-")),
    *((SKY, "P", "-"), (GREY, "X", "-"), (BLUE, "*", "--"), (VERMILION, "<", "--"), (GREEN, ">", "--")),
)


class Dashboard:
    """Looks at a method's z on fixed views after every so many steps; give it to `train` as `watch`.

    pictures: Pictures, at least 2, best such as are not trained on. policy, size: how their two views are
    drawn, once, as for `train`. every: steps from one look to the next; the first is after step 1. A look
    works on a copy, in training mode (batch norm uses these views' own statistics, as in a step): the run
    comes out as if nobody had looked.
    """

    def __init__(self, pictures, policy="simclr_cifar", size=None, every=10):
        if every < 1:
            raise ValueError(f"every is {every!r}; expected a number of steps, at least 1.")
        policy = POLICIES.get(policy, policy)
        self.views = two_views(pictures.images, policy, runtime.generator(0), size)[:2]
        self.every, self.step, self.looks = every, 0, []

    def __call__(self, method):
        self.step += 1
        if self.step == 1 or self.step % self.every == 0:
            self.looks.append({"step": self.step, **geometry(*self.z(method))})

    @torch.no_grad()
    def z(self, method):
        """z of the first and of the second views, [len(pictures), D] each."""
        device = next(method.parameters()).device
        views = torch.cat(self.views).to(device, memory_format=torch.channels_last)
        return copy.deepcopy(method).train().project(views).float().cpu().chunk(2)

    @property
    def table(self) -> pd.DataFrame:
        """A row a look: its step, and the MEASURES."""
        return pd.DataFrame(self.looks, columns=["step", *MEASURES])


def geometry(z_a, z_b) -> dict[str, float]:
    """The MEASURES of two views' z, [N, D], N >= 2, row k of both from one picture; not of unit length.

    Spread, effective rank and uniformity are those of z_a. Raises what `contrast`'s functions raise.

    >>> ring = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    >>> {name: round(value, 2) for name, value in geometry(ring, ring).items()}
    {'spread': 1.0, 'effective rank': 2.0, 'alignment': 0.0, 'uniformity': -4.4}
    """
    values = (
        contrast.spread(z_a),
        contrast.effective_rank(z_a),
        contrast.alignment(z_a, z_b),
        contrast.uniformity(z_a),
    )
    return {name: value.item() for name, value in zip(MEASURES, values, strict=True)}


def curves(tables, chosen=None, step=None):
    """A figure with a panel for each of the MEASURES and a line for each run.

    tables: the run's name -> its table, at most ten. chosen: the name of one whose line stands out, the
    others are thin and grey. step: where a vertical line stands. Raises ValueError for no table, too many,
    or a chosen one that is not there.
    """
    if not 1 <= len(tables) <= len(LINES) or (chosen is not None and chosen not in tables):
        raise ValueError(
            f"got {len(tables)} tables ({', '.join(tables)}) and chosen={chosen!r}; expected 1 to "
            f"{len(LINES)}, and one of their names or None."
        )
    figure, axes = new_figure(9.5, 5.4, rows=2, columns=2, sharex=True)
    for panel, measure in zip(axes.flat, MEASURES, strict=True):
        for (name, table), (colour, marker, dashes) in zip(tables.items(), LINES, strict=False):
            style = {"color": colour, "marker": marker, "linestyle": dashes, "markersize": 4, "label": name}
            if chosen is not None and name != chosen:
                style = {"color": GREY, "linewidth": 0.8, "alpha": 0.5}
            elif chosen is not None:
                style |= {"linewidth": 2.5, "zorder": 3}
            panel.plot(table["step"], table[measure], **style)
        if step is not None:
            panel.axvline(step, color=BLACK, linestyle=":", linewidth=1)
        panel.set_title(measure, loc="left")
    for panel in axes[1]:
        panel.set_xlabel("step")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    return figure
