"""Parity with an independent implementation: transformers 4.37.2's TransfoXLLMHeadModel, whose vectors lie in golden/.

It starts from a memory of zeros that it attends to. Its gradients are those of the mean loss of the last segment's
first T - 1 targets, the memory before it held constant.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import transformer_xl as txl

GOLDEN = Path(__file__).parent / "golden"
BOUND = 2e-5


@dataclass(frozen=True)
class Golden:
    folder: Path
    model: Any
    io: dict[str, Tensor]

    @property
    def targets(self) -> Tensor:
        """The lanes' next tokens across segments; none after the last."""
        segments, lanes, segment_len = self.io["input_ids"].shape
        stream = self.io["input_ids"].transpose(0, 1).reshape(lanes, -1)
        following = torch.cat([stream[:, 1:], torch.full((lanes, 1), -100)], dim=1)
        return following.reshape(lanes, segments, segment_len).transpose(0, 1)

    def start(self) -> Any:
        return self.model.zero_memory(batch_size=self.io["input_ids"].shape[1])


@pytest.fixture(params=sorted(folder.name for folder in GOLDEN.iterdir()))
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = GOLDEN / request.param
    return Golden(folder, txl.load_model(folder), load_file(folder / "io.safetensors"))


def in_own_names(folder: Path, work: Path) -> dict[str, Tensor]:
    """Load the gradients as if they were weights, which puts them under the model's own names."""
    weights, gradients = load_file(folder / "model.safetensors"), load_file(folder / "grads.safetensors")
    tied = {name: [same for same in gradients if torch.equal(weights[same], weights[name])] for name in weights}
    complete = {
        name: gradients[name] if name in gradients else gradients[tied[name][0]] if tied[name] else torch.zeros_like(w)
        for name, w in weights.items()
    }
    complete |= {name: weight for name, weight in weights.items() if name.endswith("inv_freq")}
    save_file({name: tensor.clone() for name, tensor in complete.items()}, work / "model.safetensors", {"format": "pt"})
    shutil.copy(folder / "config.json", work)
    return dict(txl.load_model(work).named_parameters())


def test_log_probabilities_and_memory_equal_the_reference(golden: Golden) -> None:
    memory = golden.start()
    with torch.no_grad():
        for tokens_BT, expected in zip(golden.io["input_ids"], golden.io["log_probs"], strict=True):
            log_probs_BTV, memory = golden.model.log_probs(tokens_BT, memory)
            torch.testing.assert_close(log_probs_BTV, expected, rtol=0, atol=BOUND)
    torch.testing.assert_close(memory.hidden_LBMD, golden.io["memory"], rtol=0, atol=BOUND)


def test_token_losses_equal_the_reference(golden: Golden) -> None:
    memory = golden.start()
    with torch.no_grad():
        for tokens_BT, targets_BT, expected in zip(
            golden.io["input_ids"], golden.targets, golden.io["token_nll"], strict=True
        ):
            nll_BT, memory = golden.model.nll(tokens_BT, targets_BT, memory)
            torch.testing.assert_close(nll_BT, expected.nan_to_num(0.0), rtol=0, atol=BOUND)


def test_gradients_equal_the_reference(golden: Golden, tmp_path: Path) -> None:
    expected = in_own_names(golden.folder, tmp_path)
    memory = golden.start()
    *earlier, last = golden.io["input_ids"]
    with torch.no_grad():
        for tokens_BT in earlier:
            memory = golden.model(tokens_BT, memory).memory
    nll_BT, _ = golden.model.nll(last, golden.targets[-1], memory)
    nll_BT[:, :-1].mean().backward()
    parameters = dict(golden.model.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        scale = float(expected[name].detach().abs().max())
        torch.testing.assert_close(parameter.grad, expected[name].detach(), rtol=0, atol=BOUND * scale, msg=name)
