"""LAB 06: pictures, training and table; the range in which right code ends, for any seed.

pictures --two_views--> v, v' --encoder, head--> z --loss--> update        (a student's views and loss)
pictures --encoder--> h --head--> z --readout--> accuracy                  (a student's readout)
"""

from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch
from matplotlib.figure import Figure
from threadpoolctl import threadpool_limits
from torch.nn.functional import cosine_similarity, normalize, pad

from course_utils import records, training
from course_utils.exercises import lab06 as exercises
from course_utils.experiments.heads import CONDITIONS
from course_utils.feedback import NOT_ATTEMPTED, RIGHT, WRONG, Verdict
from course_utils.images import shapes
from course_utils.images.pictures import Pictures
from course_utils.labs.grading import quiet, require, student_seed
from course_utils.networks import ProjectionHead, SmallEncoder
from course_utils.runtime import generator
from course_utils.show import figures
from course_utils.training import Budget, SimCLR, seeded

POLICIES = {"jitter": CONDITIONS["colour jitter"], "no jitter": CONDITIONS["no colour jitter"]}
BUDGET = Budget(epochs=12, batch=64, rate=3e-3)
TRAINED_ON, READ_ON, FIT_ON, EDGE = 4096, 3000, 1500, 24
TEMPERATURE = 0.1
LABELS = ("shape", "hue")
ROWS = tuple(f"{condition} {which}" for condition, which in product(POLICIES, "hz"))
RECORD = "lab06"
# How far from the record's mean an accuracy may lie: three times as far as any right run did, so that none
# loses its points to a seed or a machine. Untrained encoders and views without jitter lie outside.
REACH = 0.15
# The cosine of a trained network's weights with those at its start: 1 without training, 0 with another id's.
KIN = (0.1, 0.99)


@dataclass(frozen=True)
class Data:
    """A student's pictures: some to train on without labels, others to read from, with their split.

    train, test: int64, places in `probe` of the pictures to fit a readout on and to judge it by.
    """

    pictures: Pictures
    probe: Pictures
    train: torch.Tensor
    test: torch.Tensor


def data(seed) -> Data:
    """The pictures and the split of a seed: one large shape of one hue each, 24 x 24 pixels."""
    count = TRAINED_ON + READ_ON
    factors = shapes.draw_factors(3 * count, seed)
    pictures = shapes.render(factors[factors.size_band == 1][:count], size=EDGE)
    order = torch.randperm(READ_ON, generator=generator(seed))
    return Data(
        pictures[:TRAINED_ON],
        pictures[TRAINED_ON:],
        order[:FIT_ON].sort().values,
        order[FIT_ON:].sort().values,
    )


class YourSimCLR(SimCLR):
    """SimCLR with a student's two functions: the pictures come as they are, the views are drawn here."""

    def __init__(self, two_views, loss, policy, seed):
        # An extra convolution, so that one place of the last map sees a whole shape, as in notebook 04.
        encoder = SmallEncoder(extra=1)
        super().__init__(encoder, ProjectionHead("mlp", encoder.width), TEMPERATURE)
        self.two_views, self.pair_loss, self.policy = two_views, loss, policy
        self.generator = generator(seed)

    def loss(self, pictures, _):
        views = torch.cat(self.two_views(pictures, self.policy, self.generator))
        z_a, z_b = self.project(views.contiguous(memory_format=torch.channels_last)).chunk(2)
        return self.pair_loss(z_a, z_b, self.temperature)


def train(two_views, loss, pictures, policy, seed):
    """A training.Run: in `.method` the encoder (views -> h) and the head (h -> z), in evaluation mode.

    two_views: (pictures, policy, generator) -> view_a, view_b. loss: (z_a, z_b, temperature) -> scalar.
    """

    def make():
        return YourSimCLR(two_views, loss, policy, seed)

    return training.train(make, pictures, BUDGET, seed=seed, policy=None, device="cpu")


def start(seed) -> SimCLR:
    """The method of a seed's two runs before the first step."""
    return seeded(lambda: YourSimCLR(None, None, None, seed), seed)


def kinship(method, seed) -> float:
    """The cosine of a network's weights with those that the seed's runs start from; batch norm left out."""
    mine, first = (
        torch.cat([p.detach().flatten() for p in one.parameters() if p.ndim > 1])
        for one in (method, start(seed))
    )
    return cosine_similarity(mine, first, dim=0).item()


def compare(frozen_features, readout, methods, data) -> pd.DataFrame:
    """A row each for h and z of every method, with the accuracy for shape and for hue."""
    rows = {}
    with threadpool_limits(1):  # small fits: a second thread costs more than it brings
        for (name, method), which in product(methods.items(), "hz"):
            features = frozen_features(method, data.probe.images, which)
            rows[f"{name} {which}"] = {
                label: float(readout(features, data.probe.labels[label], data.train, data.test))
                for label in LABELS
            }
    return pd.DataFrame(rows).T


def reference_table(methods, data):
    """The table that the right functions give."""
    return compare(exercises.FEATURES.reference, exercises.READOUT.reference, methods, data)


# --- Judging the table --------------------------------------------------------------------------------------


def ranges(record=None) -> pd.DataFrame:
    """For each row and column of the table the lowest and the highest accuracy of right code: `low`, `high`.

    The mean over the seeds of data/records/lab06.json, REACH to each side.
    """
    mean = (record or records.load(RECORD)).table.groupby(["row", "label"])["accuracy"].mean()
    return pd.DataFrame({"low": mean - REACH, "high": (mean + REACH).clip(upper=1.0)})


def judge_table(table, methods, student_id) -> Verdict:
    """Whether a student's table was read from encoders that right code may have trained with that id's seed.

    It is read again from the student's encoders, by the right functions, so a table that was typed in, or
    read from something else, differs.
    """
    name = "lab06_table"
    if table is None or methods is None:
        return Verdict(name, NOT_ATTEMPTED, "There is no table: the training or the comparison did not run.")
    with quiet():
        seed = student_seed(student_id)
        own = data(seed)
        try:
            problems = [not_yours(condition, methods[condition], seed) for condition in POLICIES]
            given = pd.DataFrame(table).loc[list(ROWS), list(LABELS)].astype(float)
            right = reference_table({condition: methods[condition] for condition in POLICIES}, own)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            return Verdict(name, WRONG, f"The table or its encoders cannot be read ({problem}).")
        if any(problems):
            return Verdict(name, WRONG, next(filter(None, problems)))
        if not close(given, right):
            return Verdict(name, WRONG, why(given, right, methods, own))
    expected = ranges()
    for row, label in product(ROWS, LABELS):
        low, high = expected.loc[(row, label)]
        if not low <= given.loc[row, label] <= high:
            headline = (
                f"{row}, {label}: your encoder gives {given.loc[row, label]:.2f}, and right code gives "
                "that with no seed. Look at two_views and the loss."
            )
            return Verdict(name, WRONG, headline)
    return Verdict(name, RIGHT, "The table is that of your own encoders, and right code ends there.")


def not_yours(condition, method, seed):
    """What is wrong with a network that the seed's run should have trained, or ""."""
    low, high = KIN
    if (found := kinship(method, seed)) > high:
        return (
            f"Misconception: random vectors passed off as features. The network {condition!r} is as it "
            "started, so its features are those of random weights."
        )
    if found < low:
        return (
            f"The network {condition!r} did not start from the weights of your id: train it with your own "
            "STUDENT_ID and SEED."
        )
    return ""


def close(given, right):
    """Whether two tables agree but for what another solver may change."""
    return bool(((given - right).abs() <= 0.03).all(axis=None))


def why(given, right, methods, own):
    """What a table that does not fit its encoders may come from."""
    swapped = right.rename(index=lambda row: row[:-1] + {"h": "z", "z": "h"}[row[-1]])
    on_train = compare(exercises.FEATURES.reference, exercises.accuracy_on_train, methods, own)
    z_only = right.copy()
    z_only.loc[[row for row in ROWS if row.endswith("h")]] = z_only.filter(like=" z", axis=0).to_numpy()
    if ((given - 1 / 6).abs() < 0.06).all(axis=None):
        return "Misconception: random vectors passed off as features. All accuracies are those of guessing."
    if close(given, swapped) or close(given, z_only):
        return (
            "Misconception: z is read where h is asked. Read again, your encoders' h gives what stands "
            "elsewhere in your table, or nowhere."
        )
    if close(given, on_train):
        return "Misconception: accuracy on the training part. Judge by the rows in test."
    worst = (given - right).abs().stack().idxmax()
    return (
        f"The table is not that of your encoders: {', '.join(worst)} says {given.loc[worst]:.2f}; read "
        f"again from them it is {right.loc[worst]:.2f}."
    )


def grade_table(table, methods, student_id) -> None:
    """The hidden test of the table: raises NotAttempted or Wrong, see judge_table."""
    require(judge_table(table, methods, student_id))


# --- What the notebook shows --------------------------------------------------------------------------------


def predicted_and_measured(predicted, table) -> pd.DataFrame:
    """Each accuracy's change from no jitter to jitter, in words beside the predicted ones."""
    rows = []
    for question in exercises.PREDICTION.choices:
        label, which = question.split(" in ")
        change = table.loc[f"jitter {which}", label] - table.loc[f"no jitter {which}", label]
        falls, stays, rises = exercises.CHANGES
        rows.append(
            {
                "accuracy": question,
                "you predicted": as_text(predicted[question]),
                "change": change,
                "in words": falls if change < -0.1 else rises if change > 0.1 else stays,
            }
        )
    return pd.DataFrame(rows)


def spaces(frozen_features, methods, data) -> dict[str, torch.Tensor]:
    """Each row of the table -> unit features of the first 600 probe pictures."""
    images = data.probe.images[:600]
    return {
        f"{name} {which}": normalize(frozen_features(method, images, which), dim=1)
        for name, method in methods.items()
        for which in "hz"
    }


COUNTED = ("nearest", "second", "third", "fourth", "fifth")


def draw_neighbours(spaces, data, number) -> str:
    """A picture and its five nearest neighbours in each space, a row each, as HTML."""
    rows, shared = [], []
    for name, features in spaces.items():
        order = (features @ features[number]).argsort(descending=True)
        nearest = order[order != number][: len(COUNTED)]
        rows.append(torch.cat([torch.tensor([number]), nearest]))
        same = {
            label: int((data.probe.labels[label][nearest] == data.probe.labels[label][number]).sum())
            for label in LABELS
        }
        shared.append(f"{name} {same['shape']} and {same['hue']}")
    framed = pad(data.probe.images[torch.stack(rows)] / 255, (1, 1, 1, 1), value=1.0)
    # One image of all: an axes for each of 24 pictures would draw too slowly for a slider.
    high, wide, _, edge, _ = framed.shape
    figure, axes = figures.new_figure(7, 4.5)
    axes.imshow(framed.permute(0, 3, 1, 4, 2).reshape(high * edge, wide * edge, 3), interpolation="nearest")
    axes.set_xticks([edge * (place + 0.5) for place in range(wide)], ["picture", *COUNTED])
    axes.set_yticks([edge * (place + 0.5) for place in range(high)], spaces)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.grid(False)
    shape, hue = (data.probe[number : number + 1].named(label)[0] for label in LABELS)
    status = f"A {hue} {shape}. Of its five nearest, its shape and its hue have: {'; '.join(shared)}."
    alt = f"A row for each space, the picture and its five nearest. {status}"
    return f'<p role="status">{status}</p>' + figures.picture(figure, alt).data


# --- The exit ticket ----------------------------------------------------------------------------------------


def draw_ticket(ticket) -> Figure:
    """The student's answers as a figure: the way of a picture, and what each of the two updates changes."""
    figure, axes = figures.new_figure(10, 4)
    axes.set_axis_off()
    axes.set(xlim=(0, 100), ylim=(0, 40))
    said = {question: as_text(ticket.get(question)) for question in exercises.TICKET.choices}
    touched = {
        update: ticket.get(question)
        for update, question in (
            ("a training step", "a training step changes"),
            ("the readout's fit", "fitting the readout changes"),
        )
    }
    colours = dict(zip(touched, (figures.SKY, figures.ORANGE), strict=True))
    places = {
        "pictures": (10, 27),
        "views": (30, 27),
        "encoder": (50, 27),
        "head": (70, 27),
        "readout": (60, 7),
    }
    for name, (x, y) in places.items():
        by = [update for update, parts in touched.items() if name in as_list(parts)]
        colour = "white" if not by else figures.GREY if len(by) > 1 else colours[by[0]]
        box = {"boxstyle": "round,pad=0.6", "facecolor": colour, "edgecolor": "black"}
        words = f"{name}\nchanged by\n{' and '.join(by) or 'neither'}"
        axes.text(x, y, words, ha="center", va="center", fontsize=9, bbox=box)
    axes.text(90, 27, f"loss compares\n{said['the loss compares']}", ha="center", va="center", fontsize=9)
    ways = [((start, 27), (start + 6, 27)) for start in (17, 37, 57, 77)]
    for start, end in [*ways, ((60, 27), (60, 13))]:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>"})
    axes.text(40, 34, "input: " + said["the encoder's input"], ha="center", fontsize=9)
    axes.text(61, 17, "reads " + said["the readout's input"], ha="left", fontsize=9)
    axes.text(90, 19, f"candidates of one view:\n{said['candidates of one view']}", ha="center", fontsize=9)
    axes.text(1, 37, "What each parameter update touches", weight="bold", fontsize=11)
    return figure


def as_list(answer):
    """An answer as a list of texts; empty for one that is not given."""
    parts = answer if isinstance(answer, (list, tuple, set)) else [answer]
    return [str(part) for part in parts if part is not ... and part is not None]


def as_text(answer):
    return ", ".join(as_list(answer)) or "?"
