"""Tokens drawn one by one, against reading everything again for each."""

from __future__ import annotations

import pytest
import torch

from tests.model.kinds import INVARIANT, KINDS, model_of
from transformer_xl.inference.sampling import sample_tokens
from transformer_xl.model.interface import LanguageModel

SEGMENT_LEN = 5
PROMPT = [3, 1, 4, 1, 5, 9, 2]
DRAWN = 8


def drawn(model: LanguageModel, prompt: list[int], n_tokens: int) -> list[int]:
    return sample_tokens(model, prompt, n_tokens=n_tokens, segment_len=SEGMENT_LEN, temperature=0.0, top_k=None, seed=1)


@torch.no_grad()
def likeliest(model: LanguageModel, tokens: list[int]) -> int:
    """Read everything at once with the memory of nothing, or what the model can see of it."""
    if model.mem_len == 0:
        tokens = tokens[-SEGMENT_LEN:]
    memory = model.empty_memory(1)
    if not model.relative:
        while len(tokens) > SEGMENT_LEN:
            memory = model(torch.tensor([tokens[:SEGMENT_LEN]]), memory).memory
            tokens = tokens[SEGMENT_LEN:]
    return int(model.log_probs(torch.tensor([tokens]), memory).log_probs_BTV[0, -1].argmax())


@pytest.mark.parametrize(("kind", "mem_len"), [*((kind, 20) for kind in KINDS), ("transformer_xl", 0), ("lstm", 0)])
def test_greedy_tokens_are_those_of_reading_all_again_wherever_the_prompt_ends(kind: str, mem_len: int) -> None:
    model = model_of(kind, mem_len=mem_len)
    tokens = list(PROMPT)
    for _ in range(DRAWN):
        tokens.append(likeliest(model, tokens))
    for end in range(len(PROMPT), len(tokens)):
        assert drawn(model, tokens[:end], len(tokens) - end) == tokens[end:]


@pytest.mark.parametrize("kind", INVARIANT)
def test_a_model_of_distances_reads_each_token_once(kind: str) -> None:
    model = model_of(kind)
    read: list[int] = []
    model.embedding.register_forward_hook(lambda _, inputs, output: read.append(inputs[0].shape[1]))
    drawn(model, PROMPT, 4)
    assert read == [len(PROMPT), 1, 1, 1]


def test_draws_follow_their_seed_and_leave_global_randomness_alone() -> None:
    model, before = model_of("transformer_xl"), torch.get_rng_state()
    texts = [
        sample_tokens(model, PROMPT, n_tokens=9, segment_len=SEGMENT_LEN, temperature=1.0, top_k=9, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), before)
