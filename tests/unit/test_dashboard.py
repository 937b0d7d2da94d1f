"""The dashboard measures z as they are, leaves the run alone, and draws any number of runs up to ten."""

import copy
import math

import pytest
import torch
from torch import nn

from course_utils import contrast
from course_utils.dashboard import LINES, MEASURES, Dashboard, curves, geometry
from course_utils.images import shapes
from course_utils.networks import ProjectionHead, fingerprint
from course_utils.training import BYOL, Budget, Method, MoCo, SimCLR, SimSiam, train


class TinyEncoder(nn.Sequential):
    width = 8

    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )


def head():
    return ProjectionHead("mlp", 8, 4, 8)


METHODS = {
    "SimCLR": lambda: SimCLR(TinyEncoder(), head()),
    "SimSiam": lambda: SimSiam(TinyEncoder(), head()),
    "MoCo": lambda: MoCo(TinyEncoder(), head(), queue=32),
    "BYOL": lambda: BYOL(TinyEncoder(), head()),
}


def run(method="SimCLR", **options):
    budget = Budget(epochs=2, batch=8)
    return train(METHODS[method], shapes.make(32), budget, device="cpu", **options)


@pytest.mark.parametrize("method", METHODS)
def test_nobody_notices_that_it_looks(method):
    board = Dashboard(shapes.make(12, seed=1), every=3)
    watched = run(method, watch=board)
    assert watched.protocol["weights"] == run(method).protocol["weights"]
    assert board.table["step"].tolist() == [1, 3, 6]
    assert board.table.columns.tolist() == ["step", *MEASURES]
    assert torch.tensor(board.table.values).isfinite().all()


def test_the_views_stay_the_same_and_z_is_what_a_step_would_see():
    method = METHODS["SimCLR"]()
    before = fingerprint(method)
    board = Dashboard(shapes.make(12, seed=1), size=24)
    z_a, z_b = board.z(method)
    assert all(map(torch.equal, board.z(method), (z_a, z_b)))
    assert board.views[0].shape == (12, 3, 24, 24) and not torch.equal(*board.views)
    expected = copy.deepcopy(method).train().project(torch.cat(board.views))
    torch.testing.assert_close(torch.cat([z_a, z_b]), expected.detach())
    assert fingerprint(method) == before and not z_a.requires_grad


def test_what_the_measures_say_of_known_clouds():
    generator = torch.Generator().manual_seed(0)
    sphere = torch.randn(400, 16, generator=generator)
    point = torch.ones(400, 16) + 1e-4 * sphere
    ring = torch.zeros(400, 16)
    ring[:, :2] = torch.randn(400, 2, generator=generator)
    clouds = {name: geometry(z, z) for name, z in {"sphere": sphere, "ring": ring, "point": point}.items()}
    assert clouds["sphere"]["spread"] > 0.98 and clouds["sphere"]["effective rank"] > 15
    assert clouds["ring"]["effective rank"] == pytest.approx(2, abs=0.01) and clouds["ring"]["spread"] > 0.3
    assert clouds["point"]["spread"] < 1e-3 and clouds["point"]["uniformity"] == pytest.approx(0, abs=1e-3)
    # A rank knows no size: what is left of a collapsed cloud may point in all directions.
    assert clouds["point"]["effective rank"] > 14
    assert all(cloud["alignment"] == 0 for cloud in clouds.values())


def test_alignment_is_between_the_views_and_the_others_are_the_first_view_s():
    z_a, z_b = torch.randn(2, 20, 5, generator=torch.Generator().manual_seed(1))
    measured = geometry(z_a, z_b)
    assert measured["alignment"] == contrast.alignment(z_a, z_b).item()
    assert measured["spread"] == contrast.spread(z_a).item()
    assert measured["uniformity"] == contrast.uniformity(z_a).item()


def test_it_works_for_a_method_of_your_own():
    class Constant(Method):
        def project(self, views):
            return torch.ones(len(views), 4)

    board = Dashboard(shapes.make(6, seed=1))
    board(Constant(TinyEncoder(), head()))
    assert board.looks == [
        {"step": 1, "spread": 0.0, "effective rank": 0.0, "alignment": 0.0, "uniformity": 0.0}
    ]


def test_no_steps_between_two_looks():
    with pytest.raises(ValueError, match="every is 0; expected a number of steps"):
        Dashboard(shapes.make(6), every=0)


def table(level):
    board = Dashboard(shapes.make(4))
    board.looks = [{"step": step, **dict.fromkeys(MEASURES, level * step)} for step in (1, 10)]
    return board.table


def test_a_panel_for_each_measure_and_a_line_for_each_run():
    figure = curves({"first": table(1), "second": table(2)})
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(MEASURES)
    for axes in figure.axes:
        assert [line.get_ydata().tolist() for line in axes.lines] == [[1, 10], [2, 20]]
        assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == 2
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["first", "second"]


def test_one_run_stands_out_and_a_line_marks_the_step():
    figure = curves({"first": table(1), "second": table(2)}, chosen="second", step=10)
    for axes in figure.axes:
        first, second, mark = axes.lines
        assert first.get_linewidth() < second.get_linewidth() and first.get_color() != second.get_color()
        assert list(mark.get_xdata()) == [10, 10]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["second"]


def test_curves_that_cannot_be_drawn():
    assert len(set(LINES)) == len(LINES)
    many = {str(number): table(number) for number in range(len(LINES) + 1)}
    curves(dict(list(many.items())[:-1]))
    for tables, chosen in (({}, None), (many, None), ({"first": table(1)}, "second")):
        with pytest.raises(ValueError, match="expected 1 to 10, and one of their names or None"):
            curves(tables, chosen)
    assert math.isfinite(curves({"first": table(1)}).axes[0].get_ylim()[1])
