"""Our side: training, streaming evaluation and generation.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from serving import Work, serve
from steps import Evaluation, Generation, Training
from torch import Tensor

from transformer_xl.model.base import make_model
from transformer_xl.model.streaming import stream
from transformer_xl.processes import keep_freed_memory
from transformer_xl.settings import parse_kind


def make_work(request: dict[str, Any]) -> Work:
    """Build and warm what a request describes."""
    model = make_model(parse_kind("model", request["model"]), vocab_size=request["vocab_size"])
    if request["task"] == "training":
        memory = model.train().empty_memory(batch_size=request["batch_size"])

        def loss(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
            nonlocal memory
            nll_BT, memory = model.nll(tokens_BT, targets_BT, memory)
            return nll_BT.sum() / targets_BT.numel()

        return Training(request, model.parameters(), loss)
    if request["precision"] == "bfloat16 weights":
        model = model.to(torch.bfloat16)
    lengths = {name: request[name] for name in ("batch_size", "mem_len", "clamp_len", "same_length")}
    session = stream(model.eval(), **lengths)
    if request["task"] == "evaluation":
        return Evaluation(request, lambda tokens_BT, targets_BT: session.nll(tokens_BT, targets_BT).mean())
    return Generation(request, session.log_probs, fill=request["mem_len"])


def alone(request: dict[str, Any]) -> Work:
    """Do the same for a process that does nothing else: in training it keeps freed memory, as `train.py`'s does."""
    if request["task"] == "training":
        keep_freed_memory()
    return make_work(request)


if __name__ == "__main__":
    serve(alone, versions={})
