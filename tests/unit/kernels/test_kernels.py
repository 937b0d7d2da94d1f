"""The blocked form against float64, and what all forms share: autograd's corners, choice, errors."""

import math
import subprocess
import sys

import against_float64 as compare
import pytest
import torch
from against_float64 import DEVICE, LOSSES, ROWS, TEMPERATURES, WIDTHS, features
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils import contrast, kernels
from course_utils.kernels import blocked

FAST = ["blocked", "triton"]


def call(loss, inputs, temperature=0.1, **options):
    setting = 1 / temperature if loss == "clip_loss" else temperature
    return getattr(kernels, loss)(*inputs, setting, **options)


@pytest.fixture
def small_tiles(monkeypatch):
    """Many ragged tiles, none of them kept, at sizes that take no time."""
    monkeypatch.setattr(blocked, "TILE", 48)
    monkeypatch.setattr(blocked, "GPU_TILE", 48)
    monkeypatch.setattr(blocked, "KEPT_NUMBERS", 0)


@pytest.fixture(params=["tiles", "kept"])
def few_numbers(request):
    """A few numbers as many small tiles, and as the one tile that they are without further notice."""
    if request.param == "tiles":
        request.getfixturevalue("small_tiles")


# --- blocked against the definition in float64 --------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("loss", LOSSES)
def test_value_and_gradient(loss, rows, dtype):
    for width in WIDTHS:
        inputs = compare.inputs(loss, rows, width, dtype)
        for temperature in TEMPERATURES:
            errors = compare.relative_errors(loss, inputs, temperature, implementation="blocked")
            assert not compare.too_large(errors, dtype), (width, temperature, errors)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("loss", LOSSES)
def test_ragged_tiles(loss, temperature, small_tiles):
    for rows, width in [(6, 5), (94, 16), (96, 16), (98, 16), (330, 7)]:
        for dtype in (torch.float32, torch.float64):
            inputs = compare.inputs(loss, rows, width, dtype)
            errors = compare.relative_errors(loss, inputs, temperature, implementation="blocked")
            assert not compare.too_large(errors, dtype), (rows, width, dtype, errors)


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_bands_for_any_number_of_threads(loss, threads, small_tiles):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        bands = {rows: blocked._count_bands(torch.empty(rows, 5)) for rows in (48, 96, 97, 100)}
        assert bands == {48: 1, 96: threads, 97: 1, 100: {1: 1, 2: 2, 3: 1, 4: 4}[threads]}
        for rows in (48, 96, 97, 100):  # and 51, 99, 100 and 103 keys
            inputs = compare.inputs(loss, rows, 5, torch.float64)
            errors = compare.relative_errors(loss, inputs, 0.1, implementation="blocked")
            assert not compare.too_large(errors, torch.float64), (rows, errors)
    finally:
        torch.set_num_threads(before)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 40),
    st.integers(1, 20),
    st.integers(1, 60),
    st.integers(1, 25),
    st.floats(0.002, 3),
    st.booleans(),
)
def test_any_shape_any_tile(n, width, keys, tile, temperature, keep):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "KEPT_NUMBERS", 10**9 if keep else 0)
        patch.setattr(blocked, "TILE", tile)
        patch.setattr(blocked, "GPU_TILE", tile)
        a, b, queue = features(n, width, 1), features(n, width, 2), features(keys, width, 3)
        for loss, inputs in [("nt_xent", (a, b)), ("clip_loss", (a, b)), ("info_nce", (a, b, queue))]:
            ours = compare.value_and_gradients(loss, inputs, temperature, implementation="blocked")
            exact = compare.value_and_gradients(loss, inputs, temperature, module=contrast)
            torch.testing.assert_close(ours[0], exact[0], rtol=1e-10, atol=1e-300)
            for mine, true in zip(ours[1], exact[1], strict=True):
                # The gradient of a single feature is a difference of terms as large as 1 / temperature.
                torch.testing.assert_close(mine, true, rtol=1e-8, atol=1e-10 / temperature)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradcheck(loss, few_numbers):
    inputs = [x.requires_grad_() for x in compare.inputs(loss, 10, 4, torch.float64)]
    setting = torch.tensor(2.0, dtype=torch.float64, device=DEVICE, requires_grad=True)
    for reduction in ("mean", "none"):
        assert torch.autograd.gradcheck(getattr(kernels, loss), (*inputs, setting, reduction, "blocked"))


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("loss", LOSSES)
def test_tiny_losses_keep_their_digits(loss, temperature, few_numbers):
    """Well-trained features. A cosine's error of 1e-7, over the temperature, is the relative error of exp."""
    a = features(64, 32, 1)
    b = a + 0.1 * features(64, 32, 2)
    inputs = (a, b, b.flip(0)[:32] - a[:32]) if loss == "info_nce" else (a, b)
    errors = compare.relative_errors(loss, [x.float() for x in inputs], temperature, implementation="blocked")
    assert max(errors) < 1e-6 / min(temperature, 0.2)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_keys_of_length_1(temperature, small_tiles):
    """They are not divided: rounded to unit length, exactly so in half precision, lying by columns."""
    query, positive = features(20, 16, 1, torch.float32), features(20, 16, 2, torch.float32)
    rounded = torch.nn.functional.normalize(features(204, 16, 3, torch.float32), dim=1)
    exact = torch.eye(16, dtype=torch.bfloat16, device=DEVICE)
    for keys in (rounded, exact, rounded.T.contiguous().T, rounded.double()):
        inputs = (query, positive, keys)
        errors = compare.relative_errors("info_nce", inputs, temperature, implementation="blocked")
        assert not compare.too_large(errors[:2], torch.float32), (keys.dtype, errors)


# --- all implementations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["reference", *FAST])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_all_logits_very_negative(temperature, implementation):
    """Who has the partner and all others at cosine -1 sees nothing but the number of candidates."""
    up = torch.tensor([[0.0, 1.0, 0.0]], device=DEVICE)
    # Views: row 0 of view a looks up, its partner and both others look down and see one row at -1.
    down = math.log(2 + math.exp(-2 / temperature))
    for loss, inputs, expected in [
        (
            "nt_xent",
            (torch.cat([up, -up]), -up.repeat(2, 1)),
            [math.log(3), down, down + 2 / temperature, down],
        ),
        ("clip_loss", (up.repeat(5, 1), -up.repeat(5, 1)), [math.log(5)] * 5),
        ("info_nce", (up.repeat(2, 1), -up.repeat(2, 1), -up.repeat(7, 1)), [math.log(8)] * 2),
    ]:
        leaves = [x.requires_grad_() for x in inputs]
        rows = call(loss, leaves, temperature, reduction="none", implementation=implementation)
        assert rows.tolist() == pytest.approx(expected, rel=compare.TOLERANCE[torch.float32]), loss
        rows.sum().backward()  # all lie on one line: no turn is better than another
        assert all(x.grad.abs().max() < 1e-6 / temperature for x in leaves), loss
    keys = -up.repeat(5, 1)
    loss = call("info_nce", (up, up, keys), 0.05, reduction="none", implementation=implementation)
    assert loss.item() == pytest.approx(5 * math.exp(-40), rel=1e-5)


@pytest.mark.parametrize("implementation", FAST)
def test_identical_rows_leave_only_the_number_of_candidates(implementation):
    for temperature in TEMPERATURES:
        same = torch.ones(33, 8, device=DEVICE, requires_grad=True)
        for loss, inputs, candidates in [
            ("nt_xent", (same, same), 65),
            ("clip_loss", (same, same), 33),
            ("info_nce", (same, same, torch.ones(70, 8, device=DEVICE)), 71),
        ]:
            value = call(loss, inputs, temperature, implementation=implementation)
            # One rounding of a cosine, over the temperature, is all that sets the candidates apart.
            assert value.item() == pytest.approx(math.log(candidates), rel=1e-6, abs=1.2e-7 / temperature)
            (gradient,) = torch.autograd.grad(value, same)
            assert gradient.abs().max() < 1e-6 / temperature  # where all coincide no direction is better


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize("loss", LOSSES)
def test_non_contiguous_inputs_and_uneven_weights(loss, implementation):
    inputs = compare.inputs(loss, 40, 12, torch.float32)
    strided = [torch.stack([x, -x], dim=2)[..., 0] for x in inputs]
    assert not strided[0].is_contiguous()
    expected = compare.value_and_gradients(loss, inputs, 0.1, implementation=implementation)
    leaves = [x.detach().requires_grad_() for x in strided]
    rows = call(loss, leaves, reduction="none", implementation=implementation)
    rows.backward(torch.linspace(0.5, 1.5, len(rows), device=DEVICE) / len(rows))
    for leaf, gradient in zip(leaves, expected[1], strict=False):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("implementation", FAST)
def test_autocast_changes_nothing(implementation):
    for loss in LOSSES:
        inputs = compare.inputs(loss, 40, 16, torch.float32)
        expected = compare.value_and_gradients(loss, inputs, 0.01, implementation=implementation)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            under = compare.value_and_gradients(loss, inputs, 0.01, implementation=implementation)
        assert torch.equal(under[0], expected[0])
        assert all(torch.equal(a, b) for a, b in zip(under[1], expected[1], strict=True))


@pytest.mark.parametrize("implementation", FAST)
def test_who_asks_for_a_gradient_gets_one(implementation):
    query, positive, keys = compare.inputs("info_nce", 40, 8, torch.float32)
    query.requires_grad_()
    call("info_nce", (query, positive, keys), implementation=implementation).backward()
    assert query.grad is not None and positive.grad is None and keys.grad is None
    image, text = compare.inputs("clip_loss", 40, 8, torch.float32)
    both = compare.value_and_gradients("clip_loss", (image, text), 0.1, implementation=implementation)[1]
    for k in (0, 1):  # one tower frozen
        leaves = [x.clone().requires_grad_(n == k) for n, x in enumerate((image, text))]
        rows = call("clip_loss", leaves, reduction="none", implementation=implementation)
        rows.backward(torch.linspace(0.5, 1.5, len(rows), device=DEVICE) / len(rows))
        torch.testing.assert_close(leaves[k].grad, both[k])
    scale = torch.tensor(10.0, device=DEVICE, requires_grad=True)  # both towers frozen
    kernels.clip_loss(image, text, scale, implementation=implementation).backward()
    expected = torch.tensor(10.0, dtype=torch.float64, device=DEVICE, requires_grad=True)
    contrast.clip_loss(image.double(), text.double(), expected).backward()
    assert scale.grad.item() == pytest.approx(expected.grad.item(), rel=1e-4)


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize("loss", LOSSES)
def test_second_derivative_is_refused(loss, implementation):
    for asks in range(3 if loss == "info_nce" else 2):
        inputs = compare.inputs(loss, 20, 8, torch.float32)
        inputs[asks].requires_grad_()
        value = call(loss, inputs, implementation=implementation)
        with pytest.raises(RuntimeError, match=r"no second derivative.*reference"):
            torch.autograd.grad(value, inputs[asks], create_graph=True)


@pytest.mark.parametrize("implementation", FAST)
def test_backward_twice_and_no_grad(implementation):
    for loss in LOSSES:
        inputs = [x.requires_grad_() for x in compare.inputs(loss, 20, 8, torch.float32)]
        value = call(loss, inputs, implementation=implementation)
        first = torch.autograd.grad(value, inputs, retain_graph=True)
        again = torch.autograd.grad(value, inputs)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        with torch.no_grad():
            assert torch.equal(call(loss, inputs, implementation=implementation), value)


class LargestTensor(TorchDispatchMode):
    """Records how many numbers the largest tensor that was made has."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [
            x.untyped_storage().nbytes() // x.element_size()
            for x in tree_leaves(out)
            if isinstance(x, torch.Tensor)
        ]
        self.numbers = max(self.numbers, *sizes, 0)
        return out


@pytest.mark.parametrize("implementation", FAST)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_matrix_is_never_held(loss, implementation, small_tiles):
    inputs = [x.requires_grad_() for x in compare.inputs(loss, 300, 4, torch.float32)]
    if loss == "info_nce":
        inputs[2] = inputs[2].detach()
    with LargestTensor() as largest:
        call(loss, inputs, implementation=implementation).backward()
    assert largest.numbers <= max(48 * 48, 8 * 303 * 4)  # a tile, or a few copies of the features
    with LargestTensor() as largest:
        call(loss, inputs, implementation="reference").backward()
    assert largest.numbers >= 150 * 150


# --- choice and errors --------------------------------------------------------------------------------------

GOOD = features(4, 3, 0, torch.float32)


@pytest.mark.parametrize("implementation", ["auto", "reference", *FAST])
@pytest.mark.parametrize(
    "loss, arguments",
    [
        ("nt_xent", (GOOD, GOOD[:3], 0.5)),
        ("nt_xent", (GOOD[:1], GOOD[:1], 0.5)),
        ("nt_xent", (GOOD.long(), GOOD, 0.5)),
        ("nt_xent", (GOOD.cpu().numpy(), GOOD, 0.5)),
        ("nt_xent", (GOOD * math.nan, GOOD, 0.5)),
        ("nt_xent", (GOOD * 0, GOOD, 0.5)),
        ("nt_xent", (GOOD, GOOD, 0)),
        ("nt_xent", (GOOD, GOOD, "0.5")),
        ("nt_xent", (GOOD, GOOD, 0.5, "sum")),
        ("clip_loss", (GOOD, GOOD[:, :2], 10)),
        ("clip_loss", (GOOD, GOOD, math.inf)),
        ("info_nce", (GOOD, GOOD, GOOD[:, :2], 0.5)),
        ("info_nce", (GOOD, GOOD, GOOD[:0], 0.5)),
        ("info_nce", (GOOD, GOOD, GOOD, torch.ones(4, device=DEVICE))),
    ],
)
def test_errors_are_those_of_the_definition(loss, arguments, implementation):
    with pytest.raises((TypeError, ValueError)) as expected:
        getattr(contrast, loss)(*arguments)
    with pytest.raises(expected.type) as caught:
        getattr(kernels, loss)(*arguments, implementation=implementation)
    assert str(caught.value) == str(expected.value)


def test_an_implementation_that_cannot_run_says_why(monkeypatch):
    wide = torch.ones(4, 600, device=DEVICE)
    with pytest.raises(ValueError, match="implementation is 'cuda'; expected"):
        kernels.nt_xent(GOOD, GOOD, 0.5, implementation="cuda")
    with pytest.raises(ValueError, match=r"triton.*float64 \[4, 3\]"):
        kernels.nt_xent(GOOD.double(), GOOD.double(), 0.5, implementation="triton")
    with pytest.raises(ValueError, match=r"triton.*up to 512 wide.*\[4, 600\]"):
        kernels.nt_xent(wide, wide, 0.5, implementation="triton")
    with pytest.raises(ValueError, match=r"blocked.*1 / temperature = 1000"):
        kernels.nt_xent(GOOD, GOOD, 0.001, implementation="blocked")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"triton.*lie on cpu, not on a GPU"):
        kernels.nt_xent(GOOD.cpu(), GOOD.cpu(), 0.5, implementation="triton")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="triton is not installed"):
        kernels.nt_xent(GOOD, GOOD, 0.5, implementation="triton")


def test_auto_on_a_cpu_takes_the_definition_for_few_rows_and_blocked_for_many(monkeypatch):
    served = []
    monkeypatch.setattr(contrast, "nt_xent", lambda *a: served.append("reference"))
    monkeypatch.setattr(blocked, "within", lambda a, *rest: served.append("blocked") or a[0][:, 0])
    for n, temperature in [(4, 0.5), (100, 0.5), (100, 0.001)]:
        kernels.nt_xent(features(n, 3, 1).cpu(), features(n, 3, 2).cpu(), temperature)
    assert served == ["reference", "blocked", "reference"]


def test_importing_the_kernels_leaves_triton_alone():
    code = "import sys, course_utils.kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
