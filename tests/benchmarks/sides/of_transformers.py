"""The side of `TransfoXLLMHeadModel`, the port of the published code in `transformers` 4.37.2."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from serving import Work, serve
from steps import Evaluation, Generation, Training
from torch import Tensor
from torch.nn import functional


class Port:
    """The model and its memory, which has its full length from the beginning: zeros that are attended to."""

    def __init__(self, request: dict[str, Any]) -> None:
        model = request["model"]
        config = transformers.TransfoXLConfig(
            vocab_size=request["vocab_size"],
            **{name: model[name] for name in ("d_model", "n_head", "d_head", "d_inner", "n_layer", "cutoffs")},
            d_embed=model["d_model"],
            div_val=model["div_val"],
            mem_len=request["mem_len"],
            clamp_len=-1 if request["clamp_len"] is None else request["clamp_len"],
            same_length=request["same_length"],
            pre_lnorm=model["pre_norm"],
            untie_r=model["untie_r"],
            dropout=0.0,
            dropatt=0.0,
        )
        self.model = transformers.TransfoXLLMHeadModel(config)
        self.mems: list[Tensor] | None = None

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss of all targets.

        `labels=` would leave out each lane's last one: it shifts targets by one within the segment, which the two
        paddings undo. Under autocast its loss raises an error (it mixes two types): that is done in float32.
        """
        hidden_BTD = self._read(tokens_BT)
        with torch.autocast("cpu", enabled=False):
            losses: Tensor = self.model.crit(
                functional.pad(hidden_BTD.float(), (0, 0, 0, 1)), functional.pad(targets_BT, (1, 0))
            )
        return losses.mean()

    def log_probs(self, tokens_BT: Tensor) -> Tensor:
        """Return the log-probabilities of what follows each token."""
        hidden_BTD = self._read(tokens_BT)
        log_probs: Tensor = self.model.crit(hidden_BTD)
        return log_probs.view(*hidden_BTD.shape[:2], -1)

    def _read(self, tokens_BT: Tensor) -> Tensor:
        output = self.model.transformer(tokens_BT, mems=self.mems)
        self.mems = output.mems
        hidden_BTD: Tensor = output.last_hidden_state
        return hidden_BTD


def make_work(request: dict[str, Any]) -> Work:
    """Build and warm what a request describes."""
    port = Port(request)
    if request["task"] == "training":
        return Training(request, port.model.train().parameters(), port.loss)
    port.model.eval()
    if request["task"] == "evaluation":
        return Evaluation(request, port.loss)
    return Generation(request, port.log_probs, fill=1)


if __name__ == "__main__":
    serve(make_work, versions={"transformers": transformers.__version__})
