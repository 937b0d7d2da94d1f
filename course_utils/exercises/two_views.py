"""Notebook 01: two views of every picture of a batch."""

import torch

from course_utils.exercises.exercise import Case, Exercise, Misconception
from course_utils.views import POLICIES, Policy, apply_view, draw_parameters


def _draw(images, policy, generator, count=None):
    return draw_parameters(count or len(images), images.shape[-2], images.shape[-1], policy, generator)


def _two_views(images, policy, generator):
    parameters_a = _draw(images, policy, generator)
    parameters_b = _draw(images, policy, generator)
    return apply_view(images, parameters_a), apply_view(images, parameters_b)


def _view_b_drawn_first(images, policy, generator):
    view_b, view_a = _two_views(images, policy, generator)
    return view_a, view_b


def _picture_by_picture(images, policy, generator):
    views = [_two_views(image[None], policy, generator) for image in images]
    return torch.cat([view_a for view_a, _ in views]), torch.cat([view_b for _, view_b in views])


def _same_parameters(images, policy, generator):
    view = apply_view(images, _draw(images, policy, generator))
    return view, view.clone()


def _one_set_for_the_batch(images, policy, generator):
    return tuple(
        torch.cat([apply_view(image[None], parameters) for image in images])
        for parameters in (_draw(images, policy, generator, 1), _draw(images, policy, generator, 1))
    )


def _same_views(function, cases):
    """Whether both views are the same, or mirrored."""
    view_a, view_b = function(*cases[-1].fresh())
    return torch.equal(view_a, view_b) or torch.equal(view_a, view_b.flip(-1))


def _alike_for_all(function, cases):
    """Whether six copies of a picture come out alike in one of the views, and changed."""
    images, policy, generator = cases[-1].fresh()
    copies = images[:1].repeat(6, 1, 1, 1)
    return any(
        torch.equal(view, view[:1].expand_as(view)) and not torch.allclose(view, copies / 255, atol=1e-3)
        for view in function(copies, policy, generator)
    )


def _one_set_for_everything(images, policy, generator):
    parameters = _draw(images, policy, generator, 1)
    view = torch.cat([apply_view(image[None], parameters) for image in images])
    return view, view.clone()


def _without(operations, view):
    """Two views; from the policy of one ("a" or "b") some operations are left out."""

    def function(images, policy, generator):
        reduced = policy
        for operation in set(operations) & set(policy.operations):
            reduced = reduced.without(operation)
        policies = (reduced, policy) if view == "a" else (policy, reduced)
        return tuple(apply_view(images, _draw(images, one, generator)) for one in policies)

    return function


def _picture_itself_as_view_b(images, policy, generator):
    return apply_view(images, _draw(images, policy, generator)), images / 255


def _keeps_the_colours(one):
    """Whether this view (0 or 1) is the picture where colours alone may change, and the other is not."""

    def behaves(function, cases):
        images, _, generator = cases[-1].fresh()
        kept = [
            torch.allclose(view, images / 255, atol=1e-3)
            for view in function(images, COLOUR_ALONE, generator)
        ]
        return kept[one] and not kept[1 - one]

    return behaves


def _not_from_the_generator(function, cases):
    """Whether one seed of the generator gives two pairs of views, or two seeds give the same pair."""
    images, policy, _ = cases[-1].fresh()
    first, again, other = (
        function(images.clone(), policy, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )

    def same(pair):
        return all(torch.equal(view, one) for view, one in zip(first, pair, strict=True))

    return not same(again) or same(other)


def with_policy(fixed):
    """Two views that come from this policy, whichever is given."""
    return lambda images, policy, generator: _two_views(images, fixed, generator)


def _view_of_a_view(images, policy, generator):
    view_a = apply_view(images, _draw(images, policy, generator))
    return view_a, apply_view(view_a, _draw(images, policy, generator))


def pictures_case(count, edge, policy, seed):
    """Random pictures; the generator that is handed out is seeded alike."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 3, edge, edge), dtype=torch.uint8, generator=generator)
    return Case({"images": images, "policy": policy, "generator": torch.Generator().manual_seed(seed)})


COLOUR_ALONE = Policy(
    name="colour alone", source="Ours.", crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=0.0, jitter=1.0,
    brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1,
)  # fmt: skip
ONE_COLOUR_ONLY = (
    "One of the two views keeps its colours. Then both still share the picture's own light on one side: "
    "apply the whole policy to each view."
)

TWO_VIEWS = Exercise(
    name="two_views",
    reference=_two_views,
    cases=(
        pictures_case(2, 16, POLICIES["simclr_cifar"], seed=10),
        pictures_case(3, 20, POLICIES["strong"], seed=11),
        pictures_case(7, 16, POLICIES["simclr_cifar"].without("grey"), seed=12),  # a name not in POLICIES
    ),
    misconceptions=(
        Misconception(
            "one set of parameters for the whole batch",
            "Every picture is cut and coloured alike. Draw as many parameters as there are pictures.",
            _one_set_for_the_batch,
            also=(_one_set_for_everything,),
            behaves=_alike_for_all,
        ),
        Misconception(
            "the same parameters for both views",
            "Both views are one and the same picture, so finding the partner is trivial. Draw parameters "
            "twice from the generator, and do not seed it in between.",
            _same_parameters,
            behaves=_same_views,
        ),
        Misconception(
            "the second view is the picture itself",
            "view_b is the picture as it came. Both views are drawn; neither is the original.",
            _picture_itself_as_view_b,
        ),
        Misconception(
            "the second view is made from the first",
            "view_b is a view of view_a: it can hold only what the first crop left. Make both from the "
            "picture.",
            _view_of_a_view,
        ),
        Misconception(
            "colour jitter on view_a only",
            ONE_COLOUR_ONLY,
            _without(["colour"], "b"),
            also=(_without(["colour", "grey"], "b"),),
            behaves=_keeps_the_colours(1),
        ),
        Misconception(
            "colour jitter on view_b only",
            ONE_COLOUR_ONLY,
            _without(["colour"], "a"),
            also=(_without(["colour", "grey"], "a"),),
            behaves=_keeps_the_colours(0),
        ),
        Misconception(
            "the generator that was given is not used",
            "The views come from another source of chance: they differ from run to run, or every batch gets "
            "the same ones. Hand the argument generator to draw_parameters.",
            behaves=_not_from_the_generator,
        ),
    ),
    guarantees=(
        "Each picture has parameters of its own, each of its two views too, and the same generator seed "
        "gives the same views: what the views share comes from the picture."
    ),
    hints=(
        "What has to differ between the two views of one picture, and between two pictures of the batch?",
        "Draw parameters twice, each time for the whole batch, with the generator that was given; apply "
        "each set to the pictures.",
        "draw_parameters(len(images), height, width, policy, generator) twice, then apply_view(images, "
        "parameters) for each.",
    ),
    also_right=(_view_b_drawn_first, _picture_by_picture),
)

EXERCISES = (TWO_VIEWS,)
