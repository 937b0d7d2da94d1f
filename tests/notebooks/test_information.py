"""Notebook 07's estimates are those of an independent computation, within four standard errors of both.

The numbers are sections N4 to N6 of the audit's numbers.md, computed there by scripts of their own:
correlated Gaussians in 20 dimensions. Where an error is 0, none was written down.
"""

import math
import re

import pytest
import stored

OPTIMAL = [  # a row each for I = 2, 4, 6, 10, of N = 2, 8, 64, 512
    *[(0.5076, 0.0008), (1.2691, 0.0023), (1.8090, 0.0064), (1.9375, 0.0145)],
    *[(0.6429, 0.0005), (1.8054, 0.0016), (3.0682, 0.0057), (3.7149, 0.0160)],
    *[(0.6802, 0.0003), (2.0005, 0.0009), (3.7406, 0.0039), (4.9723, 0.0133)],
    *[(0.6924, 0.0001), (2.0747, 0.0002), (4.1198, 0.0013), (6.0482, 0.0056)],
]
WITHOUT_THE_POSITIVE = [  # I = 2, 10; K = 1, 7, 63, 511
    *[(4.423, 0.005), (2.729, 0.005), (2.155, 0.008), (2.005, 0.015)],
    *[(34.37, 0), (22.31, 0), (16.24, 0), (13.26, 0)],
]
SHARPER = [  # a = 0.25, 0.5, 1, 2, 4; N = 2, 8, 64, 512
    *[(0.348, 0), (0.745, 0), (0.903, 0), (0.930, 0)],
    *[(0.464, 0), (1.100, 0), (1.460, 0), (1.542, 0)],
    *OPTIMAL[:4],
    *[(0.464, 0), (1.065, 0), (1.228, 0.017), (1.061, 0.044)],
    *[(0.292, 0), (0.332, 0), (-0.870, 0), (-2.697, 0.088)],
]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("log N - L of the optimal critic (standard error)", OPTIMAL),
        ("log K - L_free (standard error)", WITHOUT_THE_POSITIVE),
        ("log N - L of the critic a log r (standard error)", SHARPER),
    ],
)
def test_the_stored_estimates_are_those_of_the_audit(caption, expected):
    path = next(path for path in stored.NOTEBOOKS if path.stem == "07_mutual_information")
    texts = [stored.shown(output) for _, output in stored.outputs(stored.read(path))]
    table = next(text for text in texts if caption in text)
    cells = re.findall(r"(-?\d+\.\d+) \((\d+\.\d+)\)", table)
    assert len(cells) == len(expected)
    for (value, error), (right, its_error) in zip(cells, expected, strict=True):
        half_a_digit = 0.5 * 10 ** -len(value.partition(".")[2])
        room = 4 * math.hypot(float(error) + half_a_digit, its_error) + half_a_digit
        assert abs(float(value) - right) <= room, (value, error, right)
