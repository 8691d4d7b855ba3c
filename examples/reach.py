"""Measure how far back the outputs of each layer can depend on the text (the paper's figure 2).

python examples/reach.py RUN --segment-len 32 --mem-len 64

Random tokens are read segment by segment. A key is seen where attention gives it a weight above 0; what a key stands
for was itself made from the keys that the layer below saw, in its own segment. Followed down through the layers this
gives the oldest token of each output. With same_length each layer looks back mem_len - 1 tokens, else a query at a
segment's end looks furthest.
"""

import argparse

import numpy as np
import torch

import transformer_xl as txl


@torch.no_grad()
def seen_keys(model: torch.nn.Module, *, segment_len: int, mem_len: int) -> np.ndarray:
    """Return which position (last axis) each position sees in each layer: layers, positions, positions."""
    segments = model.config.n_layer * -(-mem_len // segment_len) + 1
    length = segments * segment_len
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocab_size, (1, length), generator=generator)
    memory = model.empty_memory(batch_size=1, mem_len=mem_len)
    seen = np.zeros((model.config.n_layer, length, length), bool)
    for start in range(0, length, segment_len):
        weights, memory = model.attention_weights(tokens[:, start : start + segment_len], memory)
        first = start + segment_len - weights.shape[-1]
        seen[:, start : start + segment_len, first : start + segment_len] = (weights[:, 0] > 0).any(dim=1).numpy()
    return seen


def oldest_tokens(seen: np.ndarray) -> np.ndarray:
    """Return the oldest token on which each position depends after each layer: layers, positions."""
    oldest = [np.arange(seen.shape[1])]
    for of_layer in seen:
        oldest.append(np.where(of_layer, oldest[-1], seen.shape[1]).min(axis=1))
    return np.stack(oldest[1:])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run folder, checkpoint or model folder")
    parser.add_argument("--segment-len", type=int, default=32)
    parser.add_argument("--mem-len", type=int, help="default: the model's own")
    parser.add_argument("--same-length", action="store_true", help="every query sees mem_len keys")
    asked = parser.parse_args()
    model = txl.load_model(asked.run).double()
    model = model.with_context(clamp_len=model.clamp_len, same_length=asked.same_length or model.same_length)
    mem_len = model.mem_len if asked.mem_len is None else asked.mem_len
    oldest = oldest_tokens(seen_keys(model, segment_len=asked.segment_len, mem_len=mem_len))
    for layer, of_layer in enumerate(oldest, start=1):
        print(f"layer {layer}: {(np.arange(len(of_layer)) - of_layer).max():,} tokens back")
