"""Devices that a command may name."""

from __future__ import annotations

import pytest

from tests.model.kinds import model_of
from transformer_xl.commands.models import place
from transformer_xl.errors import UserError


@pytest.mark.parametrize("device", ["meta", "cpu:7", "cuda:x", "gpu", "", "xpu"])
def test_a_device_that_nothing_can_be_read_on_is_refused_in_a_short_sentence(device: str) -> None:
    with pytest.raises(UserError, match=f"^device is '{device}', and must be auto, cpu, mps, cuda") as refused:
        place(model_of("gru"), device=device, precision="32-true")
    assert len(str(refused.value)) < 120


def test_a_cpu_may_have_its_number() -> None:
    assert place(model_of("gru"), device="cpu:0", precision="64-true").precision == "64-true"
