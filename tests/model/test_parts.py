"""Parts from outside, as examples/parts shows them: a position encoding, a network, a memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import transformer_xl as txl
from tests.conftest import tiny_model_config
from tests.model.kinds import joined
from tests.model.tiny import V, assert_equal_to, cut, random_tokens, read
from transformer_xl.model.base import make_model
from transformer_xl.model.memory import memory_from_state_dict
from transformer_xl.model_config import ModelConfig
from transformer_xl.settings import parse_kind, plain

PARTS = Path(__file__).parents[2] / "examples" / "parts"


@pytest.fixture(params=["alibi", "linear_recurrence"])
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PARTS))
    if request.param not in sys.modules:
        __import__(request.param)
    values = plain(tiny_model_config())
    if request.param == "alibi":
        values |= {"position": {"kind": "alibi"}, "clamp_len": 3}
    else:
        values = {name: value for name, value in values.items() if name in ModelConfig.model_fields}
        values["kind"] = request.param
    torch.manual_seed(0)
    return make_model(parse_kind("model", values), vocab_size=V).double().eval()


def test_cuts_sessions_memories_and_gradients_are_as_of_the_shipped_ones(model: Any) -> None:
    tokens_BT = random_tokens(2, 12)
    whole, at_once = read(model, tokens_BT, model.empty_memory(2, mem_len=20), [12])
    in_pieces, memory = read(model, tokens_BT, model.empty_memory(2, mem_len=20), [5, 1, 6])
    assert_equal_to(in_pieces, whole, within=1e-12)
    session = txl.stream(model, batch_size=2, mem_len=20)
    streamed = torch.cat([session.log_probs(tokens_BT[:, piece]) for piece in cut(12, [5, 1, 6])], dim=1)
    assert_equal_to(streamed, whole, within=1e-12)

    lanes = [memory.lanes(slice(lane, lane + 1)) for lane in range(2)]
    again = memory_from_state_dict(joined(lanes).state_dict())
    expected = model(tokens_BT, at_once).hidden_BTD
    assert_equal_to(model(tokens_BT, again).hidden_BTD, expected, within=1e-12)

    model.train().nll(tokens_BT, tokens_BT, memory).nll_BT.sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert model.flops(batch_size=2, segment_len=5, cluster_shares=[1.0]).step > 0
