"""Lion (Chen et al., 2023): plugins=[examples/parts/lion.py] optimizer=lion optimizer.lr=1e-3."""

import torch

import transformer_xl as txl
from transformer_xl.settings import OptimizerConfig, Share


class LionConfig(OptimizerConfig):
    """Decays of the mean gradient: of the one in a step, and of the one that is kept."""

    beta1: Share = 0.9
    beta2: Share = 0.99


class Lion(torch.optim.Optimizer):
    """Steps of one size, in the direction of the sign of a mean gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                    direction = mean.lerp(weight.grad, 1 - group["beta1"]).sign_()
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * direction)
                    mean.lerp_(weight.grad, 1 - group["beta2"])
        return loss


@txl.register("optimizer", "lion", config=LionConfig)
def lion(parameter_groups, settings):
    return Lion(parameter_groups, {"lr": settings.lr, "beta1": settings.beta1, "beta2": settings.beta2})
