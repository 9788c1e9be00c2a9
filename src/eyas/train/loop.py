"""The training loop. Every number is a function of settings, data and step: killed at any moment, it goes on to the
same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.train.batch import Collator, micro_batches
from eyas.train.evaluate import Evaluation, evaluate
from eyas.train.flex import flex_merged
from eyas.train.objective import Objective, Tally, chosen_slots, count_slots, flat_slots
from eyas.train.optimizer import WeightMean, apply_gradients, learning_rate, make_optimizer
from eyas.train.parallel import Parallel, restore_state, whole_state
from eyas.train.settings import TrainSettings
from eyas.train.state import STATE, load_state, save_state
from eyas.train.ttt import Unrolling

BEST = "best.safetensors"


@dataclass
class Progress:
    """Where the run is. ``best``: the accept length that checkpoints are chosen by, NaN before the first evaluation;
    ``waited``: evaluations since then.
    """

    step: int = 0
    answer_tokens: int = 0
    best: float = math.nan
    best_step: int = 0
    waited: int = 0
    finished: bool = False


class Watcher(Protocol):
    """Who is told how a run goes: logs, pictures, progress bars."""

    def step(self, progress: Progress, total: int, values: dict[str, Any]) -> None:
        """After each optimizer step."""

    def evaluated(self, progress: Progress, result: Evaluation) -> None:
        """After each evaluation; the progress tells whether it was the best."""

    def saving(self) -> None:
        """Before a state is saved, which must not be ahead of what was written down."""


class Trainer:
    """Trains ``model`` on the samples ``train`` of the collator's source and evaluates it on ``held``."""

    def __init__(
        self,
        model: DraftModel,
        collator: Collator,
        train: Sequence[int],
        held: Sequence[int],
        settings: TrainSettings,
        folder: Path,
        parallel: Parallel | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        """``folder``: where the state is kept, and found again. Raises ``train.no-data``, ``artifact.corrupt``."""
        if not train or not held:
            raise EyasError(
                "train.no-data",
                f"{len(train)} conversations to train on and {len(held)} held out, after the split by prompt",
                "give more conversations, or another held_out_share",
            )
        self.model, self.collator, self.train, self.held = model, collator, list(train), list(held)
        self.settings, self.folder, self.watchers = settings, folder, watchers
        self.parallel = parallel or Parallel()
        self.steps_per_epoch = math.ceil(len(self.train) / settings.samples_per_step)
        total = self.steps_per_epoch * settings.epochs
        self.total_steps = min(total, settings.max_steps or total)
        self.progress = Progress()
        self.module = self.parallel.wrap(Objective(model, settings, _unrolling(settings, model.norm.device)))
        self.optimizer = make_optimizer(self.module, settings)
        self.mean = WeightMean(self._trained(), settings.ema_decay) if settings.ema_decay else None
        self._resume()

    def run(self) -> Progress:
        """Train to the end, or until patience is over; leaves the best weights in the folder."""
        while not self.progress.finished:
            self._step()
            done = self.progress.step >= self.total_steps
            if done or self.progress.step % self.settings.evaluate_every == 0:
                self._evaluate()
                done = done or self.progress.waited >= (self.settings.patience or math.inf)
            self.progress.finished = done
            if done or self.progress.step % self.settings.save_every == 0:
                self._save()
        return self.progress

    def seen(self) -> list[int]:
        """The samples of all steps so far, rising: not all of them, where the run ends within its first epoch."""
        steps = range(min(self.progress.step, self.steps_per_epoch))
        return sorted({index for step in steps for index in self._window(step)})

    # One step ---------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        settings, step = self.settings, self.progress.step
        window = self._window(step)
        chosen = {i: chosen_slots(self.collator.source.samples[i], settings, step, i) for i in window}
        counts = count_slots(list(chosen.values()), settings.ttt_steps).tolist()
        tally = Tally.zero(settings.ttt_steps)
        pieces = micro_batches(
            window[self.parallel.rank :: self.parallel.world], self._samples, settings.micro_batch_tokens
        )
        for number, piece in enumerate(pieces or [[]], 1):
            with self.parallel.accumulating(self.module, last=number >= len(pieces)):
                tally = tally + self._backward(piece, [chosen[i] for i in piece], counts)
        rate = learning_rate(settings, step, self.total_steps)
        norm = apply_gradients(self.optimizer, self.module.parameters(), settings, rate)
        if self.mean:
            self.mean.update(self._trained())
        self.progress.step += 1
        self.progress.answer_tokens += sum(self._samples[i].answer_tokens for i in window)
        values = self._values(tally, norm, rate)
        for watcher in self.watchers:
            watcher.step(self.progress, self.total_steps, values)

    def _backward(self, piece: Sequence[int], chosen: list[list[Tensor]], counts: list[float]) -> Tally:
        device = self.model.norm.device
        batch = self.collator.batch(piece).to(device) if piece else None
        slots = flat_slots(chosen, batch.documents, self.settings.ttt_steps) if batch else []
        slots = [rows.to(device) for rows in slots]
        with torch.autocast(device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            loss, tally = self.module(batch, slots, counts)
        (loss * self.parallel.world).backward()
        return tally

    def _window(self, step: int) -> list[int]:
        """The samples of an optimizer step: a fresh order each epoch; the last step of an epoch takes what is left."""
        epoch, within = divmod(step, self.steps_per_epoch)
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.train), generator=generator).tolist()
        size = self.settings.samples_per_step
        return [self.train[i] for i in order[within * size : (within + 1) * size]]

    def _values(self, tally: Tally, norm: float, rate: float) -> dict[str, Any]:
        loss, correct, slots = self.parallel.sum(torch.stack([tally.loss, tally.correct, tally.slots]))
        weights = torch.tensor([self.settings.step_decay**i for i in range(len(loss))], dtype=torch.float64)
        # A step without slots has no mean, and no part in the loss.
        means = loss / slots
        return {
            "step": self.progress.step,
            "answer_tokens": self.progress.answer_tokens,
            "loss": float((weights * means.nan_to_num()).sum() / weights.sum()),
            "step_losses": means.tolist(),
            "marginal_accuracies": (correct / slots).tolist(),
            "gradient_norm": norm,
            "learning_rate": rate,
        }

    @property
    def _samples(self) -> Sequence[Any]:
        return self.collator.source.samples

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    # Evaluation and state ---------------------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        weights = {name.removeprefix("model.model."): v for name, v in self._evaluated_weights().items()}
        if self.parallel.is_first:
            twin = DraftModel(self.model.config, num_positions=len(self.model.rotary.cos))
            twin.load_state_dict({**self._frozen(), **weights}, assign=True)
            twin.to(self.model.norm.device).rotary.to(self.model.norm.device, torch.float32)
            result = evaluate(twin, self.collator, self.held)
            self._note(result, weights)
        self._share_progress()

    def _note(self, result: Evaluation, weights: dict[str, Tensor]) -> None:
        score = result.headline()
        better = self.progress.best_step == 0 or score > self.progress.best
        if better:
            self.progress.best, self.progress.best_step, self.progress.waited = score, self.progress.step, 0
            save_state(self.folder / BEST, weights, asdict(self.progress))
        else:
            self.progress.waited += 1
        for watcher in self.watchers:
            watcher.evaluated(self.progress, result)

    def _evaluated_weights(self) -> dict[str, Tensor]:
        """Whole weights of all processes, or their mean where one is kept, by their names in the draft."""
        flat = whole_state(self.module, self.optimizer)
        weights = {name: value for name, value in flat.items() if name.startswith("model.model.")}
        if self.mean:
            weights |= {f"model.{name}": value for name, value in self._whole_mean().items()}
        return {name: value.detach().clone().contiguous() for name, value in weights.items()}

    def _whole_mean(self) -> dict[str, Tensor]:
        assert self.mean is not None
        return {
            name.removeprefix("module."): m.full_tensor() if isinstance(m, DTensor) else m
            for name, m in self.mean.mean.items()
        }

    def _frozen(self) -> dict[str, Tensor]:
        return {name: v for name, v in self.model.state_dict().items() if name in ("d2t", "embed_tokens")}

    def _share_progress(self) -> None:
        """What the first process decided, to all."""
        mine = torch.tensor([self.progress.best, self.progress.best_step, self.progress.waited], dtype=torch.float64)
        shared = self.parallel.sum(mine if self.parallel.is_first else torch.zeros_like(mine)).tolist()
        self.progress.best, self.progress.best_step, self.progress.waited = shared[0], int(shared[1]), int(shared[2])

    def _save(self) -> None:
        flat = whole_state(self.module, self.optimizer)
        if self.mean:
            flat |= {f"mean.{name}": value for name, value in self._whole_mean().items()}
        for watcher in self.watchers:
            watcher.saving()
        if self.parallel.is_first:
            tensors = {name: value.detach().clone().contiguous() for name, value in flat.items()}
            save_state(self.folder / STATE, tensors, asdict(self.progress))
        self.parallel.wait()

    def _resume(self) -> None:
        path = self.folder / STATE
        if not path.is_file():
            return
        flat, progress = load_state(path)
        restore_state(self.module, self.optimizer, flat)
        if self.mean:
            self.mean.load({name.removeprefix("mean."): v for name, v in flat.items() if name.startswith("mean.")})
        self.progress = Progress(**progress)


def _unrolling(settings: TrainSettings, device: torch.device) -> Unrolling:
    if settings.attention == "merged":
        return Unrolling(recompute=settings.recompute)
    if device.type == "cpu":
        raise EyasError(
            "flags.contradiction",
            "attention: flex has no backward on a CPU",
            "use attention: merged, which is linear in memory on every device",
        )
    return Unrolling(flex_merged(), settings.recompute)
