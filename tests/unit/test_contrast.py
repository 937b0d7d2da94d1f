"""contrast.py against explicit loops over pairs, closed forms, finite differences and the tables N1 to N3."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from course_utils import contrast
from course_utils.contrast import candidate_table, clip_loss, info_nce, nt_xent

TEMPERATURES = [0.01, 0.07, 0.5, 1.0]


def features(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# --- the definitions once more, one pair at a time, in Python floats ------------------------------


def cosine(u, v):
    dot = sum(a * b for a, b in zip(u.tolist(), v.tolist(), strict=True))
    return dot / math.sqrt(sum(a * a for a in u.tolist())) / math.sqrt(sum(b * b for b in v.tolist()))


def loss_of_one(positive, negatives, temperature):
    """-log(exp(s+/tau) / sum of exp(s/tau)), every exponent shifted by the largest."""
    logits = [s / temperature for s in [positive, *negatives]]
    top = max(logits)
    return -(logits[0] - top) + math.log(sum(math.exp(x - top) for x in logits))


def nt_xent_by_loops(view_a, view_b, temperature):
    views = [*view_a, *view_b]
    n, losses = len(view_a), []
    for i, view in enumerate(views):
        partner = (i + n) % (2 * n)
        negatives = [cosine(view, other) for k, other in enumerate(views) if k not in (i, partner)]
        assert len(negatives) == 2 * n - 2
        losses.append(loss_of_one(cosine(view, views[partner]), negatives, temperature))
    return torch.tensor(losses, dtype=torch.float64)


def info_nce_by_loops(query, positive_key, negative_keys, temperature):
    rows = zip(query, positive_key, strict=True)
    losses = [loss_of_one(cosine(q, k), [cosine(q, n) for n in negative_keys], temperature) for q, k in rows]
    return torch.tensor(losses, dtype=torch.float64)


def clip_by_loops(image, text, logit_scale):
    losses = []
    for i in range(len(image)):
        pictures = [cosine(image[j], text[i]) for j in range(len(image)) if j != i]
        captions = [cosine(image[i], text[j]) for j in range(len(image)) if j != i]
        own = cosine(image[i], text[i])
        losses.append(
            (loss_of_one(own, captions, 1 / logit_scale) + loss_of_one(own, pictures, 1 / logit_scale)) / 2
        )
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("n, d", [(2, 2), (3, 64), (9, 5)])
def test_losses_equal_loops_over_pairs(n, d, temperature):
    a, b, keys = features(n, d, seed=1), features(n, d, seed=2), features(n + 3, d, seed=3)
    tight = {"rtol": 1e-12, "atol": 1e-12}
    expected = nt_xent_by_loops(a, b, temperature)
    torch.testing.assert_close(nt_xent(a, b, temperature, reduction="none"), expected, **tight)
    torch.testing.assert_close(nt_xent(a, b, temperature), expected.mean(), **tight)
    expected = info_nce_by_loops(a, b, keys, temperature)
    torch.testing.assert_close(info_nce(a, b, keys, temperature, reduction="none"), expected, **tight)
    torch.testing.assert_close(info_nce(a, b, keys, temperature), expected.mean(), **tight)
    expected = clip_by_loops(a, b, 1 / temperature)
    torch.testing.assert_close(clip_loss(a, b, 1 / temperature, reduction="none"), expected, **tight)
    torch.testing.assert_close(clip_loss(a, b, 1 / temperature), expected.mean(), **tight)


def test_info_nce_is_cross_entropy_with_k_plus_1_choices():
    q, k, keys = (F.normalize(features(6, 16, seed=s), dim=1) for s in range(3))
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ keys.T], dim=1) / 0.07
    expected = F.cross_entropy(logits, torch.zeros(6, dtype=torch.long), reduction="none")
    torch.testing.assert_close(info_nce(q, k, keys, 0.07, reduction="none"), expected, rtol=1e-12, atol=1e-12)


def test_nt_xent_is_the_mean_of_both_directions():
    a, b = features(5, 7, seed=1), features(5, 7, seed=2)
    rows = nt_xent(a, b, 0.3, reduction="none")
    torch.testing.assert_close(nt_xent(a, b, 0.3), (rows[:5].mean() + rows[5:].mean()) / 2)
    torch.testing.assert_close(nt_xent(b, a, 0.3, reduction="none"), rows.roll(5))


# --- closed-form anchors --------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 5, 64])
def test_identical_embeddings_leave_only_the_number_of_candidates(n):
    same = torch.ones(n, 8)
    assert nt_xent(same, same, 0.07).item() == pytest.approx(math.log(2 * n - 1), rel=1e-6)
    assert clip_loss(same, same, 100).item() == pytest.approx(math.log(n), rel=1e-6)
    assert info_nce(same, same, torch.ones(4096, 8), 0.07).item() == pytest.approx(math.log(4097), rel=1e-6)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_orthogonal_pairs_have_a_closed_form(temperature):
    basis = torch.eye(6, dtype=torch.float64)
    expected = math.log1p(10 * math.exp(-1 / temperature))
    assert nt_xent(basis, basis, temperature).item() == pytest.approx(expected, rel=1e-12)
    assert info_nce(basis[:1], basis[:1], basis[1:], temperature).item() == pytest.approx(
        math.log1p(5 * math.exp(-1 / temperature)), rel=1e-12
    )


# --- numbers.md N1: the temperature table ---------------------------------------------------------

LEADING, BEHIND = [0.8, 0.4, 0.2], [0.3, 0.4, 0.2]
N1 = [  # similarities, temperature, p, loss, dL/ds
    (LEADING, 1.0, [0.4506, 0.3021, 0.2473], 0.7971, [-0.5494, 0.3021, 0.2473]),
    (LEADING, 0.5, [0.5713, 0.2567, 0.1721], 0.5599, [-0.8575, 0.5134, 0.3441]),
    (LEADING, 0.2, [0.8438, 0.1142, 0.0420], 0.1698, [-0.7810, 0.5710, 0.2101]),
    (LEADING, 0.1, [0.9796, 0.0179, 0.0024], 0.0206, [-0.2037, 0.1794, 0.0243]),
    (LEADING, 0.07, [0.9965, 0.0033, 0.0002], 0.0035, [-0.0497, 0.0470, 0.0027]),
    (BEHIND, 1.0, [0.3322, 0.3672, 0.3006], 1.1019, [-0.6678, 0.3672, 0.3006]),
    (BEHIND, 0.5, [0.3289, 0.4018, 0.2693], 1.1119, [-1.3421, 0.8035, 0.5386]),
    (BEHIND, 0.1, [0.2447, 0.6652, 0.0900], 1.4076, [-7.5527, 6.6524, 0.9003]),
    (BEHIND, 0.07, [0.1848, 0.7710, 0.0443], 1.6887, [-11.6463, 11.0137, 0.6325]),
]


@pytest.mark.parametrize("similarities, temperature, p, loss, gradient", N1)
def test_candidate_table_is_n1(similarities, temperature, p, loss, gradient):
    table = candidate_table(similarities, 0, temperature)
    np.testing.assert_allclose(table["similarity"], similarities)
    np.testing.assert_allclose(table["logit"], np.array(similarities) / temperature)
    np.testing.assert_allclose(table["probability"], p, atol=5e-5)
    np.testing.assert_allclose(table["gradient"], gradient, atol=5e-5)
    assert table.attrs["loss"] == pytest.approx(loss, abs=5e-5)
    assert table["gradient"].sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "temperature, expected", [(1, 0.2692), (0.5, 0.8236), (0.2, 1.7721), (0.1, 0.8634), (0.07, 0.2914)]
)
def test_gradient_of_the_temperature_itself(temperature, expected):
    """Unit vectors in the plane with cosines .8, .4, .2 to the query give N1's last column by autograd."""
    angles = torch.tensor(LEADING, dtype=torch.float64).acos()
    keys = torch.stack([angles.cos(), angles.sin()], dim=1)
    tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
    info_nce(torch.tensor([[1.0, 0.0]], dtype=torch.float64), keys[:1], keys[1:], tau).backward()
    assert tau.grad.item() == pytest.approx(expected, abs=5e-5)
    table = candidate_table(LEADING, 0, temperature)
    mean_similarity = (table["probability"] * table["similarity"]).sum()
    assert tau.grad.item() == pytest.approx((0.8 - mean_similarity) / temperature**2, rel=1e-9)


def test_n1_ratio_order_and_limit():
    for temperature, ratio in [(1, 1.221), (0.5, 1.492), (0.1, 7.389)]:
        p = candidate_table(LEADING, 0, temperature)["probability"]
        assert p[1] / p[2] == pytest.approx(ratio, abs=5e-4)
        assert p.is_monotonic_decreasing
    for similarities in (LEADING, BEHIND):
        assert candidate_table(similarities, 0, 1e6).attrs["loss"] == pytest.approx(1.0986, abs=5e-5)
        assert candidate_table(similarities, 0, 1e6).attrs["effective_candidates"] == pytest.approx(3)


@pytest.mark.parametrize(
    "candidate, temperature, force, tolerance",
    [(0, 0.324476, 0.954779, 5e-7), (1, 0.2784, 0.6308, 5e-5), (2, 0.4174, 0.3510, 5e-5)],
)
def test_n1_each_force_is_largest_at_a_temperature_of_its_own(candidate, temperature, force, tolerance):
    def minus_force(tau):
        return -abs(candidate_table(LEADING, 0, tau)["gradient"][candidate])

    peak = minimize_scalar(minus_force, bounds=(0.1, 1), method="bounded", options={"xatol": 1e-9})
    assert peak.x == pytest.approx(temperature, abs=tolerance)
    assert -peak.fun == pytest.approx(force, abs=tolerance)
    if candidate == 0:
        p = candidate_table(LEADING, 0, peak.x)["probability"]
        assert p[0] == pytest.approx(0.690197, abs=tolerance)


def test_n1_behind_the_pull_grows_about_as_one_over_the_temperature():
    temperatures = [1, 0.5, 0.2, 0.1, 0.07, 0.05, 0.02, 0.01]
    pull = np.array([-candidate_table(BEHIND, 0, tau)["gradient"][0] for tau in temperatures])
    assert (np.diff(pull) > 0).all()
    share = pull * temperatures  # 1 - p+, which tends to 1: the leader is 0.1 ahead
    assert (np.diff(share) > 0).all() and share[0] > 0.6
    assert share[-1] == pytest.approx(1, abs=math.exp(-0.1 / 0.01))


def test_self_left_in_the_list_keeps_the_loss_above_log_2():
    for temperature, loss in [(1, 1.2356), (0.5, 1.1763), (0.1, 2.1294)]:
        assert candidate_table([*LEADING, 1.0], 0, temperature).attrs["loss"] == pytest.approx(loss, abs=5e-5)
        assert candidate_table([1.0, 0.4, 0.2, 1.0], 0, temperature).attrs["loss"] > math.log(2)


@pytest.mark.parametrize(
    "temperature, top, effective", [(0.1, 0.632, 2.83), (0.5, 0.210, 8.61), (1, 0.151, 9.61)]
)
def test_effective_candidates_of_ten(temperature, top, effective):
    table = candidate_table([1 - 0.1 * k for k in range(10)], 0, temperature)
    assert table["probability"].max() == pytest.approx(top, abs=5e-4)
    assert table.attrs["effective_candidates"] == pytest.approx(effective, abs=5e-3)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.floats(0.01, 10), st.data())
def test_candidate_table_for_any_list(similarities, temperature, data):
    positive = data.draw(st.integers(0, len(similarities) - 1))
    table = candidate_table(similarities, positive, temperature)
    assert table["candidate"][positive] == "positive" and table["candidate"].is_unique
    assert table["probability"].sum() == pytest.approx(1)
    assert 1 - 1e-9 <= table.attrs["effective_candidates"] <= len(similarities) + 1e-9
    assert (table["gradient"].drop(index=positive) >= 0).all() and table["gradient"][positive] <= 0
    s = torch.tensor(similarities, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(s / temperature, torch.tensor(positive))
    loss.backward()
    assert table.attrs["loss"] == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(table["gradient"], s.grad, rtol=1e-9, atol=1e-12)


# --- numbers.md N2: gradients through the normalisation -------------------------------------------


def tangent(rows, along):
    """(I - r r^T) applied to each row of `along`, r a unit row."""
    return along - (along * rows).sum(1, keepdim=True) * rows


def test_n2_gradients_of_one_query():
    temperature = 0.3
    u, positive, negatives = features(1, 6, seed=1), features(1, 6, seed=2), features(4, 6, seed=3)
    leaves = [x.requires_grad_() for x in (u, positive, negatives)]
    info_nce(*leaves, temperature).backward()
    q, w = u.detach(), torch.cat([positive, negatives]).detach()
    unit_q, k = F.normalize(q, dim=1), F.normalize(w, dim=1)
    p = (unit_q @ k.T / temperature).softmax(1)
    delta = torch.tensor([[1.0, 0, 0, 0, 0]], dtype=torch.float64)
    grad_q = (p - delta) @ k / temperature
    torch.testing.assert_close(u.grad, tangent(unit_q, grad_q) / q.norm())
    grad_w = tangent(k, (p - delta).T @ unit_q) / (temperature * w.norm(dim=1, keepdim=True))
    torch.testing.assert_close(torch.cat([positive.grad, negatives.grad]), grad_w)
    assert (u.detach() * u.grad).sum().abs() < 1e-12


def test_n2_in_moco_only_the_query_gets_a_gradient():
    temperature, queries = 0.07, 3
    u, w = (features(queries, 6, seed=seed).requires_grad_() for seed in (1, 2))
    queue = features(9, 6, seed=3).requires_grad_()
    info_nce(u, w.detach(), queue.detach(), temperature).backward()
    assert w.grad is None and queue.grad is None
    q, positive, negatives = (F.normalize(x.detach(), dim=1) for x in (u, w, queue))
    logits = torch.cat([(q * positive).sum(1, keepdim=True), q @ negatives.T], dim=1) / temperature
    p = logits.softmax(1)
    grad_q = (p[:, :1] * positive + p[:, 1:] @ negatives - positive) / temperature
    expected = tangent(q, grad_q) / u.detach().norm(dim=1, keepdim=True) / queries
    torch.testing.assert_close(u.grad, expected)


def test_n2_nt_xent_gradient_in_closed_form():
    n, temperature = 5, 0.4
    z = F.normalize(features(2 * n, 7, seed=4), dim=1)
    a, b = z[:n].clone().requires_grad_(), z[n:].clone().requires_grad_()
    nt_xent(a, b, temperature).backward()
    itself = torch.eye(2 * n, dtype=torch.bool)
    p = (z @ z.T / temperature).masked_fill(itself, -torch.inf).softmax(1)
    grad_z = ((p + p.T) @ z - 2 * z.roll(n, 0)) / (2 * n * temperature)
    torch.testing.assert_close(torch.cat([a.grad, b.grad]), tangent(z, grad_z))


def test_gradient_shrinks_with_the_length_of_the_feature():
    a, b = features(4, 6, seed=1).requires_grad_(), features(4, 6, seed=2)
    (short,) = torch.autograd.grad(nt_xent(a, b, 0.2), a)
    (long,) = torch.autograd.grad(nt_xent(10 * a, b, 0.2), a)
    torch.testing.assert_close(short, long)  # the loss does not see the length ...
    scaled = (10 * a).detach().requires_grad_()
    (at_scaled,) = torch.autograd.grad(nt_xent(scaled, b, 0.2), scaled)
    torch.testing.assert_close(at_scaled, short / 10)  # ... so the step on a longer vector turns it less


def test_gradcheck_of_every_loss():
    a, b, keys = (features(n, 4, seed=n).requires_grad_() for n in (3, 3, 5))
    b = features(3, 4, seed=9).requires_grad_()
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for reduction in ("mean", "none"):
        for loss, inputs in [(nt_xent, (a, b, tau)), (info_nce, (a, b, keys, tau)), (clip_loss, (a, b, tau))]:
            assert torch.autograd.gradcheck(loss, (*inputs, reduction))
    assert torch.autograd.gradcheck(contrast.alignment, (a, b))
    assert torch.autograd.gradcheck(contrast.uniformity, (keys,))
    assert torch.autograd.gradcheck(contrast.cross_correlation, (a, b))


# --- numbers.md N3: CLIP --------------------------------------------------------------------------

S = torch.tensor([[0.8, 0.4, 0.2], [0.1, 0.7, 0.3], [0.2, 0.0, 0.6]], dtype=torch.float64)


def pictures_and_captions():
    """Unit vectors whose similarity matrix is S: captions along the axes, pictures padded to length 1."""
    room = (1 - S.square().sum(1)).sqrt()
    image = torch.cat([S, torch.diag(room)], dim=1)
    text = torch.cat([torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)], dim=1)
    torch.testing.assert_close(image @ text.T, S)
    return image, text


def one_direction(query, key, temperature):
    """The mean InfoNCE loss in which the other rows' keys are the negatives."""
    others = [torch.arange(len(query)) != i for i in range(len(query))]
    rows = [
        info_nce(query[i : i + 1], key[i : i + 1], key[mask], temperature) for i, mask in enumerate(others)
    ]
    return torch.stack(rows).mean()


@pytest.mark.parametrize(
    "scale, image_to_text, text_to_image, both",
    [(10.0, 0.020581, 0.039575, 0.030078), (2.0, 0.559915, 0.571426, 0.565670)],
)
def test_n3_clip_fixture(scale, image_to_text, text_to_image, both):
    image, text = pictures_and_captions()
    assert one_direction(image, text, 1 / scale).item() == pytest.approx(image_to_text, abs=5e-7)
    assert one_direction(text, image, 1 / scale).item() == pytest.approx(text_to_image, abs=5e-7)
    assert clip_loss(image, text, scale).item() == pytest.approx(
        both, abs=1e-6
    )  # the mean of two rounded ones


def test_n3_each_direction_moves_the_scale_on_its_own():
    image, text = pictures_and_captions()
    for query, key, expected in [(image, text, -0.086340), (text, image, -0.125947)]:
        t = torch.tensor(math.log(10), dtype=torch.float64, requires_grad=True)
        one_direction(query, key, (-t).exp()).backward()
        assert t.grad.item() == pytest.approx(expected, abs=5e-7)


def test_n3_first_row_of_the_gradient_by_similarity():
    table = candidate_table(S[0], 0, 1 / 10)
    np.testing.assert_allclose(table["gradient"] / len(S), [-0.0679, 0.0598, 0.0081], atol=5e-5)


@pytest.mark.parametrize("t, scale", [(2.65926, 14.2857), (4.60517, 100)])  # where CLIP starts, and its cap
def test_n3_the_learned_scale_is_one_over_the_temperature(t, scale):
    assert math.log(scale) == pytest.approx(t, abs=5e-6) and math.exp(t) == pytest.approx(scale, rel=5e-6)
    image, text = pictures_and_captions()
    expected = (one_direction(image, text, 1 / scale) + one_direction(text, image, 1 / scale)) / 2
    found = clip_loss(image, text, torch.tensor(t, dtype=torch.float64).exp())
    # t carries 5 decimals: the logits move by 100 * 5e-6, and so does log L where L is tiny.
    torch.testing.assert_close(found, expected, rtol=5e-4, atol=0)


def test_n3_gradients_of_the_scale_and_of_the_features():
    image, text = (x.requires_grad_() for x in pictures_and_captions())
    t = torch.tensor(math.log(10), dtype=torch.float64, requires_grad=True)
    clip_loss(image, text, t.exp()).backward()
    assert t.grad.item() == pytest.approx((-0.086340 - 0.125947) / 2, abs=1e-6)
    p, q, n = (10 * S).softmax(1), (10 * S).softmax(0), len(S)
    grad_s = 10 / (2 * n) * (p + q - 2 * torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(image.grad, tangent(image.detach(), grad_s @ text.detach()))
    torch.testing.assert_close(text.grad, tangent(text.detach(), grad_s.T @ image.detach()))


# --- numerical stability --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("loss", ["nt_xent", "clip", "info_nce"])
def test_float32_keeps_its_digits(loss, temperature):
    """Well-trained features: at low temperature most losses are tiny, and tiny is not zero."""
    a = features(64, 32, seed=1)
    b = a + 0.1 * features(64, 32, seed=2)
    call = {
        "nt_xent": lambda a, b, **kw: nt_xent(a, b, temperature, **kw),
        "clip": lambda a, b, **kw: clip_loss(a, b, 1 / temperature, **kw),
        "info_nce": lambda a, b, **kw: info_nce(a, b, b.flip(0)[:32] - a[:32], temperature, **kw),
    }[loss]
    exact, single = call(a, b, reduction="none"), call(a.float(), b.float(), reduction="none").double()
    assert (exact > 0).all()
    # A cosine carries about 1e-7 of error in float32; over the temperature it is the relative error of exp.
    torch.testing.assert_close(single, exact, rtol=1e-6 / temperature, atol=0)


def test_all_candidates_far_away_and_partner_behind():
    a = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    loss = nt_xent(a, -a, 0.01, reduction="none")
    assert loss.isfinite().all() and loss.min() == pytest.approx(200, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast_compute_in_float32(dtype):
    a, b, keys = (features(n, 16, seed=s, dtype=dtype) for n, s in [(8, 1), (8, 2), (20, 3)])
    calls = [
        lambda a, b, k: nt_xent(a, b, 0.01),
        lambda a, b, k: clip_loss(a, b, 100.0),
        lambda a, b, k: info_nce(a, b, k, 0.01),
    ]
    for call in calls:
        expected = call(a.float(), b.float(), keys.float())
        assert call(a, b, keys).dtype == torch.float32
        torch.testing.assert_close(call(a, b, keys), expected, rtol=0, atol=0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(call(a.float(), b.float(), keys.float()), expected, rtol=0, atol=0)
            torch.testing.assert_close(call(a, b.float(), keys), expected, rtol=0, atol=0)


# --- shapes and orders ----------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 12),
    st.integers(1, 20),
    st.integers(1, 9),
    st.floats(0.01, 2),
    st.randoms(use_true_random=False),
)
def test_order_scale_and_layout_do_not_matter(n, d, k, temperature, random):
    seed = random.randrange(2**31)
    a, b, keys = features(n, d, seed=seed), features(n, d, seed=seed + 1), features(k, d, seed=seed + 2)
    order = torch.tensor(random.sample(range(n), n))
    lengths = torch.logspace(-2, 2, n, dtype=torch.float64)[:, None]
    strided = torch.stack([a, b], dim=2)
    for loss in (
        lambda a, b, **kw: nt_xent(a, b, temperature, **kw),
        lambda a, b, **kw: clip_loss(a, b, 1 / temperature, **kw),
        lambda a, b, **kw: info_nce(a, b, keys, temperature, **kw),
    ):
        expected = loss(a, b)
        assert expected.ndim == 0 and expected >= 0
        torch.testing.assert_close(loss(a[order], b[order]), expected)
        torch.testing.assert_close(loss(a * lengths, b / lengths), expected)
        torch.testing.assert_close(loss(strided[..., 0], strided[..., 1]), expected)
        torch.testing.assert_close(loss(a, b, reduction="none").mean(), expected)
    shuffled = keys[torch.tensor(random.sample(range(k), k))]
    torch.testing.assert_close(info_nce(a, b, shuffled, temperature), info_nce(a, b, keys, temperature))


def test_alignment_and_uniformity_by_loops():
    a, b = features(6, 5, seed=1), features(6, 5, seed=2)
    distance = [2 - 2 * cosine(u, v) for u, v in zip(a, b, strict=True)]
    assert contrast.alignment(a, b).item() == pytest.approx(sum(distance) / 6, rel=1e-12)
    kernel = [math.exp(-2 * (2 - 2 * cosine(a[i], a[j]))) for i in range(6) for j in range(i)]
    assert contrast.uniformity(a).item() == pytest.approx(math.log(sum(kernel) / len(kernel)), rel=1e-12)
    assert contrast.uniformity(torch.ones(4, 3)).item() == pytest.approx(0, abs=1e-6)


def test_tolerance_by_loops():
    x = features(8, 5, seed=1)
    labels = torch.tensor([2, 0, 2, 1, 0, 2, 9, 1])
    pairs = [(i, j) for i in range(8) for j in range(i) if labels[i] == labels[j]]
    expected = sum(cosine(x[i], x[j]) for i, j in pairs) / len(pairs)
    assert contrast.tolerance(x, labels).item() == pytest.approx(expected, rel=1e-12)
    assert contrast.tolerance(3 * x.float(), labels).item() == pytest.approx(expected, abs=1e-6)
    opposite = torch.tensor([[1.0, 0.0], [-2.0, 0.0]])
    assert contrast.tolerance(opposite, torch.tensor([5, 5])).item() == pytest.approx(-1)


@given(
    st.lists(st.floats(-1, 1).map(lambda x: round(x, 2)), min_size=2, max_size=9),
    st.integers(0, 8),
)
@settings(deadline=None, max_examples=60)
def test_no_temperature_pulls_more_than_the_strongest_pull(similarities, positive):
    positive %= len(similarities)
    best, pull = contrast.strongest_pull(similarities, positive)

    def at(temperature):
        return -candidate_table(similarities, positive, temperature)["gradient"][positive]

    if similarities[positive] <= max(s for j, s in enumerate(similarities) if j != positive):
        assert (best, pull) == (0, math.inf)
        assert at(1e-3) > 100  # about 1 / temperature, or half of it where the two are equal
    else:
        assert at(best) == pytest.approx(pull, rel=1e-9)
        assert all(at(tau) <= pull * (1 + 1e-12) for tau in np.geomspace(1e-3, 10, 200))


def test_the_strongest_of_two_peaks_is_found():
    near_and_far = [0.5, 0.499, *[-0.4] * 1000]  # the crowd makes a peak of its own, far from the close one
    best, pull = contrast.strongest_pull(near_and_far, 0)
    assert best < 0.002 and pull > 250


def test_spread_is_one_on_a_whole_sphere_and_zero_in_a_point():
    generator = torch.Generator().manual_seed(0)
    anywhere = torch.randn(20_000, 16, generator=generator, dtype=torch.float64)
    assert contrast.spread(anywhere).item() == pytest.approx(1, abs=0.01)
    assert contrast.spread(torch.ones(5, 4)) == 0


def test_effective_rank_counts_directions():
    axes = torch.eye(8, dtype=torch.float64)
    both_ways = torch.cat([axes, -axes])
    for count in (1, 3, 8):
        filled = both_ways[:, :count].count_nonzero(dim=1) > 0
        assert contrast.effective_rank(both_ways[filled]).item() == pytest.approx(count, rel=1e-12)
    assert contrast.effective_rank(torch.ones(5, 4)) == 0
    assert contrast.effective_rank(torch.ones(5, 4) + 1e-9 * torch.eye(5, 4)) == 0, "rounding is no direction"
    uneven = torch.tensor([[1.0, 0], [-1, 0], [0.6, 0.8], [-0.6, -0.8]], dtype=torch.float64)
    sizes = np.linalg.svd(uneven.numpy(), compute_uv=False)
    shares = sizes / sizes.sum()
    expected = math.exp(-(shares * np.log(shares)).sum())
    assert contrast.effective_rank(uneven).item() == pytest.approx(expected, rel=1e-12)


def test_cross_correlation_is_numpy_s():
    a, b = features(9, 4, seed=1), features(9, 4, seed=2)
    expected = np.corrcoef(a.T.numpy(), b.T.numpy())[:4, 4:]
    np.testing.assert_allclose(contrast.cross_correlation(5 * a + 3, b).numpy(), expected, rtol=1e-12)
    a[:, 2] = 7.0
    found = contrast.cross_correlation(a, b)
    assert (found[2] == 0).all() and found.isfinite().all(), "a coordinate that never varies"


# --- wrong input ----------------------------------------------------------------------------------

GOOD = features(4, 3, dtype=torch.float32)


def with_row(value):
    x = GOOD.clone()
    x[2] = value
    return x


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: nt_xent(GOOD, GOOD[:3], 0.5), ValueError, ["[4, 3]", "[3, 3]", "same shape"]),
        (lambda: nt_xent(GOOD[:1], GOOD[:1], 0.5), ValueError, ["[1, 3]", "N >= 2"]),
        (lambda: clip_loss(GOOD[:1], GOOD[:1], 10), ValueError, ["image", "[1, 3]", "N >= 2"]),
        (lambda: clip_loss(GOOD, GOOD[:, :2], 10), ValueError, ["[4, 3]", "[4, 2]"]),
        (lambda: info_nce(GOOD, GOOD, GOOD[:, :2], 0.5), ValueError, ["negative_keys", "[4, 2]", "[K, 3]"]),
        (lambda: info_nce(GOOD, GOOD, GOOD[:0], 0.5), ValueError, ["negative_keys", "[0, 3]", "K >= 1"]),
        (lambda: info_nce(GOOD[:0], GOOD[:0], GOOD, 0.5), ValueError, ["[0, 3]", "[B, D]", "B >= 1"]),
        (lambda: nt_xent(GOOD[0], GOOD[0], 0.5), ValueError, ["view_a", "[3]", "[rows, D]"]),
        (lambda: nt_xent(GOOD.long(), GOOD, 0.5), TypeError, ["view_a", "torch.int64", "floating"]),
        (lambda: nt_xent(GOOD.to(torch.float8_e4m3fn), GOOD, 0.5), TypeError, ["view_a", "float8_e4m3fn"]),
        (lambda: nt_xent(GOOD.numpy(), GOOD, 0.5), TypeError, ["view_a", "ndarray", "tensor"]),
        (lambda: nt_xent(GOOD, with_row(math.nan), 0.5), ValueError, ["view_b", "row 2", "NaN"]),
        (lambda: nt_xent(GOOD, with_row(math.inf), 0.5), ValueError, ["view_b", "row 2", "infinite"]),
        (lambda: nt_xent(with_row(0), GOOD, 0.5), ValueError, ["view_a", "row 2", "zero vector"]),
        (lambda: nt_xent(with_row(1e30), GOOD, 0.5), ValueError, ["row 2", "too long", "float32"]),
        (lambda: nt_xent(GOOD, GOOD.to("meta"), 0.5), ValueError, ["cpu", "meta", "one"]),
        (lambda: nt_xent(GOOD, GOOD, 0), ValueError, ["temperature is 0", "above 0"]),
        (lambda: nt_xent(GOOD, GOOD, -0.5), ValueError, ["temperature is -0.5"]),
        (lambda: nt_xent(GOOD, GOOD, math.nan), ValueError, ["temperature is nan"]),
        (lambda: nt_xent(GOOD, GOOD, True), ValueError, ["temperature is True"]),
        (lambda: nt_xent(GOOD, GOOD, torch.tensor(True)), ValueError, ["temperature is tensor(True)"]),
        (lambda: nt_xent(GOOD, GOOD, "0.5"), ValueError, ["temperature is '0.5'"]),
        (
            lambda: info_nce(GOOD, GOOD, GOOD, torch.ones(4)),
            ValueError,
            ["temperature is tensor", "one finite"],
        ),
        (lambda: clip_loss(GOOD, GOOD, math.inf), ValueError, ["logit_scale is inf"]),
        (lambda: nt_xent(GOOD, GOOD, 0.5, reduction="sum"), ValueError, ["'sum'", '"mean"', '"none"']),
        (lambda: contrast.uniformity(GOOD[:1]), ValueError, ["[1, 3]", "at least 2"]),
        (lambda: contrast.tolerance(GOOD, torch.zeros(3)), ValueError, ["labels", "[3]", "[4]"]),
        (lambda: contrast.tolerance(GOOD, torch.arange(4)), ValueError, ["4 values", "none of them twice"]),
        (lambda: contrast.strongest_pull([0.8], 0), ValueError, ["[0.8]", "at least 2"]),
        (lambda: contrast.strongest_pull(LEADING, 3), ValueError, ["positive is 3", "0 to 2"]),
        (lambda: contrast.spread(GOOD[:1]), ValueError, ["[1, 3]", "at least 2"]),
        (lambda: contrast.effective_rank(GOOD[:1]), ValueError, ["[1, 3]", "at least 2"]),
        (lambda: contrast.cross_correlation(GOOD, GOOD[:1]), ValueError, ["[1, 3]", "same shape"]),
        (lambda: candidate_table([0.8], 0, 0.5), ValueError, ["[0.8]", "at least 2"]),
        (lambda: candidate_table([0.8, math.nan], 0, 0.5), ValueError, ["nan", "finite"]),
        (lambda: candidate_table(None, 0, 0.5), ValueError, ["similarities is None", "flat list"]),
        (lambda: candidate_table(["a", "b"], 0, 0.5), ValueError, ["similarities is ['a', 'b']"]),
        (lambda: candidate_table([[0.8], [0.4, 0.2]], 0, 0.5), ValueError, ["[[0.8], [0.4, 0.2]]"]),
        (lambda: candidate_table(LEADING, 0.0, 0.5), ValueError, ["positive is 0.0", "index"]),
        (lambda: candidate_table(LEADING, True, 0.5), ValueError, ["positive is True"]),
        (lambda: candidate_table(LEADING, 0, True), ValueError, ["temperature is True"]),
        (lambda: candidate_table([0.8, 0.4], 0, 1e-320), ValueError, ["temperature is 1e-320", "[0.8, 0.4]"]),
        (lambda: candidate_table([0.0, 0.0], 0, 1e-320), ValueError, ["temperature is 1e-320", "gradients"]),
        (lambda: candidate_table(LEADING, 3, 0.5), ValueError, ["positive is 3", "0 to 2"]),
        (lambda: candidate_table(LEADING, -1, 0.5), ValueError, ["positive is -1"]),
        (lambda: candidate_table(LEADING, 0, 0), ValueError, ["temperature is 0"]),
    ],
)
def test_errors_repeat_what_came(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_inputs_are_left_as_they_were():
    a, b = features(4, 3, seed=1), features(4, 3, seed=2)
    before = a.clone(), b.clone()
    nt_xent(a, b, 0.5), clip_loss(a, b, 2.0), info_nce(a, b, b, 0.5), contrast.uniformity(a)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])
