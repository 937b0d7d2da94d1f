"""Experiments in this process, one seed after the other: what a test replaces is replaced for them too."""

from dataclasses import replace

import joblib
import pytest

from course_utils.images import cifar, shapes


@pytest.fixture(autouse=True)
def one_process(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("COURSE_BUDGET", "quick")
    with joblib.parallel_config(backend="sequential"):
        yield


@pytest.fixture(autouse=True)
def rendered_for_cifar(monkeypatch):
    """Rendered pictures stand in for CIFAR-10; their class is the shape."""

    def load(split, count=None):
        rendered = shapes.make(count or 64, seed=len(split))
        return replace(
            rendered, labels={"class": rendered.labels["shape"]}, names={"class": rendered.names["shape"]}
        )

    monkeypatch.setattr(cifar, "load", load)
