"""LanguageModule and LaneDataModule under a plain `lightning.Trainer`, without this program's own callbacks."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from tests.conftest import tiny_model_config
from tests.data import laid_out
from tests.data.made_up import MadeUp
from transformer_xl.data.characters import SymbolTokenizer
from transformer_xl.data.datamodule import LaneDataModule
from transformer_xl.data.lanes import CorpusLanes
from transformer_xl.model.base import LanguageModel, TokenLosses, make_model
from transformer_xl.model.transformer import Transformer
from transformer_xl.training.module import LanguageModule

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
V = 11
TEXT = np.tile(np.random.default_rng(0).integers(0, V, 37), 20).astype(np.uint8)
ADAM = {
    **{"kind": "adam", "lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
    **{"weight_decay": 0.0, "decay_embeddings": False},
}
COSINE = {"kind": "cosine", "warmup_steps": 3, "total_steps": 100, "min_lr": 0.0}


class InLanes(MadeUp):
    def lanes(self, split: str, *, batch_size: int, segment_len: int, evaluation: bool) -> CorpusLanes:
        tokens = self.splits[split]
        if evaluation:
            return laid_out.evaluation_lanes(tokens, batch_size=batch_size, split=split)
        return laid_out.training_lanes(tokens, batch_size=batch_size, segment_len=segment_len)


def module(network: Callable[..., LanguageModel] = make_model, **changes: Any) -> LanguageModule:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"optimizer": ADAM, "schedule": COSINE}
    model = network(tiny_model_config(dropout=0.1), vocab_size=V)
    return LanguageModule(model, **(settings | changes))


def lanes(**changes: Any) -> LaneDataModule:
    splits = {"train": TEXT, "valid": TEXT[:101], "test": TEXT[:50]}
    corpus = InLanes(vocabulary=SymbolTokenizer(V), splits=splits)
    settings: dict[str, Any] = {"batch_size": 4, "segment_len": 10}
    return LaneDataModule(corpus, **(settings | changes))


def trainer(folder: Path, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        **{"max_epochs": 3, "accelerator": "cpu", "devices": 1, "log_every_n_steps": 1, "gradient_clip_val": 0.5},
        **{"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder, "logger": False},
    }
    return Trainer(**(settings | changes))


def rows(folder: Path, name: str) -> list[float]:
    with next(folder.rglob("metrics.csv")).open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def test_lightnings_callbacks_and_loggers_see_the_losses(tmp_path: Path) -> None:
    stopping = EarlyStopping(monitor="val/loss", patience=1)
    best = ModelCheckpoint(tmp_path / "best", monitor="val/loss", save_last=True)
    run = trainer(tmp_path, logger=CSVLogger(tmp_path), callbacks=[stopping, best, LearningRateMonitor("step")])
    data = lanes()
    run.fit(module(), data)
    steps = 3 * -(-data.train_source.lane_len // 10)
    assert run.global_step == steps
    losses = rows(tmp_path, "train/loss")
    assert len(losses) == steps
    assert losses[-1] < losses[0] - 0.3
    assert len(rows(tmp_path, "val/loss")) == 3
    assert rows(tmp_path, "lr-Adam/pg1")[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert float(best.best_model_score) == min(rows(tmp_path, "val/loss"))
    assert {"val/loss", "train/loss"} <= run.callback_metrics.keys()


def test_training_loss_can_stop_a_run(tmp_path: Path) -> None:
    stopping = EarlyStopping(monitor="train/loss", stopping_threshold=1e9, check_on_train_epoch_end=True)
    run = trainer(tmp_path, callbacks=[stopping])
    run.fit(module(), lanes())
    assert run.current_epoch == 1


@pytest.mark.parametrize("chunks", [{}, {"lane_chunks": 2}])
def test_a_run_goes_on_from_lightnings_own_checkpoint(tmp_path: Path, chunks: dict[str, int]) -> None:
    accumulate = chunks.get("lane_chunks", 1)

    def train(folder: str, until: int, ckpt_path: str | None = None) -> tuple[list[float], str]:
        saver = ModelCheckpoint(tmp_path / folder, every_n_train_steps=25, save_top_k=-1, save_last=True)
        logger = CSVLogger(tmp_path / folder)
        run = trainer(
            tmp_path,
            **{"max_epochs": None, "max_steps": until, "accumulate_grad_batches": accumulate},
            **{"callbacks": [saver], "logger": logger},
        )
        run.fit(module(), lanes(**chunks), ckpt_path=ckpt_path)
        return rows(tmp_path / folder, "train/loss"), str(saver.last_model_path)

    whole, _ = train("whole", 40)
    _, checkpoint = train("first", 25)  # in the middle of an epoch
    rest, _ = train("rest", 40, checkpoint)
    assert len(whole) == 40
    assert rest == whole[25:]


def test_a_module_is_made_again_from_its_checkpoint(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, save_last=True)
    run, made, data = trainer(tmp_path, max_epochs=1, callbacks=[saver]), module(), lanes()
    run.fit(made, data)
    loaded = LanguageModule.load_from_checkpoint(saver.last_model_path)
    assert loaded.hparams == made.hparams
    for (name, mine), (other, theirs) in zip(made.named_parameters(), loaded.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(mine, theirs)
    tested = trainer(tmp_path).test(loaded, data, verbose=False)
    assert tested == trainer(tmp_path).test(made, data, verbose=False)


def test_functions_stand_for_optimizer_and_schedule(tmp_path: Path) -> None:
    seen: list[int] = []

    def factor(step: int) -> float:
        seen.append(step)
        return 1 / step

    made = module(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), schedule=factor)
    run = trainer(tmp_path, max_epochs=None, max_steps=3)
    run.fit(made, lanes())
    assert list(dict.fromkeys(seen)) == [1, 2, 3, 4]
    assert made.last_step is not None
    assert made.last_step.lr == 0.5 / 3


class Anchored(Transformer):
    """Trains a number of its own towards 3, beside the targets' losses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.number = nn.Parameter(torch.zeros(()))

    def training_losses(self, tokens_BT: Tensor, *args: Any, **kwargs: Any) -> tuple[TokenLosses, Tensor]:
        losses, _ = super().training_losses(tokens_BT, *args, **kwargs)
        return losses, tokens_BT.numel() * (self.number - 3) ** 2 / 2


def test_an_auxiliary_loss_is_trained_by_the_same_count_and_not_reported(tmp_path: Path) -> None:
    def train(network: Callable[..., LanguageModel]) -> tuple[LanguageModule, list[float]]:
        made = module(network, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5), schedule=None)
        logger = CSVLogger(tmp_path / network.__name__)
        parts = {"accumulate_grad_batches": 4, "gradient_clip_val": None}
        run = trainer(tmp_path, max_epochs=None, max_steps=2, logger=logger, **parts)
        run.fit(made, lanes(lane_chunks=2))
        return made, rows(tmp_path / network.__name__, "train/loss")

    trained, losses = train(Anchored)
    assert losses == train(make_model)[1]
    assert float(trained.model.get_parameter("number")) == pytest.approx(3 * (1 - 0.5**2))


def test_gradients_that_a_scaler_has_multiplied_are_clipped_as_they_were_before(tmp_path: Path) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", scaler=scaler)]):
        trained = module(optimizer=ADAM | {"eps": 1.0})  # by which a gradient's size makes a difference
        trainer(tmp_path, plugins=plugins, max_steps=2, gradient_clip_val=0.01).fit(trained, lanes())
        assert trained.last_step is not None
        steps.append((float(trained.last_step.gradient_norm), trained.model.embedding.weights[0].detach()))
    (norm, weight), (scaled_norm, scaled_weight) = steps
    assert scaled_norm == pytest.approx(norm, rel=0.02)
    start = module().model.embedding.weights[0].detach()
    torch.testing.assert_close(scaled_weight - start, weight - start, rtol=0.1, atol=1e-7)
