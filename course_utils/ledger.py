"""The claim ledger: what two texts on contrastive learning say, what is right, and checks that run.

`data/claims.csv` has a row a claim: id, theme, claim (in our words), verdict (one of `VERDICTS`), right (the
statement that holds), source, status (of the source) and expects (the numbers that its check has to find,
separated by blanks; empty where nothing can be run). A check is a function of this module. It computes these
numbers anew and asserts what the statement says beside them. One number off in its last digit turns a row
red.

>>> run(load().query("id == 'B27'"))[["id", "expects", "found", "state"]].values.tolist()
[['B27', '1.221', '1.221', 'green']]
"""

import math
from collections import deque

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from course_utils import contrast, records
from course_utils.environment import ROOT
from course_utils.images import shapes
from course_utils.memory import KeyQueue, ema_update
from course_utils.networks import ProjectionHead, SmallEncoder, fingerprint
from course_utils.readout import Split, interval, linear
from course_utils.runtime import generator
from course_utils.training import SimCLR, SimSiam, seeded
from course_utils.views import POLICIES, draw_parameters, two_views
from course_utils.zero_shot import Towers, class_vectors

FILE = ROOT / "data" / "claims.csv"
VERDICTS = ("right", "right, conditionally", "loose", "wrong")
STATUSES = ("source read", "source read in part", "computed here", "not verified")
CHECKS = {}


def load() -> pd.DataFrame:
    """The ledger, a row a claim, all columns as text; an empty `expects` means that nothing can be run."""
    return pd.read_csv(FILE, dtype=str, keep_default_na=False)


def run(rows) -> pd.DataFrame:
    """The rows with three columns more: computed (what the check computes), found and state.

    rows: of `load()`. state is "green", "red" or "no check". A check that fails in any way is a red row whose
    `found` says how; nothing is raised.
    """
    return rows.assign(
        **pd.DataFrame(
            [judged(row.id, row.expects) for row in rows.itertuples()],
            index=rows.index,
            columns=["computed", "found", "state"],
        )
    )


def judged(claim, expects):
    """What the check of a claim computes, what it found, and whether that is what the row expects."""
    if claim not in CHECKS:
        return "", "", "no check"
    check = CHECKS[claim]
    what = " ".join(check.__doc__.split())
    try:
        numbers = check()
    except Exception as error:  # a red row says what broke, and the other rows go on
        return what, f"{type(error).__name__}: {error}", "red"
    wanted = expects.split()
    found = " ".join(rounded(number, text) for number, text in zip(numbers, wanted, strict=False))
    agree = len(numbers) == len(wanted) and all(map(agrees, numbers, wanted))
    return what, found, "green" if agree else "red"


def decimals(text):
    return len(text.partition(".")[2])


def rounded(number, text):
    """A number with as many decimals as the text has, no minus before zero."""
    return f"{round(number, decimals(text)) + 0.0:.{decimals(text)}f}"


def agrees(number, text):
    """Whether a number, rounded to the text's decimals, is the text's; a tie may go either way."""
    return abs(number - float(text)) <= 0.5 * 10 ** -decimals(text) * (1 + 1e-6)


def checks(*claims):
    """Register a check under the ids of the rows that it belongs to."""

    def register(function):
        for claim in claims:
            if claim in CHECKS:
                raise ValueError(f"claim {claim} has a check already: {CHECKS[claim].__name__}.")
            CHECKS[claim] = function
        return function

    return register


# --- Pairs and views ----------------------------------------------------------------------------------------


@checks("A4", "B3")
def same_class_negatives():
    """Negatives of a view's own class among 510, ten equal classes; 200 drawn batches agree."""
    count, classes = 256, 10
    labels = torch.randint(classes, (200, count), generator=generator(0))
    same = nn.functional.one_hot(labels).sum(dim=1).gather(1, labels) - 1  # other pictures of its class
    counted = 2 * same.double().mean(dim=1)
    expected = (2 * count - 2) / classes
    assert abs(counted.mean() - expected) < 4 * counted.std() / len(counted) ** 0.5
    return [expected]


@checks("A5")
def negatives_of_a_view():
    """Negatives of a view in a batch of 8192, by the formula that masks of small batches confirm."""
    for count in (2, 8, 64):
        itself = torch.eye(2 * count, dtype=torch.bool)
        negatives = ~itself & ~itself.roll(count, dims=1)
        assert (negatives.sum(dim=1) == 2 * count - 2).all() and (~itself)[0].sum() == 2 * count - 1
    return [2 * 8192 - 2]


@checks("B2")
def kinds_of_change():
    """Kinds of change in SimCLR's policy for ImageNet: crop, flip, colour, grey, blur."""
    operations = POLICIES["strong"].operations
    assert "rotation" not in operations and set(POLICIES["simclr_cifar"].operations) < set(operations)
    return [len(operations)]


def by_seed(features, factor, record="heads_quick", **where):
    """Linear accuracy of each seed in a record of notebook 04, after colour jitter if not said otherwise."""
    where = {"condition": "colour jitter", "input": "colour", "readout": "linear"} | where
    where |= {"features": features, "factor": factor}
    table = records.load(record).table
    rows = table[(table[list(where)] == pd.Series(where)).all(axis=1)]
    assert len(rows) > 2, f"{record} has {len(rows)} rows of {where}"
    return rows.set_index("seed")["accuracy"]


@checks("B7")
def colour_jitter_teaches_shape():
    """Seeds of ours, of five, in which colour jitter makes shape easier to read from h."""
    return [(by_seed("h", "shape") > by_seed("h", "shape", condition="no colour jitter")).sum()]


@checks("B8")
def leaving_out_blur_and_flip():
    """Points that our readout of CIFAR-10 gains without blur, then without flip, whose interval holds 0."""
    table = records.load("augmentations_cifar_quick").table.query("measure == 'linear' and seed == seed")
    by_arm = table.pivot(index="seed", columns="arm", values="value")
    blur, flip = (interval(by_arm[f"without {name}"] - by_arm["whole policy"]) for name in ("blur", "flip"))
    assert blur.low > 0 and flip.low < 0 < flip.high
    return [100 * blur.mean, 100 * flip.mean]


@checks("B9")
def histograms_find_partners():
    """Draws, of three, in which colour histograms alone find a view's partner at ten times chance."""
    count, found = 128, 0
    for seed in range(3):
        pair = two_views(shapes.make(count, seed).images, POLICIES["no_colour"], generator(seed))
        a, b = map(histograms, pair[:2])
        nearest = torch.cdist(a, b, p=1).argmin(dim=1)
        found += (nearest == torch.arange(count)).double().mean().item() > 10 / count
    return [found]


def histograms(views):
    """How often each of 4 x 4 x 4 colours comes in a view: [B, 64]."""
    colour = (views.clamp(0, 0.999) * 4).long().flatten(2)
    return nn.functional.one_hot(16 * colour[:, 0] + 4 * colour[:, 1] + colour[:, 2], 64).double().mean(dim=1)


@checks("B10")
def colour_jitter_takes_no_p():
    """Share of grey views that the CIFAR-10 policy draws; ColorJitter(p=...) is refused."""
    from torchvision.transforms import ColorJitter  # here, because it is slow to import

    try:
        ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8)
    except TypeError:
        drawn = draw_parameters(20_000, 32, 32, POLICIES["simclr_cifar"], generator(0))
        return [drawn.grey.double().mean().item()]
    raise AssertionError("ColorJitter takes a p")


# --- Loss ---------------------------------------------------------------------------------------------------

LEADING, TRAILING = [0.8, 0.4, 0.2], [0.3, 0.4, 0.2]


def random_views(count=8, width=12, seed=0):
    return torch.randn(2, count, width, generator=generator(seed), dtype=torch.float64)


@checks("A3")
def info_nce_is_cross_entropy():
    """Loss of 0.8 against 0.4 and 0.2 at 0.5; info_nce equals cross_entropy to 1e-12."""
    query, key = random_views()
    negatives = random_views(seed=1)[0]
    unit = [normalize(x, dim=1) for x in (query, key, negatives)]
    logits = torch.cat([(unit[0] * unit[1]).sum(dim=1, keepdim=True), unit[0] @ unit[2].T], dim=1) / 0.2
    labels = torch.zeros(len(query), dtype=torch.long)
    assert abs(contrast.info_nce(query, key, negatives, 0.2) - cross_entropy(logits, labels)) < 1e-12
    return [contrast.candidate_table(LEADING, 0, 0.5).attrs["loss"]]


@checks("A6")
def self_left_among_the_candidates():
    """Loss of 0.8 against 0.4, 0.2 and the view itself, at 1, 0.5 and 0.1."""
    rows = normalize(random_views()[0], dim=1)
    assert ((rows @ rows.T).diagonal() - 1).abs().max() < 1e-12
    return [contrast.candidate_table([*LEADING, 1.0], 0, tau).attrs["loss"] for tau in (1.0, 0.5, 0.1)]


@checks("A7")
def both_directions():
    """Difference between NT-Xent and the mean of its two directions, each by cross_entropy."""
    view_a, view_b = random_views()
    views = normalize(torch.cat([view_a, view_b]), dim=1)
    logits = (views @ views.T / 0.2).fill_diagonal_(-torch.inf)
    partner = torch.arange(len(views)).roll(len(view_a))
    directions = [
        cross_entropy(part, labels) for part, labels in zip(logits.chunk(2), partner.chunk(2), strict=True)
    ]
    return [(contrast.nt_xent(view_a, view_b, 0.2) - sum(directions) / 2).item()]


@checks("A11")
def pull_and_pushes():
    """Gradients of 0.8 against 0.4 and 0.2 at 0.5, by autograd; the formula gives the same."""
    s = torch.tensor(LEADING, dtype=torch.float64, requires_grad=True)
    (-(s / 0.5).log_softmax(dim=0)[0]).backward()
    formula = torch.tensor(contrast.candidate_table(LEADING, 0, 0.5)["gradient"])
    assert torch.allclose(s.grad, formula, atol=1e-12) and abs(s.grad.sum()) < 1e-12
    return s.grad.tolist()


@checks("B4")
def without_exp():
    """-0.1 by the sum of -0.1, 0.4 and 0.2; 0.8 by the sum of 0.8, 0.4 and 0.2; its softmax at 0.5."""
    return [
        -0.1 / (-0.1 + 0.4 + 0.2),
        0.8 / sum(LEADING),
        contrast.candidate_table(LEADING, 0, 0.5)["probability"][0],
    ]


@checks("B11")
def weights_that_a_step_reaches():
    """Tensors of an encoder's weights that the loss of z gives a gradient, of its nine."""
    method = seeded(lambda: SimCLR(SmallEncoder(), ProjectionHead("mlp", SmallEncoder.width)), 0)
    method.loss(*torch.rand(2, 8, 3, 16, 16, generator=generator(0))).backward()
    return [sum(bool(p.grad.any()) for p in method.encoder.parameters())]


@checks("B17")
def positive_left_out():
    """exp(0.8/tau) by the sum over 0.4 and 0.2 alone, at 1, 0.5 and 0.1."""
    return [math.exp(0.8 / tau) / (math.exp(0.4 / tau) + math.exp(0.2 / tau)) for tau in (1.0, 0.5, 0.1)]


# --- Temperature --------------------------------------------------------------------------------------------

TEMPERATURES = (1.0, 0.5, 0.1)


@checks("A8")
def the_temperature_table():
    """Of 0.8 against 0.4 and 0.2 at 1, 0.5 and 0.1: three probabilities, loss, pull."""
    tables = [contrast.candidate_table(LEADING, 0, tau) for tau in TEMPERATURES]
    return [number for t in tables for number in (*t["probability"], t.attrs["loss"], t["gradient"][0])]


@checks("A9")
def a_trailing_positive():
    """Losses of 0.3 against 0.4 and 0.2 at 1, 0.5 and 0.1, rising while those of 0.8 fall."""
    losses = {
        s[0]: [contrast.candidate_table(s, 0, tau).attrs["loss"] for tau in TEMPERATURES]
        for s in (LEADING, TRAILING)
    }
    assert losses[0.8] == sorted(losses[0.8], reverse=True) and losses[0.3] == sorted(losses[0.3])
    for s in (LEADING, TRAILING):
        similarities = torch.tensor(s, dtype=torch.float64)
        tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        log_p = (similarities / tau).log_softmax(dim=0)
        (-log_p[0]).backward()
        gap = similarities[0] - (log_p.exp().detach() * similarities).sum()
        assert torch.allclose(tau.grad, gap / 0.25)
    return losses[0.3]


@checks("A10")
def one_readout_at_four_temperatures():
    """Different readouts of one set of features whose loss differs at four temperatures."""
    view_a, view_b = random_views(60)
    labels = (view_a[:, 0] > 0).long()
    split = Split(view_a[:40].float(), labels[:40], view_a[40:].float(), labels[40:])
    losses = {round(contrast.nt_xent(view_a, view_b, tau).item(), 6) for tau in (0.05, 0.1, 0.5, 1)}
    assert len(losses) == 4
    return [len({linear(split, penalties=(0.1,)) for _ in losses})]


@checks("A12")
def strongest_pull():
    """Temperature at which 0.8 is pulled hardest against 0.4 and 0.2, and the pull there."""
    return contrast.strongest_pull(LEADING, 0)


@checks("A13")
def pushes_on_the_hardest():
    """Push on 0.4 beside 0.8 and 0.2 at 1, 0.5 and 0.1, while its share of all pushes rises."""
    pushes = [contrast.candidate_table(LEADING, 0, tau)["gradient"] for tau in TEMPERATURES]
    shares = [push[1] / (push[1] + push[2]) for push in pushes]
    assert shares == sorted(shares)
    return [push[1] for push in pushes]


@checks("A14")
def orders_changed():
    """Lists, of a thousand, that a softmax at 10, 1 or 0.1 puts into another order."""
    lists = torch.rand(1000, 6, generator=generator(0), dtype=torch.float64) * 2 - 1
    order = lists.argsort(dim=1)
    return [
        sum(
            int(((lists / tau).softmax(dim=1).argsort(dim=1) != order).any(dim=1).sum())
            for tau in (10, 1, 0.1)
        )
    ]


@checks("B27")
def a_gap_at_temperature_one():
    """exp(0.2), by how much likelier one negative is than another 0.2 less similar."""
    return [math.exp(0.2)]


@checks("B28")
def ten_candidates():
    """Largest probability of ten at 0.1, 0.5 and 1, then the effective number of candidates."""
    tables = [contrast.candidate_table([k / 10 for k in range(10, 0, -1)], 0, tau) for tau in (0.1, 0.5, 1)]
    assert all(abs(table["probability"].sum() - 1) < 1e-12 for table in tables)
    return [
        *(table["probability"][0] for table in tables),
        *(table.attrs["effective_candidates"] for table in tables),
    ]


@checks("B29")
def best_of_our_sweep():
    """Temperature of four with the best mean linear readout of h, CIFAR-10, two epochs."""
    table = records.load("temperature_cifar_quick").table
    h = table[(table["features"] == "h") & (table["measure"] == "linear")]
    return [h.groupby("temperature")["value"].mean().idxmax()]


# --- Head ---------------------------------------------------------------------------------------------------


@checks("A1", "B12")
def seeds_in_which_z_holds_less_hue():
    """Seeds of ours, of five, in which z holds less hue than h after colour jitter."""
    return [(by_seed("z", "hue") < by_seed("h", "hue")).sum()]


@checks("B13")
def what_no_head_costs():
    """Points of hue, then of shape, that h lacks without a head beside an MLP head; mean of our seeds."""
    return [
        100 * (by_seed("h", factor) - by_seed("h", factor, record="head_kinds_quick", head="none")).mean()
        for factor in ("hue", "shape")
    ]


@checks("A15")
def what_reaches_the_spared_half():
    """Largest gradient on c where the loss sees u alone; with c in sight, less of c, less loss."""
    shared = torch.randn(16, 4, generator=generator(0), dtype=torch.float64)
    colours = torch.randn(2, 16, 4, generator=generator(1), dtype=torch.float64, requires_grad=True)
    h = [torch.cat([shared, colour], dim=1) for colour in colours]
    contrast.nt_xent(h[0][:, :4], h[1][:, :4] + 0 * h[1][:, 4:], 0.5).backward()
    losses = [
        contrast.nt_xent(*(torch.cat([shared, scale * c.detach()], dim=1) for c in colours), 0.5)
        for scale in (1, 0.5, 0.25, 0)
    ]
    assert losses == sorted(losses, reverse=True)
    return [colours.grad.abs().max().item()]


@checks("A16")
def both_roles():
    """Largest difference between autograd and the formula that adds a view's two roles."""
    view_a, view_b = (normalize(view, dim=1).requires_grad_() for view in random_views())
    contrast.nt_xent(view_a, view_b, 0.2).backward()
    z = torch.cat([view_a, view_b]).detach()
    p = (z @ z.T / 0.2).fill_diagonal_(-torch.inf).softmax(dim=1)
    free = ((p + p.T) @ z - 2 * z.roll(len(view_a), dims=0)) / (len(z) * 0.2)
    tangent = free - (free * z).sum(dim=1, keepdim=True) * z
    assert tangent.norm() > 0.1
    return [(torch.cat([view_a.grad, view_b.grad]) - tangent).abs().max().item()]


@checks("A17")
def between_z_and_the_start():
    """Seeds, of five, in which h holds more hue than z; in which less than before training."""
    h, z = by_seed("h", "hue"), by_seed("z", "hue")
    return [(h > z).sum(), (h < by_seed("random encoder", "hue", condition="none")).sum()]


@checks("A18")
def colour_after_grey():
    """Seeds, of five, in which h of an encoder trained on grey reads hue better in colour."""
    colour, grey = (
        by_seed("h", "hue", condition="all views grey", input=shown) for shown in ("colour", "grey")
    )
    return [(colour > grey).sum()]


# --- Memory -------------------------------------------------------------------------------------------------


@checks("A2")
def oldest_keys():
    """Seeds, of three, in which the oldest keys' cosine is above 0.99 at m = 0.99, and less at 0.9."""
    table = records.load("moco_staleness_quick").table
    oldest = table[(table["measure"] == "cosine") & (table["at"] == 16)]
    cosine = oldest.pivot(index="seed", columns="momentum", values="value")
    return [((cosine[0.99] > 0.99) & (cosine[0.9] < cosine[0.99])).sum()]


@checks("A20")
def first_in_first_out():
    """Keys in a queue of six after k7 and k8, oldest first; a deque holds the same."""
    queue, fifo = KeyQueue(6, 2), deque(maxlen=6)
    for first in (1, 3, 5, 7):
        numbers = torch.tensor([first, first + 1])
        queue.enqueue(normalize(torch.ones(2, 2), dim=1), pictures=numbers)
        fifo.extend(numbers.tolist())
    held = queue.pictures[queue.order()].tolist()
    assert held == list(fifo)
    return held


@checks("B31", "B46")
def largest_ages():
    """Largest age of a key that a step uses: in SimCLR's batch, and in a queue of four batches."""
    queue = KeyQueue(1024, 2)
    for _ in range(6):
        queue.enqueue(normalize(torch.ones(256, 2), dim=1))
    return [0, int(queue.ages.max())]  # SimCLR encodes all its keys in the step that uses them


@checks("B32")
def half_lives():
    """Steps until half of a gap is closed at m = 0.9, 0.99 and 0.999; ema_update agrees."""
    lives = [math.log(0.5) / math.log(m) for m in (0.9, 0.99, 0.999)]
    gap = gap_closed(0.9, steps=math.ceil(lives[0]))
    assert gap >= 0.5 > gap_closed(0.9, steps=math.floor(lives[0]))
    return lives


def gap_closed(momentum, steps):
    """The share of a jump that a follower has made up for after some steps."""
    leader, follower = (nn.Linear(1, 1, bias=False, dtype=torch.float64) for _ in range(2))
    nn.init.ones_(leader.weight)
    nn.init.zeros_(follower.weight)
    for _ in range(steps):
        ema_update(follower, leader, momentum)
    return follower.weight.item()


@checks("B33")
def gap_in_one_queue_span():
    """Share of a gap closed in 256 steps at m = 0.999; batch norm's statistics stay behind."""
    leader, follower = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    leader(torch.randn(8, 2, generator=generator(0)))
    ema_update(follower, leader, 0.0)
    assert not torch.equal(follower.running_mean, leader.running_mean)
    return [gap_closed(0.999, steps=256)]


@checks("B34")
def the_paper_s_queue():
    """Places of the queue, and the mean length of the vectors that it starts with."""
    queue = KeyQueue(65_536, 128)
    return [queue.size, queue.keys.norm(dim=1).mean().item()]


@checks("B35")
def own_views_in_the_queue():
    """Chance to meet an own older view: 50,000 pictures, 65,536 and 4096 places; a count agrees."""
    assert abs(counted_own_views(650, 500) - own_views(650, 500)) < 0.03
    return [own_views(65_536, 50_000), own_views(4096, 50_000)]


def own_views(places, count):
    """The share of queries that meet an older view of their picture, each epoch in a fresh order."""
    if places <= count:
        return (places / count) ** 2 / 2
    rest = places / count - 1
    return rest + (1 - rest**2) / 2


def counted_own_views(places, count, batch=10, epochs=20):
    """The same, counted in a queue of identities."""
    queue, draws, met = KeyQueue(places, 1), generator(0), []
    for epoch in range(epochs):
        for chosen in torch.randperm(count, generator=draws).split(batch):
            if epoch >= 2:  # the queue is full
                met.append(torch.isin(chosen, queue.pictures).double().mean().item())
            queue.enqueue(torch.ones(batch, 1), pictures=chosen)
    return sum(met) / len(met)


@checks("B36")
def size_of_the_queue():
    """MiB of 65,536 keys of 128 numbers, four bytes each."""
    return [KeyQueue(65_536, 128).keys.nbytes / 2**20]


# --- Information --------------------------------------------------------------------------------------------


def gaussian_scores(information, candidates, runs=1000, dimensions=20):
    """The best critic's scores of correlated Gaussians, [runs, candidates], the partner in column 0."""
    draws = generator(0)
    rho = math.sqrt(1 - math.exp(-2 * information / dimensions))
    x, noise = torch.randn(2, runs, dimensions, generator=draws, dtype=torch.float64)
    others = torch.randn(runs, candidates - 1, dimensions, generator=draws, dtype=torch.float64)
    y = torch.cat([(rho * x + math.sqrt(1 - rho**2) * noise)[:, None], others], dim=1)
    dots = (y @ x[:, :, None]).squeeze(2)
    squares = x.square().sum(dim=1, keepdim=True) + y.square().sum(dim=2)
    return information + (2 * rho * dots - rho**2 * squares) / (2 * (1 - rho**2))


def bound(scores):
    """log N - L of scores [runs, N], the partner in column 0."""
    return math.log(scores.shape[1]) + scores.log_softmax(dim=1)[:, 0].mean().item()


@checks("B16")
def one_candidate_less():
    """log(K + 1) - log K at K = 1 and 65,536; with one negative log K - L is below zero."""
    assert bound(gaussian_scores(2.0, 2)) - math.log(2) <= 0
    return [math.log1p(1 / K) for K in (1, 65_536)]


@checks("B18")
def cosine_ceilings():
    """Most nats that a batch of 4096 can reach with a cosine critic at 1, 0.5, 0.2, 0.1, 0.07."""
    N = 4096
    return [
        math.log(N) - math.log1p((N - 1) * math.exp(-(1 + 1 / (N - 1)) / tau))
        for tau in (1, 0.5, 0.2, 0.1, 0.07)
    ]


@checks("B19")
def loss_below_zero():
    """log 512 - 10, the loss that the formula would give, and the best critic's own."""
    return [math.log(512) - 10, math.log(512) - bound(gaussian_scores(10.0, 512))]


@checks("B20")
def losses_in_another_order():
    """Pairs of critics, of 45, whose loss and bound do not put them in opposite orders."""
    scores = [gaussian_scores(2.0, 8, runs=100) * sharpness for sharpness in torch.linspace(0.1, 4, 10)]
    bounds = torch.tensor([bound(s) for s in scores])
    losses = torch.stack([cross_entropy(s, torch.zeros(len(s), dtype=torch.long)) for s in scores])
    first, second = torch.triu_indices(10, 10, offset=1)
    opposite = (losses[first] - losses[second]).sign() == -(bounds[first] - bounds[second]).sign()
    return [int((~opposite).sum())]


@checks("B21")
def loss_without_information():
    """Loss of 0.8 against 0.4 and 0.2 at 1 and at 0.1: the temperature alone has changed."""
    return [contrast.candidate_table(LEADING, 0, tau).attrs["loss"] for tau in (1.0, 0.1)]


@checks("B22")
def read_better_than_pixels():
    """Seeds, of three, in which h is read better than the pixels it was computed from (CIFAR-10)."""
    table = records.load("simclr_cifar_quick").table.query("readout == 'linear'")
    pixels = table.query("features == 'raw pixels'")["accuracy"].item()
    return [(table.query("features == 'h'")["accuracy"] > pixels).sum()]


@checks("B23")
def too_sharp():
    """The bound of a critic four times too sharp with two candidates; with 512 it is below zero."""
    assert bound(4 * gaussian_scores(2.0, 512)) < 0
    return [bound(4 * gaussian_scores(2.0, 2, runs=4000))]


# --- CLIP ---------------------------------------------------------------------------------------------------


@checks("B40")
def both_ways():
    """Loss of three pairs from picture to text, from text to picture, and their mean, scale 10."""
    S = torch.tensor([[0.8, 0.4, 0.2], [0.1, 0.7, 0.3], [0.2, 0.0, 0.6]], dtype=torch.float64)
    labels = torch.arange(3)
    ways = [cross_entropy(10 * S, labels).item(), cross_entropy(10 * S.T, labels).item()]
    image, text = random_views()
    cosines = normalize(image, dim=1) @ normalize(text, dim=1).T
    mean = sum(cross_entropy(10 * s, torch.arange(len(s))) for s in (cosines, cosines.T)) / 2
    assert abs(contrast.clip_loss(image, text, 10.0) - mean) < 1e-12
    return [*ways, sum(ways) / 2]


@checks("B41")
def prompts_averaged():
    """Length of the mean of two prompts' unit vectors at right angles, before and after."""
    vectors = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0, 1.0])}
    towers = Towers(None, lambda texts: torch.stack([vectors[text] for text in texts]), scale=1.0)
    mean = towers.texts(["a", "b"]).mean(dim=0)
    return [mean.norm().item(), class_vectors(towers, {"class": ["a", "b"]}).norm().item()]


# --- Evidence -----------------------------------------------------------------------------------------------


@checks("A19")
def runs_without_a_fingerprint():
    """Training runs in our records that do not name the weights they ended with."""
    network = SmallEncoder()
    before = fingerprint(network)
    with torch.no_grad():
        network[0].weight[0, 0, 0, 0] += 1
    assert fingerprint(network) != before
    runs = [run for name in records.names() for run in records.load(name).protocol["runs"]]
    assert runs
    return [sum(len(run["weights"]) != len(before) for run in runs)]


@checks("B25")
def eight_times_the_negatives():
    """Points that MoCo's 1024 negatives gain on SimCLR's 126 in 400 steps each; the interval holds 0."""
    table = records.load("simclr_moco_shapes_quick").table.query("measure == 'linear'")
    by_arm = table.pivot(index="seed", columns="arm", values="value")
    gain = interval(by_arm["MoCo, small batch"] - by_arm["SimCLR, small batch"])
    assert gain.low < 0 < gain.high
    return [100 * gain.mean]


@checks("B47")
def collapse_without_stop_gradient():
    """Spread of z (1 fills the sphere) after 200 steps of SimSiam without its stop-gradient."""
    spreads = {stop: trained_spread(stop) for stop in (True, False)}
    assert spreads[True] > 5 * spreads[False]
    return [spreads[False]]


def trained_spread(stop_gradient, steps=200):
    """How widely z lies after a small SimSiam on noisy copies of random vectors."""

    def make():
        encoder = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU())
        return SimSiam(encoder, ProjectionHead("mlp", 32, 16, 32), stop_gradient=stop_gradient)

    method, draws = seeded(make, 0), generator(0)
    things = torch.randn(64, 16, generator=draws)
    optimiser = torch.optim.SGD(method.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        loss = method.loss(*(things + 0.3 * torch.randn(2, 64, 16, generator=draws)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        return contrast.spread(method.project(things)).item()
