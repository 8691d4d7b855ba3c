"""Warm-up, a plateau, and a linear fall: plugins=[examples/parts/stable.py] scheduler=stable scheduler.fall=0.3."""

import transformer_xl as txl
from transformer_xl.settings import SchedulerConfig, Share


class StableConfig(SchedulerConfig):
    """The share of all steps in which the learning rate falls to zero."""

    fall: Share = 0.2


@txl.register("scheduler", "stable", config=StableConfig)
def stable(settings, total_steps):
    def factor(step):
        warm = min(1.0, step / max(1, settings.warmup_steps))
        left = (total_steps - step + 1) / max(1.0, settings.fall * total_steps)
        return min(warm, left, 1.0)

    return factor
