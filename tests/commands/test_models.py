"""Devices that a command may name."""

from __future__ import annotations

import pytest
import torch

from tests.model.kinds import model_of
from transformer_xl.commands.models import place
from transformer_xl.errors import UserError


@pytest.mark.parametrize("device", ["cuda:x", "gpu", ""])
def test_a_device_that_nothing_can_be_read_on_is_refused_in_a_short_sentence(device: str) -> None:
    with pytest.raises(UserError, match=f"^device is '{device}', and must be auto, cpu, mps or cuda"):
        place(model_of("gru"), device=device, precision="32-true")


@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("bf16-mixed", torch.float32)])
def test_a_model_has_the_type_of_its_precision(precision: str, dtype: torch.dtype) -> None:
    loaded = place(model_of("gru").float(), device="cpu", precision=precision)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    with loaded.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if "bf16" in precision else torch.float32)
