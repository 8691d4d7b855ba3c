"""Warmup-stable-decay (Hu et al., 2024), with the linear decay of Hägele et al. (2024).

python train.py plugins=[examples/parts/warmup_stable_decay.py] scheduler=wsd scheduler.decay_share=0.1
"""

import transformer_xl as txl
from transformer_xl.settings import SchedulerConfig, Share


class WarmupStableDecayConfig(SchedulerConfig):
    """The share of all steps in which the learning rate decays to zero."""

    decay_share: Share = 0.2


@txl.register("scheduler", "wsd", config=WarmupStableDecayConfig)
def warmup_stable_decay(settings, total_steps):
    def factor(step):
        warm = min(1.0, step / max(1, settings.warmup_steps))
        left = (total_steps - step + 1) / max(1.0, settings.decay_share * total_steps)
        return min(warm, left)

    return factor
