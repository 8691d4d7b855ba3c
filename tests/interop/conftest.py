from __future__ import annotations

import pytest
import torch

from tests.conftest import tiny_model_config
from transformer_xl.data.characters import CharTokenizer
from transformer_xl.model.base import LanguageModel, make_model

SYMBOLS = "etaoin shrdlu\näß語\0"


@pytest.fixture
def model() -> LanguageModel:
    torch.manual_seed(0)
    vocabulary = CharTokenizer(list(SYMBOLS))
    config = tiny_model_config(dropout=0.1, clamp_len=6, same_length=True, untie_r=True)
    model = make_model(config, vocab_size=vocabulary.size)
    model.vocabulary = vocabulary
    return model
