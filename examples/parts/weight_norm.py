"""Log the norm of all weights: plugins=[examples/parts/weight_norm.py] +callbacks.weight_norm.every=100."""

from lightning.pytorch import Callback

import transformer_xl as txl
from transformer_xl.settings import Count, Settings


class WeightNormConfig(Settings):
    """Optimizer steps between two values."""

    every: Count = 10


@txl.register("callback", "weight_norm", config=WeightNormConfig)
class WeightNorm(Callback):
    def __init__(self, settings):
        self.every = settings.every

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step % self.every == 0 and batch.micro + 1 == trainer.accumulate_grad_batches:
            squares = sum(weight.detach().square().sum() for weight in module.model.parameters())
            module.log("train/weight_norm", squares.sqrt())
