"""The LightningModule: one memory per stage, carried from segment to segment as truncated back-propagation does.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from transformer_xl.data.stream import Batch
from transformer_xl.errors import UserError
from transformer_xl.model.base import Context, LanguageModel, TokenLosses, make_model
from transformer_xl.model.memory import Memory, memory_from_state_dict
from transformer_xl.model.streaming import Stream, stream
from transformer_xl.registry import names
from transformer_xl.scores import LOSS, Score
from transformer_xl.settings import OptimizerConfig, SchedulerConfig, Settings, parse_kind, plain
from transformer_xl.training import metrics
from transformer_xl.training.metrics import MemoryGain, TokenLoss
from transformer_xl.training.optim import Schedule, clip_by_norm, make_optimizer, make_schedule, parameter_groups


class StepRecord(NamedTuple):
    """What is known of an optimizer step when it has ended; tensors are on the device.

    Attributes:
        step: from 1.
        counted: targets of the step, over all processes.
        nll_sum: this process's sum of losses, nats, float64.
        gradient_norm: before clipping; None where the step counted nothing.
        lr: of the first parameter group.
    """

    step: int
    counted: int
    nll_sum: Tensor
    gradient_norm: Tensor | None
    lr: float


class LanguageModule(LightningModule):
    """Train and evaluate a `LanguageModel` under any `lightning.Trainer`, with the batches of a `LaneDataModule`.

    Memories are reset by the batches' `resets_BT` alone. Logs `train/loss` at each optimizer step, and `val/*` and
    `test/*` (nats per token, and the tokenizer's unit). Settings that are no functions are hyper-parameters, from which
    `load_from_checkpoint` makes the module again.

    Args:
        model: the network, or the hyper-parameter that stands for it: `config` and `vocab_size`.
        optimizer: settings of a registered optimizer (a mapping with `kind`, or what `txl.compose(...)` has), or a
            function from parameters to an optimizer. Its learning rate is the peak.
        schedule: settings of a registered scheduler, or a function from the step, from 1, to a factor of the peak;
            None: the peak at every step.
        evaluation: how validation and test read; None: as the model was made.
        memory_gain_tokens: the most tokens of a validation that are read without memory too; 0: none.
        seed: of dropout.
        save_memory: whether checkpoints hold every lane's memory.
        training_losses: by which training reads its segments, as a compiled one; None: the model's own.

    Attributes:
        last_step: what is known of the last optimizer step.
        scores: the last `Score` of each evaluation stage.
        memory_gain: what memory gave this model in the last validation, nats per token; None: that was not measured.
        logs: whether the trainer's loggers get what is logged here; a recorder of a run writes it by itself.
    """

    def __init__(
        self,
        model: LanguageModel | Mapping[str, Any],
        *,
        optimizer: OptimizerConfig | Mapping[str, Any] | Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
        schedule: SchedulerConfig | Mapping[str, Any] | Callable[[int], float] | None = None,
        evaluation: Context | Mapping[str, Any] | None = None,
        memory_gain_tokens: int = 0,
        seed: int = 1,
        save_memory: bool = True,
        training_losses: Callable[..., tuple[TokenLosses, Tensor | None]] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, LanguageModel):
            model = make_model(_settings("model", model["config"]), vocab_size=model["vocab_size"])
        kind = model.empty_memory(1).kind
        if kind not in names("memory"):
            raise UserError(f"no memory is registered as {kind!r}, by which a resume would find it: txl.register")
        if evaluation is None:
            evaluation = model.own_context(segment_len=1)
        self.model: LanguageModel = model
        self._optimizer, self._schedule = _settings("optimizer", optimizer), _settings("scheduler", schedule)
        self._context = evaluation if isinstance(evaluation, Context) else Context(**evaluation)
        self._memory_gain_tokens, self._seed, self._save_memory = memory_gain_tokens, seed, save_memory
        self._training_losses = training_losses or model.training_losses
        hyper_parameters = {
            "model": {"config": plain(model.config), "vocab_size": model.vocab_size},
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "evaluation": dataclasses.asdict(self._context),
            **{"memory_gain_tokens": memory_gain_tokens, "seed": seed, "save_memory": save_memory},
        }
        plains = {name: plain(v) if isinstance(v, Settings) else v for name, v in hyper_parameters.items()}
        self.save_hyperparameters({name: v for name, v in plains.items() if not callable(v)}, logger=False)
        self.scores: dict[str, Score] = {}
        self.memory_gain: float | None = None
        self.last_step: StepRecord | None = None
        self.logs = True
        self._train_memory: dict[int, Memory] = {}
        self._loaded_memory: Memory | None = None
        self._eval_session: Stream | None = None
        self._eval_loss = TokenLoss(self.device)
        self._gain: MemoryGain | None = None
        self._batch: Batch | None = None
        self._nll_sum: Tensor | None = None
        self._gradient_norm: Tensor | None = None
        self._trained: list[nn.Parameter] = []
        self._peaks: list[float] = []

    # ---- training

    @cached_property
    def schedule(self) -> Schedule:
        """The learning rate's factor by optimizer step."""
        own = self._schedule
        if not isinstance(own, SchedulerConfig):
            return own if isinstance(own, Schedule) else Schedule(own or (lambda step: 1.0))
        peak = self._optimizer.lr if isinstance(self._optimizer, OptimizerConfig) else self._peaks[0]
        return make_schedule(own, total_steps=self.trainer.max_steps, peak=peak)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer; the learning rate is set at each step, from the step alone."""
        self._trained = list(self.parameters())  # once: to find them costs as much as the norm of small gradients
        settings = self._optimizer
        if isinstance(settings, OptimizerConfig):
            groups = parameter_groups(
                self.model, weight_decay=settings.weight_decay, decay_embeddings=settings.decay_embeddings
            )
            optimizer = make_optimizer(settings, groups)
        else:
            optimizer = settings(self._trained)
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        return optimizer

    def on_train_start(self) -> None:
        self._set_lr(self.trainer.global_step + 1)

    def _set_lr(self, step: int) -> None:
        factor = self.schedule(step)
        groups = self.optimizers(use_pl_optimizer=False).param_groups  # type: ignore[union-attr]
        for group, peak in zip(groups, self._peaks, strict=True):
            group["lr"] = peak * factor

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed dropout so that no random state need be saved."""
        self._batch = batch
        if batch.micro == 0:
            self._nll_sum = None
        seed = dropout_seed(self._seed, step=batch.step, rank=self.global_rank, micro=batch.micro)
        seed_generators(seed, device=self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Read one group of segments of one chunk of lanes and return its share of the step's loss.

        Gradients flow through the memory between them, and not into that before the first. The share is scaled so that
        after DDP's mean over processes and Lightning's division by the number of micro-batches the gradient is that of
        the mean over all tokens of the step.
        """
        memory = self._train_memory.get(batch.chunk)
        if memory is None:
            memory = self._starting_memory(batch)
        detach, minimized = len(batch.lengths) == 1, []
        for tokens, targets, resets, *_ in batch.segments():
            (nll, memory), auxiliary = self._training_losses(tokens, targets, memory, resets, detach=detach)
            nll_sum = nll.sum()
            minimized += [nll_sum] if auxiliary is None else [nll_sum, auxiliary]
            read = nll_sum.detach().double()
            self._nll_sum = read if self._nll_sum is None else self._nll_sum + read
        self._train_memory[batch.chunk] = memory if detach else memory.detach()
        scale = self.trainer.world_size * self.trainer.accumulate_grad_batches / max(batch.counted, 1)
        return reduce(torch.add, minimized) * scale

    def _starting_memory(self, batch: Batch) -> Memory:
        if self._loaded_memory is None:
            return self.model.empty_memory(batch_size=len(batch.tokens_BT))
        chunks = self.trainer.datamodule.train_chunks  # type: ignore[attr-defined]
        lanes = chunks[batch.chunk]
        memory = self._loaded_memory.lanes(slice(lanes.start, lanes.stop)).to(self.device)
        if len(self._train_memory) + 1 == len(chunks):
            self._loaded_memory = None  # every lane has its own now
        return memory

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Measure the gradient's norm and clip; drop the gradients of a step that counted nothing."""
        assert self._batch is not None
        if getattr(optimizer, "_step_supports_amp_scaling", False):  # such a step would do it itself, unclipped
            scaler = getattr(self.trainer.precision_plugin, "scaler", None)
            if scaler is not None:  # of float16
                scaler.unscale_(optimizer)
        if self._batch.counted == 0:
            optimizer.zero_grad(set_to_none=True)
            self._gradient_norm = None
            return
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        self._gradient_norm = torch.nn.utils.get_total_norm(gradients)
        if gradient_clip_val is not None and gradient_clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(self._trained, gradient_clip_val)
        elif gradient_clip_val is not None:
            clip_by_norm(self._trained, norm=self._gradient_norm, limit=gradient_clip_val)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, let go of the gradients (the next forward pass then needs no room beside them), and log the loss."""
        super().optimizer_step(*args, **kwargs)
        for parameter in self._trained:
            parameter.grad = None
        batch, nll_sum = self._batch, self._nll_sum
        assert batch is not None
        assert nll_sum is not None
        lr = self.optimizers(use_pl_optimizer=False).param_groups[0]["lr"]  # type: ignore[union-attr]
        self.last_step = StepRecord(batch.step, batch.counted, nll_sum, self._gradient_norm, lr)
        if batch.counted:
            # of this process's lanes where there are several: the mean over all would make it wait at each step
            loss = nll_sum * (self.trainer.world_size / batch.counted)
            self.log(metrics.TRAIN_LOSS, loss, on_step=True, on_epoch=False, logger=self.logs, batch_size=1)
        self._set_lr(batch.step + 1)  # now, so that callbacks find it where the next step begins

    # ---- evaluation

    def on_validation_epoch_start(self) -> None:
        self._start_evaluation()
        self._gain = None
        if self._memory_gain_tokens and self._is_validation_of_training:
            batches: Any = self.trainer.val_dataloaders
            self._gain = MemoryGain(self._context, batches, max_tokens=self._memory_gain_tokens, device=self.device)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        nll = self._evaluation_step(batch)
        if self._gain is not None:
            self._gain.add(self.model, batch, nll)

    def on_validation_epoch_end(self) -> None:
        """Compute the validation loss over all processes, and tell the schedule."""
        score = self._end_evaluation(metrics.VALIDATION)
        self.memory_gain = self._gain.gain() if self._gain is not None else None
        if self._is_validation_of_training:
            self.schedule.validated(score.loss)
            self._set_lr(self.trainer.global_step + 1)

    @property
    def _is_validation_of_training(self) -> bool:
        return not self.trainer.sanity_checking and self.trainer.state.fn == "fit"

    def on_test_epoch_start(self) -> None:
        self._start_evaluation()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluation_step(batch)

    def on_test_epoch_end(self) -> None:
        self._end_evaluation(metrics.TEST)

    def _start_evaluation(self) -> None:
        datamodule = getattr(self.trainer, "datamodule", None)
        answers = datamodule is not None and datamodule.corpus.answers
        self._eval_session, self._eval_loss = None, TokenLoss(self.device, answers=answers)

    def _evaluation_step(self, batch: Batch) -> Tensor:
        if self._eval_session is None:
            self._eval_session = stream(self.model, batch_size=len(batch.tokens_BT), **self._context.lengths)
        session, read = self._eval_session, (batch.tokens_BT, batch.targets_BT, batch.resets_BT)
        nll, right = session.answers(*read) if self._eval_loss.answers else (session.nll(*read), None)
        self._eval_loss.update(nll, batch.targets_BT, right)
        return nll

    def _end_evaluation(self, stage: str) -> Score:
        score = self.scores[stage] = self._eval_loss.compute()
        self._eval_session = None
        datamodule = getattr(self.trainer, "datamodule", None)
        figures = {LOSS: score.loss} if datamodule is None else datamodule.unit(metrics.SPLITS[stage]).scored(score)
        for name, value in figures.items():
            self.log(f"{stage}/{name}", value, logger=self.logs, rank_zero_only=False, sync_dist=True)
        return score

    # ---- checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add every lane's memory in global order, and the schedule's state."""
        checkpoint["schedule"] = self.schedule.state_dict()
        checkpoint["train_memory"] = self._packed_memory() if self._save_memory else None

    def _packed_memory(self) -> dict[str, Any] | None:
        """Return every lane's memory, on the process that writes checkpoints; None: there is none, or elsewhere."""
        if not self._train_memory:  # no step since the checkpoint that was loaded
            return None if self._loaded_memory is None else _packed(self._loaded_memory)
        chunks = [self._train_memory[chunk] for chunk in sorted(self._train_memory)]
        own = type(chunks[0]).join(chunks)
        if self.trainer.world_size == 1:
            return _packed(own)
        state, memories = _packed(own.to("cpu")), []
        for rank in range(self.trainer.world_size):  # one after another, so that no device holds them all
            sent = self.trainer.strategy.broadcast(state, src=rank)
            if self.global_rank == 0:
                memories.append(memory_from_state_dict(sent))
        return _packed(type(own).join(memories)) if memories else None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the memory of all lanes until the first batches say which of them are ours."""
        if "schedule" in checkpoint and self._trainer is not None:
            self.schedule.load_state_dict(checkpoint["schedule"])
        state = checkpoint.get("train_memory")
        self._loaded_memory = None if state is None else memory_from_state_dict(state)
        self._train_memory = {}


def _settings(part: str, value: Any) -> Any:
    """Return the settings that a mapping stands for; what is no mapping as it is."""
    return parse_kind(part, value) if isinstance(value, Mapping) else value


def _packed(memory: Memory) -> dict[str, Any]:
    """Return a memory as plain containers and tensors; of a view torch.save would write all that it is a view of."""
    state = memory.state_dict()
    views = {name: v for name, v in state.items() if isinstance(v, Tensor) and v.untyped_storage().nbytes() > v.nbytes}
    return state | {name: view.clone() for name, view in views.items()}


def seed_generators(seed: int, *, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`; `torch.manual_seed` costs a hundred times as much."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)  # the current device's, which is this process's own
    elif device.type != "cpu":
        torch.manual_seed(seed)


def dropout_seed(seed: int, *, step: int, rank: int, micro: int) -> int:
    """Return a generator's seed, derived from (seed, step, rank, micro-batch)."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}/{micro}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
