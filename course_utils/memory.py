"""MoCo's memory: a ring of keys (first in, first out), and an encoder that follows another one slowly."""

import torch
from torch import nn
from torch.nn.functional import normalize


class KeyQueue(nn.Module):
    """The last `size` keys; new ones take the places of the oldest.

    Starts with random unit vectors. `keys` float32 [size, width] and `pointer`, the place that is written
    next, are buffers, so they move and are saved with the network that holds the queue.

    >>> queue = KeyQueue(size=3, width=2)
    >>> queue.enqueue(torch.ones(2, 2)), queue.pointer
    (None, tensor(2))
    """

    def __init__(self, size, width):
        super().__init__()
        self.register_buffer("keys", normalize(torch.randn(size, width), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def enqueue(self, keys):
        """Write keys [B, width], normalised, B <= size, over the B oldest.

        Raises ValueError for another width or more keys than there are places; the queue stays as it was.
        """
        size, width = self.keys.shape
        if keys.ndim != 2 or keys.shape[1] != width or len(keys) > size:
            raise ValueError(
                f"keys has shape {list(keys.shape)}; expected [B, {width}] with B <= {size}, "
                "the places of the queue: take a longer queue or a smaller batch."
            )
        places = (self.pointer + torch.arange(len(keys), device=keys.device)) % size
        self.keys[places] = normalize(keys.to(self.keys.dtype), dim=1)
        self.pointer.copy_((self.pointer + len(keys)) % size)

    def extra_repr(self):
        return f"size={len(self.keys)}, width={self.keys.shape[1]}"


@torch.no_grad()
def ema_update(follower, leader, momentum):
    """Move each parameter of follower towards its namesake: momentum * follower + (1 - momentum) * leader.

    Two networks of one architecture; momentum in [0, 1]. Parameters only (He et al. 2020, MoCo, equation 2
    and their code). Buffers are left alone: in training mode a follower's batch norm normalises with its own
    batch, and its running statistics come from its own forward passes.
    """
    for slow, fast in zip(follower.parameters(), leader.parameters(), strict=True):
        slow.lerp_(fast, 1 - momentum)
