"""Fifty optimizer steps of the real program against one written here in plain loops, from the paper and nothing else.

Lanes, memory, attention, adaptive vocabulary, loss, clipping, schedule and Adam are all written again, a token and a
number at a time where that can be paid for; only derivatives are torch's.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.oracles import adapter, tiny

LAYERS, WIDTH, HEADS, HEAD, MEMORY = 2, 8, 2, 4, 7
LANES, SEGMENT, STEPS, WARMUP = 2, 5, 50, 10
PEAK, CLIP = 0.02, 0.5
CUTOFF, NARROWER = 20, 2
TEXT = "the cat sat on the mat and the dog sat on the log; so it was, 1 2 3!\n" * 40

Rows = list[Tensor]


class Loops:
    """The network's parameters as named leaves, and each lane's memory as lists of rows."""

    def __init__(self, weights: dict[str, Tensor], vocab_size: int) -> None:
        self.weights = {name: weight.detach().clone().requires_grad_() for name, weight in weights.items()}
        self.edges = [0, CUTOFF, vocab_size]
        self.memory: list[list[Rows]] = [[[] for _ in range(LAYERS)] for _ in range(LANES)]

    def segment_loss(self, tokens: list[list[int]], targets: list[list[int]]) -> Tensor:
        """Return the mean loss over all lanes, and remember the segment."""
        losses: list[Tensor] = []
        for lane in range(LANES):
            rows = self.read(lane, tokens[lane])
            losses += [-self.log_prob(row, target) for row, target in zip(rows, targets[lane], strict=True)]
        return torch.stack(losses).mean()

    def read(self, lane: int, tokens: list[int]) -> Rows:
        rows = [self.embedded(token) for token in tokens]
        for layer in range(LAYERS):
            context = self.memory[lane][layer] + rows
            self.memory[lane][layer] = [row.detach() for row in context[-MEMORY:]]
            first = len(context) - len(rows)
            rows = [self.layer(layer, context, place) for place in range(first, len(context))]
        return rows

    def embedded(self, token: int) -> Tensor:
        cluster = int(token >= CUTOFF)
        row = self.weights[f"embedding.weights.{cluster}"][token - self.edges[cluster]]
        return self.weights[f"embedding.projections.{cluster}"] @ row * math.sqrt(WIDTH)

    def logit(self, row: Tensor, token: int) -> Tensor:
        cluster = int(token >= CUTOFF)
        inner = row @ self.projection(cluster)
        place = token - self.edges[cluster]
        return (
            inner @ self.weights[f"embedding.weights.{cluster}"][place]
            + self.weights[f"softmax.biases.{cluster}"][place]
        )

    def projection(self, cluster: int) -> Tensor:
        # all but the first are tied
        return self.weights["softmax.projections.0" if cluster == 0 else f"embedding.projections.{cluster}"]

    def log_prob(self, row: Tensor, token: int) -> Tensor:
        tail = row @ self.projection(0) @ self.weights["softmax.cluster_weight"][0]
        head = [self.logit(row, v) for v in range(CUTOFF)] + [tail + self.weights["softmax.cluster_bias"][0]]
        head_log_probs = torch.stack(head) - log_sum_exp(head)
        if token < CUTOFF:
            return head_log_probs[token]
        rare = [self.logit(row, v) for v in range(CUTOFF, self.edges[2])]
        return head_log_probs[CUTOFF] + rare[token - CUTOFF] - log_sum_exp(rare)

    def layer(self, layer: int, context: Rows, place: int) -> Tensor:
        weights = {
            name.removeprefix(f"layers.{layer}."): weight
            for name, weight in self.weights.items()
            if name.startswith(f"layers.{layer}.")
        }
        x = normed(context[place] + self.attended(weights, context, place), weights, "attention_norm")
        inner = (weights["feed_forward.0.weight"] @ x + weights["feed_forward.0.bias"]).clamp(min=0)
        return normed(
            x + weights["feed_forward.3.weight"] @ inner + weights["feed_forward.3.bias"],
            weights,
            "feed_forward_norm",
        )

    def attended(self, weights: dict[str, Tensor], context: Rows, place: int) -> Tensor:
        key_weight, value_weight = weights["attention.key_value.weight"].chunk(2)
        heads = []
        for head in range(HEADS):
            part = slice(head * HEAD, (head + 1) * HEAD)
            u, v = self.weights["content_bias"][0, head], self.weights["position_bias"][0, head]
            query = weights["attention.query.weight"][part] @ context[place]
            scores, values = [], []
            for j in range(place + 1):
                key = key_weight[part] @ context[j]
                r = weights["attention.position.weight"][part] @ encoding(place - j)
                scores.append(((query + u) @ key + (query + v) @ r) / math.sqrt(HEAD))
                values.append(value_weight[part] @ context[j])
            total = log_sum_exp(scores)
            heads.append(sum((s - total).exp() * value for s, value in zip(scores, values, strict=True)))
        return weights["attention.output.weight"] @ torch.cat(heads)  # type: ignore[arg-type]


def log_sum_exp(scores: list[Tensor]) -> Tensor:
    return torch.stack(scores).exp().sum().log()


def normed(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = x - x.mean()
    return centred / ((centred**2).mean() + 1e-5).sqrt() * weights[name + ".weight"] + weights[name + ".bias"]


def encoding(distance: int) -> Tensor:
    angles = [distance / 10000 ** (2 * f / WIDTH) for f in range(WIDTH // 2)]
    return torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])


def losses_in_loops(model: Loops, ids: list[int]) -> list[float]:
    lane_len = (len(ids) - 1) // LANES
    first = {name: torch.zeros_like(weight) for name, weight in model.weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in model.weights.items()}
    losses, start = [], 0
    for step in range(1, STEPS + 1):
        if start == lane_len:  # an epoch has ended: every lane begins again, and remembers nothing
            start = 0
            model.memory = [[[] for _ in range(LAYERS)] for _ in range(LANES)]
        stop = min(start + SEGMENT, lane_len)
        places = [range(lane * lane_len + start, lane * lane_len + stop) for lane in range(LANES)]
        loss = model.segment_loss(
            [[ids[p] for p in lane] for lane in places], [[ids[p + 1] for p in lane] for lane in places]
        )
        # zeros for the rare cluster where a segment has none of its tokens
        found = torch.autograd.grad(loss, list(model.weights.values()), allow_unused=True, materialize_grads=True)
        gradients = dict(zip(model.weights, found, strict=True))
        norm = math.sqrt(sum(float((gradient.double() ** 2).sum()) for gradient in gradients.values()))
        scale = min(1.0, CLIP / (norm + 1e-6))
        lr = PEAK * step / WARMUP if step <= WARMUP else PEAK * (1 + math.cos(math.pi * (step - 1) / STEPS)) / 2
        with torch.no_grad():
            for name, weight in model.weights.items():
                gradient = gradients[name] * scale
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                mean, square = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                weight -= lr * mean / (square.sqrt() + 1e-8)
        losses.append(loss.item())
        start = stop
    return losses


@pytest.mark.slow
def test_fifty_training_steps_equal_those_of_a_program_in_plain_loops(tmp_path: Path) -> None:
    text = tmp_path / "cat.txt"
    text.write_text(TEXT[: 220 + LANES])  # less than fifty segments, so that a second epoch begins
    settings = [
        *tiny.settings(tmp_path),
        f"data.path={text}",
        "data.tokenizer=char",
        "data.valid_fraction=0",
        "data.test_fraction=0",
        f"data.batch_size={LANES}",
        f"data.segment_len={SEGMENT}",
        f"model.n_layer={LAYERS}",
        f"model.d_model={WIDTH}",
        f"model.n_head={HEADS}",
        f"model.d_head={HEAD}",
        "model.d_inner=16",
        f"model.mem_len={MEMORY}",
        f"model.cutoffs=[{CUTOFF}]",
        f"model.div_val={NARROWER}",
        "model.pre_norm=false",
        "model.init_std=0.3",
        "model.proj_init_std=0.3",
        f"optimizer.lr={PEAK}",
        f"scheduler.warmup_steps={WARMUP}",
        f"trainer.gradient_clip_val={CLIP}",
        f"trainer.max_steps={STEPS}",
    ]
    run = tiny.train(tmp_path, *settings, base=False)
    assert run.status == 0, run.stderr
    symbols = json.loads((run.folder / "vocabulary.json").read_text())["symbols"]
    assert len(symbols) > CUTOFF
    torch.manual_seed(1)  # the run's
    initial = adapter.build_model(*settings, vocab_size=len(symbols))
    expected = losses_in_loops(
        Loops(dict(initial.named_parameters()), len(symbols)), [symbols.index(char) for char in text.read_text()]
    )
    actual = run.values("train/loss")
    assert [actual[step] for step in range(1, STEPS + 1)] == pytest.approx(expected, abs=1e-4)
    assert expected[-1] < 0.85 * expected[0]
