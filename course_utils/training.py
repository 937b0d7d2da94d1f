"""One loop for SimCLR, MoCo, BYOL, SimSiam, Barlow Twins and CLIP.

    pictures --pairs--> first, second --method.loss--> loss --gradients--> optimiser --> method.after_step

A method is a small module: its networks, the loss of a batch of pairs, and what happens after the optimiser's
step. `train` takes a function that makes one, because the seed decides the start weights as well:

    >>> from course_utils.images import shapes
    >>> from course_utils.networks import ProjectionHead, SmallEncoder
    >>> def simclr():
    ...     return SimCLR(SmallEncoder(), ProjectionHead("mlp", width_in=128), temperature=0.2)
    >>> run = train(simclr, shapes.make(64), Budget(epochs=1, batch=32), seed=0)
    >>> run.history[["step", "epoch"]].values.tolist()
    [[1, 1], [2, 1]]
"""

import copy
import json
import math
import os
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, normalize
from torch.nn.utils import get_total_norm
from tqdm.auto import tqdm

from course_utils import records, runtime
from course_utils.contrast import cross_correlation
from course_utils.kernels import clip_loss, info_nce, nt_xent
from course_utils.memory import KeyQueue, ema_update
from course_utils.networks import ProjectionHead, fingerprint
from course_utils.views import POLICIES, Policy, apply_view, draw_parameters, fused_view


class Diverged(RuntimeError):
    """The loss or its gradient is not a number any more; the message names the step and the likely cause.

    history: the steps before that one, as in Run.history: to see whether the loss rose beforehand.
    """

    history: pd.DataFrame


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged or belongs to another run; its file is left as it is."""


# --- Methods ------------------------------------------------------------------------------------------------


class Method(nn.Module):
    """The networks of a method, the loss of a batch of pairs, and what happens after the optimiser's step.

    encoder: view [B, 3, H, W] -> h [B, encoder.width], what is read out later. head: h -> z.
    """

    def __init__(self, encoder, head):
        super().__init__()
        self.encoder = encoder
        self.head = head

    def project(self, views):
        """z [B, D] of views [B, 3, H, W]."""
        return self.head(self.encoder(views))

    def loss(self, first, second):
        """The scalar loss of a batch of pairs: row k of both belongs to picture k."""
        raise NotImplementedError

    def after_step(self):
        """What no gradient does: nothing, unless the method says otherwise."""


class SimCLR(Method):
    """Each of 2N views looks for its partner among the others (Chen et al. 2020).

    Both views go through the network as one batch, so batch norm sees all 2N.
    """

    def __init__(self, encoder, head, temperature=0.2):
        super().__init__(encoder, head)
        self.temperature = temperature

    def loss(self, view_a, view_b):
        z_a, z_b = self.project(torch.cat([view_a, view_b])).chunk(2)
        return nt_xent(z_a, z_b, self.temperature)

    def extra_repr(self):
        return f"temperature={self.temperature}"


class MoCo(Method):
    """Queries look for their keys among a queue of older ones (He et al. 2020).

    The order of a step: EMA update of the key network, keys, logits against the queue as it stands, the
    optimiser's step, enqueue. The key network has no gradient. Its parameters follow by EMA; its batch-norm
    statistics are its own (see memory.ema_update). Keys are not shuffled before batch norm as in the paper:
    on one device there is nothing to shuffle between.
    start: whether the random vectors that the queue starts with are negatives, as in the paper's code.
    Without them the first step has no negative at all: its loss is log 1 = 0, and its gradient zero.
    trace: None, or a memory.Trace that each stage is noted in.
    """

    def __init__(self, encoder, head, queue=4096, momentum=0.99, temperature=0.2, start=True):
        super().__init__(encoder, head)
        self.key_encoder = frozen_copy(encoder)
        self.key_head = frozen_copy(head)
        self.queue = KeyQueue(queue, head.width)
        self.momentum = momentum
        self.temperature = temperature
        self.start = start
        self.trace = None

    def loss(self, view_a, view_b, pictures=None, views=None):
        """pictures, views: whose keys these are, kept beside them in the queue (see KeyQueue.enqueue)."""
        ema_update(self.key_encoder, self.encoder, self.momentum)
        ema_update(self.key_head, self.head, self.momentum)
        self.note("EMA")
        with torch.no_grad():
            keys = normalize(self.key_head(self.key_encoder(view_b)).float(), dim=1)
        self.made = keys, pictures, views
        self.note("keys")
        query, negatives = self.project(view_a), self.queue.candidates(self.start)
        loss = info_nce(query, keys, negatives, self.temperature) if len(negatives) else 0 * query.sum()
        self.note("logits", loss=loss)
        return loss

    def after_step(self):
        self.note("optimiser")
        self.queue.enqueue(*self.made)
        self.note("enqueue", pointer=self.queue.pointer)

    def note(self, stage, **detail):
        if self.trace is not None:
            self.trace.note(stage, **detail)

    def extra_repr(self):
        start = "" if self.start else ", start=False"
        return f"queue={self.queue.size}, momentum={self.momentum}, temperature={self.temperature}{start}"


class BYOL(Method):
    """Predict the other view's z as a slowly following network sees it; no negatives (Grill et al. 2020).

    The target has no gradient and follows by EMA after each step, with a constant momentum (the paper raises
    it to 1). Its batch-norm statistics are its own.
    predictor: whether the method has one; without it, it collapses (notebook 09).
    """

    def __init__(self, encoder, head, momentum=0.99, predictor=True):
        super().__init__(encoder, head)
        self.predictor = ProjectionHead("mlp" if predictor else "none", head.width, head.width)
        self.target_encoder = frozen_copy(encoder)
        self.target_head = frozen_copy(head)
        self.momentum = momentum

    def loss(self, view_a, view_b):
        views = torch.cat([view_a, view_b])
        with torch.no_grad():
            target_a, target_b = self.target_head(self.target_encoder(views)).chunk(2)
        predicted = self.predictor(self.project(views))
        return 2 - 2 * cosine_similarity(predicted, torch.cat([target_b, target_a])).mean()

    def after_step(self):
        ema_update(self.target_encoder, self.encoder, self.momentum)
        ema_update(self.target_head, self.head, self.momentum)

    def extra_repr(self):
        return f"momentum={self.momentum}, predictor={self.predictor.kind}"


class SimSiam(Method):
    """Predict the other view's z, with no gradient through the predicted side (Chen & He 2021).

    predictor, stop_gradient: whether the method has them; without either one it collapses (notebook 09).
    """

    def __init__(self, encoder, head, predictor=True, stop_gradient=True):
        super().__init__(encoder, head)
        hidden = head.width // 2
        self.predictor = ProjectionHead("mlp" if predictor else "none", head.width, head.width, hidden)
        self.stop_gradient = stop_gradient

    def loss(self, view_a, view_b):
        z = self.project(torch.cat([view_a, view_b]))
        z_a, z_b = (z.detach() if self.stop_gradient else z).chunk(2)
        return -cosine_similarity(self.predictor(z), torch.cat([z_b, z_a])).mean()

    def extra_repr(self):
        return f"predictor={self.predictor.kind}, stop_gradient={self.stop_gradient}"


class BarlowTwins(Method):
    """Make each coordinate of z agree between the views and with no other one (Zbontar et al. 2021).

    redundancy: the weight of the squared correlations between different coordinates.
    """

    def __init__(self, encoder, head, redundancy=5e-3):
        super().__init__(encoder, head)
        self.redundancy = redundancy

    def loss(self, view_a, view_b):
        correlation = cross_correlation(*self.project(torch.cat([view_a, view_b])).chunk(2))
        itself = correlation.diagonal()
        others = correlation.square().sum() - itself.square().sum()
        return (1 - itself).square().sum() + self.redundancy * others

    def extra_repr(self):
        return f"redundancy={self.redundancy}"


class CLIP(Method):
    """Pictures look for their captions and captions for their pictures (Radford et al. 2021).

    text: tokens int64 [B, L] -> [B, text.width]; text_head: as wide as head. The logit scale is exp(t), t is
    learned and kept at or below log 100.
    """

    def __init__(self, encoder, head, text, text_head):
        super().__init__(encoder, head)
        self.text = text
        self.text_head = text_head
        self.t = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def loss(self, view, tokens):
        return clip_loss(self.project(view), self.text_head(self.text(tokens)), self.t.exp())

    @torch.no_grad()
    def after_step(self):
        self.t.clamp_(max=math.log(100))


def frozen_copy(network):
    """A copy with the same weights that no gradient reaches."""
    return copy.deepcopy(network).requires_grad_(False)


# --- What a run is given and what it gives ------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """How long and how fast a run learns.

    epochs: passes over the pictures, in batches of `batch`; what does not fill the last batch waits for the
    next epoch's order. rate: the peak learning rate of AdamW, reached after the share `warm_up` of all steps,
    then lowered to 0 along a cosine. weight_decay: for weights; biases, batch norm and scales have none.
    size: the views' edge in pixels (None: the pictures' own).
    """

    epochs: int
    batch: int = 256
    rate: float = 2e-3
    weight_decay: float = 1e-4
    warm_up: float = 0.1
    size: int | None = None

    def __post_init__(self):
        if self.epochs < 1 or self.batch < 2 or not 0 <= self.warm_up < 1 or not 0 < self.rate < math.inf:
            raise ValueError(f"{self}; expected epochs >= 1, batch >= 2, rate > 0 and warm_up in [0, 1).")

    def steps(self, count) -> int:
        """The number of steps that this many pictures give."""
        return count // self.batch * self.epochs


@dataclass(frozen=True)
class Run:
    """What training leaves, also when it was interrupted.

    method: the trained module, in evaluation mode. history: a row a step: step, epoch (both from 1), rate,
    loss. protocol: what records.py asks for; protocol["finished"] is False after an interruption.
    """

    method: Method
    history: pd.DataFrame
    protocol: dict

    @property
    def encoder(self):
        """f: view -> h, the part that is read out."""
        return self.method.encoder

    @property
    def finished(self) -> bool:
        """Whether every step of the budget was done."""
        return self.protocol["finished"]


# --- The loop -----------------------------------------------------------------------------------------------


def train(
    make,
    pictures,
    budget,
    *,
    seed=0,
    policy="simclr_cifar",
    fused=False,
    captions=None,
    checkpoint=None,
    device=None,
    half=None,
    compiled=False,
    watch=None,
    progress=True,
) -> Run:
    """Train a method on pairs made from pictures.

    make: function without arguments that returns a Method; called once, with torch's generator at `seed`.
    pictures: Pictures. policy: how views are drawn, a Policy or a name in POLICIES; None takes the pictures
    as they are. fused: make views with fused_view, faster and from a slightly other distribution, instead of
    apply_view. captions: int64 [len(pictures), L], the pictures' partners; without them the partner is a
    second view. seed: decides start weights, order and views. checkpoint: the name of a file in
    data/cache/runs that is written after each epoch; where it is there already, the run goes on from it.
    device: by default runtime.device(). half: bfloat16 autocast, by default on GPUs that have it. compiled:
    whether torch.compile fuses the encoder's small operations, on a GPU into one CUDA graph: the first step
    takes up to a minute, and a CPU needs a C++ compiler. watch: called with the method after every step, to
    measure something on the way. progress: whether to show a bar; not where several runs go at once, whose
    bars would write over one another. On a CPU with two torch threads or more, one of them draws each batch
    during the forward pass of the one before it; not if fused, which takes a fraction of that pass.

    An interruption (Ctrl-C, or the kernel's interrupt) returns what is there; the same call with a checkpoint
    goes on from the last whole epoch. On a CPU with the same number of threads the same arguments give the
    same weights bit for bit, resumed or not. Raises Diverged, CheckpointError, TypeError for a method instead
    of a function that makes one, ValueError for too few pictures or captions that do not belong to them.
    """
    device = torch.device(device or runtime.device())
    runtime.keep_memory()  # each step needs again what the one before it freed
    torch.backends.cudnn.benchmark = True  # batches keep their shape: the search for the fastest way pays
    half = has_bfloat16(device) if half is None else half
    policy = POLICIES.get(policy, policy)
    check_pairs(pictures, captions, budget)
    method = seeded(make, seed).to(device, memory_format=torch.channels_last).train()
    definition = define(method, pictures, captions, policy, fused, budget, seed, half, compiled)
    state = State(method, adamw(method, budget), runtime.generator(seed))
    file = checkpoint and runtime.data_dir() / "runs" / f"{checkpoint}.pt"
    if file and file.exists():
        load_checkpoint(file, state, definition)

    total = budget.steps(len(pictures))
    if state.step < total and (machine := records.machine(device)) not in state.machines:
        state.machines.append(machine)
    images = pictures.images.to(device)
    view = partial(draw_view, policy=policy, fused=fused, size=budget.size, generator=state.generator)
    draw = partial(draw_pair, images, captions, view=view)
    spare = one_thread_draws(device, policy, fused)
    save = partial(save_checkpoint, file, state, definition) if file else lambda: None
    try:
        with compiled_forward(method.encoder, device) if compiled else nullcontext():
            learn(state, draw, len(images), budget, spare, half, save, watch or (lambda _: None), progress)
    except Diverged as error:
        error.history = history(state.losses, total, budget)
        raise
    except KeyboardInterrupt:
        print(f"Interrupted after step {state.step} of {total}; the run holds what was learned so far.")
    return Run(
        method=method.eval(),
        history=history(state.losses, total, budget),
        protocol={
            **definition,
            "machines": state.machines,
            "seconds": round(state.seconds, 2),
            "finished": state.step == total,
            "weights": fingerprint(method),
        },
    )


@dataclass
class State:
    """What changes from step to step: all that a checkpoint has to hold."""

    method: Method
    optimiser: torch.optim.Optimizer
    generator: torch.Generator
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    machines: list[dict] = field(default_factory=list)  # more than one where a run was resumed elsewhere

    @property
    def step(self):
        return len(self.losses)


def learn(state, draw, count, budget, spare, half, save, watch, progress):
    """The loop: step by step, epoch by epoch, from where the state is to the end of the budget.

    draw: int64 [batch], places of pictures -> a batch of pairs. count: the number of pictures. spare: whether
    the forward pass leaves one of torch's threads to the next draw. save: called after each epoch. watch:
    called with the method after each step. progress: whether to show a bar.
    """
    total = budget.steps(count)
    began = time.perf_counter() - state.seconds
    looks = {"initial": state.step * budget.batch, "total": total * budget.batch, "unit": " pictures"}
    if not progress:
        looks["disable"] = True  # False would override the environment's TQDM_DISABLE
    drawn = ahead(draw) if spare else nullcontext(partial(map, draw))
    with tqdm(**looks, unit_scale=True) as bar, drawn as draw_in_turn:
        while state.step < total:
            order = torch.randperm(count, generator=state.generator)[: count // budget.batch * budget.batch]
            for pair in draw_in_turn(order.split(budget.batch)):
                take_step(state, pair, rate_at(state.step, total, budget), half, spare)
                watch(state.method)
                state.seconds = time.perf_counter() - began
                bar.set_postfix(loss=f"{state.losses[-1]:.3f}", refresh=False)
                bar.update(budget.batch)
            save()


def one_thread_draws(device, policy, fused):
    """Whether one of a CPU's threads draws while the others learn: not where a draw takes next to no time."""
    return device.type == "cpu" and torch.get_num_threads() > 1 and policy is not None and not fused


@contextmanager
def ahead(draw):
    """A function: batches -> their pairs in turn, each drawn while the one before it is learned from.

    The thread that draws is one of torch's own: see one_thread_spared. What a draw raises comes out where its
    pair was to come.
    """
    threads = torch.get_num_threads()

    def in_turn(batches):
        coming = pool.submit(draw, batches[0])
        for batch in batches[1:]:
            pair, coming = coming.result(), pool.submit(draw, batch)
            yield pair
        yield coming.result()

    try:
        with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=[1]) as pool:
            yield in_turn
    finally:
        torch.set_num_threads(threads)  # the pool's number would be that of threads yet to come


@contextmanager
def one_thread_spared():
    """All of torch's threads but one: the forward pass leaves one to the next draw.

    The draw takes about as long as the forward pass. The backward pass, which takes twice as long, has all
    threads again; more busy threads than cores would wait for one another.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(threads - 1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def compiled_forward(network, device):
    """A network whose forward pass is compiled, for batches of the size that it is given first."""
    network.forward = torch.compile(
        network.forward, mode="reduce-overhead" if device.type == "cuda" else "default"
    )
    try:
        yield
    finally:
        del network.forward  # the class's own again: a readout comes in other batches, and keeps the outputs


def has_bfloat16(device):
    """Whether this is a GPU that computes in bfloat16; one that only imitates it would be slower."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def take_step(state, pair, rate, half, spare):
    """One update of the weights. Raises Diverged before anything that is not a number reaches them."""
    method, optimiser = state.method, state.optimiser
    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()
    try:
        with (
            one_thread_spared() if spare else nullcontext(),
            torch.autocast(pair[0].device.type, torch.bfloat16, enabled=half),
        ):
            loss = method.loss(*pair)
    except ValueError as error:  # a loss refuses features that are not finite
        if state.step == 0:
            raise
        raise Diverged(f"Step {state.step + 1}: {error} {likely_cause(method, rate)}") from error
    loss.backward()
    norm = get_total_norm([p.grad for p in method.parameters() if p.grad is not None])
    loss, norm = torch.stack([loss.detach(), norm]).tolist()  # the one time a step that a GPU is waited for
    if not (math.isfinite(loss) and math.isfinite(norm)):
        what = f"the loss is {loss:.4g}, its gradient's length {norm:.4g}."
        raise Diverged(f"Step {state.step + 1}: {what} {likely_cause(method, rate)}")
    optimiser.step()
    method.after_step()
    state.losses.append(loss)


def likely_cause(method, rate):
    """One sentence on why training diverged, from the size that the weights have reached."""
    largest = max(p.detach().abs().max().item() for p in method.parameters())
    if largest > 1000:
        return (
            f"Weights have grown to {largest:.0e}: the learning rate, {rate:.2g}, is too high; try a tenth."
        )
    return (
        f"The weights are of ordinary size (at most {largest:.2g}): look at the loss, its temperature, and "
        "whether the head gives rows of zeros."
    )


def rate_at(step, total, budget):
    """The learning rate of a step (from 0): a straight line up, then half a cosine down to 0."""
    warm_up = round(budget.warm_up * total)
    if step < warm_up:
        return budget.rate * (step + 1) / warm_up
    return budget.rate * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up))) / 2


def adamw(method, budget):
    """AdamW with weight decay for weights alone: not for biases, batch norm and scales."""
    trained = [p for p in method.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": budget.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=budget.rate, fused=True)


def seeded(make, seed):
    """make() with torch's CPU generator at this seed, and afterwards where it was."""
    if isinstance(make, nn.Module):
        raise TypeError(
            f"got a {type(make).__name__}; expected a function that makes one, for instance "
            "lambda: SimCLR(SmallEncoder(), ProjectionHead('mlp', 128)): the seed decides the start weights."
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return make()


def draw_pair(images, captions, batch, view):
    """The pictures `batch`, as two views, or as one view and its caption. view: pictures -> one view each."""
    places = batch.to(images.device)
    if captions is not None:
        return view(images.index_select(0, places)), captions[batch].to(images.device)
    return view(images.index_select(0, places.repeat(2))).chunk(2)  # both in one call: costs less than two


def draw_view(images, policy, fused, size, generator):
    """One view of each picture, float32 in channels_last."""
    if policy is None:
        views = images.float() / 255
    else:
        parameters = draw_parameters(len(images), *images.shape[-2:], policy, generator)
        views = (fused_view if fused else apply_view)(images, parameters, size)
    return views.contiguous(memory_format=torch.channels_last)


def check_pairs(pictures, captions, budget):
    if len(pictures) < budget.batch:
        raise ValueError(
            f"{len(pictures)} pictures do not fill a batch of {budget.batch}; take a smaller batch."
        )
    if captions is not None and (captions.ndim != 2 or len(captions) != len(pictures)):
        raise ValueError(
            f"captions has shape {list(captions.shape)}; expected [{len(pictures)}, L], one row a picture."
        )


def history(losses, total, budget):
    """A row a step: step and epoch from 1, learning rate, loss."""
    done = range(len(losses))
    return pd.DataFrame(
        {
            "step": [step + 1 for step in done],
            "epoch": [step * budget.epochs // total + 1 for step in done],
            "rate": [rate_at(step, total, budget) for step in done],
            "loss": losses,
        }
    )


def define(method, pictures, captions, policy, fused, budget, seed, half, compiled):
    """What decides the result of a run, as plain JSON values: the first part of its protocol."""
    data = {
        "source": pictures.source,
        "count": len(pictures),
        "height": pictures.images.shape[2],
        "width": pictures.images.shape[3],
        "pixels": fingerprint(pictures.images),
    }
    if captions is not None:
        data["captions"] = fingerprint(captions)
    definition = {
        "data": data,
        "policy": asdict(policy) if isinstance(policy, Policy) else str(policy),
        "method": f"{type(method).__name__}({method.extra_repr()})",
        "networks": {name: summary(network) for name, network in method.named_children()},
        "budget": asdict(budget),
        "seed": seed,
        "start": fingerprint(method),
    }
    if fused:
        definition["views"] = "fused"
    if half:
        definition["precision"] = "bfloat16"
    if compiled:
        definition["encoder"] = "compiled"
    return json.loads(json.dumps(definition))


def summary(network):
    """A network in one line: its kind, its width and the number of its weights."""
    width = f", width {network.width}" if hasattr(network, "width") else ""
    return f"{type(network).__name__}{width}, {sum(p.numel() for p in network.parameters()):,} parameters"


# --- Checkpoints --------------------------------------------------------------------------------------------


def save_checkpoint(path, state, definition):
    """Write everything that the next step depends on, whole or not at all."""
    content = {
        "definition": definition,
        "method": state.method.state_dict(),
        "optimiser": state.optimiser.state_dict(),
        "generator": state.generator.get_state(),
        "losses": state.losses,
        "seconds": state.seconds,
        "machines": state.machines,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        torch.save(content, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path, state, definition):
    """Bring a run to where its checkpoint was written. Raises CheckpointError; the file is only read."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (member := archive.testzip()) is not None:  # torch.load does not notice every flipped bit
                raise zipfile.BadZipFile(f"{member} has a wrong checksum")
        content = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}")
        theirs = content["definition"]
        names = ("method", "optimiser", "generator", "losses", "seconds", "machines")
        method, optimiser, generator, losses, seconds, machines = (content[name] for name in names)
    except Exception as error:
        raise CheckpointError(
            f"{path} is damaged, or no checkpoint of this course ({type(error).__name__}: {error}). "
            "Take another checkpoint name, or delete the file."
        ) from error
    different = [
        f"{key} ({theirs.get(key)} there, {definition.get(key)} here)"
        for key in {**definition, **theirs}
        if theirs.get(key) != definition.get(key)
    ]
    if different:
        raise CheckpointError(
            f"{path} belongs to another run: it differs in {'; '.join(different)}. "
            "Take another checkpoint name, or delete the file."
        )
    state.method.load_state_dict(method)
    state.optimiser.load_state_dict(optimiser)
    state.generator.set_state(generator)
    state.losses, state.seconds, state.machines = losses, seconds, machines
