from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, OlmoConfig, OlmoForCausalLM

from eyas.errors import EyasError
from eyas.models.size import target_size
from support.configs import KIMI_K25, LLAMA_31_8B, QWEN3_8B


@pytest.mark.parametrize(
    ("document", "total"), [(LLAMA_31_8B, 8_030_261_248), (QWEN3_8B, 8_190_735_360)], ids=["llama", "qwen"]
)
def test_known_targets(document, total):
    size = target_size(document)
    assert (size.total, size.exact) == (total, True)
    assert size.active == total - (2 * size.vocab_size + 1) * size.hidden_size


def test_a_mixture_of_experts():
    size = target_size(KIMI_K25)
    assert size.total == pytest.approx(1.03e12, rel=0.01)
    assert size.active + size.vocab_size * size.hidden_size == pytest.approx(32e9, rel=0.02)
    assert size.kv_width == 576
    assert not size.exact


@pytest.mark.parametrize("q_rank", [None, 24])
def test_latent_attention_and_experts_as_transformers_has_them(q_rank):
    config = DeepseekV3Config(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=160,
        moe_intermediate_size=48,
        num_hidden_layers=4,
        first_k_dense_replace=1,
        n_routed_experts=8,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=q_rank,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
    )
    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(config)
    # Norms within the attention are left out.
    document = {**config.to_dict(), "architectures": ["DeepseekV3ForCausalLM"]}
    assert target_size(document).total == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.003)


def test_any_other_target_counts_as_a_plain_decoder():
    config = OlmoConfig(
        vocab_size=100, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4
    )
    with torch.device("meta"):
        model = OlmoForCausalLM(config)
    document = {**config.to_dict(), "architectures": ["OlmoForCausalLM"]}
    assert target_size(document).total == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.005)


def test_a_missing_size_is_named():
    document = {"architectures": ["OlmoForCausalLM"], "hidden_size": 64}
    with pytest.raises(EyasError, match="num_hidden_layers") as caught:
        target_size(document)
    assert caught.value.code == "model.config"
