"""The training step of `speculators` for benchmarks/bench_train.py: its collator, EAGLE-3 model, loss and optimizer.

What runs on a CPU is fp32, SDPA over a dense mask and the eager KL loss: its flex attention has no backward on a CPU,
and its fused losses are Triton kernels. It never trains its head: ``step`` is as it ships, ``trained head`` does.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from protocol import Data, serve
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.models.eagle3.data import shift_batch
from speculators.proposals.greedy import GreedyTokenProposalConfig
from speculators.train.data import CollateFn
from speculators.train.optimizers import build_optimizers
from transformers import LlamaConfig


def make_model(data: Data) -> Eagle3DraftModel:
    s = data.shape
    layer = LlamaConfig(
        vocab_size=s["vocab_size"],
        hidden_size=s["hidden_size"],
        intermediate_size=s["intermediate_size"],
        num_hidden_layers=1,
        num_attention_heads=s["num_heads"],
        num_key_value_heads=s["num_kv_heads"],
        head_dim=s["hidden_size"] // s["num_heads"],
        max_position_embeddings=s["max_positions"],
        attn_implementation="sdpa",
    )
    proposal = GreedyTokenProposalConfig(speculative_tokens=s["ttt_steps"])
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=s["draft_vocab_size"],
        eagle_aux_hidden_state_layer_ids=list(s["taps"]),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    model = Eagle3DraftModel(config)
    model.config.transformer_layer_config._attn_implementation = "sdpa"
    kept = torch.from_numpy(data.kept)
    keeps = torch.zeros(s["vocab_size"], dtype=torch.bool)
    keeps[kept] = True
    model.load_vocab_mappings(keeps, kept - torch.arange(len(kept)))
    with torch.no_grad():
        model.embed_tokens.weight.copy_(torch.from_numpy(data.embedding))
        for head in (model.lm_head, model.verifier_lm_head):
            head.weight.copy_(torch.from_numpy(data.head)[kept])
    return model.train()


def make_items(data: Data) -> list[dict[str, torch.Tensor]]:
    """One item a conversation, as its data set gives them to its collator."""
    items = []
    for rows in data.samples():
        length = rows.stop - rows.start
        items.append(
            {
                "input_ids": torch.from_numpy(data.tokens[rows]).long(),
                "hidden_states": torch.from_numpy(data.taps[rows]),
                "verifier_last_hidden_states": torch.from_numpy(data.hidden[rows]),
                "loss_mask": torch.from_numpy(data.segments[rows] > 0),
                "lengths": torch.tensor([length]),
                "position_ids": torch.arange(length),
            }
        )
    return items


def build(data: Data) -> Mapping[str, Callable[[], float]]:
    model, items, s = make_model(data), make_items(data), data.shape
    # As long as the conversations are: no row is padding.
    collate = CollateFn(
        len(data.tokens) - len(items), s["hidden_size"], len(s["taps"]), torch.float32, preprocess=shift_batch
    )
    model.lm_head.weight.requires_grad_(True)  # So that the optimizer knows it; without a gradient it stays.
    (optimizer,) = build_optimizers(model, SimpleNamespace(optimizer="adamw", lr=1e-4, weight_decay=0.01))
    _, kwargs = model.get_trainer_kwargs(
        loss_fn="kl_div", loss_implementation="eager", ttt_steps=s["ttt_steps"], ttt_step_loss_decay=0.8
    )

    def step(train_head: bool) -> float:
        model.lm_head.weight.requires_grad_(train_head)
        batch: dict[str, Any] = collate(items)
        _, loss, _ = model(**batch, **kwargs)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return {"step": lambda: step(False), "trained head": lambda: step(True)}


if __name__ == "__main__":
    version = importlib.metadata.version("speculators")
    serve(build, {"trainer": "speculators", "version": version, "torch": torch.__version__})
