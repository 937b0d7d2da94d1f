"""Shapes, widths and weight counts of the networks, and fingerprints that see every bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from course_utils.networks import (
    HEADS,
    PlaceMean,
    ProjectionHead,
    SmallEncoder,
    TextTower,
    fingerprint,
    resnet18,
)


def count(network):
    return sum(p.numel() for p in network.parameters())


@settings(deadline=None, max_examples=15)
@given(batch=st.integers(1, 5), height=st.integers(8, 40), width=st.integers(8, 40))
def test_the_small_encoder_takes_pictures_of_any_edge(batch, height, width):
    encoder = SmallEncoder().eval()
    assert encoder(torch.rand(batch, 3, height, width)).shape == (batch, encoder.width)


def test_the_small_encoder_halves_the_edge_three_times():
    encoder = SmallEncoder()
    edges = []
    for layer in encoder:
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda _, __, out: edges.append((out.shape[1], out.shape[2])))
    encoder(torch.rand(2, 3, 32, 32))
    assert edges == [(32, 16), (64, 8), (128, 4)]
    weights = 9 * (3 * 32 + 32 * 64 + 64 * 128) + 2 * (32 + 64 + 128)
    assert count(encoder) == weights


def test_memory_format_does_not_change_what_is_computed():
    encoder = SmallEncoder().eval()
    views = torch.rand(4, 3, 32, 32)
    plain = encoder(views)
    last = encoder.to(memory_format=torch.channels_last)(views.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(last, plain)  # float32's usual tolerance: another order of summation


def test_the_mean_over_places_is_torch_s_and_its_gradient_stays_in_channels_last():
    maps = torch.rand(3, 5, 4, 2).to(memory_format=torch.channels_last)
    gradients = []
    maps.requires_grad_().register_hook(gradients.append)
    mean = PlaceMean()(maps)
    torch.testing.assert_close(mean, maps.mean(dim=(2, 3)))
    mean.square().sum().backward()
    torch.testing.assert_close(gradients[0], (mean / 4)[:, :, None, None].expand(maps.shape))
    # An expanded mean has no format of its own: what the layers below make of it counts.
    assert gradients[0].stride()[2:] == (0, 0)


def test_resnet18_keeps_all_32_pixels_up_to_the_first_block():
    encoder = resnet18().eval()
    edges = {}
    for name in ("conv1", "layer1", "layer4"):
        encoder.get_submodule(name).register_forward_hook(
            lambda _, __, out, name=name: edges.update({name: tuple(out.shape[1:])})
        )
    assert encoder(torch.rand(1, 3, 32, 32)).shape == (1, encoder.width)
    assert edges == {"conv1": (64, 32, 32), "layer1": (64, 32, 32), "layer4": (512, 4, 4)}
    # torchvision's 11,689,512 without the last layer (513,000) and with 3x3 instead of 7x7 in the first
    assert count(encoder) == 11_689_512 - 513_000 - 64 * 3 * (49 - 9)


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_says_how_wide_it_is(kind):
    head = ProjectionHead(kind, width_in=12, width=5, hidden=7)
    h = torch.randn(6, 12)
    assert head(h).shape == (6, head.width)
    assert {
        "mlp": count(head) == 12 * 7 + 2 * 7 + 7 * 5,
        "linear": count(head) == 60,
        "none": count(head) == 0,
    }[kind]


def test_without_a_head_z_is_h():
    h = torch.randn(3, 12)
    head = ProjectionHead("none", width_in=12)
    assert torch.equal(head(h), h) and head.width == 12


def test_a_linear_head_is_linear_and_an_mlp_is_not():
    a, b = torch.randn(2, 8, 12)
    for kind, linear in (("linear", True), ("mlp", False)):
        head = ProjectionHead(kind, width_in=12).eval()
        assert torch.allclose(head(a + b), head(a) + head(b), atol=1e-5) is linear


def test_an_unknown_head_is_refused_by_name():
    with pytest.raises(ValueError, match="kind is 'mpl'; expected one of mlp, linear, none"):
        ProjectionHead("mpl", 12)


def test_the_text_tower_ignores_filling_and_order():
    tower = TextTower(words=9)
    features = tower(torch.tensor([[3, 7, 2], [7, 2, 3]]))
    filled = tower(torch.tensor([[3, 7, 2, 0, 0]]))
    torch.testing.assert_close(features[0], features[1])
    torch.testing.assert_close(filled[0], features[0])
    assert not torch.allclose(tower(torch.tensor([[3, 7]]))[0], features[0])
    assert tower(torch.tensor([[0, 0]])).isfinite().all()


# fingerprint


def test_a_fingerprint_sees_one_bit_a_name_a_shape_and_a_dtype():
    network = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = fingerprint(network)
    assert before == fingerprint(network) and len(before) == 16
    with torch.no_grad():
        weight = network[0].weight
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(2.0))
    assert fingerprint(network) != before
    x = torch.zeros(2, 3)
    others = [{"a": x}, {"b": x}, {"a": x.T}, {"a": x.double()}, {"a": x, "b": x}, x]
    assert len({fingerprint(other) for other in others}) == len(others)


def test_a_fingerprint_sees_buffers():
    network = nn.BatchNorm1d(2)
    before = fingerprint(network)
    network(torch.randn(4, 2))
    assert fingerprint(network) != before


def test_a_fingerprint_does_not_see_where_or_how_a_tensor_lies():
    encoder = SmallEncoder()
    before = fingerprint(encoder)
    assert fingerprint(encoder.to(memory_format=torch.channels_last)) == before
    assert fingerprint(torch.arange(6)[::2]) == fingerprint(torch.tensor([0, 2, 4]))
