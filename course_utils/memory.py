"""MoCo's memory: a ring of keys (first in, first out), and an encoder that follows another one slowly.

    step t:  EMA -> keys -> logits against the queue as it stands -> loss, optimiser -> enqueue

`KeyQueue` is the ring, `ema_update` moves the key network, `Trace` writes down what each stage changed.
"""

from dataclasses import dataclass, field

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import normalize

UNKNOWN = -1  # the picture and the view of a key that came without them, and of a start entry
UNIT = 1e-3  # by how much the length of a key may differ from 1: bfloat16 rounds coarser than that


# --- FIFO ---------------------------------------------------------------------------------------------------


class KeyQueue(nn.Module):
    """The last `size` keys, each with its picture, view and birth; new ones take the places of the oldest.

    Buffers, which move and are saved with the network that holds the queue: `keys` float32 [size, width], of
    unit length; `pictures`, `views` int64 [size], the picture and the view's seed (UNKNOWN without them);
    `births` int64 [size], the step that made the key: the first enqueue is step 1, and 0 marks one of the
    random unit vectors that the queue starts with. `steps` and `written`, the number of enqueues and of keys
    so far, are Python numbers: nothing of a step waits for a GPU.
    Raises ValueError for a size or width below 1. He et al. 2020 (MoCo), section 3.2.

    >>> queue = KeyQueue(size=3, width=2)
    >>> queue.enqueue(torch.eye(2), pictures=torch.tensor([7, 9])), queue.pointer, queue.filled
    (None, 2, 2)
    >>> queue.table()[["place", "picture", "age", "start"]]
       place  picture  age  start
    0      0        7    1  False
    1      1        9    1  False
    2      2       -1    2   True
    """

    def __init__(self, size, width):
        super().__init__()
        if size < 1 or width < 1:
            raise ValueError(f"size is {size}, width {width}; expected at least one place and one number.")
        self.register_buffer("keys", normalize(torch.randn(size, width), dim=1))
        self.register_buffer("pictures", torch.full((size,), UNKNOWN))
        self.register_buffer("views", torch.full((size,), UNKNOWN))
        self.register_buffer("births", torch.zeros(size, dtype=torch.int64))
        self.steps = self.written = 0

    @property
    def size(self) -> int:
        """The number of places."""
        return len(self.keys)

    @property
    def pointer(self) -> int:
        """The place that is written next: where the oldest key is."""
        return self.written % self.size

    @property
    def filled(self) -> int:
        """The number of places that hold a real key; until the ring is full they are the first ones."""
        return min(self.written, self.size)

    @property
    def ages(self):
        """int64 [size]: how many steps ago each key was made when the next step uses it, 1 for the newest.

        A start entry has the age of the queue itself.
        """
        return self.steps + 1 - self.births

    def order(self):
        """int64 [size]: the places from the oldest key to the newest, the FIFO view of the ring."""
        return torch.arange(self.size, device=self.keys.device).roll(-self.pointer)

    def candidates(self, start=True):
        """The keys to compare a query with, a view [K, width]; start=False leaves the start entries out.

        Then K is `filled`, and 0 before the first enqueue. The real keys are the first rows of the ring until
        it is full, so leaving the rest out is a slice: no copy, no mask, and the fast losses take it.
        """
        return self.keys if start else self.keys[: self.filled]

    @torch.no_grad()
    def enqueue(self, keys, pictures=None, views=None):
        """Write the keys of one step over the oldest; what reaches beyond the ring's end begins at place 0.

        keys: floating [B, width], 1 <= B <= size, rows of unit length, on the queue's device. pictures,
        views: int64 [B], or one number for all, from 0.
        Raises ValueError for keys that do not fit, TypeError for pictures or views that are no whole numbers;
        the queue stays as it was. On a CPU that includes rows that are not finite or not of unit length. On a
        GPU nobody looks at values here, for the host would have to wait for them: call `verify` where a wait
        does no harm, such as once an epoch. (`training.MoCo` normalises its keys itself, and a step whose
        loss is no number ends before its keys are written.)
        """
        count = self._fitting(keys)
        pictures, views = (
            self._numbers(name, value, count) for name, value in (("pictures", pictures), ("views", views))
        )
        if keys.device.type == "cpu":
            _require_unit(keys, "keys")
        births = torch.full((count,), self.steps + 1, device=self.births.device)
        rows = {"keys": keys, "pictures": pictures, "views": views, "births": births}
        for name, new in rows.items():
            write_ring(getattr(self, name), self.pointer, new)
        self.written += count
        self.steps += 1

    def verify(self):
        """Raise ValueError that names the first key that is not finite or not of unit length; a GPU waits."""
        _require_unit(self.keys, "the queue's keys")

    def table(self) -> pd.DataFrame:
        """A row a place: place, picture, view, birth, age, start (a start entry?), next (written next?)."""
        return pd.DataFrame(
            {
                "place": range(self.size),
                "picture": self.pictures.tolist(),
                "view": self.views.tolist(),
                "birth": self.births.tolist(),
                "age": self.ages.tolist(),
                "start": (self.births == 0).tolist(),
                "next": [place == self.pointer for place in range(self.size)],
            }
        )

    def get_extra_state(self):
        return torch.tensor([self.steps, self.written])

    def set_extra_state(self, state):
        self.steps, self.written = state.tolist()

    def extra_repr(self):
        return f"size={self.size}, width={self.keys.shape[1]}"

    def _fitting(self, keys):
        """The number of keys, if they fit."""
        size, width = self.keys.shape
        if keys.ndim != 2 or keys.shape[1] != width or not 1 <= len(keys) <= size:
            raise ValueError(
                f"keys has shape {list(keys.shape)}; expected [B, {width}] with 1 <= B <= {size}, "
                "the places of the queue: take a longer queue or a smaller batch."
            )
        if keys.device != self.keys.device or not keys.is_floating_point():
            raise ValueError(
                f"keys is {keys.dtype} on {keys.device}; expected floating-point keys on {self.keys.device}, "
                "where the queue is: move one of the two with .to(device)."
            )
        return len(keys)

    def _numbers(self, name, value, count):
        """Pictures or views as int64 [count] on the queue's device; the copy to a GPU waits for nothing."""
        value = torch.as_tensor(UNKNOWN if value is None else value)
        if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
            raise TypeError(f"{name} is {value.dtype}; expected whole numbers (int64), one a key.")
        if value.ndim and tuple(value.shape) != (count,):
            raise ValueError(
                f"{name} has shape {list(value.shape)}; expected [{count}], one a key, or one number."
            )
        return value.to(self.keys.device, torch.int64, non_blocking=True).expand(count)


def write_ring(ring, place, rows):
    """Write rows [B, ...] into ring [Q, ...], B <= Q, from `place` on; what is left over begins at place 0.

    In place, in two writes where it wraps. place: a Python number, 0 to Q - 1.

    >>> ring = torch.zeros(3)
    >>> write_ring(ring, 2, torch.tensor([1.0, 2.0]))
    >>> ring
    tensor([2., 0., 1.])
    """
    fits = min(len(rows), len(ring) - place)
    ring[place : place + fits] = rows[:fits]
    ring[: len(rows) - fits] = rows[fits:]


def _require_unit(keys, what):
    lengths = torch.linalg.vector_norm(keys.float(), dim=1)
    wrong = ~((lengths - 1).abs() <= UNIT)  # NaN is not within
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{what}, shape {list(keys.shape)}: row {row} has length {lengths[row].item():.4g}; expected "
            "finite rows of length 1: torch.nn.functional.normalize(keys.float(), dim=1)."
        )


# --- EMA ----------------------------------------------------------------------------------------------------

BUFFERS = ("own", "copy", "average")


@torch.no_grad()
def ema_update(follower, leader, momentum, buffers="own"):
    """Move each parameter of follower towards its namesake: momentum * follower + (1 - momentum) * leader.

    Two networks of one architecture; momentum in [0, 1]. buffers, which batch norm keeps its statistics in:
    "own" leaves them alone, as the paper's code does, whose EMA runs over parameters only; in training mode a
    follower's batch norm normalises with its own batch, and its running statistics come from its own forward
    passes. "copy" takes the leader's. "average" treats them like parameters, but copies those that are whole
    numbers, such as a count of batches.
    Raises ValueError for another momentum or choice, or for networks that do not match; the follower stays as
    it was. He et al. 2020 (MoCo), equation 2.
    """
    if not 0 <= momentum <= 1 or buffers not in BUFFERS:
        raise ValueError(
            f"momentum is {momentum!r}, buffers {buffers!r}; expected a number in [0, 1] and one of "
            f"{', '.join(BUFFERS)}."
        )
    parameters = _pairs(follower.named_parameters(), leader.named_parameters())
    statistics = _pairs(follower.named_buffers(), leader.named_buffers()) if buffers != "own" else []
    for slow, fast in parameters:
        slow.lerp_(fast, 1 - momentum)
    for slow, fast in statistics:
        if buffers == "average" and slow.is_floating_point():
            slow.lerp_(fast, 1 - momentum)
        else:
            slow.copy_(fast)


def _pairs(followers, leaders):
    """[(follower's tensor, leader's)] if names and shapes are the same."""
    followers, leaders = dict(followers), dict(leaders)
    if [(name, x.shape) for name, x in followers.items()] != [(name, x.shape) for name, x in leaders.items()]:
        different = [
            f"{name} ({_shape(followers, name)} and {_shape(leaders, name)})"
            for name in {**followers, **leaders}
            if _shape(followers, name) != _shape(leaders, name)
        ]
        raise ValueError(
            f"follower and leader differ in {', '.join(different) or 'the order of their layers'}; expected "
            "two networks of one architecture: copy.deepcopy(leader)."
        )
    return [(slow, leaders[name]) for name, slow in followers.items()]


def _shape(tensors, name):
    return list(tensors[name].shape) if name in tensors else "not there"


# --- Trace --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """A stage of a step: what it changed since the event before, and how large everything watched then was.

    step: from 1. changed: names of what is watched. norms: name -> the length of all its numbers as one
    vector. detail: what else was noted.
    """

    step: int
    stage: str
    changed: tuple[str, ...]
    norms: dict[str, float]
    detail: dict[str, object] = field(default_factory=dict)

    def __str__(self):
        details = [
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.detail.items()
        ]
        changed = ", ".join(self.changed) or "nothing"
        return "; ".join([f"{self.step}  {self.stage:<10} changed: {changed}", *details])


class Trace:
    """What each stage of a training step changed, measured and not declared.

    watched: name -> a network or a tensor. Of a network the parameters are watched under its name, and its
    buffers under "<name> statistics"; of one without parameters, such as a KeyQueue, its buffers under its
    name. `note` compares all of them with the values at the event before, so a trace copies them, and a GPU
    waits: it is for looking at some steps. `events` is a list of Event; `print(trace)`, `trace.table()` and
    `show.queue.step_trace(trace)` show them.

    >>> network = nn.Linear(1, 1)
    >>> trace = Trace(network=network)
    >>> trace.note("keys")
    >>> _ = network.weight.data.add_(1)
    >>> trace.note("optimiser")
    >>> print(trace)
    1  keys       changed: nothing
    1  optimiser  changed: network
    """

    def __init__(self, **watched):
        self.watched = {name: part for given in watched.items() for name, part in _parts(*given).items()}
        self.events = []
        self._before = self._look()

    def note(self, stage, **detail):
        """Add an event: the stage that has just ended. A stage that this step has had begins the next step.

        detail: what else to keep, numbers or text; 0-d tensors become numbers.
        """
        now = self._look()
        changed = tuple(
            name
            for name in now
            if any(not torch.equal(new, old) for new, old in zip(now[name], self._before[name], strict=True))
        )
        norms = {
            name: sum(tensor.double().square().sum().item() for tensor in tensors) ** 0.5
            for name, tensors in now.items()
        }
        detail = {
            name: value.item() if isinstance(value, torch.Tensor) and not value.ndim else value
            for name, value in detail.items()
        }
        self.events.append(Event(self._step(stage), stage, changed, norms, detail))
        self._before = now

    def table(self) -> pd.DataFrame:
        """A row an event: step, stage, changed (names in one text), the norms, then the details noted."""
        return pd.DataFrame(
            [
                {"step": event.step, "stage": event.stage, "changed": ", ".join(event.changed) or "nothing"}
                | {f"|{name}|": norm for name, norm in event.norms.items()}
                | event.detail
                for event in self.events
            ]
        )

    def __str__(self):
        return "\n".join(map(str, self.events))

    def _step(self, stage):
        if not self.events:
            return 1
        step = self.events[-1].step
        return step + any(event.step == step and event.stage == stage for event in self.events)

    def _look(self):
        return {name: [tensor.detach().clone() for tensor in part()] for name, part in self.watched.items()}


def _parts(name, watched):
    """What is watched of a network or a tensor: name -> a function that lists its tensors."""
    if isinstance(watched, torch.Tensor):
        return {name: lambda: [watched]}
    parts = {"": watched.parameters, " statistics": watched.buffers}
    kept = {suffix: tensors for suffix, tensors in parts.items() if any(True for _ in tensors())}
    return {name + (suffix if len(kept) > 1 else ""): tensors for suffix, tensors in kept.items()}
