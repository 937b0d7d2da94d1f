"""Every exercise: its cases tell its mistakes apart, and right answers written differently pass."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from course_utils import exercises
from course_utils.exercises import infonce
from course_utils.exercises import two_views as two_views_exercise
from course_utils.exercises.exercise import Exercise
from course_utils.feedback import check, judge
from course_utils.views import POLICIES, apply_view, draw_parameters, two_views

FUNCTIONS = [exercise for exercise in exercises.EXERCISES.values() if isinstance(exercise, Exercise)]
MISTAKES = [
    pytest.param(exercise.name, mistake, function, id=f"{exercise.name}: {mistake.name} {place}")
    for exercise in FUNCTIONS
    for mistake in exercise.misconceptions
    for place, function in enumerate(filter(None, (mistake.function, *mistake.also)))
]


def status(name, function):
    return check(name, function).status


def judge_as_it_is(exercise, function):
    """The verdict on a function that takes the cases' arguments: a reference, or a known mistake."""
    return judge(replace(exercise, adapt=None), function)


@pytest.mark.parametrize(("name", "mistake", "function"), MISTAKES)
def test_a_mistake_is_called_by_its_own_name(name, mistake, function):
    verdict = judge_as_it_is(exercises.find(name), function)
    assert verdict.status == "wrong"
    assert verdict.headline.startswith(f"Misconception: {mistake.name}.")
    assert verdict.lines[0].startswith("Smallest input: ")


@pytest.mark.parametrize("exercise", FUNCTIONS, ids=lambda exercise: exercise.name)
def test_an_exercise_is_complete(exercise):
    assert judge_as_it_is(exercise, exercise.reference).status == "right"
    for other in exercise.also_right:
        assert judge_as_it_is(exercise, other).status == "right"
    names = [mistake.name for mistake in exercise.misconceptions]
    assert len(names) >= 3 or exercise.adapt  # adapt may name mistakes of its own
    assert len(set(names)) == len(names)
    assert len(exercise.hints) == 3 and all(exercise.hints) and exercise.guarantees


def test_cases_cover_signs_temperatures_and_shapes():
    for exercise in (infonce.CANDIDATE_PROBABILITY, infonce.CANDIDATE_GRADIENT):
        arguments = [case.arguments for case in exercise.cases]
        assert len({len(case["similarities"]) for case in arguments}) >= 4
        assert len({case["temperature"] for case in arguments}) >= 5
        assert any((case["similarities"] < 0).any() for case in arguments)
    assert len({case.arguments["positive"] for case in infonce.CANDIDATE_GRADIENT.cases}) >= 4
    shapes = {case.arguments["view_a"].shape for case in infonce.NT_XENT_LOOP.cases}
    assert len(shapes) >= 4


def test_cases_are_given_out_fresh():
    case = two_views_exercise.TWO_VIEWS.cases[0]
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


def probability_in_float32(similarities, temperature):
    return torch.softmax(similarities.float() / temperature, dim=-1)


def probability_by_pairs(similarities, temperature):
    gaps = similarities[None, :] - similarities[:, None]
    return torch.exp(-torch.logsumexp(gaps / temperature, dim=1))


def probability_with_a_float32_temperature(similarities, temperature):
    return torch.softmax(similarities / torch.tensor(temperature), dim=0)


def probability_by_shifted_exp(similarities, temperature):
    logits = similarities / temperature
    weights = torch.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize(
    "function",
    [
        probability_in_a_loop,
        probability_in_float32,
        probability_by_pairs,
        probability_with_a_float32_temperature,
        probability_by_shifted_exp,
    ],
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


def gradient_in_float32(similarities, positive, temperature):
    p = (similarities.float() / temperature).softmax(0)
    return (p - torch.eye(len(p))[positive]) / temperature


@pytest.mark.parametrize("function", [gradient_by_autograd, gradient_in_a_loop, gradient_in_float32])
def test_right_gradients(function):
    assert status("candidate_gradient", function) == "right"


def nt_xent_in_three_loops(view_a, view_b, temperature):
    rows = [row / sum(x * x for x in row) ** 0.5 for row in [*view_a, *view_b]]
    total, count = 0.0, len(view_a)
    for i in range(2 * count):
        partner = (i + count) % (2 * count)
        positive, below = (rows[i] * rows[partner]).sum(), 0.0
        for k in range(2 * count):
            if k != i:
                below = below + (((rows[i] * rows[k]).sum() - positive).double() / temperature).exp()
        total = total + below.log()
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


def nt_xent_by_logsumexp_loops(view_a, view_b, temperature):
    views = torch.cat([view_a, view_b])
    views = views / views.norm(dim=1, keepdim=True)
    losses = []
    for i, row in enumerate(views):
        logits = torch.stack([row @ other for k, other in enumerate(views) if k != i]) / temperature
        losses.append(logits.logsumexp(0) - row @ views[(i + len(view_a)) % len(views)] / temperature)
    return sum(losses) / len(losses)


def nt_xent_by_cosine_similarity(view_a, view_b, temperature):
    views = torch.cat([view_a, view_b])
    cosines = torch.nn.functional.cosine_similarity(views[:, None], views[None], dim=2)
    logits = (cosines / temperature).masked_fill(torch.eye(len(views), dtype=torch.bool), -1e9)
    return cross_entropy(logits, torch.arange(len(views)).roll(len(view_a)))


def nt_xent_by_einsum_in_two_halves(view_a, view_b, temperature):
    a, b = normalize(view_a, dim=1), normalize(view_b, dim=1)
    labels, losses = torch.arange(len(a)), []
    for one, other in ((a, b), (b, a)):
        within = torch.einsum("id,jd->ij", one, one) - 1e9 * torch.eye(len(a), dtype=a.dtype)
        across = torch.einsum("id,jd->ij", one, other)
        losses.append(cross_entropy(torch.cat([across, within], dim=1) / temperature, labels))
    return (losses[0] + losses[1]) / 2


def nt_xent_in_float32(view_a, view_b, temperature):
    z = normalize(torch.cat([view_a, view_b]).float(), dim=1)
    logits = (z @ z.T).fill_diagonal_(-torch.inf) / temperature
    return -logits.log_softmax(dim=1)[torch.arange(len(z)), torch.arange(len(z)).roll(len(view_a))].mean()


@pytest.mark.parametrize(
    "function",
    [
        nt_xent_in_three_loops,
        nt_xent_by_cross_entropy,
        nt_xent_self_taken_off,
        nt_xent_by_logsumexp_loops,
        nt_xent_by_cosine_similarity,
        nt_xent_by_einsum_in_two_halves,
        nt_xent_in_float32,
    ],
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
    assert "6 of 10 inputs" in verdict.headline


def lossy(change_logits=None, views=None, temperature=None, per_view=None, total=None):
    """NT-Xent by cross_entropy with one step changed."""

    def function(view_a, view_b, tau):
        z = (views or (lambda x: normalize(x, dim=1)))(torch.cat([view_a, view_b]))
        eye = torch.eye(len(z), dtype=torch.bool)
        s = z @ z.T
        tau = temperature(tau) if temperature else tau
        logits = change_logits(s, eye, tau) if change_logits else (s / tau).masked_fill(eye, -torch.inf)
        labels = torch.arange(len(z)).roll(len(view_a))
        losses = (per_view or (lambda logits, labels: cross_entropy(logits, labels, reduction="none")))(
            logits, labels
        )
        return total(losses) if total else losses.mean()

    return function


def test_the_loss_with_no_step_changed_is_right():
    assert status("nt_xent_loop", lossy()) == "right"
    assert status("nt_xent_loop", lossy(lambda s, eye, tau: (s / tau).masked_fill(eye, -1e9))) == "right"


def share(added):
    def per_view(logits, labels):
        e = logits.exp()
        return -(e[torch.arange(len(e)), labels] / (e.sum(1) + added)).log()

    return per_view


def top(count):
    def change(s, eye, tau):
        logits = (s / tau).masked_fill(eye, -torch.inf)
        lowest = logits.topk(min(count, len(s) - 1), dim=1).values[:, -1:]
        partner = eye.roll(len(s) // 2, dims=1)
        return logits.masked_fill((logits < lowest) & ~partner, -torch.inf)

    return change


def first(pairs=None, dimensions=None):
    return lambda a, b, tau: nt_xent_by_cross_entropy(a[:pairs, :dimensions], b[:pairs, :dimensions], tau)


@pytest.mark.parametrize(
    "function",
    [
        *(lossy(per_view=share(added)) for added in (1e-4, 1e-8, 1e-12, 1e-16, 0)),
        *(
            lossy(lambda s, eye, tau, low=low: (s / tau).masked_fill(eye, low))
            for low in (-10, -50, -60, -100)
        ),
        *(lossy(lambda s, eye, tau, low=low: s.masked_fill(eye, low) / tau) for low in (-3, -25, -50)),
        *(lossy(views=lambda x, eps=eps: normalize(x, dim=1, eps=eps)) for eps in (0.05, 0.01)),
        lossy(views=lambda x: x / (x.norm(dim=1, keepdim=True) + 1e-4)),
        lossy(per_view=lambda logits, labels: cross_entropy(logits, labels, reduction="none").clamp(max=150)),
        lossy(total=lambda losses: losses.mean().clamp(max=150)),
        lossy(total=lambda losses: losses.sum() if len(losses) > 10 else losses.mean()),
        lossy(temperature=lambda tau: max(tau, 0.01)),
        lossy(temperature=lambda tau: min(tau, 2.0)),
        lossy(top(9)),
        first(pairs=5),
        first(dimensions=8),
    ],
)
def test_losses_that_are_right_at_some_inputs_only(function):
    assert status("nt_xent_loop", function) == "wrong"


def test_a_cosine_with_a_large_eps():
    def function(view_a, view_b, tau):
        z = torch.cat([view_a, view_b])
        s = torch.nn.functional.cosine_similarity(z[:, None], z[None], dim=2, eps=1e-2)
        logits = (s / tau).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
        return cross_entropy(logits, torch.arange(len(z)).roll(len(view_a)))

    assert status("nt_xent_loop", function) == "wrong"


@pytest.mark.parametrize("tau", [0.002, 0.01, 1.0])
def test_the_loss_of_a_regular_simplex_is_log_3(tau):
    [simplex] = [case for case in infonce.NT_XENT_LOOP.cases if case.arguments["view_a"].shape == (2, 3)]
    view_a, view_b, _ = simplex.fresh()
    assert infonce.NT_XENT_LOOP.reference(view_a, view_b, tau).item() == pytest.approx(math.log(3), 1e-12)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.clamp_min(1e-6),
        lambda p: p + 1e-6,
        lambda p: p * (p >= 1e-6),
        lambda p: p / (p.sum() + 1e-6),
        lambda p: torch.cat([p[:9], torch.zeros_like(p[9:])]),
    ],
)
def test_probabilities_that_are_off_by_little(change):
    assert status("candidate_probability", lambda s, tau: change((s / tau).softmax(0))) == "wrong"


@pytest.mark.parametrize(
    "function",
    [
        lambda s, tau: (s / max(tau, 0.01)).softmax(0),
        lambda s, tau: (s / min(tau, 2.0)).softmax(0),
        lambda s, tau: (w := (s / tau - (s / tau).max()).exp()) / (w.sum() + 1e-6),
        lambda s, tau: (w := (s.double() / tau).exp()) / w.sum(),
    ],
)
def test_probabilities_that_are_right_at_some_temperatures_only(function):
    assert status("candidate_probability", function) == "wrong"


def test_values_without_a_gradient_that_is_finite():
    def by_pairs(similarities, temperature):  # exp is infinite where the share is zero
        gaps = similarities[None, :] - similarities[:, None]
        return 1 / torch.exp(gaps.double() / temperature).sum(dim=1)

    verdict = check("candidate_probability", by_pairs)
    assert verdict.status == "wrong" and "exp of a large number" in verdict.headline


@pytest.mark.parametrize(
    "change",
    [
        lambda gradient: gradient.clamp(-10, 10),
        lambda gradient: gradient * (gradient.abs() >= 9e-6),
        lambda gradient: torch.cat([gradient[:9], torch.zeros_like(gradient[9:])]),
    ],
)
def test_gradients_that_are_cut(change):
    def function(similarities, positive, temperature):
        return change(gradient_by_autograd(similarities, positive, temperature))

    assert status("candidate_gradient", function) == "wrong"


@pytest.mark.parametrize("limit", [lambda tau: max(tau, 0.01), lambda tau: min(tau, 2.0)])
def test_gradients_with_a_bounded_temperature(limit):
    assert status("candidate_gradient", lambda s, k, tau: gradient_by_autograd(s, k, limit(tau))) == "wrong"


def test_views_of_the_first_five_pictures_only():
    def function(images, policy, generator):
        view_a, view_b = views_from_the_course(images, policy, generator)
        return torch.cat([view_a[:5], images[5:] / 255]), torch.cat([view_b[:5], images[5:] / 255])

    assert status("two_views", function) == "wrong"


def test_a_policy_that_is_looked_up_by_its_name():
    def function(images, policy, generator):
        return views_from_the_course(images, POLICIES[policy.name], generator)

    verdict = check("two_views", function)
    assert verdict.status == "wrong" and "simclr_cifar without grey" in verdict.headline


# Mistakes as readers write them


def matrix(view_a, view_b, tau):
    z = normalize(torch.cat([view_a, view_b]), dim=1)
    return z @ z.T / tau, torch.eye(len(z), dtype=torch.bool), torch.arange(len(z)).roll(len(view_a))


def multiplied_by_one_minus_eye(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    return cross_entropy(logits * (1 - eye.to(logits)), labels)


def diagonal_at_minus_one(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    return cross_entropy(logits.masked_fill(eye, -1 / tau), labels)


def own_labels(view_a, view_b, tau):
    logits, _, labels = matrix(view_a, view_b, tau)
    return cross_entropy(logits, labels.sort().values)


def own_labels_excluded(view_a, view_b, tau):
    logits, eye, _ = matrix(view_a, view_b, tau)
    return cross_entropy(logits.masked_fill(eye, -torch.inf), torch.arange(len(view_a)).repeat(2))


def softmax_twice(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    return cross_entropy(logits.masked_fill(eye, -torch.inf).softmax(1), labels)


def clip_one_way(view_a, view_b, tau):
    a, b = normalize(view_a, dim=1), normalize(view_b, dim=1)
    return cross_entropy(a @ b.T / tau, torch.arange(len(a)))


def self_subtracted(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    below = logits.exp().sum(1) - math.exp(1 / tau)
    return -(logits.exp()[torch.arange(len(eye)), labels] / below).log().mean()


def diagonal_subtracted(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    weights = logits.exp()
    below = weights.sum(1) - weights.diagonal()
    return (below.log() - logits[torch.arange(len(eye)), labels]).mean()


def naive(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    weights = logits.exp() * (1 - eye.to(logits))
    return -(weights[torch.arange(len(eye)), labels] / weights.sum(1)).log().mean()


def log_of_p_plus_1e_8(view_a, view_b, tau):
    logits, eye, labels = matrix(view_a, view_b, tau)
    p = logits.masked_fill(eye, -torch.inf).softmax(1)
    return -torch.log(p[torch.arange(len(eye)), labels] + 1e-8).mean()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (multiplied_by_one_minus_eye, "the diagonal is set to zero"),
        (diagonal_at_minus_one, "the diagonal gets a finite number"),
        (own_labels, "each row is its own label"),
        (own_labels_excluded, "a label names the excluded self-pair"),
        (softmax_twice, "softmax is fed to cross_entropy"),
        (clip_one_way, "one direction, and negatives from the other view only"),
        (self_subtracted, "exp(1 / temperature) is subtracted"),
        (diagonal_subtracted, "exp(1 / temperature) is subtracted"),
        (naive, "exp overflows at a small temperature"),
        (lossy(per_view=share(1e-8)), "a small number is added to the denominator"),
        (log_of_p_plus_1e_8, "a small number is added to the probability"),
    ],
)
def test_losses_as_readers_write_them_get_their_name(function, name):
    assert check("nt_xent_loop", function).headline.startswith(f"Misconception: {name}. ")


def test_a_bounded_temperature_is_not_taken_for_rounding():
    verdict = check("nt_xent_loop", lossy(temperature=lambda tau: max(tau, 0.02)))
    assert verdict.status == "wrong" and "none of the mistakes known" in verdict.headline


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
