"""The one container that every image source of the course returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pictures:
    """A batch of stored pictures with its labels and a sentence that says what the pixels are.

    images: uint8 [B, 3, H, W], red, green, blue, 0 to 255.
    labels: label kind -> int64 [B], for instance "class", or "shape" and "hue". May be empty.
    names: label kind -> the name of every value, so `names["hue"][labels["hue"][i]]` is picture i's hue.
    source: where the pixels come from; shown beside every result that is computed from them.

    `pictures[index]` selects along B with a slice, an int64 tensor or a bool mask; names and source stay.
    Raises TypeError for images that are no tensor, ValueError when shapes, dtypes, label kinds or label
    values do not fit together.

    >>> pair = Pictures(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), {"class": torch.tensor([1, 0])},
    ...                 {"class": ("cat", "cup")}, source="two black pictures")
    >>> len(pair), pair[:1].named("class")
    (2, ('cup',))
    """

    images: Tensor
    labels: dict[str, Tensor] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self):
        if not isinstance(self.images, Tensor):
            kind = f"{type(self.images).__module__}.{type(self.images).__qualname__}"
            raise TypeError(f"images must be a torch.Tensor, got a {kind}")
        shape, dtype = tuple(self.images.shape), self.images.dtype
        if dtype != torch.uint8 or len(shape) != 4 or shape[1] != 3:
            raise ValueError(f"images must be uint8 [B, 3, H, W], got {dtype} {list(shape)}")
        if self.labels.keys() != self.names.keys():
            raise ValueError(
                f"labels and names must have the same kinds, got {list(self.labels)} and {list(self.names)}"
            )
        for kind, label in self.labels.items():
            if label.dtype != torch.int64 or tuple(label.shape) != shape[:1]:
                raise ValueError(
                    f"label {kind!r} must be int64 [{shape[0]}], got {label.dtype} {list(label.shape)}"
                )
            wrong = label[(label < 0) | (label >= len(self.names[kind]))]
            if len(wrong):
                raise ValueError(
                    f"label {kind!r} must lie in 0..{len(self.names[kind]) - 1}, got {wrong[:5].tolist()}"
                )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: slice | Tensor) -> Pictures:
        if not isinstance(index, (slice, Tensor)) or (isinstance(index, Tensor) and index.dim() != 1):
            raise TypeError(
                f"select with a slice or a tensor [n], got {index!r}; picture i is pictures[i:i+1]"
            )
        labels = {kind: label[index] for kind, label in self.labels.items()}
        return Pictures(self.images[index], labels, self.names, self.source)

    def named(self, kind: str) -> tuple[str, ...]:
        """The label of every picture in words."""
        return tuple(self.names[kind][value] for value in self.labels[kind].tolist())
