"""LAB 06's exercises at inputs that no check cell shows, and its questions."""

import copy
import functools
import sys
from dataclasses import replace

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch.nn.functional import normalize

from course_utils.exercises import lab06
from course_utils.feedback import ANSWERED, NOT_ATTEMPTED, RIGHT, WRONG, check, judge
from course_utils.kernels import nt_xent
from course_utils.labs.grading import NotAttempted, Wrong, grade, student_seed
from course_utils.views import POLICIES, apply_view, draw_parameters

FUNCTIONS = [lab06.TWO_VIEWS, lab06.LOSS, lab06.FEATURES, lab06.READOUT]
SEEDS = (11, 12)


def by_name(exercise):
    return exercise.name


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("exercise", FUNCTIONS, ids=by_name)
def test_other_inputs_tell_the_mistakes_apart_as_well(exercise, seed):
    redrawn = exercise.redrawn(seed)
    assert str(redrawn.cases) != str(exercise.cases)
    assert judge(redrawn, redrawn.reference).status == RIGHT
    for mistake in exercise.misconceptions:
        if mistake.function:
            assert f"Misconception: {mistake.name}." in judge(redrawn, mistake.function).headline


def named(exercise, function):
    """The verdict's headline, for the function at other inputs."""
    verdict = judge(exercise.redrawn(SEEDS[0]), function)
    assert verdict.status == WRONG
    return verdict.headline


# Two views: mistakes by what they do, in whatever order the parameters are drawn


def drawn_for(images, policy, generator, count=None):
    return draw_parameters(count or len(images), *images.shape[-2:], policy, generator)


def seeded_anew(images, policy, generator):
    views = (drawn_for(images, policy, torch.Generator().manual_seed(0)) for _ in "ab")
    return tuple(apply_view(images, parameters) for parameters in views)


def mirrored(images, policy, generator):
    view_a = apply_view(images, drawn_for(images, policy, generator))
    return view_a, view_a.flip(-1)


def last_for_all(images, policy, generator):
    last = torch.full((len(images),), -1)
    return tuple(apply_view(images, drawn_for(images, policy, generator)[last]) for _ in "ab")


def seeded_for_each_picture(images, policy, generator):
    return tuple(
        torch.cat(
            [
                apply_view(image[None], drawn_for(image[None], policy, torch.Generator().manual_seed(seed)))
                for image in images
            ]
        )
        for seed in (1, 2)
    )


def one_set_for_view_b_only(images, policy, generator):
    parameters = drawn_for(images, policy, generator, count=1)
    view_b = torch.cat([apply_view(image[None], parameters) for image in images])
    return apply_view(images, drawn_for(images, policy, generator)), view_b


def crop_alone_drawn_first(images, policy, generator):
    plain = replace(policy, jitter=0.0, grey=0.0, blur=0.0)
    view_b = apply_view(images, drawn_for(images, plain, generator))
    return apply_view(images, drawn_for(images, policy, generator)), view_b


def plain_view_a(images, policy, generator):
    return crop_alone_drawn_first(images, replace(policy, flip=0.0), generator)[::-1]


def a_policy_of_ones_own(images, policy, generator):
    own = replace(POLICIES["strong"], crop_scale=(0.3, 0.9), grey=0.1)
    return tuple(apply_view(images, drawn_for(images, own, generator)) for _ in "ab")


def a_generator_of_ones_own(images, policy, generator):
    own = torch.Generator().manual_seed(0)
    return tuple(apply_view(images, drawn_for(images, policy, own)) for _ in "ab")


def the_global_generator(images, policy, generator):
    drawn = (drawn_for(images, policy, torch.default_generator) for _ in "ab")
    return tuple(apply_view(images, parameters) for parameters in drawn)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (seeded_anew, "the same parameters for both views"),
        (mirrored, "the same parameters for both views"),
        (last_for_all, "one set of parameters for the whole batch"),
        (seeded_for_each_picture, "one set of parameters for the whole batch"),
        (one_set_for_view_b_only, "one set of parameters for the whole batch"),
        (crop_alone_drawn_first, "colour jitter on view_a only"),
        (plain_view_a, "colour jitter on view_b only"),
        (a_policy_of_ones_own, "the policy that was given is not used"),
        (a_generator_of_ones_own, "the generator that was given is not used"),
        (the_global_generator, "the generator that was given is not used"),
    ],
)
def test_views_that_are_wrong_are_named(function, name):
    assert f"Misconception: {name}." in named(lab06.TWO_VIEWS, function)


def one_batch_of_both(images, policy, generator):
    views = apply_view(images.repeat(2, 1, 1, 1), drawn_for(images, policy, generator, 2 * len(images)))
    return views.chunk(2)


def view_b_first(images, policy, generator):
    return [apply_view(images, drawn_for(images, policy, generator)) for _ in "ba"][::-1]


@pytest.mark.parametrize("function", [one_batch_of_both, view_b_first])
def test_another_way_of_drawing_is_right(function):
    assert judge(lab06.TWO_VIEWS.redrawn(SEEDS[0]), function).status == RIGHT


# Frozen features


def step(method, images, which):
    optimiser = torch.optim.Adam(method.parameters())
    method.encoder(images / 255).mean().backward()
    optimiser.step()
    return lab06.FEATURES.reference(method, images, which)


def training_mode(method, images, which):
    with torch.no_grad():
        return method.train().encoder(images / 255)


def with_gradient(method, images, which):
    return method.eval().encoder(images / 255)


def step_on_a_copy(method, images, which):
    return step(copy.deepcopy(method), images, which)


def step_taken_back(method, images, which):
    before = copy.deepcopy(method.state_dict())
    answer = step(method, images, which)
    method.load_state_dict(before)
    return answer


@pytest.mark.parametrize("function", [step, training_mode, with_gradient, step_on_a_copy, step_taken_back])
def test_an_encoder_that_is_trained_is_named(function):
    assert "the encoder is trained during the readout" in named(lab06.FEATURES, function)


def drawn(method, images, which):
    return torch.randn(lab06.FEATURES.reference(method, images, which).shape)


def drawn_with_a_seed(method, images, which):
    torch.manual_seed(3)
    return drawn(method, images, which)


def nothing_but_zeros(method, images, which):
    return torch.zeros_like(lab06.FEATURES.reference(method, images, which))


def seeded_by_the_picture(method, images, which):
    width = lab06.FEATURES.reference(method, images, which).shape[1]
    seeds = (int(image.sum(dtype=torch.long)) for image in images)
    return torch.stack([torch.randn(width, generator=torch.Generator().manual_seed(s)) for s in seeds])


def random_projection(method, images, which):
    width = lab06.FEATURES.reference(method, images, which).shape[1]
    pixels = images.flatten(1) / 255
    return pixels @ torch.randn(pixels.shape[1], width, generator=torch.Generator().manual_seed(1))


def random_network(method, images, which):
    torch.manual_seed(1)
    method = copy.deepcopy(method)
    for parameter in method.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return lab06.FEATURES.reference(method, images, which)


@pytest.mark.parametrize(
    "function",
    [
        drawn,
        drawn_with_a_seed,
        nothing_but_zeros,
        seeded_by_the_picture,
        random_projection,
        random_network,
    ],
)
def test_random_vectors_are_named(function):
    assert "random vectors passed off as features" in named(lab06.FEATURES, function)


def normalised_z(method, images, which):
    return normalize(lab06.FEATURES.reference(method, images, "z"), dim=1)


def z_through_project(method, images, which):
    with torch.no_grad():
        return method.eval().project(images / 255).double()


@pytest.mark.parametrize("function", [normalised_z, z_through_project])
def test_z_for_h_is_named(function):
    assert "z is read where h is asked" in named(lab06.FEATURES, function)


def normalised(method, images, which):
    features = lab06.FEATURES.reference(method, images, which)
    return features / features.norm(dim=1, keepdim=True)


def z_as_the_loss_sees_it(method, images, which):
    return (normalised if which == "z" else lab06.FEATURES.reference)(method, images, which)


@pytest.mark.parametrize("function", [normalised, z_as_the_loss_sees_it])
def test_normalised_features_are_named(function):
    assert "the features are normalised" in named(lab06.FEATURES, function)


def left_in_training_mode(method, images, which):
    answer = lab06.FEATURES.reference(method, images, which)
    method.train()
    return answer


def in_float64(method, images, which):
    network = copy.deepcopy(method).double().eval()
    with torch.no_grad():
        h = network.encoder(images.double() / 255)
        return h if which == "h" else network.head(h)


def frozen_by_flags(method, images, which):
    h = method.eval().requires_grad_(False).encoder(images / 255)
    return h if which == "h" else method.head(h)


def picture_by_picture(method, images, which):
    network = method.eval().encoder if which == "h" else method.eval().project
    return torch.cat([network(image[None] / 255).detach() for image in images])


@pytest.mark.parametrize("function", [left_in_training_mode, in_float64, frozen_by_flags, picture_by_picture])
def test_another_way_of_reading_is_right(function):
    assert judge(lab06.FEATURES, function).status == RIGHT


def test_half_a_function_is_wrong_and_told_what_is_missing():
    def h_only(method, images, which):
        if which == "z":
            raise NotImplementedError
        return lab06.FEATURES.reference(method, images, which)

    assert "A part is not written yet" in named(lab06.FEATURES, h_only)


# The readout


def by_hand(features, labels, train, test):
    mean, deviation = features[train].mean(0), features[train].std(0)  # n - 1 in place of n
    scaled = (features - mean) / deviation
    model = LogisticRegression(solver="newton-cg", max_iter=5000).fit(scaled[train], labels[train])
    return float((model.predict(scaled[test]) == labels[test].numpy()).mean())


@pytest.mark.parametrize("seed", range(5))
def test_another_way_of_scaling_and_fitting_is_right(seed):
    assert judge(lab06.READOUT.redrawn(seed), by_hand).status == RIGHT


@pytest.mark.parametrize("random_state", [0, None])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_split_of_ones_own_is_named(random_state, share):
    def own_split(features, labels, train, test):
        rows = train_test_split(range(len(labels)), test_size=share, random_state=random_state)
        return lab06.READOUT.reference(features, labels, *map(torch.tensor, rows))

    assert "different splits between conditions" in named(lab06.READOUT, own_split)


def accuracy(features, labels, fitted, judged, scaled=None):
    """Fitted on some rows and judged by others; the scaler on those that are fitted, or on `scaled`."""
    scaler = StandardScaler().fit(features[fitted if scaled is None else scaled])
    model = LogisticRegression(max_iter=1000).fit(scaler.transform(features[fitted]), labels[fitted])
    return model.score(scaler.transform(features[judged]), labels[judged])


def whole(train, test):
    return torch.cat([train, test])


def scaled_by_another_range(features, labels, train, test):
    scaled = torch.tensor(MinMaxScaler().fit_transform(features))
    return (
        LogisticRegression(max_iter=1000).fit(scaled[train], labels[train]).score(scaled[test], labels[test])
    )


def each_part_by_itself(features, labels, train, test):
    scaled = features.clone()
    for rows in (train, test):
        scaled[rows] = (features[rows] - features[rows].mean(dim=0)) / features[rows].std(dim=0)
    return (
        LogisticRegression(max_iter=1000).fit(scaled[train], labels[train]).score(scaled[test], labels[test])
    )


def best_of_several(features, labels, train, test):
    scaler = StandardScaler().fit(features[train])
    x = torch.tensor(scaler.transform(features))
    fits = (
        LogisticRegression(C=c, max_iter=1000).fit(x[train], labels[train]) for c in (1e-3, 0.01, 0.1, 1, 9)
    )
    return max(fit.score(x[test], labels[test]) for fit in fits)


def cross_validated_on_test(features, labels, train, test):
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return cross_val_score(model, features[test].numpy(), labels[test].numpy(), cv=4).mean()


def as_they_came(features, labels, train, test):
    scaler = StandardScaler()
    model = LogisticRegression(max_iter=1000).fit(scaler.fit_transform(features[train]), labels[train])
    return model.score(features[test], labels[test])


def in_percent(features, labels, train, test):
    return round(100 * accuracy(features, labels, train, test), 1)


def with_parts(**chosen):
    """`accuracy` with rows that are chosen from (train, test)."""

    def function(features, labels, train, test):
        parts = {"fitted": lambda train, _: train, "judged": lambda _, test: test} | chosen
        return accuracy(features, labels, **{name: rows(train, test) for name, rows in parts.items()})

    return function


def only_test(train, test):
    return test


def only_train(train, test):
    return train


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (with_parts(scaled=only_test), "the scaler is fitted on the test part"),
        (with_parts(scaled=whole), "the scaler is fitted on the test part"),
        (scaled_by_another_range, "the scaler is fitted on the test part"),
        (each_part_by_itself, "the scaler is fitted on the test part"),
        (with_parts(fitted=only_test), "the readout is fitted on the test part"),
        (with_parts(fitted=whole), "the readout is fitted on the test part"),
        (with_parts(fitted=whole, scaled=only_train), "the readout is fitted on the test part"),
        (with_parts(fitted=only_test, judged=only_train), "the readout is fitted on the test part"),
        (best_of_several, "the readout is fitted on the test part"),
        (cross_validated_on_test, "the readout is fitted on the test part"),
        (as_they_came, "the test rows are not scaled"),
        (in_percent, "an accuracy in percent"),
        (with_parts(judged=only_train), "accuracy on the training part"),
        (with_parts(judged=whole), "accuracy on the training part"),
        (
            lambda *given: (with_parts(judged=only_train)(*given) + with_parts(judged=only_test)(*given)) / 2,
            "accuracy on the training part",
        ),
    ],
)
def test_a_readout_that_is_wrong_is_named(function, name, seed):
    verdict = judge(lab06.READOUT.redrawn(seed), function)
    assert f"Misconception: {name}." in verdict.headline


# Questions


def answers(questions, **changed):
    return {
        question: sorted(v) if isinstance(v, set) else v for question, v in questions.right.items()
    } | changed


@pytest.mark.parametrize("questions", [lab06.EVIDENCE, lab06.TICKET], ids=by_name)
def test_right_answers_are_right_and_a_check_does_not_tell(questions):
    assert judge(questions, answers(questions)).status == RIGHT
    assert check(questions.name, answers(questions)).status == ANSWERED
    wrong = dict.fromkeys(questions.choices) | {q: c[0] for q, c in questions.choices.items()}
    assert check(questions.name, wrong).status == ANSWERED
    assert judge(questions, wrong).status == WRONG


@pytest.mark.parametrize(
    ("questions", "changed", "name"),
    [
        (
            lab06.EVIDENCE,
            {"jitter helps to read shape from h": ["jitter z hue", "no jitter z hue"]},
            "colour",
        ),
        (
            lab06.EVIDENCE,
            {"hue in z fell; that tells about shape": "shape must have become easier to read"},
            "colour loss taken as evidence on shape",
        ),
        (
            lab06.EVIDENCE,
            {"jitter helps to read shape from h": ["jitter h shape", "no jitter z shape"]},
            "two",
        ),
        (
            lab06.EVIDENCE,
            {"jitter helps to read shape from h": "jitter h shape"},
            "one cell is no comparison",
        ),
        (
            lab06.EVIDENCE,
            {"jitter makes hue harder to read from z": ["jitter h hue", "jitter z hue"]},
            "two cells that tell of something else",
        ),
        (lab06.TICKET, {"fitting the readout changes": ["readout", "encoder"]}, "the encoder is trained"),
        (lab06.TICKET, {"candidates of one view": "2N"}, "the self-pair is left in"),
        (lab06.TICKET, {"candidates of one view": "2N - 2"}, "negatives counted in place of candidates"),
        (lab06.TICKET, {"candidates of one view": "N"}, "candidates of the other side alone"),
        (lab06.TICKET, {"the encoder's input": "a picture"}, "the picture itself is encoded in training"),
        (lab06.TICKET, {"a training step changes": "encoder"}, "a part of the network is left out"),
        (lab06.TICKET, {"the readout's input": "z"}, "z is read where h is asked"),
        (lab06.TICKET, {"a training step changes": lab06.PARTS}, "the readout takes part in training"),
    ],
)
def test_a_wrong_answer_is_named(questions, changed, name):
    assert f"Misconception: {name}" in judge(questions, answers(questions, **changed)).headline


@pytest.mark.parametrize("nothing", [None, ..., {}, dict.fromkeys(lab06.TICKET.choices, ...)])
def test_no_answers_are_not_attempted(nothing):
    assert judge(lab06.TICKET, nothing).status == check("lab06_ticket", nothing).status == NOT_ATTEMPTED


def test_answers_that_cannot_be_judged_say_why():
    one_left_out = answers(lab06.TICKET, **{"the loss compares": " "})
    assert "Not answered yet: the loss compares." in judge(lab06.TICKET, one_left_out).headline
    typo = answers(lab06.TICKET, **{"the loss compares": "zz"})
    assert "'zz' is none of its choices. There are: pictures, views" in judge(lab06.TICKET, typo).headline
    one_text = answers(lab06.TICKET, **{"a training step changes": "encoder and head"})
    assert 'several choices make a list, ["encoder", "head"].' in judge(lab06.TICKET, one_text).headline
    assert "expected a dictionary" in judge(lab06.TICKET, ["z"]).headline
    claim = "with jitter, h keeps more hue than z"
    half = answers(lab06.EVIDENCE, **{claim: ["jitter h hue", ...]})
    assert f"Not answered yet: {claim}." in judge(lab06.EVIDENCE, half).headline


def test_a_prediction_is_never_wrong():
    for choice in lab06.CHANGES:
        assert judge(lab06.PREDICTION, dict.fromkeys(lab06.PREDICTION.choices, choice)).status == RIGHT


# Grading


def test_grading_is_quiet_and_says_one_line(capsys):
    def loud(method, images, which):
        print("loud")
        torch.nn.functional.softmax(torch.zeros(2))  # warns
        return lab06.FEATURES.reference(method, images, which)

    grade("lab06_frozen_features", loud, seed=1)
    captured = capsys.readouterr()
    assert captured.err == "" and captured.out.startswith("lab06_frozen_features: right.")


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (None, NotAttempted),
        (lambda *_: None, NotAttempted),
        (lambda *_: 1.0, Wrong),
        (lambda *_: sys.exit(), Wrong),
        (3, Wrong),
        (lab06.FEATURES.reference, Wrong),
        (functools.partial(lab06.FEATURES.reference), Wrong),
        (lab06.FEATURES.reference.__call__, Wrong),
        (torch.no_grad()(lab06.FEATURES.reference), Wrong),
        (functools.partial(nt_xent), Wrong),
    ],
)
def test_what_gives_no_points_is_one_line_without_the_inputs(answer, kind):
    with pytest.raises(kind) as raised:
        grade("lab06_frozen_features", answer, seed=1)
    assert "\n" not in str(raised.value) and "Smallest input" not in str(raised.value)
    assert raised.value._render_traceback_() == [f"{kind.__name__}: {raised.value}"]


def test_a_function_of_ones_own_may_be_wrapped():
    @torch.inference_mode()
    def own(method, images, which):
        return lab06.FEATURES.reference(method, images, which).clone()

    grade("lab06_frozen_features", functools.partial(own), seed=1)


def test_a_function_of_the_course_stays_one_under_another_name():
    reference = lab06.FEATURES.reference
    other = type(reference)(reference.__code__, reference.__globals__)
    other.__module__ = "__main__"
    with pytest.raises(Wrong, match="write your own"):
        grade("lab06_frozen_features", other, seed=1)


def test_a_seed_for_each_student():
    assert student_seed("s1234567") == student_seed(" S1234567\n") != student_seed("s1234568")


@pytest.mark.parametrize("empty", [..., None, "", "  "])
def test_without_an_id_the_example_goes_on(empty, capsys):
    assert student_seed(empty) == student_seed("example")
    assert "No student id yet" in capsys.readouterr().out
