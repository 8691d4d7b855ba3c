from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.model.tiny import assert_equal_to
from transformer_xl.model.kernels import linear as onednn
from transformer_xl.model.kernels.linear import Linear, prepack

ON_X86 = torch.backends.cpu.get_cpu_capability().startswith("AVX")
SHAPES = [(1,), (1, 1), (1, 3), (2, 2), (1, 9), (3, 7), (0, 4)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Have the smallest products done by oneDNN; the shapes of what it is given."""
    monkeypatch.setattr(onednn, "_WORTH_A_CALL", 1)
    monkeypatch.setattr(onednn, "_WORTH_A_LAYOUT", 1)
    seen, own = [], onednn._LINEAR

    def spied(input: Tensor, *others: object) -> Tensor:
        seen.append(input.shape)
        output: Tensor = own(input, *others)
        return output

    monkeypatch.setattr(onednn, "_LINEAR", spied)
    return seen


def both(outputs: int, *, bias: bool = True) -> tuple[Linear, nn.Linear]:
    torch.manual_seed(0)
    own = Linear(5, outputs, bias=bias)
    torchs = nn.Linear(5, outputs, bias=bias)
    torchs.load_state_dict(own.state_dict())
    return own, torchs


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("outputs", [3, 16, 19])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_gives_what_torchs_own_does(shape: tuple[int, ...], outputs: int, bias: bool) -> None:
    own, torchs = both(outputs, bias=bias)
    rows = torch.randn(*shape, 5)
    with torch.no_grad():
        assert_equal_to(own(rows), torchs(rows), within=1e-6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert own(rows).dtype == torch.bfloat16


@pytest.mark.skipif(not ON_X86, reason="for processors with AVX2 or AVX-512")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("frozen", ["nothing", "weight", "input"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 7), (2, 3, 7)], ids=str)
def test_large_products_have_torchs_values_and_gradients(
    calls: list[torch.Size], shape: tuple[int, ...], frozen: str, bias: bool
) -> None:
    own, torchs = both(4, bias=bias)
    got = []
    for layer in (own, torchs):
        layer.weight.requires_grad_(frozen != "weight")
        torch.manual_seed(1)
        rows = torch.randn(5, *shape).movedim(0, -1).requires_grad_(frozen != "input")
        output = layer(rows).relu_()  # in place, as a feed-forward network does it
        (output * torch.randn(output.shape)).sum().backward()
        got.append((output, rows.grad, layer.weight.grad, layer.bias.grad if bias else None))
    assert len(calls) == (1 if frozen == "input" else 2)
    for ours, expected in zip(*got, strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None and expected is not None:
            assert_equal_to(ours, expected, within=1e-5)


@pytest.mark.skipif(not ON_X86, reason="for processors with AVX2 or AVX-512")
@pytest.mark.filterwarnings("ignore:TF32")
def test_other_types_autocast_and_who_turned_it_off_go_without(calls: list[torch.Size]) -> None:
    own, _ = both(4)
    rows = torch.randn(3, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        own(rows)
    with torch.backends.mkldnn.flags(enabled=False):
        own(rows)
        prepack(nn.Sequential(own))(rows)
    own.double()(rows.double())
    assert not calls


@pytest.mark.skipif(not ON_X86, reason="for processors with AVX2 or AVX-512")
@pytest.mark.parametrize("rows", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
def test_a_layer_for_reading_reads_the_same(calls: list[torch.Size], rows: int, precision: str) -> None:
    if precision != "float32" and not onednn._IN_BFLOAT16:
        pytest.skip("no units for bfloat16")
    own, torchs = both(16)
    if precision == "bfloat16":
        own.bfloat16()
        torchs.bfloat16()
    inputs = torch.randn(1, rows, 5, dtype=own.weight.dtype)
    reader = prepack(nn.Sequential(own, nn.ReLU(inplace=True)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
        expected = torchs(inputs).relu()
        for _ in range(2):
            read = reader(inputs)
            assert read.dtype == expected.dtype
            assert_equal_to(read.float(), expected.float(), within=1e-6 if precision == "float32" else 0.02)
    given = {1: 1, 2: 2, 16: 16, 17: 32, 40: 48}[rows]
    assert calls == ([] if (rows, precision) == (1, "float32") else [(given, 5)] * 2)


def test_a_module_for_reading_shares_what_it_was_made_of() -> None:
    own, _ = both(16)
    module = nn.Sequential(nn.Sequential(own, nn.Dropout(0.5)), nn.LayerNorm(16)).eval()
    reader = prepack(module)
    assert {id(parameter) for parameter in reader.parameters()} == {id(parameter) for parameter in module.parameters()}
    assert module[0][0] is own
    assert not any(part.training for part in reader.modules() if isinstance(part, nn.Dropout))
