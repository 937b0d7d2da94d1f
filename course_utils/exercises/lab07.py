"""LAB 07: the ring, the moving average, the logits, and a step of MoCo in the right order; its questions.

The lab's check cells see the cases of seed VISIBLE. Its hidden tests redraw them with a seed that stands in
labs/source alone. A student's functions may work in place: `adapt` gives each of them copies to work on.
"""

import copy
import random
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.nn.utils import parameters_to_vector

from course_utils.exercises import moco
from course_utils.exercises.exercise import Case, Exercise, Fault, Misconception, Questions
from course_utils.memory import ema_update, write_ring
from course_utils.training import frozen_copy, seeded

VISIBLE = 7


# --- The ring -----------------------------------------------------------------------------------------------


def right_enqueue(ring, pointer, keys):
    """The ring with the keys written over the oldest ones, and the place that is written next."""
    ring = ring.clone()
    write_ring(ring, pointer, keys)
    return ring, (pointer + len(keys)) % len(ring)


AXIS = Fault(
    "Misconception: the queue is stored on the wrong axis. Each row of ring is a key, [Q, D], as in keys: "
    "places are counted along the first axis, and nothing is transposed."
)


def _batch_by_batch(enqueue):
    """(ring, batches) -> the ring after the last batch, each batch enqueued with a student's function."""

    def run(ring, batches):
        ring, wanted, pointer = ring.clone(), ring.shape, 0
        for batch in batches:
            beyond = pointer + len(batch) > wanted[0]
            try:
                answer = enqueue(ring, pointer, batch.clone())
            except NotImplementedError:
                raise
            except Exception as error:
                if _stored_across(enqueue):
                    raise AXIS from error
                if beyond:
                    raise _not_wrapped(
                        f"{wanted[0]} places, the pointer at {pointer} and {len(batch)} keys end in "
                        f"{type(error).__name__}"
                    ) from error
                raise
            if answer is None or answer is Ellipsis:
                return answer
            ring, pointer = _ring_and_pointer(answer, wanted)
        return ring

    return run


def _ring_and_pointer(answer, wanted):
    """What enqueue returned, with the pointer as a Python number; a Fault if it is something else."""
    if not isinstance(answer, (tuple, list)) or len(answer) != 2 or not isinstance(answer[0], torch.Tensor):
        raise Fault("Your function returned something else than two values; expected ring, pointer.")
    ring, pointer = answer
    if ring.shape != wanted and ring.shape == wanted[::-1]:
        raise AXIS
    if ring.shape != wanted:
        raise Fault(
            f"Your ring has shape {list(ring.shape)}; expected {list(wanted)}, as many places as before."
        )
    pointer = int(pointer)
    if not 0 <= pointer < wanted[0]:
        raise _not_wrapped(f"yours is {pointer} in a ring of {wanted[0]} places")
    return ring, pointer


def _not_wrapped(seen):
    return Fault(
        f"Misconception: the pointer does not wrap. After place Q - 1 comes place 0: take places and pointer "
        f"modulo Q ({seen})."
    )


def _stored_across(enqueue):
    """Whether the function, on a square ring that fits both ways, writes keys into columns."""
    ring, keys = torch.arange(16.0).view(4, 4), -torch.ones(2, 4)
    keys[1] = -2
    try:
        ring_after, _ = enqueue(ring.clone(), 0, keys)
    except Exception:  # whatever else is wrong with it is not this
        return False
    return torch.equal(ring_after, right_enqueue(ring.T, 0, keys)[0].T)


def _ring_case(draw, size, batch, count):
    return moco.ring_case(size, batch, count, width=draw.randrange(2, 6), seed=draw.randrange(10**6))


def _ring_cases(seed):
    """The small rings of notebook 05 (they need no seed), and two larger ones that no batch divides."""
    draw = random.Random(seed)
    cases = []
    for batch in sorted(draw.sample(range(3, 8), 2)):
        size = batch * draw.randrange(2, 5) + draw.randrange(1, batch)
        cases.append(_ring_case(draw, size, batch, count=2 * (size // batch) + 3))
    return (*moco.RING_ENQUEUE.cases[:6], *cases)


ENQUEUE = replace(
    moco.RING_ENQUEUE,
    name="lab07_enqueue",
    cases=_ring_cases(VISIBLE),
    redraw=_ring_cases,
    adapt=_batch_by_batch,
    guarantees="Your ring holds the last Q keys, each where it was first written, whether or not the batch "
    "divides Q.",
    hints=(
        "Where does the first key go? And the key after the one at the last place?",
        "The B keys go to the places pointer, pointer + 1, ..., each modulo Q; then the pointer moves by B, "
        "modulo Q.",
        "places = (pointer + torch.arange(len(keys))) % len(ring); ring[places] = keys; return ring and "
        "(pointer + len(keys)) % len(ring)",
    ),
)


# --- The moving average of a network ------------------------------------------------------------------------


def _vectors(network):
    """A network's parameters and its buffers, a vector each; without batch norm's count of batches."""
    return tuple(
        torch.cat([tensor.detach().flatten() for tensor in tensors() if tensor.is_floating_point()])
        for tensors in (network.parameters, network.buffers)
    )


def _averaged(rule, buffers=None):
    """rule(key, query, momentum) for every parameter; buffers: what is done whatever is asked."""

    def run(key_network, query_network, momentum, asked):
        key, query = _vectors(key_network), _vectors(query_network)
        kept = {"own": key[1], "copy": query[1], "average": rule(key[1], query[1], momentum)}
        return rule(key[0], query[0], momentum), kept[buffers or asked]

    return run


def right_ema(key_network, query_network, momentum, buffers):
    ema_update(key_network, query_network, momentum, buffers)


def _in_place(ema):
    """(networks, momentum, buffers) -> the key network's parameters and buffers after a student's EMA."""

    def run(key_network, query_network, momentum, buffers):
        key_network, before = copy.deepcopy(key_network), _vectors(query_network)
        query_network = copy.deepcopy(query_network)
        ema(key_network, query_network, momentum, buffers)
        if not all(map(torch.equal, before, _vectors(query_network))):
            raise Fault(
                "Misconception: the query network is moved. The EMA reads the query network and changes the "
                "key network; the query network learns by the gradient alone."
            )
        if any(p.requires_grad or p.grad_fn is not None for p in key_network.parameters()):
            raise Fault(
                "Misconception: gradient into the key network. After your update its parameters hang on the "
                "query network's graph: work under torch.no_grad()."
            )
        return _vectors(key_network)

    return run


def _weighted(key, query, momentum):
    return momentum * key + (1 - momentum) * query


def _small_network(width):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))


def _network_with_statistics(width, seed):
    def make():
        network = _small_network(width)
        for _ in range(1 + seed % 4):  # batch-norm statistics as after some training
            network(3 * torch.randn(8, 3) + 2)
        return network

    return seeded(make, seed)


def _ema_cases(seed):
    draw = random.Random(seed)
    cases = []
    momenta = (draw.uniform(0.55, 0.7), draw.uniform(0.75, 0.85), draw.uniform(0.86, 0.95), 1.0)
    for momentum, buffers in zip(momenta, ("own", "copy", "own", "copy"), strict=True):
        width = draw.randrange(2, 6)
        key, query = (_network_with_statistics(width, 4 * draw.randrange(10**5) + more) for more in (0, 2))
        cases.append(
            Case(
                {
                    "key_network": key.requires_grad_(False),
                    "query_network": query,
                    "momentum": round(momentum, 3),
                    "buffers": buffers,
                },
                tolerance=1e-5,
            )
        )
    return tuple(cases)


EVERY_BUFFER = ("own", "copy", "average")

EMA = Exercise(
    name="lab07_ema",
    reference=_averaged(_weighted),
    cases=_ema_cases(VISIBLE),
    redraw=_ema_cases,
    adapt=_in_place,
    misconceptions=(
        *(
            replace(
                known,
                function=_averaged(known.function),
                also=tuple(
                    _averaged(rule, buffers)
                    for rule in (known.function, *known.also)
                    for buffers in (None, *EVERY_BUFFER)
                ),
            )
            for known in moco.EMA.misconceptions
        ),
        Misconception(
            "the buffers are forgotten",
            "With buffers='copy' the key network takes over the query network's buffers, batch norm's "
            "running statistics. They are no parameters: look at named_buffers().",
            _averaged(_weighted, "own"),
        ),
        Misconception(
            "the buffers are copied unasked",
            "With buffers='own' the key network keeps its own running statistics.",
            _averaged(_weighted, "copy"),
        ),
        Misconception(
            "the buffers are averaged",
            "The argument says what becomes of the buffers: 'own' leaves them alone, 'copy' takes the query "
            "network's. state_dict() holds parameters and buffers in one.",
            _averaged(_weighted, "average"),
        ),
    ),
    guarantees="Every parameter of the key network keeps the share m, and the buffers do what is asked.",
    hints=(
        "Which tensors of a network are parameters, which are buffers, and what is asked for each?",
        "Under torch.no_grad(), for each pair of parameters: m times the key's plus 1 - m times the query's, "
        "in place. If buffers == 'copy', then copy each pair of buffers.",
        "for key, query in zip(key_network.parameters(), query_network.parameters()): "
        "key.lerp_(query, 1 - momentum); the same loop over .buffers() with key.copy_(query)",
    ),
)


# --- The logits ---------------------------------------------------------------------------------------------


def _logits_cases(seed):
    """The small inputs of notebook 05, and others."""
    draw = random.Random(seed)
    drawn = (
        moco.logits_case(
            draw.randrange(2, 9),
            draw.randrange(3, 20),
            draw.randrange(3, 9),
            draw.choice([0.1, 0.2, 0.3, 0.5]),
            seed=draw.randrange(10**6),
        )
        for _ in range(3)
    )
    return (*moco.MOCO_LOGITS.cases[:2], *drawn)


LOGITS = replace(moco.MOCO_LOGITS, name="lab07_logits", cases=_logits_cases(VISIBLE), redraw=_logits_cases)


# --- A key network, and who is trained ----------------------------------------------------------------------


def right_prepare(query_network, rate):
    return frozen_copy(query_network), torch.optim.AdamW(query_network.parameters(), lr=rate)


def _as_it_starts(prepare):
    """(query network, rate) -> the parameters of a student's key network; a Fault if it could be trained."""

    def run(query_network, rate):
        query_network = copy.deepcopy(query_network)
        answer = prepare(query_network, rate)
        if answer is None or answer is Ellipsis:
            return answer
        if (
            not isinstance(answer, (tuple, list))
            or len(answer) != 2
            or not isinstance(answer[0], nn.Module)
            or not isinstance(answer[1], (torch.optim.Adam, torch.optim.AdamW))
        ):
            raise Fault("Your function returned something else; expected a network and an Adam or AdamW.")
        key_network, optimiser = answer
        of_query, of_key = ({id(p) for p in net.parameters()} for net in (query_network, key_network))
        held = {id(p) for group in optimiser.param_groups for p in group["params"]}
        if {p.data_ptr() for p in query_network.parameters()} & {
            p.data_ptr() for p in key_network.parameters()
        }:
            raise Fault(
                "Misconception: the key network is the query network itself. Then both are trained by the "
                "gradient, and there is nothing to follow: make a copy, copy.deepcopy(query_network)."
            )
        if held & of_key:
            raise Fault(
                "Misconception: the key encoder is trained by the optimiser. It follows by the EMA alone: "
                "give the optimiser the query network's parameters, and no others."
            )
        if any(p.requires_grad for p in key_network.parameters()):
            raise Fault(
                "Misconception: gradient into the key network. Switch it off for its parameters: "
                "key_network.requires_grad_(False)."
            )
        if held != of_query or not all(p.requires_grad for p in query_network.parameters()):
            raise Fault(
                "The optimiser has to train every parameter of the query network, and here it does not."
            )
        if any(group["lr"] != rate for group in optimiser.param_groups):
            raise Fault("The optimiser's learning rate is not the rate that was given: lr=rate.")
        return _vectors(key_network)[0]

    return run


def _prepare_cases(seed):
    draw = random.Random(seed)
    return tuple(
        Case(
            {
                "query_network": _network_with_statistics(draw.randrange(2, 6), draw.randrange(10**6)),
                "rate": draw.choice([0.01, 0.02, 0.003]),
            }
        )
        for _ in range(2)
    )


PREPARE = Exercise(
    name="lab07_prepare",
    reference=lambda query_network, rate: _vectors(query_network)[0],
    cases=_prepare_cases(VISIBLE),
    redraw=_prepare_cases,
    adapt=_as_it_starts,
    misconceptions=(
        Misconception(
            "the key network starts elsewhere",
            "Its weights are not the query network's. It begins as a copy of the query network.",
            behaves=lambda function, cases: True,
        ),
    ),
    guarantees="The key network starts as a copy without gradients; the optimiser holds the query network.",
    hints=(
        "Which of the two networks may the optimiser know?",
        "Copy the network with copy.deepcopy, switch off the copy's gradients, and give the optimiser the "
        "parameters of the query network.",
        "key_network = copy.deepcopy(query_network).requires_grad_(False); optimiser = torch.optim.AdamW("
        "query_network.parameters(), lr=rate)",
    ),
)


# --- The step -----------------------------------------------------------------------------------------------


@dataclass
class State:
    """What a step of MoCo reads and changes.

    query_network, key_network: view -> a vector of any length; no gradient reaches the second. optimiser: of
    the query network. ring: [Q, D], keys of unit length; pointer: the place that is written next.
    """

    query_network: nn.Module
    key_network: nn.Module
    optimiser: torch.optim.Optimizer
    ring: torch.Tensor
    pointer: int
    momentum: float
    temperature: float


def stages(
    *order,
    unit=True,
    keys_of="key_network",
    swapped=False,
    zero=True,
    kept=True,
    pointer_kept=True,
    labels=torch.zeros_like,
    divided=False,
):
    """A step through the named stages in this order, each right unless an argument says otherwise."""

    def step(state, view_a, view_b, ema, logits, enqueue):
        view_a, view_b = (view_b, view_a) if swapped else (view_a, view_b)
        keys = scores = loss = None
        for stage in order:
            if stage == "EMA":
                ema(state.key_network, state.query_network, state.momentum, "own")
            elif stage == "keys":
                with torch.no_grad():
                    keys = getattr(state, keys_of)(view_b)
                    keys = normalize(keys, dim=1) if unit else keys
            elif stage == "logits":
                scores = logits(state.query_network(view_a), keys, state.ring, state.temperature)
                scores = scores / state.temperature if divided else scores
                loss = cross_entropy(scores, labels(torch.arange(len(scores))))
            elif stage == "optimiser":
                if zero:
                    state.optimiser.zero_grad()
                loss.backward()
                state.optimiser.step()
            else:
                ring, pointer = enqueue(state.ring, state.pointer, keys)
                if kept:
                    state.ring = ring
                if pointer_kept:
                    state.pointer = pointer
        return loss.detach()

    return step


ORDER = ("EMA", "keys", "logits", "optimiser", "enqueue")
right_step = stages(*ORDER)


def _small_steps(step):
    """Two steps with a student's function -> both networks' parameters, the ring, the losses.

    It gets right functions for EMA, logits and enqueue, so mistakes in the student's own cost nothing here.
    `run.order` lists the stages of the last step as they were called.
    """

    def run(query_network, key_network, ring, pointer, views, momentum, temperature):
        query_network, key_network = (copy.deepcopy(n).to(views.dtype) for n in (query_network, key_network))
        optimiser = torch.optim.SGD(query_network.parameters(), lr=0.5)
        state = State(query_network, key_network, optimiser, ring.clone(), pointer, momentum, temperature)
        losses = []
        for view_a, view_b in views:
            run.order = []
            tools = {
                name: _noted(name, tool, run.order)
                for name, tool in (
                    ("EMA", right_ema),
                    ("logits", LOGITS.reference),
                    ("enqueue", right_enqueue),
                )
            }
            seen = key_network.register_forward_pre_hook(lambda *_: run.order.append("keys"))
            try:
                loss = step(state, view_a.clone(), view_b.clone(), *tools.values())
            finally:
                seen.remove()
            if loss is None or loss is Ellipsis:
                return None
            losses.append(as_number(loss))
        if any(p.grad is not None for p in key_network.parameters()) or state.ring.requires_grad:
            raise Fault(
                "Misconception: gradient into the keys or the queue. Make the keys under torch.no_grad(), "
                "and enqueue them as constants."
            )
        if state.ring.shape != ring.shape:
            raise Fault(
                f"After your step the ring has shape {list(state.ring.shape)}; expected {list(ring.shape)}."
            )
        return (
            _vectors_of_parameters(query_network),
            _vectors_of_parameters(key_network),
            state.ring.detach().clone(),
            torch.tensor(losses),
        )

    run.order = []
    return run


def as_number(loss) -> float:
    """A loss that a student returns, a number or a tensor with or without a gradient, as a number."""
    return float(loss.detach() if isinstance(loss, torch.Tensor) else loss)


def _noted(name, tool, order):
    def noting(*arguments, **named):
        order.append(name)
        return tool(*arguments, **named)

    return noting


def _vectors_of_parameters(network):
    return parameters_to_vector(network.parameters()).detach().clone()


def _before(first, second):
    """Whether a student's step calls one stage before another, whatever else it does."""

    def behaves(function, cases):
        function(*cases[0].fresh())
        order = function.order
        return first in order and second in order and order.index(first) < order.index(second)

    return behaves


def _step_cases(seed):
    draw = random.Random(seed)
    cases = []
    for steps in (1, 2):
        width, batch, inside = draw.randrange(4, 7), draw.randrange(3, 6), draw.randrange(3, 6)
        size = 2 * batch + draw.randrange(1, batch)

        def make(inside=inside, width=width):
            return nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, inside))

        one = draw.randrange(10**6)
        generator = torch.Generator().manual_seed(one)
        first = torch.randn(steps, 1, batch, width, generator=generator)
        views = first + 0.3 * torch.randn(steps, 2, batch, width, generator=generator)
        ring = normalize(torch.randn(size, inside, generator=generator), dim=1)
        arguments = {
            "query_network": seeded(make, one),
            "key_network": seeded(make, one + 1).requires_grad_(False),
            "ring": ring,
            "pointer": size - draw.randrange(1, batch),
            "views": views,
            "momentum": round(draw.uniform(0.6, 0.85), 2),
            "temperature": draw.choice([0.2, 0.3, 0.5]),
        }
        cases.append(Case(arguments, tolerance=1e-4))
    return tuple(cases)


ENQUEUE_FIRST = (
    "the keys are enqueued before the logits",
    "Then the positive meets itself as a negative: every query finds its own key among the candidates twice, "
    "and its loss cannot fall below log 2. Enqueue last.",
)
EMA_LATE = (
    "the EMA comes after the keys",
    "The keys are then made by the key network of the step before. First the key network follows, then it "
    "makes the keys.",
)


def _moved(stage, *after):
    """Steps in which one stage comes after each of the others, in turn."""
    rest = [one for one in ORDER if one != stage]
    return tuple(
        _small_steps(stages(*rest[: rest.index(one) + 1], stage, *rest[rest.index(one) + 1 :]))
        for one in after
    )


def _mistake(name, explanation, *functions):
    return Misconception(name, explanation, functions[0], also=functions[1:])


STEP = Exercise(
    name="lab07_step",
    reference=_small_steps(right_step),
    cases=_step_cases(VISIBLE),
    redraw=_step_cases,
    adapt=_small_steps,
    misconceptions=(
        _mistake(
            *ENQUEUE_FIRST,
            *_moved("enqueue", "keys"),
            _small_steps(stages("keys", "enqueue", "EMA", "logits", "optimiser")),
            _small_steps(stages("keys", "enqueue", "logits", "optimiser", "EMA")),
        ),
        _mistake(*EMA_LATE, *_moved("EMA", "keys", "logits", "optimiser", "enqueue")),
        _mistake(
            "un-normalised keys are enqueued",
            "What a network returns is of any length, and the ring holds keys of length 1: normalise the "
            "rows, F.normalize(keys, dim=1).",
            _small_steps(stages(*ORDER, unit=False)),
        ),
        _mistake(
            "the keys come from the query network",
            "The queries come from the query network, the keys from the key network.",
            _small_steps(stages(*ORDER, keys_of="query_network")),
        ),
        _mistake(
            "the key network never follows",
            "The EMA is left out: the key network stays as it started.",
            _small_steps(stages(*ORDER[1:])),
        ),
        _mistake(
            "the two views are swapped",
            "view_a goes through the query network, view_b through the key network.",
            _small_steps(stages(*ORDER, swapped=True)),
        ),
        _mistake(
            "the labels do not fit the logits",
            "The positive of every query is in column 0, so every label is 0. Row numbers are the labels of "
            "another loss.",
            _small_steps(stages(*ORDER, labels=lambda rows: rows)),
            _small_steps(stages(*ORDER, labels=torch.ones_like)),
        ),
        _mistake(
            "the temperature divides twice",
            "logits has divided by the temperature already.",
            _small_steps(stages(*ORDER, divided=True)),
        ),
        _mistake(
            "the gradients add up from step to step",
            "Set them to zero before each backward: state.optimiser.zero_grad().",
            _small_steps(stages(*ORDER, zero=False)),
        ),
        _mistake(
            "the optimiser takes no step",
            "The query network has not moved: loss.backward(), then state.optimiser.step().",
            _small_steps(stages("EMA", "keys", "logits", "enqueue")),
        ),
        _mistake(
            "the queue stays as it was",
            "What enqueue returns has to be kept: state.ring, state.pointer = enqueue(...).",
            _small_steps(stages(*ORDER, kept=False)),
            _small_steps(stages(*ORDER, kept=False, pointer_kept=False)),
            _small_steps(stages(*ORDER[:-1])),
        ),
        _mistake(
            "the pointer stays where it was",
            "The next batch is written over this one. Keep it: state.ring, state.pointer = enqueue(...).",
            _small_steps(stages(*ORDER, pointer_kept=False)),
        ),
        # The same two beside other mistakes, which change the numbers: by the order of the calls.
        *(
            Misconception(f"{name}, beside another mistake", explanation, behaves=_before(*places))
            for (name, explanation), places in (
                (ENQUEUE_FIRST, ("enqueue", "logits")),
                (EMA_LATE, ("keys", "EMA")),
            )
        ),
    ),
    guarantees="EMA, keys, logits, optimiser, enqueue: each stage finds what the one before has left.",
    hints=(
        "Which network makes the keys, in which state? And what is in the queue when the logits are taken?",
        "EMA; keys under torch.no_grad(), normalised; logits of the queries against keys and ring; "
        "cross-entropy with labels 0; zero_grad, backward, step; enqueue, and keep what it returns.",
        "ema(state.key_network, state.query_network, state.momentum, 'own'); keys = F.normalize("
        "state.key_network(view_b), dim=1) under torch.no_grad(); loss = F.cross_entropy(logits(...), "
        "zeros); the optimiser's three lines; state.ring, state.pointer = enqueue(state.ring, state.pointer, "
        "keys)",
    ),
)


# --- Questions ----------------------------------------------------------------------------------------------

PREDICTION = Questions(
    name="lab07_prediction",
    choices={
        "a key leaves when": ("it is the oldest", "it is the most similar", "it is the least similar"),
        "the key network learns by": ("the gradient", "following the query network", "both"),
        "shape, read from h, is": (
            "read better than from a random encoder",
            "read as well as from a random encoder",
            "read worse than from a random encoder",
        ),
    },
    guarantees="Your prediction is kept in the notebook.",
)

PARTS = ("pictures", "query network", "key network", "queue", "readout")
CANDIDATES = ("B", "2B - 1", "Q", "Q + 1", "Q + B")

TICKET = Questions(
    name="lab07_ticket",
    choices={
        "the query network's input": ("a picture", "a view", "another view of the same picture", "a key"),
        "the key network's input": ("a picture", "a view", "another view of the same picture", "the queue"),
        "candidates of one query": CANDIDATES,
        "changed by the gradient": PARTS,
        "changed by the EMA": PARTS,
        "overwritten, oldest first": PARTS,
        "whether the run was useful is said by": (
            "the loss, which fell",
            "the queue, which is full",
            "the readout of h beside that of a random encoder",
            "the readout of h alone",
        ),
    },
    right={
        "the query network's input": "a view",
        "the key network's input": "another view of the same picture",
        "candidates of one query": "Q + 1",
        "changed by the gradient": "query network",
        "changed by the EMA": "key network",
        "overwritten, oldest first": "queue",
        "whether the run was useful is said by": "the readout of h beside that of a random encoder",
    },
    misconceptions=(
        Misconception(
            "gradient into keys or queue",
            "Keys are made without a gradient and the queue holds constants: the gradient changes the query "
            "network alone.",
            lambda given: bool(given["changed by the gradient"] & {"key network", "queue"}),
        ),
        Misconception(
            "the EMA moves the wrong network",
            "The key network follows the query network, and nothing else moves by the EMA.",
            lambda given: given["changed by the EMA"] != {"key network"},
        ),
        Misconception(
            "the positive is not counted",
            "Q keys of the queue are the negatives; the query's own key is a candidate too.",
            lambda given: given["candidates of one query"] == {"Q"},
        ),
        Misconception(
            "candidates from the batch",
            "In MoCo the other keys of the batch are no candidates: they enter the queue after the logits.",
            lambda given: bool(given["candidates of one query"] & {"B", "2B - 1", "Q + B"}),
        ),
        Misconception(
            "the loss taken for the readout",
            "Losses rise and fall with the length of the queue. What a representation is good for is said by "
            "an independent readout.",
            lambda given: given["whether the run was useful is said by"] == {"the loss, which fell"},
        ),
        Misconception(
            "a readout without a control",
            "A random encoder makes much readable already: an accuracy counts beside that.",
            lambda given: given["whether the run was useful is said by"] == {"the readout of h alone"},
        ),
    ),
    guarantees="The gradient moves the query network, the EMA the key network; the queue is written over.",
)

EXERCISES = (ENQUEUE, EMA, LOGITS, PREPARE, STEP, PREDICTION, TICKET)
