"""Measure how much context is of use to each of several models: relative effective context length.

python examples/relative_context.py TEXT RUN_A RUN_B --lengths 1 16 32 64 128 256

Transformer-XL, appendix C: l_i(c, t) is the loss of model i on token t, predicted from exactly the c tokens before it,
and b(c, t) the least of any model. Over the share r of tokens with the largest b(c, t), model i gains

    g_i(c, c') = 1 - exp(mean of min(b(c, t), l_i(c', t)) - mean of b(c, t))

of the perplexity by reading c' tokens instead of c. Its relative effective context length is the c, going up, from
which the next step gains less than a threshold. Each token is read in a window of its own, since a memory of c tokens
would tell more than c tokens do. Lengths compare the models of one call, and are no measure by themselves; models with
absolute positions cannot be read beyond the length that they were trained with.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import transformer_xl as txl

WINDOWS_AT_ONCE = 32


@torch.no_grad()
def losses_by_context(model: torch.nn.Module, ids: np.ndarray, lengths: list[int], places: np.ndarray) -> np.ndarray:
    """Return the loss in nats of each token (columns), predicted from so many tokens before it (rows)."""
    reader = model.with_context(clamp_len=model.clamp_len, same_length=False)
    losses = np.empty((len(lengths), len(places)))
    for row, length in enumerate(lengths):
        for start in range(0, len(places), WINDOWS_AT_ONCE):
            chosen = places[start : start + WINDOWS_AT_ONCE]
            window = torch.from_numpy(np.stack([ids[place - length : place + 1] for place in chosen]))
            targets = torch.full_like(window[:, 1:], -100)
            targets[:, -1] = window[:, -1]
            memory = reader.empty_memory(batch_size=len(chosen), mem_len=0)
            nll = reader.nll(window[:, :-1], targets, memory).nll_BT[:, -1]
            losses[row, start : start + len(chosen)] = nll.double().numpy()
    return losses


def gains(losses: np.ndarray, share: float) -> np.ndarray:
    """Return each model's gain (rows) from each context length to the next; `losses`: models, lengths, tokens."""
    found = np.zeros((losses.shape[0], losses.shape[1] - 1))
    for step in range(losses.shape[1] - 1):
        best = losses[:, step].min(axis=0)
        hardest = np.argsort(-best, kind="stable")[: max(1, round(share * len(best)))]
        improved = np.minimum(best[hardest], losses[:, step + 1, hardest])
        found[:, step] = 0 - np.expm1(improved.mean(axis=1) - best[hardest].mean())
    return found


def effective_length(gains: np.ndarray, lengths: list[int], threshold: float) -> str:
    """Return the context length from which the next step gains too little; `>=`: there was none such."""
    small = np.flatnonzero(gains < threshold)
    return str(lengths[small[0]]) if len(small) else f">= {lengths[-1]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("run", type=Path, nargs="+", help="run folders or models of one vocabulary")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 16, 32, 64, 128, 256], help="contexts, rising")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.5, 1.0], help="r, of the hardest tokens")
    parser.add_argument("--threshold", type=float, default=0.01)
    parser.add_argument("--tokens", type=int, default=4096, help="predictions, spread evenly over the text")
    asked = parser.parse_args()
    models = [txl.load_model(run) for run in asked.run]
    if len({model.vocabulary.hash() for model in models}) > 1:
        parser.error("the models have different vocabularies, and losses compare only between the same tokens")
    ids = models[0].vocabulary.encode(asked.text.read_text(encoding="utf-8"))
    longest = max(asked.lengths)
    if len(ids) <= longest:
        parser.error(f"{asked.text} has {len(ids)} tokens, and the longest context needs more than {longest}")
    places = np.unique(np.linspace(longest, len(ids) - 1, asked.tokens).astype(int))
    losses = np.stack([losses_by_context(model, ids, asked.lengths, places) for model in models])
    table = Table("model", "r", "effective context", *(f"to {length}" for length in asked.lengths[1:]))
    for index, run in enumerate(asked.run):
        for share in asked.shares:
            of_model = gains(losses, share)[index]
            length = effective_length(of_model, asked.lengths, asked.threshold)
            table.add_row(str(run), f"{share:g}", length, *(f"{gain:.1%}" for gain in of_model))
    Console().print(f"{len(places):,} predictions; columns: perplexity gained over the context before", table)
