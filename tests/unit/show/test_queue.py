"""The drawn queue and trace say what is in them; the step explorer is moved by slider, buttons and player."""

import re

import pytest
import torch
from torch import nn

from course_utils.memory import KeyQueue, Trace
from course_utils.show import queue as drawn
from course_utils.show.queue import StepExplorer, queue_picture, six_places, step_trace


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_a_queue_shows_its_keys_by_age_and_by_place():
    queue = KeyQueue(3, 2)
    queue.enqueue(torch.eye(2), pictures=torch.tensor([5, 6]))
    table = queue.table().assign(name=["a", "b", "c"])
    words = texts(queue_picture(table, queue.order().tolist(), gone=["x"], come=["a", "b"]))
    assert words.index("c") < words.index("a") < words.index("b")  # the FIFO view: the oldest first
    assert [word for word in words if word.startswith("place")] == ["place 0", "place 1", "place 2"]
    assert words.count("age 1") == 4 and words.count("start") == 2
    assert "x" in words and "a, b" in words


def test_a_slot_s_colour_tells_its_age():
    queue = KeyQueue(4, 2)
    for _ in range(2):
        queue.enqueue(torch.eye(2), pictures=torch.tensor([5, 6]))
    svg = queue_picture(queue.table().assign(name=list("abcd")), queue.order().tolist())
    fills = re.findall(r'<rect [^>]*rx="6" fill="([^"]*)"', svg)
    assert len(fills) == 8 and fills[:2] == [fills[0]] * 2 and fills[2:4] == [fills[2]] * 2
    assert fills[0] != fills[2]


def test_six_places_are_stepped_by_slider_buttons_and_player():
    explorer = six_places()
    assert "k7 and k8 in, k1 and k2 out. The pointer is at place 2." in explorer.html
    seen = []
    explorer.output.observe(lambda change: seen.append(change["new"]), "value")
    explorer.forward.click()
    assert len(seen) == 1 and explorer.values["step"] == 2
    for _ in range(4):
        explorer.back.click()
    assert explorer.values["step"] == 0 and "Before the first step" in explorer.html
    assert (explorer.player.min, explorer.player.max) == (0, 9)
    assert explorer.player.description and explorer.back.description and explorer.forward.description
    for _ in range(12):
        explorer.forward.click()
    assert explorer.values["step"] == 9
    explorer.set(step=2, batch=4)
    assert "k11, k12, k13 and k14 in, k5, k6, k7 and k8 out. The pointer is at place 2." in explorer.html
    assert explorer.fallback().count("<figure") == 6  # three frames, a picture in each


def test_six_places_hold_the_last_six_keys_whatever_the_batch():
    for batch in range(1, 7):
        for step in range(10):
            shown = drawn._six_places_at(step, batch)
            held = set(map(int, re.findall(r"place \d k(\d+), age", shown)))
            assert held == set(range(batch * step + 1, batch * step + 7))


def test_a_step_explorer_is_an_explorer_with_a_step():
    from ipywidgets import IntSlider

    explorer = StepExplorer(
        lambda step: f"at {step}", {"step": IntSlider(3, 2, 4, description="step")}, [{"step": 2}], "Counting"
    )
    explorer.forward.click()
    explorer.forward.click()
    assert "at 4" in explorer.html and explorer.player.value == 3  # linked in the browser, not here


def test_a_trace_is_drawn_with_a_box_for_each_change():
    network, number = nn.BatchNorm1d(2), torch.zeros(1)
    trace = Trace(network=network, number=number)
    with pytest.raises(ValueError, match="the trace has no event"):
        step_trace(trace)
    for _ in range(2):
        network(torch.randn(3, 2))
        trace.note("keys")
        number += 1
        trace.note("enqueue")
    [axes] = step_trace(trace).axes
    boxes = [(text.get_position(), text.get_text()) for text in axes.texts]
    assert boxes[:4] == [((0, 1), "changed"), ((1, 2), "changed"), ((2, 1), "changed"), ((3, 2), "changed")]
    assert [word for _, word in boxes[4:]] == ["step 2", "step 1"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "network",
        "network statistics",
        "number",
    ]
