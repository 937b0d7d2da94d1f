"""Experiments in this process, one seed after the other: what a test replaces is replaced for them too."""

import joblib
import pytest


@pytest.fixture(autouse=True)
def one_process(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("COURSE_BUDGET", "quick")
    with joblib.parallel_config(backend="sequential"):
        yield
