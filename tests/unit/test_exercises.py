"""Every exercise: its cases tell its mistakes apart, and right answers written differently pass."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from course_utils import exercises
from course_utils.feedback import check
from course_utils.views import apply_view, draw_parameters, two_views

MISTAKES = [
    pytest.param(exercise.name, mistake, id=f"{exercise.name}: {mistake.name}")
    for exercise in exercises.EXERCISES.values()
    for mistake in exercise.misconceptions
]


def status(name, function):
    return check(name, function).status


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_is_called_by_its_own_name(name, mistake):
    verdict = check(name, mistake.function)
    assert verdict.status == "wrong"
    assert verdict.headline.startswith(f"Misconception: {mistake.name}.")
    assert verdict.lines[0].startswith("Smallest input: ")


@pytest.mark.parametrize("exercise", exercises.EXERCISES.values(), ids=lambda exercise: exercise.name)
def test_an_exercise_is_complete(exercise):
    assert check(exercise.name, exercise.reference).status == "right"
    for other in exercise.also_right:
        assert check(exercise.name, other).status == "right"
    names = [mistake.name for mistake in exercise.misconceptions]
    assert len(names) >= 3 and len(set(names)) == len(names)
    assert len(exercise.hints) == 3 and all(exercise.hints) and exercise.guarantees


def test_cases_cover_signs_temperatures_and_shapes():
    for exercise in (exercises.CANDIDATE_PROBABILITY, exercises.CANDIDATE_GRADIENT):
        arguments = [case.arguments for case in exercise.cases]
        assert len({len(case["similarities"]) for case in arguments}) >= 4
        assert len({case["temperature"] for case in arguments}) >= 5
        assert any((case["similarities"] < 0).any() for case in arguments)
    assert len({case.arguments["positive"] for case in exercises.CANDIDATE_GRADIENT.cases}) >= 4
    shapes = {case.arguments["view_a"].shape for case in exercises.NT_XENT_LOOP.cases}
    assert len(shapes) >= 4


def test_cases_are_given_out_fresh():
    case = exercises.TWO_VIEWS.cases[0]
    first, second = case.fresh(), case.fresh()
    first[0].zero_()
    torch.rand(3, generator=first[2])
    assert torch.equal(case.fresh()[0], second[0])
    assert torch.equal(torch.rand(3, generator=case.fresh()[2]), torch.rand(3, generator=second[2]))


def test_an_unknown_exercise_names_those_there_are():
    with pytest.raises(ValueError, match=r"'cadidate'.*candidate_gradient"):
        exercises.find("cadidate")


# Right, written differently


def probability_in_a_loop(similarities, temperature):
    largest = max(s.item() for s in similarities)
    weights = [((s - largest) / temperature).exp() for s in similarities]
    total = sum(weights)
    return torch.stack([weight / total for weight in weights])


def probability_in_float64(similarities, temperature):
    weights = torch.exp(similarities.double() / temperature)
    return weights / weights.sum()


def probability_in_float32(similarities, temperature):
    return torch.softmax(similarities.float() / temperature, dim=-1)


def probability_by_pairs(similarities, temperature):
    gaps = similarities[None, :] - similarities[:, None]
    return 1 / torch.exp(gaps.double() / temperature).sum(dim=1)


@pytest.mark.parametrize(
    "function", [probability_in_a_loop, probability_in_float64, probability_in_float32, probability_by_pairs]
)
def test_right_probabilities(function):
    assert status("candidate_probability", function) == "right"


def gradient_by_autograd(similarities, positive, temperature):
    s = similarities.clone().requires_grad_()
    return torch.autograd.grad(-(s / temperature).log_softmax(0)[positive], s)[0]


def gradient_in_a_loop(similarities, positive, temperature):
    largest = similarities.max()
    total = sum(math.exp((s - largest) / temperature) for s in similarities)
    out = torch.zeros(len(similarities), dtype=torch.float64)
    for j, s in enumerate(similarities):
        out[j] = (math.exp((s - largest) / temperature) / total - (j == positive)) / temperature
    return out


@pytest.mark.parametrize("function", [gradient_by_autograd, gradient_in_a_loop])
def test_right_gradients(function):
    assert status("candidate_gradient", function) == "right"


def nt_xent_in_three_loops(view_a, view_b, temperature):
    rows = [row / sum(x * x for x in row) ** 0.5 for row in [*view_a, *view_b]]
    total, count = 0.0, len(view_a)
    for i in range(2 * count):
        below = 0.0
        for k in range(2 * count):
            if k != i:
                below = below + ((rows[i] * rows[k]).sum() / temperature).exp()
        partner = (i + count) % (2 * count)
        total = total + below.log() - (rows[i] * rows[partner]).sum() / temperature
    return total / (2 * count)


def nt_xent_by_cross_entropy(view_a, view_b, temperature):
    count = len(view_a)
    z = normalize(torch.cat([view_a, view_b]).double(), dim=1)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(2 * count, dtype=torch.bool), -torch.inf)
    return cross_entropy(logits, torch.arange(2 * count).roll(count))


def nt_xent_self_taken_off(view_a, view_b, temperature):
    """The self-pair dropped by shape, not by a mask: 2N rows of 2N - 1 candidates."""
    count = len(view_a)
    z = torch.nn.functional.normalize(torch.cat([view_a, view_b]), dim=1)
    s = torch.stack([torch.cat([row[:i], row[i + 1 :]]) for i, row in enumerate(z @ z.T)]) / temperature
    partner = [(i + count) % (2 * count) for i in range(2 * count)]
    place = torch.tensor([p - (p > i) for i, p in enumerate(partner)])
    return (s.logsumexp(1) - s[torch.arange(2 * count), place]).mean()


@pytest.mark.parametrize(
    "function", [nt_xent_in_three_loops, nt_xent_by_cross_entropy, nt_xent_self_taken_off]
)
def test_right_losses(function):
    assert status("nt_xent_loop", function) == "right"


def views_from_the_course(images, policy, generator):
    return two_views(images, policy, generator)[:2]


def views_drawn_first(images, policy, generator):
    height, width = images.shape[-2:]
    a, b = (draw_parameters(len(images), height, width, policy, generator) for _ in range(2))
    return [apply_view(images.float() / 255, a), apply_view(images.float() / 255, b)]


@pytest.mark.parametrize("function", [views_from_the_course, views_drawn_first])
def test_right_views(function):
    assert status("two_views", function) == "right"


# Wrong in ways no list knows


def right_at_one_input_only(similarities, temperature):
    return torch.full_like(similarities, 1 / 3).softmax(0)  # uniform: right where all similarities are equal


def wrong_below_zero(similarities, temperature):
    return (similarities.clamp(min=0) / temperature).softmax(0)


def wrong_but_at_temperature_one(similarities, temperature):
    return (similarities / temperature**2).softmax(0)


def wrong_for_more_than_five(similarities, temperature):
    return (similarities[:5] / temperature).softmax(0)


def wrong_at_the_lowest_temperature(similarities, temperature):
    return (similarities / max(temperature, 0.02)).softmax(0).clamp(min=1e-3)


@pytest.mark.parametrize(
    "function",
    [
        right_at_one_input_only,
        wrong_below_zero,
        wrong_but_at_temperature_one,
        wrong_for_more_than_five,
        wrong_at_the_lowest_temperature,
    ],
)
def test_probabilities_that_are_right_at_some_inputs_only(function):
    verdict = check("candidate_probability", function)
    assert verdict.status == "wrong"
    assert "Misconception" not in verdict.headline


def test_the_smallest_input_that_shows_it_is_the_one_shown():
    verdict = check("candidate_probability", wrong_below_zero)
    assert verdict.lines[0] == "Smallest input: similarities = [-0.1, 0.4, -0.6], temperature = 0.2"
    assert verdict.lines[2] == "Right value: [0.0754, 0.9184, 0.0062]"
    assert "5 of 8 inputs" in verdict.headline


def test_a_loss_that_ignores_one_view():
    def other_pairs(view_a, view_b, temperature):
        return nt_xent_by_cross_entropy(view_a, view_a, temperature)

    assert status("nt_xent_loop", other_pairs) == "wrong"


def test_a_value_that_is_right_with_a_gradient_that_is_not():
    def length_as_a_constant(view_a, view_b, temperature):
        z = torch.cat([view_a, view_b])
        z = z / z.norm(dim=1, keepdim=True).detach()  # the gradient through the length is lost
        logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
        return cross_entropy(logits, torch.arange(len(z)).roll(len(view_a)))

    verdict = check("nt_xent_loop", length_as_a_constant)
    assert verdict.status == "wrong" and "gradient that reaches view_a" in verdict.headline


def test_no_two_mistakes_of_an_exercise_give_the_same_numbers():
    for exercise in exercises.EXERCISES.values():
        answers = [
            torch.cat(
                [
                    torch.stack(out).flatten()
                    if isinstance(out := mistake.function(*case.fresh()), tuple)
                    else out.flatten()
                    for case in exercise.cases
                ]
            ).double()
            for mistake in exercise.misconceptions
        ]
        for first, second in itertools.combinations(answers, 2):
            assert not torch.allclose(first, second, equal_nan=True)
