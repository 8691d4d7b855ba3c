"""What is timed: steps of training, evaluation and generation, of our models and of others.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from tests.benchmarks.works import settings
from transformer_xl.model.base import LanguageModel, make_model
from transformer_xl.model.compiled import compiled_losses
from transformer_xl.model.memory import Memory
from transformer_xl.model.transformer import Transformer
from transformer_xl.model_config import TransformerConfig
from transformer_xl.settings import parse_kind

VOCABULARY = {"txl_base_nvidia": 267_735, "txl_base": 267_735, "txl_char_base": 204}
"""Tokens of WikiText-103 and of enwik8."""
TOY = {"n_layer": 2, "d_model": 16, "n_head": 2, "d_inner": 32, "mem_len": 7}
TOY_CUTOFFS = [20, 40]
BATCHES = 4
"""Batches that training goes round in."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where it runs, and at which sizes.

    Attributes:
        device: of all tensors.
        toy: whether sizes are so small that everything ends within a second; numbers of `conf/` then do not count.
        backend: of `torch.compile`.
    """

    device: torch.device
    toy: bool
    backend: str

    def model_config(self, preset: str, *, attention: str) -> TransformerConfig:
        """Return the network of `conf/model/PRESET.yaml`."""
        values = settings(f"model/{preset}") | {"attention": attention}
        if self.toy:
            width = 5 if values["d_head"] % 8 else 8
            values |= TOY | {"d_head": width, "cutoffs": TOY_CUTOFFS if values["cutoffs"] else []}
        config = parse_kind("model", values)
        assert isinstance(config, TransformerConfig)
        return config

    def recipe(self, preset: str) -> dict[str, Any]:
        """Return the lengths of `conf/recipe/PRESET.yaml`."""
        values = settings(f"recipe/{preset}")
        if self.toy:
            lengths = {"segment_len": 3, "mem_len": 11, "clamp_len": 6}
            values |= {"segment_len": 5, "batch_size": 2, "long_eval": values["long_eval"] | lengths}
        return values

    def vocab_size(self, preset: str) -> int:
        """Return V."""
        return 64 if self.toy else VOCABULARY[preset]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context of bfloat16's mixed precision."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def make_model(self, preset: str, *, attention: str) -> Transformer:
        """Make the network of a preset."""
        torch.manual_seed(0)
        config = self.model_config(preset, attention=attention)
        with self.device:
            model = make_model(config, vocab_size=self.vocab_size(preset))
        assert isinstance(model, Transformer)
        return model


def random_ids(shape: tuple[int, ...], *, vocab_size: int, seed: int) -> Tensor:
    """Draw ids of which id i comes about 1 / (i + 1) times as often as id 0, as words sorted by frequency do."""
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((vocab_size + 1) ** uniform - 1).long().clamp(max=vocab_size - 1)


def cluster_shares(model: LanguageModel) -> list[float]:
    """Return the share of each cluster among such ids."""
    edges = [math.log(edge + 1) / math.log(model.vocab_size + 1) for edge in model.clusters.edges]
    return [after - before for before, after in pairwise(edges)]


class Steps:
    """Optimizer steps: forward in bfloat16's mixed precision, backward, clip at 0.25, fused Adam."""

    def __init__(
        self,
        setting: Setting,
        model: LanguageModel,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        lanes: int,
        segment_len: int,
    ) -> None:
        shape = (BATCHES, lanes, segment_len + 1)
        self.tokens = lanes * segment_len
        self._setting = setting
        self._ids = random_ids(shape, vocab_size=model.vocab_size, seed=1).to(setting.device)
        self._parameters = list(model.parameters())
        self._loss = loss
        self._optimizer = torch.optim.Adam(self._parameters, lr=1e-4, fused=True)
        self._number = 0

    def __call__(self) -> Tensor:
        """Take one step; its loss stays on the device."""
        ids = self._ids[self._number % BATCHES]
        self._number += 1
        with self._setting.autocast():
            loss = self._loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 0.25)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def training(setting: Setting, model: Transformer, *, preset: str, lanes: int, compiles: bool) -> Steps:
    """Return training steps of a preset, as `LanguageModule.training_step` takes them."""
    segment_len = setting.recipe(preset)["segment_len"]
    model.train()
    read = model.training_losses
    if compiles:
        read = compiled_losses(model, segment_len=segment_len, backend=setting.backend)
    resets_BT = torch.zeros(lanes, segment_len, dtype=torch.bool, device=setting.device)
    memory: Memory = model.empty_memory(lanes)

    def loss(tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        nonlocal memory
        losses, _ = read(tokens_BT, targets_BT, memory, resets_BT)
        memory = losses.memory
        return losses.nll_BT.sum() / targets_BT.numel()

    return Steps(setting, model, loss, lanes=lanes, segment_len=segment_len)


def evaluation(setting: Setting, model: Transformer, *, preset: str, lanes: int) -> tuple[Callable[[], Tensor], int]:
    """Return a step that scores one segment at the lengths of the paper's evaluation, memory full, and its tokens."""
    lengths = setting.recipe(preset)["long_eval"]
    session = _session(model, lengths, lanes=lanes)
    ids = random_ids((lanes, lengths["segment_len"] + 1), vocab_size=model.vocab_size, seed=2).to(setting.device)

    def step() -> Tensor:
        with setting.autocast():
            nll_BT: Tensor = session.nll(ids[:, :-1], ids[:, 1:])
        return nll_BT.sum()

    for _ in range(-(-lengths["mem_len"] // lengths["segment_len"])):
        step()
    return step, lanes * lengths["segment_len"]


def generation(setting: Setting, model: Transformer, *, preset: str) -> Callable[[], int]:
    """Return a step that makes the likeliest next token, memory full, and reads it back, as one who prints it must."""
    lengths = setting.recipe(preset)["long_eval"]
    session = _session(model, lengths, lanes=1)
    prompt = random_ids((1, lengths["mem_len"]), vocab_size=model.vocab_size, seed=3).to(setting.device)
    for piece in prompt.split(lengths["segment_len"], dim=1):
        token_11 = session.log_probs(piece)[:, -1:].argmax(dim=-1)

    def step() -> int:
        nonlocal token_11
        token_11 = session.log_probs(token_11)[:, -1:].argmax(dim=-1)
        return int(token_11)

    return step


def _session(model: Transformer, lengths: dict[str, Any], *, lanes: int) -> Any:
    import transformer_xl as txl

    context = {name: lengths[name] for name in ("mem_len", "clamp_len", "same_length")}
    return txl.stream(model.eval(), batch_size=lanes, **context)
