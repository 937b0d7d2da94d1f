"""Notebook 05: the ring of keys, the moving average, and the logits of a step of MoCo."""

import torch
from torch.nn.functional import normalize

from course_utils.exercises.exercise import Case, Exercise, Misconception
from course_utils.memory import write_ring


def _rows(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# The ring: start entries, then batch after batch -> what stands in it


def _ring_enqueue(ring, batches):
    ring, pointer = ring.clone(), 0
    for batch in batches:
        write_ring(ring, pointer, batch)
        pointer = (pointer + len(batch)) % len(ring)
    return ring


def _by_key(place_of):
    """Key by key; place_of(number of the key, Q, B) says where it goes, None: nowhere."""

    def function(ring, batches):
        ring, (_, size, _) = ring.clone(), batches.shape
        for number, key in enumerate(batches.flatten(0, 1)):
            if (place := place_of(number, len(ring), size)) is not None:
                ring[place] = key
        return ring

    return function


def _by_batch(write):
    """Batch by batch; write(ring, pointer, batch) -> the next pointer."""

    def function(ring, batches):
        ring, pointer = ring.clone(), 0
        for batch in batches:
            pointer = write(ring, pointer, batch)
        return ring

    return function


def _what_fits(ring, pointer, batch):
    fits = max(0, min(len(batch), len(ring) - pointer))
    ring[pointer : pointer + fits] = batch[:fits]
    return pointer + len(batch)


def _dropped(ring, pointer, batch):
    return _what_fits(ring, pointer, batch) % len(ring)


def _dropped_and_back_to_0(ring, pointer, batch):
    pointer = _what_fits(ring, pointer, batch)
    return pointer if pointer < len(ring) else 0


def _from_0_if_it_does_not_fit(ring, pointer, batch):
    return _what_fits(ring, pointer if pointer + len(batch) <= len(ring) else 0, batch)


def _reversed(ring, pointer, batch):
    write_ring(ring, pointer, batch.flip(0))
    return (pointer + len(batch)) % len(ring)


def _one_place_a_batch(ring, pointer, batch):
    write_ring(ring, pointer, batch)
    return (pointer + 1) % len(ring)


def _shifted(ring, batches):
    for batch in batches:
        ring = torch.cat([ring[len(batch) :], batch])
    return ring


def _shifted_newest_first(ring, batches):
    for batch in batches:
        ring = torch.cat([batch, ring])[: len(ring)]
    return ring


def ring_case(size, batch, count, width=1, seed=0):
    """`count` batches for a ring.

    Width 1: keys that can be read as names, 1, 2, ...; the start entries are -1, -2, ...
    """
    if width == 1:
        ring = -torch.arange(1.0, size + 1, dtype=torch.float64)[:, None]
        batches = torch.arange(1.0, count * batch + 1, dtype=torch.float64).view(count, batch, 1)
    else:
        ring, batches = _rows(size, width, seed=seed), _rows(count, batch, width, seed=seed + 1)
    return Case({"ring": ring, "batches": batches})


RING_ENQUEUE = Exercise(
    name="ring_enqueue",
    reference=_ring_enqueue,
    cases=(
        ring_case(4, 2, 1),
        ring_case(4, 2, 3),
        ring_case(3, 2, 2),
        ring_case(2, 2, 3),
        ring_case(5, 3, 4),
        ring_case(1, 1, 2),
        ring_case(7, 4, 6, width=3, seed=1),
        ring_case(9, 2, 5, width=3, seed=3),
    ),
    misconceptions=(
        Misconception(
            "the newest keys are overwritten (LIFO)",
            "Once the ring is full, each batch takes the places of the batch before it, and the first keys "
            "stay for ever. A queue gives up its oldest: the pointer goes back to place 0.",
            _by_batch(
                lambda ring, pointer, batch: _what_fits(ring, min(pointer, len(ring) - len(batch)), batch)
            ),
            also=(_by_key(lambda number, places, batch: min(number, places - 1)),),
        ),
        Misconception(
            "the pointer never moves",
            "Every batch is written from place 0 on, over the one before. The next begins where this one "
            "ended.",
            _by_batch(lambda ring, pointer, batch: 0 * _what_fits(ring, 0, batch)),
        ),
        Misconception(
            "the pointer moves by one place a batch",
            "A batch fills as many places as it has keys, so the pointer moves by len(batch).",
            _by_batch(_one_place_a_batch),
        ),
        Misconception(
            "the pointer does not wrap",
            "Beyond the last place nothing is written any more, and the queue keeps its first keys for ever. "
            "After place Q - 1 comes place 0: take the pointer modulo Q.",
            _by_batch(_what_fits),
        ),
        Misconception(
            "the overflow is dropped at the wrap",
            "Of a batch that reaches beyond the last place only what fits is kept, though the pointer goes "
            "on "
            "as if all of it were. The rest belongs at place 0 and after.",
            _by_batch(_dropped),
        ),
        Misconception(
            "the overflow is dropped, and the pointer set to 0",
            "Of a batch that reaches beyond the last place only what fits is kept, and the next begins at "
            "place "
            "0. The rest belongs there, and the pointer behind it.",
            _by_batch(_dropped_and_back_to_0),
        ),
        Misconception(
            "a batch that does not fit begins at place 0",
            "The last places are left with keys that are older than their turn. Fill them first; what is "
            "left "
            "over begins at place 0.",
            _by_batch(_from_0_if_it_does_not_fit),
        ),
        Misconception(
            "the batch is written backwards",
            "The last key of each batch is written first. Then a key's neighbour in the ring is not its "
            "neighbour in time.",
            _by_batch(_reversed),
        ),
        Misconception(
            "all keys are shifted",
            "The right keys are there, the oldest first, but every key moves at every step. In a ring a key "
            "stays where it was written, and only the pointer moves.",
            _shifted,
        ),
        Misconception(
            "all keys are shifted, the newest in front",
            "The right keys are there, but every key moves at every step. In a ring a key stays where it was "
            "written, and only the pointer moves.",
            _shifted_newest_first,
        ),
    ),
    guarantees=(
        "For queues of 1 to 9 places and batches that need not divide them, your ring holds the last Q keys, "
        "each where it was first written: no key is lost and none is kept too long."
    ),
    hints=(
        "Where does the first key of the next batch go? And where the key after the one at the last place?",
        "Keep a pointer that starts at 0. A batch of B keys goes to the places pointer, pointer + 1, ..., "
        "each modulo Q; then the pointer moves by B, modulo Q. Work on a copy of the ring.",
        "ring = ring.clone(); for each batch: places = (pointer + torch.arange(B)) % Q; ring[places] = "
        "batch; "
        "pointer = (pointer + B) % Q.",
    ),
)


# The moving average of one weight


def _ema(key, query, momentum):
    return momentum * key + (1 - momentum) * query


def _ema_case(momentum, *shape, seed):
    if not shape:
        return Case(
            {"key": torch.tensor([2.0]).double(), "query": torch.tensor([4.0]).double(), "momentum": momentum}
        )
    return Case(
        {"key": _rows(*shape, seed=seed), "query": _rows(*shape, seed=seed + 1), "momentum": momentum}
    )


EMA = Exercise(
    name="ema",
    reference=_ema,
    cases=(
        _ema_case(0.9, seed=0),
        _ema_case(0.5, 2, seed=0),
        _ema_case(0.0, 3, seed=2),
        _ema_case(1.0, 2, 2, seed=4),
        _ema_case(0.99, 4, 3, seed=6),
        _ema_case(0.999, 2, 3, 3, 3, seed=8),
    ),
    misconceptions=(
        Misconception(
            "m and 1 - m are swapped",
            "With m = 0.99 the key network would take over 99 hundredths of the query network in one step. m "
            "is the share that stays.",
            lambda key, query, momentum: (1 - momentum) * key + momentum * query,
        ),
        Misconception(
            "the query's weights are copied",
            "The momentum is not used: this is m = 0, which keeps nothing of the key network.",
            lambda key, query, momentum: query.clone(),
        ),
        Misconception(
            "the key's weights stay as they are",
            "The query's weights are not used: this is m = 1, a key network that never learns.",
            lambda key, query, momentum: key.clone(),
        ),
        Misconception(
            "the mean of both",
            "Both have the weight 1/2 whatever m is.",
            lambda key, query, momentum: (key + query) / 2,
        ),
        Misconception(
            "the two weights do not add up to 1",
            "The key's weights are shrunk by m and the query's added whole, so both grow at every step. The "
            "query's share is 1 - m.",
            lambda key, query, momentum: momentum * key + query,
            also=(lambda key, query, momentum: key + (1 - momentum) * query,),
        ),
        Misconception(
            "away from the query",
            "The difference has the wrong sign: the key's weights move away from the query's. Add "
            "(1 - m) * (query - key).",
            lambda key, query, momentum: key - (1 - momentum) * (query - key),
        ),
        Misconception(
            "momentum as in gradient descent",
            "m times the difference is added to the query. In MoCo m is the share of the key's own weights "
            "that stays; nothing is carried on beyond the query.",
            lambda key, query, momentum: query + momentum * (query - key),
        ),
    ),
    guarantees=(
        "For any m in [0, 1] and weights of any shape your key lies between the old key and the query, the "
        "share m on the old key's side."
    ),
    hints=(
        "What should come out for m = 1, and what for m = 0?",
        "A weighted mean of the old key and the query: the weights are m and 1 - m.",
        "momentum * key + (1 - momentum) * query, as a new tensor.",
    ),
)


# The logits of a step


def _similarities(query, positive_key, queue):
    return (query * positive_key).sum(dim=1, keepdim=True), query @ queue.T


def _moco_logits(query, positive_key, queue, temperature):
    query, positive_key = normalize(query, dim=1), normalize(positive_key, dim=1).detach()
    return torch.cat(_similarities(query, positive_key, queue.detach()), dim=1) / temperature


def _logits(
    units=lambda query, key: (normalize(query, dim=1), normalize(key, dim=1)), scaled=None, joined=None
):
    """The logits with one of their steps changed."""
    scaled = scaled or (
        lambda positive, negatives, temperature: (positive / temperature, negatives / temperature)
    )
    joined = joined or (lambda positive, negatives: torch.cat([positive, negatives], dim=1))

    def function(query, positive_key, queue, temperature):
        return joined(*scaled(*_similarities(*units(query, positive_key), queue), temperature))

    return function


def logits_case(batch, places, width, temperature, seed):
    queue = normalize(_rows(places, width, seed=seed + 2), dim=1)
    if width == 2:  # numbers that can be typed again
        query, positive_key, queue = torch.tensor([[3.0, 4]]), torch.tensor([[2.0, 0]]), torch.eye(2)[[1]]
        query, positive_key, queue = query.double(), positive_key.double(), queue.double()
    else:
        query, positive_key = 3 * _rows(batch, width, seed=seed), 0.5 * _rows(batch, width, seed=seed + 1)
    return Case({"query": query, "positive_key": positive_key, "queue": queue, "temperature": temperature})


LENGTHS = (
    "What a network returns is of any length, and a cosine similarity needs length 1: normalise the rows, "
    "torch.nn.functional.normalize(x, dim=1). The queue's keys are of unit length already."
)

MOCO_LOGITS = Exercise(
    name="moco_logits",
    reference=_moco_logits,
    cases=(
        logits_case(1, 1, 2, 1.0, seed=0),
        logits_case(1, 1, 2, 0.5, seed=0),
        logits_case(2, 3, 4, 0.5, seed=1),
        logits_case(4, 4, 4, 0.2, seed=4),
        logits_case(5, 12, 8, 0.07, seed=7),
        logits_case(3, 5, 6, 2.0, seed=10),
    ),
    misconceptions=(
        Misconception(
            "the positive is not in column 0",
            "The positives are in the last column, while the labels are all zero: every query would be asked "
            "for the first key of the queue. Put the positive first.",
            _logits(joined=lambda positive, negatives: torch.cat([negatives, positive], dim=1)),
        ),
        Misconception(
            "the query is not normalised", LENGTHS, _logits(lambda query, key: (query, normalize(key, dim=1)))
        ),
        Misconception(
            "the positive key is not normalised",
            LENGTHS,
            _logits(lambda query, key: (normalize(query, dim=1), key)),
        ),
        Misconception(
            "neither query nor positive key is normalised", LENGTHS, _logits(lambda query, key: (query, key))
        ),
        Misconception(
            "normalised over the batch",
            "dim=0 makes each column of the batch of length 1. A key is a row: dim=1.",
            _logits(lambda query, key: (normalize(query, dim=0), normalize(key, dim=0))),
        ),
        Misconception(
            "the temperature divides the positive only",
            "The negatives' logits are at another scale. Every similarity is divided by the temperature.",
            _logits(scaled=lambda positive, negatives, temperature: (positive / temperature, negatives)),
        ),
        Misconception(
            "the temperature divides the negatives only",
            "The positive's logit is at another scale. Every similarity is divided by the temperature.",
            _logits(scaled=lambda positive, negatives, temperature: (positive, negatives / temperature)),
        ),
        Misconception(
            "the temperature multiplies",
            "The similarities are multiplied by the temperature. They are divided by it.",
            _logits(
                scaled=lambda positive, negatives, temperature: (
                    positive * temperature,
                    negatives * temperature,
                )
            ),
        ),
        Misconception(
            "the temperature is not used",
            "These are similarities. A logit is a similarity divided by the temperature.",
            _logits(scaled=lambda positive, negatives, temperature: (positive, negatives)),
        ),
        Misconception(
            "the softmax is taken already",
            "These are probabilities. cross_entropy takes logits and does the softmax itself.",
            lambda *inputs: _moco_logits(*inputs).softmax(dim=1),
            also=(lambda *inputs: _moco_logits(*inputs).log_softmax(dim=1),),
        ),
        Misconception(
            "each query has the positive of the row before",
            "Row k of query and row k of positive_key are views of one picture; here the rows do not match.",
            lambda query, key, queue, temperature: _moco_logits(
                query, key.roll(1, dims=0), queue, temperature
            ),
            also=(
                lambda query, key, queue, temperature: _moco_logits(
                    query, key.roll(-1, dims=0), queue, temperature
                ),
            ),
        ),
    ),
    guarantees=(
        "For any batch, queue and temperature: column 0 holds each query's own key, the rest the queue's, "
        "all at "
        "one scale, and the gradient reaches the query alone. With labels of zeros cross_entropy is MoCo's "
        "loss."
    ),
    hints=(
        "Which numbers does a row hold, and which of them is the right answer? Which of the three inputs may "
        "learn from this loss?",
        "Normalise the rows of query and positive_key. The positive is a row-wise product, [B, 1]; the "
        "negatives "
        "are query times the queue transposed, [B, K]. Join them, positive first, and divide all by the "
        "temperature. Keys and queue are constants: .detach().",
        "torch.cat([(q * k).sum(1, keepdim=True), q @ queue.detach().T], dim=1) / temperature, with q the "
        "normalised query and k the normalised, detached positive key.",
    ),
    gradient=("query",),
    constant=("positive_key", "queue"),
)

EXERCISES = (RING_ENQUEUE, EMA, MOCO_LOGITS)
