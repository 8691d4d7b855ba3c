from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.conftest import tiny_model_config
from transformer_xl.model.transformer import Transformer
from transformer_xl.training.optim import AdamConfig, SgdConfig, clip_by_norm, make_optimizer, parameter_groups


@pytest.fixture
def model() -> Transformer:
    return Transformer(tiny_model_config(untie_r=True), vocab_size=32)


def names_in(group: dict, model: Transformer) -> set[str]:
    members = {id(parameter) for parameter in group["params"]}
    return {name for name, parameter in model.named_parameters() if id(parameter) in members}


def test_biases_norms_u_v_and_embeddings_do_not_decay_and_nothing_is_left_out(model: Transformer) -> None:
    decayed, plain = parameter_groups(model, weight_decay=0.1, decay_embeddings=False)
    members = [id(parameter) for group in (decayed, plain) for parameter in group["params"]]
    assert sorted(members) == sorted(id(parameter) for parameter in model.parameters())
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    in_attention = {f"attention.{name}" for name in ("query", "key_value", "position", "output")}
    in_a_layer = {*in_attention, "feed_forward.0", "feed_forward.3"}
    assert names_in(decayed, model) == {f"layers.{i}.{name}.weight" for i in range(2) for name in in_a_layer}


def test_embeddings_decay_on_request(model: Transformer) -> None:
    decayed, plain = parameter_groups(model, weight_decay=0.1, decay_embeddings=True)
    assert "embedding.weights.0" in names_in(decayed, model)
    assert "softmax.biases.0" in names_in(plain, model)


def adam(kind: str) -> AdamConfig:
    return AdamConfig(kind=kind, lr=0.1, weight_decay=0.5, decay_embeddings=False, beta1=0.8, beta2=0.9, eps=1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "cls", "settings"),
    [
        (adam("adam"), torch.optim.Adam, {"betas": (0.8, 0.9), "eps": 1e-6}),
        (adam("adamw"), torch.optim.AdamW, {"betas": (0.8, 0.9), "eps": 1e-6}),
        (
            SgdConfig(kind="sgd", lr=0.1, weight_decay=0.5, decay_embeddings=False, momentum=0.7),
            torch.optim.SGD,
            {"momentum": 0.7},
        ),
    ],
)
@pytest.mark.parametrize("fused", [False, True])
def test_optimizers_take_their_settings(
    model: Transformer, config: AdamConfig | SgdConfig, cls: type, settings: dict, fused: bool
) -> None:
    groups = parameter_groups(model, weight_decay=config.weight_decay, decay_embeddings=False)
    optimizer = make_optimizer(config, groups, fused=fused)
    assert type(optimizer) is cls
    for group in optimizer.param_groups:
        assert group["lr"] == 0.1
        assert bool(group["fused"]) is fused
        assert {name: group[name] for name in settings} == settings


def test_fused_adam_takes_the_same_steps(model: Transformer) -> None:
    twin = Transformer(model.config, vocab_size=32)
    twin.load_state_dict(model.state_dict())
    for fused, network in ((False, model), (True, twin)):
        groups = parameter_groups(network, weight_decay=0.1, decay_embeddings=False)
        optimizer = make_optimizer(adam("adamw"), groups, fused=fused)
        for step in range(3):
            for index, parameter in enumerate(network.parameters()):
                generator = torch.Generator().manual_seed(100 * step + index)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
    for one, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("limit", [1e-3, 1 - 1e-6, 1.0, 1 + 1e-7, 1 + 1e-6, 1e3])
@pytest.mark.parametrize("spoilt", [1.0, float("inf"), float("nan")])
def test_clipping_is_torchs_to_the_bit(limit: float, spoilt: float) -> None:
    """Also where it would change nothing, and is left out."""
    ours, theirs = ([nn.Parameter(torch.zeros(3, 5)), nn.Parameter(torch.zeros(7))] for _ in range(2))
    drawn = torch.Generator().manual_seed(1)
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.randn(one.shape, generator=drawn) * spoilt
        other.grad = one.grad.clone()
    norm = torch.nn.utils.get_total_norm([one.grad for one in ours if one.grad is not None])
    limit = limit * (float(norm) if norm.isfinite() else 1.0)
    clip_by_norm(ours, norm=norm, limit=limit)
    assert torch.nn.utils.clip_grad_norm_(theirs, limit).equal(norm) or spoilt != 1
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0, equal_nan=True)
