"""Losses from exactly so many tokens, against predictions made one by one."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from tests.data.laid_out import evaluation_lanes
from tests.model.kinds import KINDS, model_of
from transformer_xl.errors import UserError
from transformer_xl.inference.context_losses import lanes_for, losses_by_context

LENGTHS = [1, 3, 6]
READS_AT_MOST = {"al_rfou": 2, "vaswani": 5}
"""Of its table of places, and of training's segments."""
LANES = 4
TOKENS = np.random.default_rng(0).integers(0, 32, 48).astype(np.uint8)
"""47 predictions in lanes of 12, the last of which is padded at its end."""


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_predicts_the_same_tokens_from_so_many_before_them(kind: str) -> None:
    changes = {"n_positions": 2} if kind == "al_rfou" else {}
    model = model_of(kind, **changes)
    source = evaluation_lanes(TOKENS, batch_size=LANES, split="test")
    found = losses_by_context(
        model, source, lengths=LENGTHS, max_tokens=28, clamp_len=None, trained_len=5, autocast=nullcontext
    )
    predictions = [lane * 12 + 5 + row for row in range(7) for lane in range(LANES)]
    predictions.remove(47)  # the padding
    assert found.shape == (3, 27)
    for length, losses in zip(LENGTHS, found, strict=True):
        context = max(fitting for fitting in LENGTHS if fitting <= min(length, READS_AT_MOST.get(kind, 6)))
        for prediction, loss in zip(predictions[::5], losses[::5], strict=True):
            tokens = torch.as_tensor(TOKENS[prediction - context + 1 : prediction + 2].astype(np.int64))[None]
            log_probs = model.log_probs(tokens[:, :-1], model.empty_memory(batch_size=1, mem_len=0)).log_probs_BTV
            assert loss == pytest.approx(-float(log_probs[0, -1, tokens[0, -1]]), rel=1e-9)


def test_no_more_is_read_than_asked_and_progress_is_told() -> None:
    source, told = evaluation_lanes(TOKENS, batch_size=LANES, split="test"), list[tuple[int, int]]()
    found = losses_by_context(
        model_of("gru"),
        source,
        lengths=LENGTHS,
        max_tokens=9,
        clamp_len=None,
        trained_len=None,
        autocast=nullcontext,
        progress=lambda read, of: told.append((read, of)),
    )
    assert found.shape == (3, 12)
    assert told == [(12, 120), (48, 120), (120, 120)]


def test_lanes_that_are_too_short_are_refused() -> None:
    source = evaluation_lanes(TOKENS, batch_size=LANES, split="test")
    with pytest.raises(UserError, match=r"eval\.relative_context_lengths goes up to 13"):
        losses_by_context(
            model_of("gru"), source, lengths=[1, 13], max_tokens=9, clamp_len=None, trained_len=5, autocast=nullcontext
        )
    assert lanes_for(47, longest=6) == 3
    assert lanes_for(5, longest=6) == 1
    assert lanes_for(10**6, longest=256) == 32
