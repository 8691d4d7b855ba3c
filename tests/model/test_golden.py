"""Parity with an independent implementation: transformers 4.37.2's TransfoXLLMHeadModel, whose vectors lie in golden/.

It starts from a memory of zeros that it attends to. Its gradients are those of the mean loss of the last segment's
first T - 1 targets, the memory before it held constant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.conftest import tiny_model_config
from tests.model.tiny import assert_equal_to, difference
from transformer_xl.model.memory import Memory
from transformer_xl.model.transformer_xl import TransformerXL

GOLDEN = Path(__file__).parent / "golden"
BOUND = 2e-5
NAMES = {
    r"transformer\.word_emb\.emb_layers\.0\.": "embedding.",
    r"crit\.out_layers\.0\.": "embedding.",
    r"transformer\.layers\.": "layers.",
    r"dec_attn\.r_net": "position",
    r"dec_attn\.o_net": "output",
    r"dec_attn\.layer_norm": "attention_norm",
    r"pos_ff\.CoreNet": "feed_forward",
    r"pos_ff\.layer_norm": "feed_forward_norm",
}


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

    def start(self) -> Memory:
        return self.model.zero_memory(batch_size=self.io["input_ids"].shape[1])


def ours(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the reference's tensors to ours."""
    converted = {}
    for name, tensor in theirs.items():
        for pattern, replacement in NAMES.items():
            name = re.sub(pattern, replacement, name)
        if name.endswith("dec_attn.qkv_net.weight"):
            prefix = name.removesuffix("dec_attn.qkv_net.weight")
            query, key_value = tensor.tensor_split([len(tensor) // 3])
            converted[prefix + "query.weight"], converted[prefix + "key_value.weight"] = query, key_value
        elif name == "transformer.r_w_bias":
            converted["content_bias"] = tensor[None]
        elif name == "transformer.r_r_bias":
            converted["position_bias"] = tensor[None]
        elif not re.search(r"dec_attn\.r_._bias|pos_emb", name):  # copies of the shared pair; a buffer
            converted[name] = tensor
    return converted


@pytest.fixture(params=["char_plain", "char_same_length", "char_pre_norm"])
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = GOLDEN / request.param
    reference = json.loads((folder / "config.json").read_text())
    config = tiny_model_config(
        **{name: reference[name] for name in ("n_layer", "d_model", "n_head", "d_head", "d_inner", "mem_len")},
        same_length=reference["same_length"],
        clamp_len=None if reference["clamp_len"] < 0 else reference["clamp_len"],
        pre_norm=reference["pre_lnorm"],
        untie_r=reference["untie_r"],
    )
    weights = load_file(folder / "model.safetensors")
    assert torch.equal(weights["transformer.word_emb.emb_layers.0.weight"], weights["crit.out_layers.0.weight"])
    model = TransformerXL(config, vocab_size=reference["vocab_size"])
    model.load_state_dict(ours(weights))
    return Golden(model.eval(), load_file(folder / "io.safetensors"), ours(load_file(folder / "grads.safetensors")))


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
        assert gradients[name] is not None, name
        assert difference(gradients[name], expected) <= BOUND * float(expected.abs().max()), name
