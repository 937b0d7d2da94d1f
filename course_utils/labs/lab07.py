"""LAB 07: pictures, a run of MoCo made of a student's functions, a trace of three steps, and the readout.

pictures --two views--> view_a, view_b --a student's step--> networks, ring --trace--> what each stage changed
pictures --encoder of the query network--> h --readout--> accuracy, beside that of a random encoder
"""

import copy
import math
from collections import OrderedDict
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import normalize

from course_utils import readout
from course_utils.exercises import lab07 as exercises
from course_utils.exercises.lab07 import State
from course_utils.feedback import NOT_ATTEMPTED, RIGHT, WRONG, Verdict, judge
from course_utils.images import shapes
from course_utils.images.pictures import Pictures
from course_utils.labs.grading import NotAttempted, quiet, require, student_seed
from course_utils.memory import Trace
from course_utils.networks import ProjectionHead, SmallEncoder
from course_utils.runtime import generator
from course_utils.training import seeded
from course_utils.views import two_views

POLICY = "simclr_cifar"
TRAINED_ON, READ_ON, FIT_ON, EDGE = 4096, 5000, 2000, 24
BATCH, STEPS, TRACED, RATE = 64, 384, 3, 2e-3
MOMENTUM, TEMPERATURE = 0.97, 0.2
FEWEST_PLACES, MOST_PLACES = 130, 250
# A key's cosine with the same view encoded again, on the average over the ring: far above that of random
# vectors, which is 0.
REAL_KEYS = 0.5
# How far training moves the query network at the least, relative to its start; right code goes further.
TRAINED = 0.1
# By how much the trained encoder has to be ahead of the random one.
AHEAD = 0.03
ANSWERS = ("trained", "random", "was the run useful?")


def places(seed) -> int:
    """The length of a student's queue; hardly ever a multiple of the batch."""
    return FEWEST_PLACES + seed % (MOST_PLACES - FEWEST_PLACES + 1)


@dataclass(frozen=True)
class Data:
    """A student's pictures, some to train on without labels and others to read from, and the seed."""

    pictures: Pictures
    probe: Pictures
    seed: int

    def batch(self, step):
        """int64 [BATCH], the pictures of a step (from 0): every epoch has an order of its own."""
        steps = len(self.pictures) // BATCH
        order = torch.randperm(len(self.pictures), generator=generator(self.seed + step // steps))
        return order.split(BATCH)[step % steps]

    def views(self, step):
        """view_a, view_b of a step's pictures, drawn again the same whenever they are asked for."""
        images = self.pictures.images[self.batch(step)]
        drawn = two_views(images, POLICY, generator(1000 * (self.seed + 1) + step))
        return [view.contiguous(memory_format=torch.channels_last) for view in drawn[:2]]


def data(seed) -> Data:
    """The pictures of a seed: one large shape of one hue each, 24 x 24 pixels."""
    count = TRAINED_ON + READ_ON
    factors = shapes.draw_factors(3 * count, seed)
    pictures = shapes.render(factors[factors.size_band == 1][:count], size=EDGE)
    return Data(pictures[:TRAINED_ON], pictures[TRAINED_ON:], seed)


def network(seed) -> nn.Sequential:
    """A network with random weights: `.encoder` makes h of a view, `.head` makes of h what the loss sees."""
    return seeded(
        lambda: nn.Sequential(
            OrderedDict(encoder=SmallEncoder(), head=ProjectionHead("mlp", width_in=SmallEncoder.width))
        ).to(memory_format=torch.channels_last),
        seed,
    )


# --- A run of a student's functions -------------------------------------------------------------------------


@dataclass
class Run(State):
    """A State with what the lab keeps beside it.

    names: float64 [Q, 2], for each key of the ring its picture and the step (from 0) that made it, -1 for a
    start entry; they are enqueued like keys. steps: how many steps there were. losses: one a step.
    """

    names: torch.Tensor
    steps: int
    losses: list[float]

    def table(self) -> pd.DataFrame:
        """A row a place: place, picture, age when the next step uses the key, next (written next?)."""
        picture, born = self.names.long().T
        return pd.DataFrame(
            {
                "place": range(len(self.ring)),
                "picture": picture.tolist(),
                "age": (self.steps - born).tolist(),
                "next": [place == self.pointer for place in range(len(self.ring))],
            }
        )


@dataclass(frozen=True)
class Functions:
    """The functions of a run: the student's where they are right, the course's in place of the others."""

    enqueue: object
    ema: object
    logits: object
    prepare: object
    step: object


COURSE = Functions(
    *(exercises.right_enqueue, exercises.right_ema, exercises.LOGITS.reference),
    *(exercises.right_prepare, exercises.right_step),
)


def functions(**given) -> Functions:
    """A student's functions; a wrong one is replaced by the course's, which one line says.

    So a mistake costs its own points only. Raises NotAttempted where one is not written yet.
    """
    chosen, replaced = {}, []
    for name in Functions.__dataclass_fields__:
        with quiet():
            verdict = judge(getattr(exercises, name.upper()), given[name])
        if verdict.status == NOT_ATTEMPTED:
            raise NotAttempted(f"{name} is not written yet. The run needs all five functions.")
        chosen[name] = given[name] if verdict.status == RIGHT else getattr(COURSE, name)
        replaced += [name] * (verdict.status != RIGHT)
    if replaced:
        print(f"Not right yet, so the course's own are used from here on: {', '.join(replaced)}.")
    return Functions(**chosen)


def start(own: Functions, data: Data) -> Run:
    """The state before the first step: start weights of the seed, a ring of random unit vectors."""
    query_network = network(data.seed)
    key_network, optimiser = own.prepare(query_network, RATE)
    noise = torch.randn(places(data.seed), query_network.head.width, generator=generator(data.seed))
    names = torch.full((len(noise), 2), -1.0, dtype=torch.float64)
    ring = normalize(noise, dim=1)
    return Run(
        query_network, key_network, optimiser, ring, 0, MOMENTUM, TEMPERATURE, names=names, steps=0, losses=[]
    )


def advance(own: Functions, run: Run, data: Data, note=lambda stage, **detail: None) -> None:
    """One step of a run, with the student's functions; note is called after each stage."""
    names = torch.stack([data.batch(run.steps), torch.full((BATCH,), run.steps)], dim=1).double()

    def ema(*arguments, **named):
        own.ema(*arguments, **named)
        note("EMA")

    def logits(*arguments, **named):
        answer = own.logits(*arguments, **named)
        note("logits", candidates=answer.shape[1])
        return answer

    def enqueue(ring, pointer, keys):
        run.names, _ = own.enqueue(run.names, pointer, names)
        run.ring, run.pointer = own.enqueue(ring, pointer, keys)
        note("enqueue", pointer=int(run.pointer))
        return run.ring, run.pointer

    hooks = [
        run.key_network.register_forward_hook(lambda *_: note("keys")),
        run.optimiser.register_step_post_hook(lambda *_: note("optimiser")),
    ]
    try:
        loss = own.step(run, *data.views(run.steps), ema, logits, enqueue)
    finally:
        for hook in hooks:
            hook.remove()
    run.losses.append(exercises.as_number(loss))
    run.steps += 1


def train(own: Functions, data: Data, steps=STEPS) -> Run:
    """A run of so many steps from the start; of the same functions, seed and machine it is the same."""
    run = start(own, data)
    for step in range(steps):
        for group in run.optimiser.param_groups:  # towards the end small steps, which do the readout good
            group["lr"] = RATE * (0.05 + 0.95 * math.cos(math.pi / 2 * step / steps) ** 2)
        advance(own, run, data)
    return run


class Watched(Trace):
    """A Trace that follows a run's ring, which every enqueue may replace by another tensor."""

    def __init__(self, run):
        super().__init__(query=run.query_network, key=run.key_network)
        self.watched["queue"] = lambda: [run.ring]
        self._before = self._look()


def three_steps(own: Functions, trained: Run, data: Data):
    """Three more steps on a copy of a trained run: the run after them, and the trace of all stages."""
    run = copy.deepcopy(trained)
    trace = Watched(run)
    for _ in range(TRACED):
        advance(own, run, data, trace.note)
    return run, trace


def accuracy(encoder, data: Data) -> float:
    """How well shape is read from what a frozen encoder makes of the probe pictures: accuracy, 0 to 1."""
    h = readout.features(encoder, data.probe.images)
    label = data.probe.labels["shape"]
    return float(
        readout.linear(readout.Split(h[:FIT_ON], label[:FIT_ON], h[FIT_ON:], label[FIT_ON:]), (1e-3,))
    )


# --- Judging ------------------------------------------------------------------------------------------------


def judge_trace(trained, traced, student_id) -> Verdict:
    """Whether a trace is that of three right steps from real keys of that id's run.

    The steps are done again from the run before them, by the right functions, and compared: names and numbers
    of the ring, losses, and what each stage changed. So a trace that was typed in differs.
    """
    name = "lab07_trace"
    if trained is None or traced is None:
        return Verdict(name, NOT_ATTEMPTED, "There is no trace: the training or the three steps did not run.")
    with quiet():
        try:
            own = data(student_seed(student_id))
            problem = not_real(trained, own) or differs(trained, *traced, own)
        except Exception as error:
            problem = f"The run or its trace cannot be read ({type(error).__name__}: {error})".splitlines()[0]
    if problem:
        return Verdict(name, WRONG, problem)
    return Verdict(name, RIGHT, "Three steps from real keys, each stage in its place.")


def not_real(run, own):
    """What is wrong with the keys of a run that should be a trained one's, or ""."""
    if run.steps < STEPS or len(run.ring) != places(own.seed):
        return (
            f"The run has {run.steps} steps and {len(run.ring)} places; yours has {STEPS} steps and "
            f"{places(own.seed)} places, which follow from your id."
        )
    if way(run, own) < TRAINED:
        return (
            "Misconception: random vectors in place of trained keys. The query network has hardly moved from "
            "its start."
        )
    if resemblance(run, own) < REAL_KEYS:
        return (
            "Misconception: random vectors in place of trained keys. The pictures behind your keys, encoded "
            "again, give other vectors."
        )
    return ""


def way(run, own) -> float:
    """How far the query network's parameters went, relative to the length of those it started with."""
    start, end = (
        torch.cat([p.detach().flatten() for p in part.parameters()])
        for part in (network(own.seed), run.query_network)
    )
    return ((end - start).norm() / start.norm()).item()


@torch.no_grad()
def resemblance(run, own) -> float:
    """The mean cosine of the ring's keys with the same views encoded again by the key network as it is."""
    key_network = copy.deepcopy(run.key_network).train()
    cosines = []
    for step in run.names[:, 1].unique().long().tolist():
        here = run.names[:, 1] == step
        if step < 0:
            cosines.append(torch.zeros(int(here.sum())))
            continue
        again = normalize(key_network(own.views(step)[1]), dim=1)
        rows = (run.names[here, 0][:, None] == own.batch(step)).double().argmax(dim=1)
        cosines.append((run.ring[here] * again[rows]).sum(dim=1))
    return torch.cat(cosines).mean().item()


def differs(trained, after, trace, own):
    """In what three steps differ from those of right functions from the same run, or ""."""
    right, right_trace = three_steps(COURSE, trained, own)
    if not torch.equal(after.names, right.names) or after.pointer != right.pointer:
        return "After your three steps the ring holds other keys, or in other places, than right steps leave."
    if not torch.allclose(after.ring, right.ring, atol=0.02):
        return "The keys of your three steps are not those that your trained key network makes."
    given, expected = ([(e.step, e.stage, e.changed) for e in t.events] for t in (trace, right_trace))
    if given != expected:
        return "The trace is not that of your three steps: a stage is missing, or says another change."
    if not torch.allclose(torch.tensor(after.losses), torch.tensor(right.losses), atol=0.02):
        return "The losses of your three steps are not those of right steps."
    return ""


def judge_readout(answers, trained, student_id) -> Verdict:
    """Whether the accuracies are those of the run's query encoder and of a random one, and what they say."""
    name = "lab07_readout"
    if answers is None or answers is ... or not isinstance(answers, dict):
        return Verdict(name, NOT_ATTEMPTED, "There is no readout: fill in the dictionary.")
    missing = [question for question in ANSWERS if answers.get(question, ...) in (..., None)]
    if len(missing) == len(ANSWERS) or trained is None:
        return Verdict(name, NOT_ATTEMPTED, "There is no readout: replace each ... by your answer.")
    if missing:
        return Verdict(name, WRONG, f"Not answered yet: {', '.join(missing)}.")
    with quiet():
        try:
            own = data(student_seed(student_id))
            problem = misread(answers, trained, own)
        except Exception as error:
            problem = f"The readout cannot be judged ({type(error).__name__}: {error})".splitlines()[0]
    if problem:
        return Verdict(name, WRONG, problem)
    return Verdict(name, RIGHT, "Read from h, beside a random encoder.")


def misread(answers, trained, own):
    """What is wrong with the readout, or ""."""
    of_trained = accuracy(trained.query_network.encoder, own)
    of_random = accuracy(network(own.seed).encoder, own)
    said = {question: float(answers[question]) for question in ANSWERS[:2]}
    if of_trained < of_random + AHEAD:
        return (
            f"Your trained encoder gives {of_trained:.2f} and the random one {of_random:.2f}: right code is "
            f"ahead by more than {AHEAD:.2f} with every seed. Was the run trained by your step?"
        )
    if abs(said["trained"] - of_trained) > 0.02:
        if abs(said["trained"] - accuracy(trained.query_network, own)) <= 0.02:
            return "Misconception: z is read where h is asked. Read from the encoder, without the head."
        return f"trained: you say {said['trained']:.2f}; read again from your run it is {of_trained:.2f}."
    if abs(said["random"] - of_random) > 0.02:
        if abs(said["random"] - of_trained) <= 0.02:
            return (
                "Misconception: the control is trained as well. A random encoder is network(SEED).encoder, "
                "as it starts."
            )
        if abs(said["random"] - 1 / 6) < 0.03:
            return (
                "Misconception: guessing taken for the control. A random encoder makes much readable: "
                "read it like the trained one."
            )
        return f"random: you say {said['random']:.2f}; the encoder as it started gives {of_random:.2f}."
    if str(answers["was the run useful?"]).strip() != USEFUL[0]:
        return (
            f"The trained encoder reads {of_trained:.2f}, the random one {of_random:.2f}, on the same "
            "pictures: what do they say?"
        )
    return ""


USEFUL = (
    "yes: shape is read better from it than from a random encoder",
    "no: shape is not read better from it than from a random encoder",
    "the loss fell, so yes",
)


def grade_trace(trained, traced, student_id) -> None:
    """The hidden test of the trace: raises NotAttempted or Wrong, see judge_trace."""
    require(judge_trace(trained, traced, student_id))


def grade_readout(answers, trained, student_id) -> None:
    """The hidden test of the readout: raises NotAttempted or Wrong, see judge_readout."""
    require(judge_readout(answers, trained, student_id))


# --- What the notebook shows --------------------------------------------------------------------------------


def named_trace(trace, ticket) -> pd.DataFrame:
    """The first step of a trace, stage by stage: what went in, what changed, what the ticket says."""

    def said(question):
        answer = ticket.get(question) if isinstance(ticket, dict) else None
        parts = answer if isinstance(answer, (list, tuple, set)) else [answer]
        return ", ".join(str(part) for part in parts if part not in (..., None)) or "?"

    notes = {
        "EMA": ("both networks", "changed by the EMA: " + said("changed by the EMA")),
        "keys": (said("the key network's input"), ""),
        "logits": (
            said("the query network's input"),
            "candidates of one query: " + said("candidates of one query"),
        ),
        "optimiser": ("the gradient", "changed by it: " + said("changed by the gradient")),
        "enqueue": ("the keys", "overwritten: " + said("overwritten, oldest first")),
    }
    return pd.DataFrame(
        [
            {
                "stage": event.stage,
                "goes in (you)": notes[event.stage][0],
                "changed (measured)": ", ".join(event.changed) or "nothing",
                "named (you)": notes[event.stage][1],
            }
            for event in trace.events
            if event.step == 1
        ]
    )


def before_and_after(before, after) -> pd.DataFrame:
    """Pictures and ages of the ring's keys, at the first and the last place that each of the steps wrote."""
    size, count = len(before.ring), after.steps - before.steps
    written = [
        (before.pointer + BATCH * number + more) % size for number in range(count) for more in (0, BATCH - 1)
    ]
    old, new = (run.table().set_index("place").loc[written] for run in (before, after))
    return pd.DataFrame(
        {
            "step": [number + 1 for number in range(count) for _ in range(2)],
            "written": ["first", "last"] * count,
            "place": written,
            "picture before": old["picture"].to_list(),
            "age before": old["age"].to_list(),
            "picture after": new["picture"].to_list(),
            "age after": new["age"].to_list(),
        }
    ).set_index("step")
