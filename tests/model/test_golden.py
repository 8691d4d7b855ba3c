"""Parity with an independent implementation: transformers 4.37.2's TransfoXLLMHeadModel, whose vectors lie in golden/.

It starts from a memory of zeros that it attends to. Its gradients are those of the mean loss of the last segment's
first T - 1 targets, the memory before it held constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import transformer_xl as txl
from tests.model.tiny import assert_equal_to, difference
from transformer_xl.interop.transformers_format import reference
from transformer_xl.model.memory import HiddenMemory
from transformer_xl.model.transformer_xl import TransformerXL

GOLDEN = Path(__file__).parent / "golden"
BOUND = 2e-5


@dataclass(frozen=True)
class Golden:
    model: TransformerXL
    io: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]

    @property
    def targets(self) -> Tensor:
        """The lanes' next tokens across segments; none after the last."""
        segments, lanes, segment_len = self.io["input_ids"].shape
        stream = self.io["input_ids"].transpose(0, 1).reshape(lanes, -1)
        following = torch.cat([stream[:, 1:], torch.full((lanes, 1), -100)], dim=1)
        return following.reshape(lanes, segments, segment_len).transpose(0, 1)

    def start(self) -> HiddenMemory:
        return self.model.zero_memory(batch_size=self.io["input_ids"].shape[1])


@pytest.fixture(params=sorted(folder.name for folder in GOLDEN.iterdir()))
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = GOLDEN / request.param
    model = txl.load_model(folder)
    assert isinstance(model, TransformerXL)
    names = reference(model.config, vocab_size=model.vocab_size)
    zeros = {name: torch.zeros(shape) for name, shape in names.shapes.items()}  # an absent name has gradient zero
    gradients = names.to_native(zeros | load_file(folder / "grads.safetensors"))
    return Golden(model, load_file(folder / "io.safetensors"), gradients)


def test_log_probabilities_and_memory_equal_the_reference(golden: Golden) -> None:
    memory = golden.start()
    with torch.no_grad():
        for tokens_BT, expected in zip(golden.io["input_ids"], golden.io["log_probs"], strict=True):
            log_probs_BTV, memory = golden.model.log_probs(tokens_BT, memory)
            assert_equal_to(log_probs_BTV, expected, within=BOUND)
    assert_equal_to(memory.hidden_LBMD, golden.io["memory"], within=BOUND)


def test_token_losses_equal_the_reference(golden: Golden) -> None:
    memory = golden.start()
    with torch.no_grad():
        for tokens_BT, targets_BT, expected in zip(
            golden.io["input_ids"], golden.targets, golden.io["token_nll"], strict=True
        ):
            nll_BT, memory = golden.model.nll(tokens_BT, targets_BT, memory)
            assert_equal_to(nll_BT, expected.nan_to_num(0.0), within=BOUND)


def test_gradients_equal_the_reference(golden: Golden) -> None:
    memory = golden.start()
    *earlier, last = golden.io["input_ids"]
    with torch.no_grad():
        for tokens_BT in earlier:
            _, memory = golden.model(tokens_BT, memory)
    nll_BT, _ = golden.model.nll(last, golden.targets[-1], memory)
    nll_BT[:, :-1].mean().backward()
    gradients = {name: parameter.grad for name, parameter in golden.model.named_parameters()}
    assert gradients.keys() == golden.gradients.keys()
    for name, expected in golden.gradients.items():
        gradient = gradients[name]
        assert gradient is not None, name
        assert difference(gradient, expected) <= BOUND * float(expected.abs().max()), name
