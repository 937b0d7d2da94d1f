"""s, p, L: the contrastive losses as their definitions read, in plain torch.

Every loss here is one sentence: each query is asked which of its candidates is its partner, and pays
``-log p(partner)`` with ``p = softmax(cosine similarity / temperature)`` over ALL candidates, the partner
included.

    L = -log p+ = log(1 + sum_j exp((s_j - s+) / temperature)),    j over the negatives

The right-hand form is the one computed. Only the gaps ``s_j - s+`` enter, row by row, so nothing overflows at
a temperature of 0.01 and a loss near zero keeps its digits. Rows are l2-normalised inside. float16 and
bfloat16 features are computed in float32, also under autocast. The fast versions in ``course_utils.kernels``
are tested against this file; it is tested against explicit loops over pairs.
"""

import math
import numbers

import pandas as pd
import torch


def info_nce(query, positive_key, negative_keys, temperature, reduction="mean"):
    """Cross-entropy of each query's positive key against K negative keys that all queries share.

    query, positive_key: [B, D]; negative_keys: [K, D]; any floating dtype, one device. temperature: > 0, a
    number or a 0-d tensor. Returns a scalar, or [B] with reduction="none". Each query has K + 1 candidates.
    Raises TypeError for features that are not floating tensors, ValueError for every other bad input.
    Oord et al. 2018 (CPC), equation 4; He et al. 2020 (MoCo), equation 1.

    >>> same = torch.ones(4, 8)
    >>> info_nce(same, same, torch.ones(7, 8), temperature=0.1).exp().round(decimals=4)  # 8 that look alike
    tensor(8.)
    """
    rows_and_lengths = info_nce_inputs(query, positive_key, negative_keys, temperature)
    query, positive_key, negative_keys = (rows / length for rows, length in rows_and_lengths)
    positive = (query * positive_key).sum(dim=1)
    negatives = _similarities(query, negative_keys)
    return reduce(_minus_log_p(positive, negatives, temperature), reduction)


def nt_xent(view_a, view_b, temperature, reduction="mean"):
    """NT-Xent: each of 2N views looks for its partner among the other 2N - 1 views of the batch.

    view_a, view_b: [N, D], row k of both from the same picture, N >= 2; any floating dtype, one device.
    temperature: > 0, a number or a 0-d tensor. Returns a scalar, the mean over both directions of every pair,
    or [2N] with reduction="none": the rows of view_a, then those of view_b. A view is never its own
    candidate; its 2N - 2 negatives are all views but itself and its partner.
    Raises TypeError for features that are not floating tensors, ValueError for every other bad input.
    Chen et al. 2020 (SimCLR), section 2.1 and algorithm 1.

    >>> same = torch.ones(4, 8)
    >>> nt_xent(same, same, temperature=0.5).exp().round(decimals=4)  # 2N - 1 candidates that look alike
    tensor(7.)
    """
    views = torch.cat([view / length for view, length in nt_xent_inputs(view_a, view_b, temperature)])
    itself = torch.eye(len(views), dtype=torch.bool, device=views.device)
    partner = itself.roll(len(view_a), dims=1)
    positive = (views * views.roll(len(view_a), dims=0)).sum(dim=1)
    similarities = _similarities(views, views)
    return reduce(_minus_log_p(positive, similarities, temperature, no_negative=itself | partner), reduction)


def clip_loss(image, text, logit_scale, reduction="mean"):
    """CLIP's symmetric loss: each picture looks for its caption among N, each caption for its picture.

    image, text: [N, D], row k of both from the same pair, N >= 2; any floating dtype, one device.
    logit_scale: 1 / temperature, > 0, a number or a 0-d tensor (the learned one: ``t.exp()``, not ``t``).
    Returns a scalar, or [N] with reduction="none": for each pair the mean of its two directions.
    Raises TypeError for features that are not floating tensors, ValueError for every other bad input.
    Radford et al. 2021 (CLIP), figure 3.

    >>> same = torch.ones(4, 8)
    >>> clip_loss(same, same, logit_scale=14.2857).exp().round(decimals=4)
    tensor(4.)
    """
    image, text = (rows / length for rows, length in clip_inputs(image, text, logit_scale))
    partner = torch.eye(len(image), dtype=torch.bool, device=image.device)
    positive = (image * text).sum(dim=1)
    similarities = _similarities(image, text)
    image_to_text = _minus_log_p(positive, similarities, 1 / logit_scale, no_negative=partner)
    text_to_image = _minus_log_p(positive, similarities.T, 1 / logit_scale, no_negative=partner)
    return reduce((image_to_text + text_to_image) / 2, reduction)


def candidate_table(similarities, positive, temperature):
    """One comparison written out: what each candidate's similarity becomes, and how the loss pulls on it.

    similarities: sequence or 1-d tensor of at least 2 finite numbers, one a candidate. positive: index of the
    partner. temperature: > 0. Returns a DataFrame in float64, a row a candidate in the order given: candidate
    (its name), similarity, logit (similarity / temperature), probability, gradient (dL/ds: below 0 pulls
    closer, above 0 pushes away). ``table.attrs`` holds what the comparison has once: "loss" in nats,
    "effective_candidates" (exp of the entropy of p, between 1 and the number of candidates), "positive" and
    "temperature".
    Raises ValueError for fewer than 2 or non-finite similarities, an index out of range, a temperature <= 0
    or so small that a logit or a gradient overflows.
    Gradient: Chen et al. 2020 (SimCLR), table 2.

    >>> candidate_table([0.8, 0.4, 0.2], positive=0, temperature=0.5).round(4)
        candidate  similarity  logit  probability  gradient
    0    positive         0.8    1.6       0.5713   -0.8575
    1  negative 1         0.4    0.8       0.2567    0.5134
    2  negative 2         0.2    0.4       0.1721    0.3441
    """
    s = _finite_numbers(similarities)
    if isinstance(positive, bool) or not isinstance(positive, numbers.Integral) or not 0 <= positive < len(s):
        raise ValueError(f"positive is {positive!r}; expected the index of a candidate, 0 to {len(s) - 1}.")
    _require_positive("temperature", temperature)
    temperature = float(temperature)
    logits = s / temperature
    log_p = logits.log_softmax(dim=0)
    p = log_p.exp()
    is_positive = torch.arange(len(s)) == positive
    gradient = (p - is_positive.double()) / temperature
    if not (logits.isfinite() & gradient.isfinite()).all():
        raise ValueError(
            f"temperature is {temperature!r}, too small for the similarities {s.tolist()}: the logits would "
            f"be {logits.tolist()} and the gradients {gradient.tolist()}; expected finite ones."
        )
    names = [f"negative {k}" for k in range(1, len(s))]
    names.insert(positive, "positive")
    table = pd.DataFrame(
        {
            "candidate": names,
            "similarity": s.numpy(),
            "logit": logits.numpy(),
            "probability": p.numpy(),
            "gradient": gradient.numpy(),
        }
    )
    table.attrs = {
        "loss": -log_p[positive].item(),
        "effective_candidates": torch.special.entr(p).sum().exp().item(),
        "positive": int(positive),
        "temperature": temperature,
    }
    return table


def strongest_pull(similarities, positive):
    """The temperature at which the loss pulls the positive closest, and how strong |dL/ds+| is there.

    similarities, positive: as for candidate_table. Returns two floats, found by search: of all temperatures
    (1 - p+) / temperature is largest at one between the smallest gap s+ - s_j divided by 1 + log(1 + K), for
    K negatives, and the largest gap. Where a gap is 0 or below, the pull grows without end as the temperature
    falls: (0.0, inf).

    >>> temperature, pull = strongest_pull([0.8, 0.4, 0.2], positive=0)
    >>> round(temperature, 4), round(pull, 4)
    (0.3245, 0.9548)
    """
    candidate_table(similarities, positive, temperature=1.0)  # refuses what is no comparison
    s = _finite_numbers(similarities)
    gaps = s[positive] - torch.cat([s[:positive], s[positive + 1 :]])
    if gaps.min() <= 0:
        return 0.0, math.inf
    low, high = gaps.min() / (1 + math.log(1 + len(gaps))), gaps.max()
    for _ in range(6):  # each time a closer look at both sides of the best of 1001 temperatures
        temperatures = torch.logspace(low.log10(), high.log10(), 1001, dtype=torch.float64)
        weights = (-gaps / temperatures[:, None]).exp().sum(dim=1)
        pulls = weights / (1 + weights) / temperatures
        best = int(pulls.argmax())
        low, high = temperatures[max(best - 1, 0)], temperatures[min(best + 1, len(temperatures) - 1)]
    return temperatures[best].item(), pulls[best].item()


def _finite_numbers(similarities):
    """The similarities of one comparison in float64 on the CPU."""
    try:
        s = torch.as_tensor(similarities, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError, RuntimeError):  # one or the other for None, texts, ragged lists
        s = None
    if s is None or s.ndim != 1 or len(s) < 2 or not s.isfinite().all():
        raise ValueError(
            f"similarities is {similarities!r}; expected a flat list of at least 2 finite numbers: "
            "the positive and one negative."
        )
    return s


def alignment(view_a, view_b):
    """Mean squared distance between a picture's two unit-length views: 0 if all pairs coincide, at most 4.

    view_a, view_b: [N, D], N >= 1. Returns a scalar. Wang & Isola 2020, section 4.1.2, with their alpha = 2.
    Raises TypeError for features that are not floating tensors, ValueError for two shapes that differ or a
    row without a direction.

    >>> alignment(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
    tensor(2.)
    """
    view_a, view_b = _unit_rows(view_a=view_a, view_b=view_b)
    _require_pairs("view_a", view_a, "view_b", view_b, at_least=1)
    return (view_a - view_b).square().sum(dim=1).mean()


def uniformity(features):
    """Log of the mean of exp(-2 squared distance) over all pairs: 0 if all points coincide, else lower.

    features: [N, D], N >= 2, one view a picture. Returns a scalar. Wang & Isola 2020, section 4.1.2, t = 2.
    Raises TypeError for features that are not a floating tensor, ValueError for fewer than 2 rows or a row
    without a direction.

    >>> uniformity(torch.tensor([[1.0, 0.0], [3.0, 0.0]])).abs()
    tensor(0.)
    """
    features = _several_unit_rows(features)
    first, second = torch.triu_indices(len(features), len(features), offset=1, device=features.device)
    squared_distance = (2 - 2 * _similarities(features, features)[first, second]).clamp_min(0)
    return (-2 * squared_distance).logsumexp(dim=0) - math.log(len(first))


def tolerance(features, labels):
    """Mean cosine of all pairs with one label: 1 if every class is one point, 0 for random directions.

    features: [N, D]; labels: int64 [N], at least one of them twice. Returns a scalar in [-1, 1]. Wang & Liu
    2021, who set it against uniformity. Raises TypeError for features that are not a floating tensor,
    ValueError for a row without a direction, labels of another length, or no pair with one label.

    >>> tolerance(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([7, 7, 4]))
    tensor(1.)
    """
    (features,) = _unit_rows(features=features)
    if labels.shape != features.shape[:1]:
        raise ValueError(
            f"labels has shape {list(labels.shape)}; expected [{len(features)}], one a row of features."
        )
    classes, place = labels.unique(return_inverse=True)
    count = torch.bincount(place)
    pairs = (count * (count - 1)).sum()
    if pairs == 0:
        raise ValueError(f"labels holds {len(classes)} values, none of them twice; expected a pair of one.")
    # The squared length of a class's sum is the sum of all its cosines, each row's 1 with itself included.
    sums = features.new_zeros(len(classes), features.shape[1]).index_add_(0, place, features)
    return (sums.square().sum() - len(features)) / pairs


def spread(features):
    """How widely unit-length features lie: 1 if they fill the sphere, 0 if all coincide.

    features: [N, D], N >= 2. Returns a scalar, sqrt(D) times the mean standard deviation of a coordinate
    (Chen & He 2021, SimSiam, figure 2). Raises TypeError for features that are not a floating tensor,
    ValueError for fewer than 2 rows or a row without a direction.

    >>> spread(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    tensor(0.)
    """
    features = _several_unit_rows(features)
    return features.std(dim=0, correction=0).mean() * math.sqrt(features.shape[1])


def effective_rank(features):
    """How many directions features fill: exp of the entropy of their singular values' shares, from 1 to D.

    features: [N, D], N >= 2, centred inside. Returns a scalar; 0 if all rows coincide. Roy & Vetterli 2007,
    section 2, here without the mean, so that one far-away point does not pass for a direction.
    Raises TypeError for features that are not a floating tensor, ValueError for fewer than 2 rows or a row
    without a direction.

    >>> effective_rank(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    tensor(2.)
    """
    features = _several_unit_rows(features)
    sizes = torch.linalg.svdvals(features - features.mean(dim=0))
    if sizes.max() <= torch.finfo(sizes.dtype).eps * len(features):
        return torch.zeros_like(sizes.sum())
    return torch.special.entr(sizes / sizes.sum()).sum().exp()


def cross_correlation(view_a, view_b):
    """Correlation over the batch of each coordinate of view_a with each of view_b, between -1 and 1.

    view_a, view_b: [N, D], row k of both from the same picture, N >= 2. Returns [D, D]. Zbontar et al. 2021
    (Barlow Twins), equation 2, coordinates centred and scaled first. A coordinate that does not vary
    correlates with nothing. Raises ValueError for two shapes that differ or fewer than 2 rows.

    >>> cross_correlation(torch.tensor([[0.0], [1.0]]), torch.tensor([[5.0], [3.0]])).round(decimals=4)
    tensor([[-1.]])
    """
    _require_pairs("view_a", view_a, "view_b", view_b, at_least=2)
    a, b = (view.float() if view.element_size() < 4 else view for view in (view_a, view_b))
    a, b = (view - view.mean(dim=0) for view in (a, b))
    a, b = (view / view.norm(dim=0).clamp_min(torch.finfo(view.dtype).tiny) for view in (a, b))
    with torch.autocast(a.device.type, enabled=False):
        return a.T @ b


def info_nce_inputs(query, positive_key, negative_keys, temperature):
    """What info_nce computes with, and the fast kernels: checked rows and their lengths [rows, 1]."""
    checked = _checked_rows(query=query, positive_key=positive_key, negative_keys=negative_keys)
    _require_pairs("query", query, "positive_key", positive_key, at_least=1, rows="B")
    if len(negative_keys) < 1 or negative_keys.shape[1] != query.shape[1]:
        raise ValueError(
            f"negative_keys has shape {list(negative_keys.shape)}; expected [K, {query.shape[1]}], K >= 1, "
            f"as wide as query {list(query.shape)}."
        )
    _require_positive("temperature", temperature)
    return checked


def nt_xent_inputs(view_a, view_b, temperature):
    """What nt_xent computes with: checked rows and their lengths [N, 1]."""
    checked = _checked_rows(view_a=view_a, view_b=view_b)
    _require_pairs("view_a", view_a, "view_b", view_b, at_least=2)
    _require_positive("temperature", temperature)
    return checked


def clip_inputs(image, text, logit_scale):
    """What clip_loss computes with: checked rows and their lengths [N, 1]."""
    checked = _checked_rows(image=image, text=text)
    _require_pairs("image", image, "text", text, at_least=2)
    _require_positive("logit_scale", logit_scale)
    return checked


def _minus_log_p(positive, similarities, temperature, no_negative=None):
    """[R] positives, [R, K] similarities -> [R] losses; `no_negative` [R, K] marks what is left out."""
    gaps = (similarities - positive[:, None]) / temperature
    if no_negative is not None:
        # After the division: -inf / temperature would turn the temperature's own gradient into NaN.
        gaps = gaps.masked_fill(no_negative, -torch.inf)
    return torch.logaddexp(gaps.logsumexp(dim=1), torch.zeros_like(positive))


def _similarities(rows, columns):
    # Autocast would round cosines to bfloat16: three digits, then divided by the temperature.
    with torch.autocast(rows.device.type, enabled=False):
        return rows @ columns.T


def reduce(losses, reduction):
    """[R] losses -> their mean, or the losses themselves with "none"."""
    if reduction == "mean":
        return losses.mean()
    if reduction == "none":
        return losses
    raise ValueError(f'reduction is {reduction!r}; expected "mean" or "none".')


def _unit_rows(**features):
    """Checked features, each row divided by its length."""
    return [rows / length for rows, length in _checked_rows(**features)]


def _checked_rows(**features):
    """Pairs of (features in their common dtype, at least float32; the lengths of their rows, [rows, 1])."""
    for name, x in features.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is a {type(x).__name__}; expected a torch tensor of shape [rows, D].")
        if not x.is_floating_point() or x.element_size() < 2:  # torch promotes no float8
            raise TypeError(
                f"{name} has dtype {x.dtype}; expected floating-point features of 16 bits or more, "
                f"e.g. {name}.float()."
            )
        if x.ndim != 2 or x.shape[1] < 1:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; expected [rows, D], one feature vector a row."
            )
    devices = {name: str(x.device) for name, x in features.items()}
    if len(set(devices.values())) > 1:
        raise ValueError(f"features lie on different devices: {devices}; move them to one with .to(device).")
    dtype = torch.float32
    for x in features.values():
        dtype = torch.promote_types(dtype, x.dtype)
    rows = [x.to(dtype) for x in features.values()]
    lengths = [torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in rows]
    # One look at the lengths finds whether a row has no direction: NaN, infinite, zero or overflowed.
    every = torch.cat(lengths).detach()
    shortest, longest = every.aminmax() if len(every) else (1, 1)
    if not 0 < float(shortest) <= float(longest) < math.inf:
        for name, x, length in zip(features, rows, lengths, strict=True):
            _require_directions(name, x, length)
    return list(zip(rows, lengths, strict=True))


def _several_unit_rows(features):
    (features,) = _unit_rows(features=features)
    if len(features) < 2:
        raise ValueError(f"features has shape {list(features.shape)}; expected at least 2 rows to compare.")
    return features


def _require_directions(name, x, length):
    usable = (length > 0) & (length < math.inf)
    if not usable.all():
        row = int((~usable).flatten().nonzero()[0])
        if x[row].isnan().any():
            what = "contains NaN"
        elif not x[row].isfinite().all():
            what = "contains an infinite value"
        elif not x[row].any():
            what = "is a zero vector"
        else:
            what = f"is too short or too long to be squared in {x.dtype}"
        raise ValueError(
            f"{name}, shape {list(x.shape)}: row {row} {what}, so it has no direction to compare. "
            "Expected finite rows of non-zero length; look at the layer that made it."
        )


def _require_pairs(name_a, a, name_b, b, at_least, rows="N"):
    if a.shape != b.shape or len(a) < at_least:
        raise ValueError(
            f"{name_a} has shape {list(a.shape)} and {name_b} {list(b.shape)}; expected the same shape "
            f"[{rows}, D] with {rows} >= {at_least}, row k of both belonging together."
        )


def _require_positive(name, value):
    number = value.item() if isinstance(value, torch.Tensor) and value.ndim == 0 else value
    if isinstance(number, bool) or not isinstance(number, numbers.Real) or not 0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}; expected one finite number above 0.")
