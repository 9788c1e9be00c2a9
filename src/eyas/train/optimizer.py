"""AdamW over fp32 masters, its schedule, clipping, and an exponential mean of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from eyas.errors import EyasError
from eyas.train.settings import TrainSettings


def learning_rate(settings: TrainSettings, step: int, total_steps: int) -> float:
    """The rate of optimizer step ``step`` (0 is the first) of ``total_steps``: warm-up, then the schedule."""
    warm = math.ceil(settings.warmup_share * total_steps)
    if step < warm:
        return settings.learning_rate * (step + 1) / warm
    done = (step - warm) / max(total_steps - warm, 1)
    shape = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[settings.schedule]
    if settings.schedule == "constant":
        return settings.learning_rate
    return settings.learning_rate * (settings.final_share + (1 - settings.final_share) * shape)


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """Matrices decay, norms and biases do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas, fused=True)


def apply_gradients(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], settings: TrainSettings, rate: float
) -> float:
    """Clip, step and clear; returns the gradient's norm before clipping. Raises ``train.diverged``."""
    parameters = list(parameters)
    norm = torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm or math.inf)
    size = float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not math.isfinite(size):
        raise EyasError(
            "train.diverged",
            "the gradient is NaN or infinite; no weight was changed by it",
            "lower learning_rate or clip_norm, or raise warmup_share, and begin anew with another --out",
        )
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return size


class WeightMean:
    """An exponential mean of trained weights, in fp32 beside them."""

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.mean: dict[str, Tensor] = {name: p.detach().clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, parameters: dict[str, nn.Parameter]) -> None:
        """Move towards the weights."""
        for name, p in parameters.items():
            self.mean[name].lerp_(p.detach(), 1 - self.decay)

    @torch.no_grad()
    def load(self, mean: dict[str, Tensor]) -> None:
        """Put back a mean of whole tensors, by the parameters' names without a wrapper's prefix."""
        for name, mine in self.mean.items():
            whole = mean[name.removeprefix("module.")]
            if isinstance(mine, DTensor):
                whole = distribute_tensor(whole, mine.device_mesh, mine.placements)
            mine.copy_(whole)
