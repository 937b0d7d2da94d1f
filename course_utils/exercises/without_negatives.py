"""Notebook 09: SimSiam's loss, the end of the linear toy, and Barlow Twins' loss."""

import torch
from torch.nn.functional import cosine_similarity, normalize

from course_utils.contrast import cross_correlation
from course_utils.exercises.exercise import Case, Exercise, Misconception


def _draw(*shape, seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


# --- SimSiam's loss -----------------------------------------------------------------------------------------


def _simsiam_loss(p_a, p_b, z_a, z_b):
    one, other = cosine_similarity(p_a, z_b.detach()), cosine_similarity(p_b, z_a.detach())
    return -(one.mean() + other.mean()) / 2


def _both_ways(likeness):
    """The same with another likeness of two batches."""
    return lambda p_a, p_b, z_a, z_b: -(likeness(p_a, z_b) + likeness(p_b, z_a)) / 2


def _simsiam_case(batch, width, seed, dtype=torch.float64):
    """The four batches have lengths and means of their own, as a network's have."""
    p_a, p_b, z_a, z_b = _draw(4, batch, width, seed=seed)
    tensors = {"p_a": 2 * p_a + 1, "p_b": 2 * p_b + 1, "z_a": z_a - 1, "z_b": 0.5 * z_b}
    return Case({name: tensor.to(dtype) for name, tensor in tensors.items()})


SIMSIAM_LOSS = Exercise(
    name="simsiam_loss",
    reference=_simsiam_loss,
    gradient=("p_a", "p_b"),
    constant=("z_a", "z_b"),
    cases=(
        Case(
            {
                "p_a": torch.tensor([[3.0, 4.0]], dtype=torch.float64),
                "p_b": torch.tensor([[-3.0, 4.0]], dtype=torch.float64),
                "z_a": torch.tensor([[0.0, 2.0]], dtype=torch.float64),
                "z_b": torch.tensor([[2.0, 0.0]], dtype=torch.float64),
            }
        ),
        _simsiam_case(2, 3, seed=1),
        _simsiam_case(5, 4, seed=2),
        _simsiam_case(3, 8, seed=3, dtype=torch.float32),
    ),
    misconceptions=(
        Misconception(
            "each view predicts itself",
            "p_a is compared with z_a, of which it was made: the identity would solve that. p_a predicts the "
            "other view's z_b.",
            lambda p_a, p_b, z_a, z_b: _simsiam_loss(p_a, p_b, z_b, z_a),
        ),
        Misconception(
            "the predictor is left out",
            "z_a is compared with z_b. Then nobody predicts, and a stop-gradient does nothing but halve the "
            "gradient.",
            lambda p_a, p_b, z_a, z_b: -cosine_similarity(z_a, z_b).mean(),
        ),
        Misconception(
            "the sign is turned round",
            "A loss is made small, a similarity is to be large: the loss is minus the similarity.",
            lambda p_a, p_b, z_a, z_b: -_simsiam_loss(p_a, p_b, z_a, z_b),
        ),
        Misconception(
            "one direction alone",
            "Only p_a is compared. The loss is the mean of both directions: p_a with z_b, and p_b with z_a.",
            lambda p_a, p_b, z_a, z_b: -cosine_similarity(p_a, z_b).mean(),
            also=(
                lambda p_a, p_b, z_a, z_b: -cosine_similarity(p_b, z_a).mean(),
                lambda p_a, p_b, z_a, z_b: -cosine_similarity(p_a, z_b).mean() / 2,
            ),
        ),
        Misconception(
            "the two directions are added",
            "The sum of both directions runs from -2 to 2. Their mean is asked for.",
            lambda p_a, p_b, z_a, z_b: 2 * _simsiam_loss(p_a, p_b, z_a, z_b),
        ),
        Misconception(
            "the batch is added up",
            "The loss grows with the batch. Take the mean over the pictures.",
            lambda p_a, p_b, z_a, z_b: len(p_a) * _simsiam_loss(p_a, p_b, z_a, z_b),
        ),
        Misconception(
            "lengths are left in",
            "A dot product can be made large by long vectors. The cosine divides by both lengths.",
            _both_ways(lambda p, z: (p * z).sum(dim=1).mean()),
        ),
        Misconception(
            "the cosine runs over the batch",
            "Coordinates are compared, each over all pictures. Compare rows: dim=1, one cosine a picture.",
            _both_ways(lambda p, z: cosine_similarity(p, z, dim=0).mean()),
        ),
        Misconception(
            "BYOL's form of it",
            "2 - 2 cos is the squared distance of unit vectors. SimSiam's loss is minus the cosine, between "
            "-1 and 1.",
            lambda p_a, p_b, z_a, z_b: 2 + 2 * _simsiam_loss(p_a, p_b, z_a, z_b),
        ),
    ),
    guarantees=(
        "Each view predicts the other, in both directions, and the gradient reaches the predictions alone: "
        "whatever made z_a and z_b is not asked to come closer."
    ),
    hints=(
        "Which z does p_a predict, and which side of the comparison may the loss move?",
        "Two cosines a picture: p_a with z_b and p_b with z_a. The z are constants: detach them. Minus the "
        "mean of everything.",
        "one = F.cosine_similarity(p_a, z_b.detach()); other the same with p_b and z_a; return "
        "-(one.mean() + other.mean()) / 2.",
    ),
)


# --- Where the linear toy ends ------------------------------------------------------------------------------


def _best_predictor(noise):
    return 1 / (1 + noise)


def _final_weight(w0, p0, noise):
    return torch.tensor(max(0.0, w0**2 - p0**2 + _best_predictor(noise) ** 2), dtype=torch.float64).sqrt()


def _root(square):
    """A function that returns the root of square(w0, p0, noise), 0 where that is below 0."""
    return lambda *at: torch.tensor(max(0.0, square(*at)), dtype=torch.float64).sqrt()


def _plain(value):
    return lambda *at: torch.tensor(float(value(*at)), dtype=torch.float64)


def _without_collapse(w0, p0, noise):
    return torch.tensor(w0**2 - p0**2 + _best_predictor(noise) ** 2, dtype=torch.float64)


FINAL_WEIGHT = Exercise(
    name="final_weight",
    reference=_final_weight,
    cases=tuple(
        Case({"w0": w0, "p0": p0, "noise": noise})
        for w0, p0, noise in (
            (1.0, 0.0, 1.0),
            (0.5, 0.5, 0.25),
            (0.6, 0.8, 1.0),
            (0.3, 1.0, 1.0),
            (0.2, 0.9, 0.5),
            (2.0, 1.5, 0.1),
            (0.1, 0.3, 3.0),
        )
    ),
    misconceptions=(
        Misconception(
            "the noise is left out of p*",
            "With p* = 1 the predictor would pass on all of w x. The best predictor shrinks: p* = 1 / (1 + "
            "noise).",
            _root(lambda w0, p0, noise: w0**2 - p0**2 + 1),
        ),
        Misconception(
            "the noise's standard deviation in place of its variance",
            "noise is the variance s^2 already: p* = 1 / (1 + noise).",
            _root(lambda w0, p0, noise: w0**2 - p0**2 + 1 / (1 + noise**0.5) ** 2),
            also=(_root(lambda w0, p0, noise: w0**2 - p0**2 + 1 / (1 + noise**2) ** 2),),
        ),
        Misconception(
            "the square of p* is forgotten",
            "The conserved number is w^2 - p^2, so p* enters with its square.",
            _root(lambda w0, p0, noise: w0**2 - p0**2 + _best_predictor(noise)),
        ),
        Misconception(
            "w^2 + p^2 is conserved",
            "Both derivatives have the same sign here (for p > 0): w and p grow together or shrink together. "
            "What stays is the difference of their squares.",
            _root(lambda w0, p0, noise: w0**2 + p0**2 - _best_predictor(noise) ** 2),
        ),
        Misconception(
            "w - p is conserved",
            "w' = p g and p' = w g with the same g: so w w' = p p', and it is the difference of the squares "
            "that stays.",
            _plain(lambda w0, p0, noise: max(0.0, w0 - p0 + _best_predictor(noise))),
            also=(_plain(lambda w0, p0, noise: w0 - p0 + _best_predictor(noise)),),
        ),
        Misconception(
            "the start values are swapped",
            "w^2 - p^2 is w0^2 - p0^2 at the start, so w^2 ends at w0^2 - p0^2 + p*^2.",
            _root(lambda w0, p0, noise: p0**2 - w0**2 + _best_predictor(noise) ** 2),
        ),
        Misconception(
            "collapse gives NaN",
            "Where w0^2 - p0^2 + p*^2 is below 0, w is 0 before p is p*, and stays there: return 0.",
            lambda *at: _without_collapse(*at).sqrt(),
        ),
        Misconception(
            "collapse is turned into a positive weight",
            "A square below 0 has no root, with or without its sign: there w reaches 0 before p reaches p*.",
            lambda *at: _without_collapse(*at).abs().sqrt(),
        ),
        Misconception(
            "the root is not taken",
            "That is w^2. The weight itself is asked for.",
            lambda *at: _without_collapse(*at).clamp_min(0),
            also=(_without_collapse,),
        ),
        Misconception(
            "it always collapses",
            "That is the toy without a predictor, or without the stop-gradient. With both, the predictor "
            "answers the noise by shrinking, and w need not.",
            _plain(lambda w0, p0, noise: 0),
        ),
    ),
    guarantees=(
        "From any start with w0 > 0 and p0 >= 0 and for any noise, you know where training ends before it "
        "begins, and also whether it collapses."
    ),
    hints=(
        "Which number made of w and p does not change, and what is p when nothing moves any more?",
        "w^2 - p^2 stays w0^2 - p0^2, p ends at p* = 1 / (1 + noise), unless w is 0 by then. Solve for w.",
        "square = w0**2 - p0**2 + 1 / (1 + noise) ** 2; return its root, or 0 where it is below 0.",
    ),
)


# --- Barlow Twins' loss -------------------------------------------------------------------------------------


def _from_matrix(correlation, weight):
    itself = correlation.diagonal()
    others = correlation.square().sum() - itself.square().sum()
    return (1 - itself).square().sum() + weight * others


def _barlow_twins_loss(z_a, z_b, weight):
    return _from_matrix(cross_correlation(z_a, z_b), weight)


def _of(matrix):
    """The loss of another matrix, matrix(z_a, z_b)."""
    return lambda z_a, z_b, weight: _from_matrix(matrix(z_a, z_b), weight)


def _with(loss):
    """Another loss of the right matrix, loss(correlation, weight)."""
    return lambda z_a, z_b, weight: loss(cross_correlation(z_a, z_b), weight)


def _standard(z, correction=0):
    return (z - z.mean(dim=0)) / z.std(dim=0, correction=correction)


def _centred(z):
    return z - z.mean(dim=0)


def _off(correlation):
    return correlation - torch.diag(correlation.diagonal())


def _barlow_case(batch, width, weight, seed, dtype=torch.float64):
    """Second views that resemble the first, with coordinates of different means and spreads."""
    z_a, noise = _draw(2, batch, width, seed=seed)
    scale = torch.arange(1, width + 1)
    z_b = 0.7 * z_a + 0.7 * noise
    return Case(
        {"z_a": (scale * z_a + 1).to(dtype), "z_b": (2 * scale * z_b - scale).to(dtype), "weight": weight}
    )


BARLOW_TWINS_LOSS = Exercise(
    name="barlow_twins_loss",
    reference=_barlow_twins_loss,
    gradient=("z_a", "z_b"),
    cases=(
        Case(
            {
                "z_a": torch.tensor([[0.0, 1.0], [2.0, 1.5], [4.0, 0.5]], dtype=torch.float64),
                "z_b": torch.tensor([[1.0, 2.0], [3.0, 2.0], [2.0, 5.0]], dtype=torch.float64),
                "weight": 0.5,
            }
        ),
        _barlow_case(4, 2, 0.1, seed=1),
        _barlow_case(6, 3, 1.0, seed=2),
        _barlow_case(5, 8, 0.005, seed=3),
        _barlow_case(16, 4, 0.02, seed=4, dtype=torch.float32),
    ),
    misconceptions=(
        Misconception(
            "pictures are compared, not coordinates",
            "The matrix is [N, N], one entry for two pictures: that is SimCLR's. Here one belongs to two "
            "coordinates: [D, D].",
            _of(lambda z_a, z_b: normalize(z_a) @ normalize(z_b).T),
            also=(
                _of(lambda z_a, z_b: normalize(_centred(z_a)) @ normalize(_centred(z_b)).T),
                _of(lambda z_a, z_b: cross_correlation(z_a.T, z_b.T)),
            ),
        ),
        Misconception(
            "coordinates are not centred",
            "Subtract each coordinate's mean over the batch first: all pictures share a mean, so it tells "
            "none of them apart.",
            _of(lambda z_a, z_b: normalize(z_a, dim=0).T @ normalize(z_b, dim=0)),
        ),
        Misconception(
            "coordinates are not scaled",
            "That is the covariance. Divide by both coordinates' standard deviations: a correlation lies "
            "between -1 and 1.",
            _of(lambda z_a, z_b: _centred(z_a).T @ _centred(z_b) / len(z_a)),
            also=(
                _of(lambda z_a, z_b: _centred(z_a).T @ _centred(z_b) / (len(z_a) - 1)),
                _of(lambda z_a, z_b: _centred(z_a).T @ _centred(z_b)),
            ),
        ),
        Misconception(
            "rows are made unit length",
            "That is a picture's length. Here each coordinate is centred and scaled over the batch, dim=0.",
            _of(lambda z_a, z_b: normalize(z_a).T @ normalize(z_b)),
            also=(_of(lambda z_a, z_b: normalize(z_a).T @ normalize(z_b) / len(z_a)),),
        ),
        Misconception(
            "divided by N and by N - 1",
            "torch's std divides by N - 1 and the mean of the products by N, so the diagonal cannot reach 1. "
            "Take std(dim=0, correction=0).",
            _of(lambda z_a, z_b: _standard(z_a, 1).T @ _standard(z_b, 1) / len(z_a)),
        ),
        Misconception(
            "the division by N is forgotten",
            "A correlation is the mean of the products of standardised coordinates, not their sum.",
            _of(lambda z_a, z_b: _standard(z_a).T @ _standard(z_b)),
        ),
        Misconception(
            "one view with itself",
            "The matrix of one view with itself has a diagonal of ones whatever the network does. Correlate "
            "z_a with z_b.",
            _of(lambda z_a, z_b: cross_correlation(z_a, z_a)),
            also=(_of(lambda z_a, z_b: cross_correlation(z_b, z_b)),),
        ),
        Misconception(
            "the diagonal is counted among the others",
            "weight multiplies the squares off the diagonal alone. Where the diagonal takes part, it is "
            "pulled to 0 as well as to 1.",
            _with(lambda c, weight: (1 - c.diagonal()).square().sum() + weight * c.square().sum()),
        ),
        Misconception(
            "the weight is on the diagonal",
            "The diagonal has the weight 1; there are D entries on it and D (D - 1) off it.",
            _with(
                lambda c, weight: weight * (1 - c.diagonal()).square().sum() + _off(c).square().sum(),
            ),
            also=(_with(lambda c, weight: weight * _from_matrix(c, 1)),),
        ),
        Misconception(
            "off the diagonal nothing is squared",
            "Correlations of opposite signs would cancel each other. Square each entry.",
            _with(lambda c, weight: (1 - c.diagonal()).square().sum() + weight * _off(c).sum()),
            also=(_with(lambda c, weight: (1 - c.diagonal()).square().sum() + weight * _off(c).abs().sum()),),
        ),
        Misconception(
            "on the diagonal nothing is squared",
            "The paper squares the distance of each diagonal entry from 1.",
            _with(lambda c, weight: (1 - c.diagonal()).sum() + weight * _off(c).square().sum()),
        ),
        Misconception(
            "the diagonal is pulled to 0",
            "Two views of a picture are to agree: the diagonal's goal is 1.",
            _with(lambda c, weight: c.diagonal().square().sum() + weight * _off(c).square().sum()),
        ),
        Misconception(
            "means in place of sums",
            "The loss adds up all entries, so its weight depends on D. Means are another loss with another "
            "weight.",
            _with(lambda c, weight: (1 - c.diagonal()).square().mean() + weight * _off(c).square().mean()),
            also=(_with(lambda c, weight: _from_matrix(c, weight) / len(c)),),
        ),
    ),
    guarantees=(
        "For any number of coordinates and any weight your loss is that of the paper, and its gradient "
        "reaches both views: nothing has to be stopped here."
    ),
    hints=(
        "Each coordinate of z is a list of N numbers, one a picture. Which two lists shall agree, which not?",
        "Centre and scale each coordinate over the batch (dim=0). c = a.T @ b / N is [D, D]. Add up "
        "(1 - c)^2 on the diagonal, and weight times c^2 off it.",
        "a = (z_a - z_a.mean(0)) / z_a.std(0, correction=0), b the same of z_b; c = a.T @ b / len(a); on = "
        "c.diagonal(); return ((1 - on)**2).sum() + weight * ((c**2).sum() - (on**2).sum()).",
    ),
)

EXERCISES = (SIMSIAM_LOSS, FINAL_WEIGHT, BARLOW_TWINS_LOSS)
