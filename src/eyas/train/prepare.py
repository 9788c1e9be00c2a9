"""What a run needs of a target and of data, checked before anything is trained."""

from __future__ import annotations

from pathlib import Path

import torch

from eyas.contract import ContractFacts, default_taps
from eyas.corpus.feature_store import FeatureFolder
from eyas.corpus.features import FeatureSource, OnlineFeatures, Remembered, check_origin, facts_for
from eyas.corpus.identity import check_identity
from eyas.corpus.samples import read_samples
from eyas.draft.model import DraftModel
from eyas.errors import EyasError
from eyas.models.config import read_config
from eyas.models.target import Target
from eyas.models.weights.safetensors import open_checkpoint
from eyas.train.settings import TrainSettings
from eyas.train.start import Weights

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"


def own_weights(target: Target) -> Weights:
    """The target's embedding, head and final norm, in fp32."""
    # A state of ones has the root mean square 1, so the norm gives its weight back.
    ones = torch.ones(1, target.hidden_size, dtype=target.dtype, device=target.device)
    return Weights(target.embedding().float(), target.head().float(), target.final_norm(ones)[0].float())


def stored_weights(folder: Path) -> Weights:
    """The same, read from a folder without loading the model. Raises ``model.tensor-missing``."""
    checkpoint, text = open_checkpoint(folder), read_config(folder)
    found = [name for name in checkpoint.infos if name.endswith(EMBEDDING)]
    if len(found) != 1:
        raise EyasError(
            "model.tensor-missing",
            f"{folder} has {len(found)} tensors that end in {EMBEDDING}, not one",
            "train with the target loaded, without --without-target",
        )
    stem = found[0].removesuffix(EMBEDDING)
    prefix, norm = stem.removesuffix("model."), f"{stem}norm.weight"
    tied = bool(text.get("text_config", text).get("tie_word_embeddings", text.get("tie_word_embeddings", False)))
    head = found[0] if tied else f"{prefix}{HEAD}"
    tensors = checkpoint.load({found[0], head, norm})
    return Weights(tensors[found[0]].float(), tensors[head].float(), tensors[norm].float())


def open_source(
    data: Path,
    target: Target | None,
    known: ContractFacts,
    settings: TrainSettings,
    warm_start: DraftModel | None = None,
    foreign_answers: bool = False,
) -> FeatureSource:
    """Features from a folder that ``eyas capture`` wrote, or from the target itself for a file of samples.

    Raises ``features.origin`` if the data is of another target, tokenizer or template, ``features.identity`` or
    ``features.taps`` if the target does not give what its taps are called, ``features.stale`` if the folder's taps are
    not those of the settings or of the draft to start from.
    """
    taps = settings.draft.taps if warm_start is None else warm_start.config.taps
    if data.is_dir():
        return _stored(FeatureFolder(data), taps, known, foreign_answers)
    if target is None:
        raise EyasError(
            "flags.contradiction",
            f"{data} holds samples, whose features the target computes, and it is not to be loaded",
            "capture features first, or leave --without-target out",
        )
    online = _online(data, target, known, taps or default_taps(target.num_layers), settings.max_length, foreign_answers)
    return Remembered(online, round(settings.feature_memory_gb * 1e9))


def _online(
    data: Path, target: Target, known: ContractFacts, taps: tuple[int, ...], max_length: int, foreign: bool
) -> OnlineFeatures:
    made = read_samples(data)
    check_origin(made.facts, known, foreign)
    assert known.weights_sha256 is not None
    facts = facts_for(target, known.weights_sha256, made.facts, taps)
    samples = [sample.shortened(max_length) for sample in made.samples]
    if samples:
        longest = max(samples, key=lambda sample: len(sample.tokens))
        if len(longest.tokens) > target.max_positions:
            raise EyasError(
                "features.samples",
                f"sample {longest.id} has {len(longest.tokens)} tokens, the target {target.max_positions} positions",
                f"set max_length to at most {target.max_positions}",
            )
        checked = check_identity(target, longest.tokens.tolist(), taps)
        facts = facts.model_copy(update={"identity_error": checked.error})
    return OnlineFeatures(target, samples, facts)


def _stored(folder: FeatureFolder, taps: tuple[int, ...] | None, known: ContractFacts, foreign: bool) -> FeatureFolder:
    check_origin(folder.facts.samples, known, foreign)
    if folder.facts.target.weights_sha256 != known.weights_sha256:
        raise EyasError(
            "features.origin",
            f"{folder.folder} holds features of a target with other weights",
            "capture them again from this target",
        )
    if taps is not None and folder.facts.taps != taps:
        raise EyasError(
            "features.stale",
            f"{folder.folder} holds the taps {list(folder.facts.taps)}, and {list(taps)} are asked for",
            "capture again with --taps, or train with the taps that are there",
        )
    return folder
