"""The training step of SpecForge for benchmarks/bench_train.py: its collator, EAGLE-3 strategy and optimizer.

What runs on a CPU is fp32 and its ``sdpa`` backend, with the compact teacher, which never holds the whole vocabulary's
logits. Its loss is a Triton kernel, which has no CPU; the reference that its own module keeps beside the kernel takes
the kernel's place.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._inductor.compile_fx
from protocol import Data, serve
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast


def _import_without_triton() -> Any:
    """specforge.core.loss, whose import needs a module `triton` that on a CPU does nothing."""
    # torch and transformers look for triton too, and must have found none before.
    assert all((AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast))
    names = ("triton", "triton.language")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    triton, language = (sys.modules[name] for name in names)
    triton.language, triton.jit, language.constexpr = language, lambda function: function, int
    import specforge.core.loss as loss

    for name in names:
        del sys.modules[name]
    return loss


loss_module = _import_without_triton()

from specforge.algorithms.eagle3 import model as eagle3  # noqa: E402
from specforge.algorithms.eagle3.data import build_offline_collator, normalize_offline_sample  # noqa: E402
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3  # noqa: E402
from specforge.modeling.target.target_head import TargetHead  # noqa: E402
from specforge.optimizer import BF16Optimizer  # noqa: E402
from specforge.runtime.contracts import TrainBatch  # noqa: E402
from specforge.training.strategies.base import Eagle3TrainStrategy  # noqa: E402


class ReferenceLoss:
    """Stands where the Triton kernel stood."""

    apply = staticmethod(loss_module._compute_loss)


def make_model(data: Data) -> LlamaForCausalLMEagle3:
    s = data.shape
    config = LlamaConfig(
        vocab_size=s["vocab_size"],
        draft_vocab_size=s["draft_vocab_size"],
        hidden_size=s["hidden_size"],
        intermediate_size=s["intermediate_size"],
        num_hidden_layers=1,
        num_attention_heads=s["num_heads"],
        num_key_value_heads=s["num_kv_heads"],
        head_dim=s["hidden_size"] // s["num_heads"],
        max_position_embeddings=s["max_positions"],
        pretraining_tp=1,
        pad_token_id=0,
    )
    model = LlamaForCausalLMEagle3(config, attention_backend="sdpa")
    kept = torch.from_numpy(data.kept)
    with torch.no_grad():
        model.t2d.zero_()
        model.t2d[kept] = True
        model.d2t.copy_(kept - torch.arange(len(kept)))
        model.embed_tokens.weight.copy_(torch.from_numpy(data.embedding))
        model.lm_head.weight.copy_(torch.from_numpy(data.head)[kept])
    model.freeze_embedding()
    return model.train()


def make_head(data: Data) -> TargetHead:
    """Its frozen head of the target, made without a model folder."""
    head = TargetHead.__new__(TargetHead)
    torch.nn.Module.__init__(head)
    vocab, hidden = data.head.shape
    head.fc = torch.nn.Linear(hidden, vocab, bias=False)
    with torch.no_grad():
        head.fc.weight.copy_(torch.from_numpy(data.head))
    head.freeze_weights()
    return head.eval()


def make_items(data: Data) -> list[dict[str, torch.Tensor]]:
    """One item a conversation, as its offline reader gives them to its collator."""
    items = []
    for rows in data.samples():
        stored = {
            "aux_hidden_state": torch.from_numpy(data.taps[rows]),
            "hidden_state": torch.from_numpy(data.hidden[rows]),
            "input_ids": torch.from_numpy(data.tokens[rows]).long(),
            "loss_mask": torch.from_numpy(data.segments[rows] > 0).long(),
        }
        items.append(normalize_offline_sample(stored, data.shape["max_positions"]))
    return items


def build(data: Data) -> Mapping[str, Callable[[], float]]:
    eagle3.LogSoftmaxLoss = ReferenceLoss
    items, collate = make_items(data), build_offline_collator()
    whole = eagle3.OnlineEagle3Model(make_model(data), length=data.shape["ttt_steps"], attention_backend="sdpa")
    strategy = Eagle3TrainStrategy(whole, target_head=make_head(data), ploss_decay=0.8, compact_teacher=True)
    optimizer = BF16Optimizer(whole.draft_model, lr=1e-4, total_steps=1000)

    def step() -> float:
        batch = TrainBatch(
            [str(i) for i in range(len(items))], "eagle3", collate(items), {"target_repr": "hidden_state"}
        )
        loss = strategy.forward_loss(batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return {"step": step}


if __name__ == "__main__":
    version = importlib.metadata.version("specforge")
    serve(build, {"trainer": "specforge", "version": version, "torch": torch.__version__})
