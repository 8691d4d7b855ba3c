"""The LightningModule: one memory a stage, carried from segment to segment as truncated back-propagation does.

Letters: B lanes, T tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from transformer_xl.config import EvalConfig
from transformer_xl.data.lanes import split_evenly
from transformer_xl.data.stream import Batch
from transformer_xl.model.base import LanguageModel, TokenLosses
from transformer_xl.model.memory import Memory, join_lanes, memory_from_state_dict
from transformer_xl.model.streaming import Stream, stream
from transformer_xl.scores import Score
from transformer_xl.training import names, saved_memory
from transformer_xl.training.lane_chunks import count_in_chunks
from transformer_xl.training.memory_gain import MemoryGain
from transformer_xl.training.metrics import TokenLoss
from transformer_xl.training.optim import Schedule, clip_by_norm


class LanguageModule(LightningModule):
    """Trains and evaluates a `LanguageModel`; memories are reset by the batches' `resets_BT` alone.

    Attributes:
        model: the network, which knows nothing of Lightning.
        gradient_norm: of the last optimizer step before clipping, on the device; None where it counted nothing.
        scores: the last `Score` of each evaluation stage.
        memory_gain: what memory gave in the last validation, nats a token; None where that was not measured.
    """

    def __init__(
        self,
        *,
        model: LanguageModel,
        train_nll: Callable[[Tensor, Tensor, Memory, Tensor | None], TokenLosses],
        make_optimizer: Callable[[], torch.optim.Optimizer],
        schedule: Schedule,
        peak_lr: float,
        eval_config: EvalConfig,
        memory_gain_tokens: int,
        seed: int,
        identity: dict[str, Any],
        save_memory: bool,
    ) -> None:
        """Take the parts.

        Args:
            model: the network.
            train_nll: its `nll`, or a compiled one, by which training reads its segments.
            make_optimizer: called once the parameters are on their device.
            schedule: factor of the learning rate by optimizer step.
            peak_lr: the learning rate that it is a factor of.
            eval_config: how validation and test read.
            memory_gain_tokens: the most tokens of a validation that are read without memory too.
            seed: of dropout.
            identity: plain containers that stand in every checkpoint beside the state: format version,
                configuration, vocabulary.
            save_memory: whether checkpoints hold the lanes' memory.
        """
        super().__init__()
        self.model = model
        self.val_metric = TokenLoss()
        self.test_metric = TokenLoss()
        self._gain_metric = MemoryGain(eval_config, max_tokens=memory_gain_tokens)
        self.scores: dict[str, Score] = {}
        self.memory_gain: float | None = None
        self.gradient_norm: Tensor | None = None
        self.identity = identity
        self.schedule = schedule
        self.peak_lr = peak_lr
        self._train_nll = train_nll
        self._make_optimizer = make_optimizer
        self._eval_config = eval_config
        self._seed = seed
        self._save_memory = save_memory
        self._train_memory: dict[int, Memory] = {}
        self._loaded_memory: Memory | None = None
        self._eval_session: Stream | None = None
        self._counted = 0
        self._trained: list[torch.nn.Parameter] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer; the learning rate is set at each step, from the step alone."""
        self._trained = list(self.parameters())  # once: to find them costs as much as the norm of small gradients
        return self._make_optimizer()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the step's learning rate, and seed dropout so that no random state need be saved."""
        self._counted = batch.counted
        if batch.micro == 0:
            lr = self.peak_lr * self.schedule(batch.step)
            for group in self.optimizers(use_pl_optimizer=False).param_groups:  # type: ignore[union-attr]
                group["lr"] = lr
        seed = dropout_seed(self._seed, step=batch.step, rank=self.global_rank, micro=batch.micro)
        seed_generators(seed, device=self.device)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Read one segment of one chunk of lanes and give its share of the step's loss.

        The share is scaled so that after DDP's mean over processes and Lightning's division by the number of
        micro-batches the gradient is that of the mean over all tokens of the step.
        """
        memory = self._train_memory.get(batch.chunk)
        if memory is None:
            memory = self._starting_memory(batch)
        nll, memory = self._train_nll(batch.tokens_BT, batch.targets_BT, memory, batch.resets_BT)
        nll_sum = nll.sum()
        scale = self.trainer.world_size * self.trainer.accumulate_grad_batches / max(batch.counted, 1)
        loss = nll_sum * scale
        self._train_memory[batch.chunk] = memory
        return {"loss": loss, "nll_sum": nll_sum.detach()}

    def _starting_memory(self, batch: Batch) -> Memory:
        if self._loaded_memory is None:
            return self.model.empty_memory(batch_size=len(batch.tokens_BT))
        lanes = self.trainer.datamodule.train_chunks[batch.chunk]  # type: ignore[attr-defined]
        memory = self._loaded_memory.lanes(slice(lanes.start, lanes.stop)).to(self.device)
        if len(self._train_memory) + 1 == len(self.trainer.datamodule.train_chunks):  # type: ignore[attr-defined]
            self._loaded_memory = None  # every lane has its own now
        return memory

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Measure the gradient's norm and clip; drop the gradients of a step that counted nothing."""
        if self._counted == 0:
            optimizer.zero_grad(set_to_none=True)
            self.gradient_norm = None
            return
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        self.gradient_norm = torch.nn.utils.get_total_norm(gradients)
        if gradient_clip_val is not None and gradient_clip_algorithm == "value":
            torch.nn.utils.clip_grad_value_(self._trained, gradient_clip_val)
        elif gradient_clip_val is not None:
            clip_by_norm(self._trained, norm=self.gradient_norm, limit=gradient_clip_val)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, and let go of the gradients: the next forward pass then needs no room beside them."""
        super().optimizer_step(*args, **kwargs)
        for parameter in self._trained:
            parameter.grad = None

    def on_validation_epoch_start(self) -> None:
        """Forget the last evaluation's session: weights have changed since."""
        self._start_evaluation(self.val_metric)
        self._gain_metric.start()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Read one segment of the validation split."""
        nll = self._evaluation_step(batch, self.val_metric)
        if self._is_validation_of_training:
            self._gain_metric.take(self.model, batch, nll, rank=self.global_rank, processes=self.trainer.world_size)

    def on_validation_epoch_end(self) -> None:
        """Compute the validation loss over all processes, and tell the schedule."""
        score = self._end_evaluation(names.VALIDATION, self.val_metric)
        self.memory_gain = self._gain_metric.gain()
        if self._is_validation_of_training:
            self.schedule.validated(score.loss)

    @property
    def _is_validation_of_training(self) -> bool:
        return not self.trainer.sanity_checking and self.trainer.state.fn == "fit"

    def on_test_epoch_start(self) -> None:
        """Forget the last evaluation's session: weights have changed since."""
        self._start_evaluation(self.test_metric)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Read one segment of the test split."""
        self._evaluation_step(batch, self.test_metric)

    def on_test_epoch_end(self) -> None:
        """Compute the test loss over all processes."""
        self._end_evaluation(names.TEST, self.test_metric)

    def _start_evaluation(self, metric: TokenLoss) -> None:
        metric.reset()
        self._eval_session = None

    def _evaluation_step(self, batch: Batch, metric: TokenLoss) -> Tensor:
        lengths = self._eval_config
        if self._eval_session is None:
            self._eval_session = stream(
                self.model,
                batch_size=len(batch.tokens_BT),
                mem_len=lengths.mem_len,
                clamp_len=lengths.clamp_len,
                same_length=lengths.same_length,
            )
        nll = self._eval_session.nll(batch.tokens_BT, batch.targets_BT, batch.resets_BT)
        metric.update(nll, batch.targets_BT)
        return nll

    def _end_evaluation(self, stage: str, metric: TokenLoss) -> Score:
        score = metric.score()
        self.scores[stage] = score
        self._eval_session = None
        # for callbacks that monitor it; the recorder takes the exact value from `scores`
        self.log(f"{stage}/{names.LOSS}", score.loss, logger=False, sync_dist=True)
        return score

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add every lane's memory in global order, the schedule's state, and who this is."""
        checkpoint["schedule"] = self.schedule.state_dict()
        checkpoint["train_memory"] = self._packed_memory()
        checkpoint.update(self.identity)

    def _packed_memory(self) -> dict[str, Any] | None:
        """Give every lane's memory for a checkpoint, on the process that writes it."""
        if not self._save_memory:
            return None
        if not self._train_memory:  # no step since the checkpoint that was loaded
            return None if self._loaded_memory is None else saved_memory.packed(self._loaded_memory)
        chunks = [self._train_memory[chunk] for chunk in sorted(self._train_memory)]
        own = chunks[0] if len(chunks) == 1 else join_lanes(chunks)
        memory: Memory | None = own
        if self.trainer.world_size > 1:
            batch_size = self.trainer.datamodule.train_source.batch_size  # type: ignore[attr-defined]
            lanes = [len(part) for part in split_evenly(batch_size, self.trainer.world_size)]
            memory = saved_memory.gathered(own, rank=self.global_rank, lanes=lanes)
        return None if memory is None else saved_memory.packed(memory)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the memory of all lanes until the first batches say which of them are ours."""
        count_in_chunks(checkpoint, lane_chunks=self.identity["config"]["data"]["lane_chunks"])
        self.schedule.load_state_dict(checkpoint["schedule"])
        state = checkpoint["train_memory"]
        self._loaded_memory = None if state is None else memory_from_state_dict(state)
        self._train_memory = {}


def seed_generators(seed: int, *, device: torch.device) -> None:
    """Seed the generators of the CPU and of `device`, as `torch.manual_seed` does and at a hundredth of its cost.

    That one seeds every kind of device there is, and for each kind that is not in use it writes down the whole stack.
    """
    if device.type not in ("cpu", "cuda"):
        torch.manual_seed(seed)
        return
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)  # the current device's, which is this process's own


def dropout_seed(seed: int, *, step: int, rank: int, micro: int) -> int:
    """Derive a generator's seed from (seed, step, rank, micro-batch)."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}/{micro}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
