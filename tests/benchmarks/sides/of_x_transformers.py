"""The side of `x-transformers`: a decoder with memory, rotary positions and flash attention."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from serving import Work, serve
from steps import Training
from torch import Tensor
from torch.nn import functional
from x_transformers import Decoder, TransformerWrapper


class Wrapped:
    """The model and its memory."""

    def __init__(self, request: dict[str, Any]) -> None:
        model = request["model"]
        self.model = TransformerWrapper(
            num_tokens=request["vocab_size"],
            max_seq_len=request["segment_len"],
            max_mem_len=request["mem_len"],
            use_abs_pos_emb=False,
            attn_layers=Decoder(
                dim=model["d_model"],
                depth=model["n_layer"],
                heads=model["n_head"],
                attn_dim_head=model["d_head"],
                ff_mult=model["d_inner"] / model["d_model"],
                rotary_pos_emb=True,
                attn_flash=True,
            ),
        )
        self.mems: list[Tensor] | None = None

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss of all targets."""
        logits_BTV, self.mems = self.model(tokens_BT, mems=self.mems, return_mems=True)
        return functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def make_work(request: dict[str, Any]) -> Work:
    """Build and warm what a request describes."""
    wrapped = Wrapped(request)
    return Training(request, wrapped.model.train().parameters(), wrapped.loss)


if __name__ == "__main__":
    serve(make_work, versions={"x-transformers": version("x-transformers")})
