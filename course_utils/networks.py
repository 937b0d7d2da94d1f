"""f: v -> h and g: h -> z: the encoders, the projection heads and CLIP's text tower.

    view [B, 3, H, W] --encoder--> h [B, encoder.width] --head--> z [B, head.width]

What is learned is read out of h; the loss looks at z alone.
"""

import hashlib

import torch
from torch import nn

HEADS = ("mlp", "linear", "none")


class PlaceMean(nn.Module):
    """The mean over all places of a map: [B, C, H, W] -> [B, C].

    The gradient of torch's own mean leaves channels_last, and every layer below has to sort it again: a
    thirtieth of a training step. That of a sum does not.
    """

    def forward(self, maps):
        return maps.sum(dim=(2, 3)) / maps.shape[2:].numel()


class SmallEncoder(nn.Sequential):
    """The quick budget's encoder: three 3x3 convolutions of stride 2, then the mean over all places.

    views: float32 [B, 3, H, W] in [0, 1], any H and W. Returns h, [B, 128]. Each convolution halves the edge
    (32 pixels become 16, 8, 4) and is followed by batch norm and ReLU. extra: further convolutions of stride
    1; without one a place of the last map sees 15 pixels of the view, with one 31. 94,000 weights, and
    148,000 more for each extra; fastest in channels_last.

    >>> SmallEncoder()(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 128])
    """

    width = 128

    def __init__(self, extra=0):
        layers = []
        for width_in, width_out, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), *[(128, 128, 1)] * extra):
            layers += [
                nn.Conv2d(width_in, width_out, kernel_size=3, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(width_out),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers, PlaceMean())


def resnet18():
    """The full budget's encoder: torchvision's ResNet-18 with a stem for pictures of 32 pixels.

    views: float32 [B, 3, H, W] in [0, 1]. Returns h, [B, 512]. The first convolution is 3x3 with stride 1 and
    there is no max-pool (Chen et al. 2020, SimCLR, appendix B.9): ImageNet's stem would leave 8 x 8 places of
    a 32 x 32 picture before the first block. 11.2 million weights, drawn at random.

    >>> resnet18()(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 512])
    """
    from torchvision.models import resnet18  # here, because it is slow to import

    network = resnet18()
    network.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    network.width = 512
    return network


class ProjectionHead(nn.Sequential):
    """g: h -> z, the part of the network that the loss sees and the readout does not.

    h: [B, width_in]. kind: "mlp" (linear to `hidden`, batch norm, ReLU, linear; Chen et al. 2020, SimCLR,
    section 4.2), "linear", or "none" (z is h, and width is width_in). Returns z, [B, width], not normalised:
    the losses do that. Raises ValueError for an unknown kind.

    >>> ProjectionHead("mlp", width_in=128, width=64)(torch.rand(4, 128)).shape
    torch.Size([4, 64])
    """

    def __init__(self, kind, width_in, width=64, hidden=256):
        if kind not in HEADS:
            raise ValueError(f"kind is {kind!r}; expected one of {', '.join(HEADS)}.")
        layers = {
            "mlp": lambda: [
                nn.Linear(width_in, hidden, bias=False),
                nn.BatchNorm1d(hidden),
                nn.ReLU(inplace=True),
                nn.Linear(hidden, width, bias=False),
            ],
            "linear": lambda: [nn.Linear(width_in, width, bias=False)],
            "none": lambda: [],
        }
        super().__init__(*layers[kind]())
        self.kind = kind
        self.width = width_in if kind == "none" else width


class TextTower(nn.Module):
    """Captions to features: the mean of a caption's word vectors, then one hidden layer. Word order is lost.

    tokens: int64 [B, L], one row a caption, each a word's number in 1..words; 0 fills up short rows. Returns
    [B, width]. A caption without a word gives the features of the zero vector.

    >>> TextTower(words=50)(torch.tensor([[3, 7, 0], [1, 2, 9]])).shape
    torch.Size([2, 128])
    """

    def __init__(self, words, width=128):
        super().__init__()
        self.width = width
        self.words = nn.Embedding(words + 1, width, padding_idx=0)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, width))

    def forward(self, tokens):
        count = (tokens != 0).sum(dim=1, keepdim=True).clamp(min=1)
        return self.layers(self.words(tokens).sum(dim=1) / count)


def fingerprint(tensors) -> str:
    """16 hexadecimal digits that change with any bit of the tensors: their names, dtypes, shapes and values.

    tensors: a network (its parameters and buffers), a name -> tensor dictionary, or one tensor.

    >>> fingerprint(torch.zeros(2)) == fingerprint(torch.zeros(3))
    False
    """
    if isinstance(tensors, nn.Module):
        tensors = tensors.state_dict()
    elif isinstance(tensors, torch.Tensor):
        tensors = {"": tensors}
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
