"""One process or many: wrapping, summing, and whole states. torchrun sets the environment; NCCL on GPUs, gloo on CPUs.

Gradients are summed over processes, because each piece's loss is its share of the global batch's. The wrappers average,
so the loss is multiplied by their number first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

_PATIENCE = timedelta(hours=12)
Strategy = Literal["ddp", "fsdp"]
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
_PLAIN = StateDictOptions(full_state_dict=True, ignore_frozen_params=True, broadcast_from_rank0=False)


@dataclass(frozen=True)
class Parallel:
    """This process among ``world`` of them."""

    rank: int = 0
    world: int = 1
    strategy: Strategy = "ddp"

    @classmethod
    def from_environment(cls, strategy: Strategy, device: torch.device) -> Parallel:
        """What torchrun says; joins the others. Without it, one process."""
        world = int(os.environ.get("WORLD_SIZE", "1"))
        if world == 1:
            return cls(strategy=strategy)
        if not dist.is_initialized():
            # The others wait while the first one evaluates and writes.
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_PATIENCE)
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        return cls(dist.get_rank(), world, strategy)

    @property
    def is_first(self) -> bool:
        """The process that writes."""
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module as it is trained: itself, or behind DDP or FSDP2."""
        if self.world == 1:
            return module
        if self.strategy == "ddp":
            return DistributedDataParallel(module)
        # One group for the whole draft: it is one layer, called several times in a forward.
        fully_shard(module, ignored_params={p for p in module.parameters() if not p.requires_grad})
        return module

    @contextmanager
    def accumulating(self, wrapped: nn.Module, last: bool) -> Iterator[None]:
        """Gradients are exchanged in the last piece of a step only."""
        if last or self.world == 1:
            if isinstance(wrapped, FSDPModule):
                wrapped.set_requires_gradient_sync(True)
            yield
        elif isinstance(wrapped, DistributedDataParallel):
            with wrapped.no_sync():
                yield
        else:
            assert isinstance(wrapped, FSDPModule)
            wrapped.set_requires_gradient_sync(False)
            yield

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, a new tensor."""
        value = value.clone()
        if self.world > 1:
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier()


def whole_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Trained weights and moments as whole CPU tensors: on the first process; the others call too and get nothing."""
    weights = get_model_state_dict(module, options=_WHOLE)
    moments: Any = get_optimizer_state_dict(module, optimizer, options=_WHOLE).get("state", {})
    flat = {f"model.{name}": value for name, value in weights.items() if isinstance(value, Tensor)}
    for name, parts in moments.items():
        flat |= {f"optimizer.{name}.{part}": value for part, value in parts.items()}
    return flat


def restore_state(module: nn.Module, optimizer: torch.optim.Optimizer, flat: dict[str, Tensor]) -> None:
    """Put back what :func:`whole_state` gave."""
    if isinstance(module, DistributedDataParallel):
        # Through the wrapper, frozen parameters would be asked for as well.
        module = module.module
    weights: Any = {name.removeprefix("model."): value for name, value in flat.items() if name.startswith("model.")}
    set_model_state_dict(module, weights, options=_PLAIN)
    state: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        if name.startswith("optimizer."):
            owner, _, part = name.removeprefix("optimizer.").rpartition(".")
            state.setdefault(owner, {})[part] = value
    groups: Any = get_optimizer_state_dict(module, optimizer, options=_PLAIN)["param_groups"]
    whole: Any = {"state": state, "param_groups": groups}
    set_optimizer_state_dict(module, optimizer, whole, options=_PLAIN)
