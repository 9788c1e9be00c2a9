"""The planted faults: kinds that files, tensors, layer ids and flags can have, alone and in twos, and healthy drafts.

Which taps, bases and ids are wrong follows from the pair, so that a fault means the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from eyas.testing.planted_beside import beside_faults
from eyas.testing.planted_flags import flag_faults, healthy_flags
from eyas.testing.planted_tensors import file_faults, map_faults, stored_embedding, weight_faults
from eyas.testing.planting import (
    EVERYWHERE,
    IDS,
    NESTED,
    Edit,
    Pair,
    Planted,
    blocks,
    both,
    config,
    drop,
    half_rotated,
    halves,
    ids,
    one,
    perturbed,
    put,
    rename,
    rope,
    rounded,
    taps,
    weights,
)

HALVED = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")


def singles(pair: Pair) -> list[Planted]:
    """Single faults that make sense on this pair."""
    found = [
        *_taps(pair), *_orders(pair), *_dialects(pair), *_math(pair), *map_faults(), *weight_faults(), *file_faults(),
        *_keys(), *beside_faults(pair), *flag_faults(),
    ]  # fmt: skip
    return [fault for fault in found if pair.name in fault.pairs]


def _biased(tensors: dict[str, Tensor]) -> None:
    tensors["fc.bias"] = torch.ones(len(tensors["fc.weight"]))


def _told(pair: Pair) -> Mapping[str, Mapping[str, object]]:
    return {"taps.wrong": {"taps": list(pair.taps)}}


def _taps(pair: Pair) -> list[Planted]:
    """Ids that mean other taps than the draft was trained on, the same ones for both engines."""
    a, b, c = pair.taps
    wrong = {
        "all taps +1": ((a + 1, b + 1, c + 1), True),
        "all taps -1": ((a - 1, b - 1, c - 1), True),
        "first tap -1": ((a - 1, b, c), True),
        "middle tap -1": ((a, b - 1, c), False),
        "last tap +1": ((a, b, c + 1), True),
        "last tap +2": ((a, b, c + 2), False),
        "two taps off": ((a - 1, b, c + 1), False),
        "taps of another trainer": ((1, pair.layers // 2 - 1, pair.layers - 2), True),
        "taps all late": ((pair.layers - 5, pair.layers - 2, pair.layers - 1), False),
    }
    told = _told(pair)
    found = [
        one(name, "taps.wrong", taps(*now), everywhere=everywhere, told=told)
        for name, (now, everywhere) in wrong.items()
    ]
    first = ids(None, [0, a, b])
    found.append(one("embedding first", "taps.wrong", first, everywhere=True, told=told, engines=("vllm",)))
    other = ids(pair.taps, None)
    found.append(one("taps as ids", "taps.wrong", other, everywhere=True, told=told, engines=("sglang",)))
    other = ids(None, [tap - 1 for tap in pair.taps])
    return [*found, one("ids as taps", "taps.wrong", other, everywhere=True, told=told, engines=("vllm",))]


def _orders(pair: Pair) -> list[Planted]:
    """fc's blocks in another order than the ids: block j is of the tap that was ``order[j]``."""
    found = []
    for name, order in (("first two exchanged", (1, 0, 2)), ("reversed", (2, 1, 0)), ("rotated", (1, 2, 0))):
        told = {"taps.order": {"taps": [pair.taps[i] for i in order]}}
        found.append(one(f"order {name}", "taps.order", blocks(order), everywhere=name != "rotated", told=told))
    return found


def _dialects(pair: Pair) -> list[Planted]:
    """Ids that contradict each other, name nothing, or are read by nobody."""
    right, shifted = list(pair.taps), [tap - 1 for tap in pair.taps]
    return [
        one("ids removed", "taps.default", ids(None, None), everywhere=True),
        one(
            "ids where nobody reads",
            "taps.default",
            both(ids(None, None), config({"aux_hidden_state_layer_ids": right})),
        ),
        one("SGLang's ids are taps", "config.dialect", ids(right, right), "taps.wrong"),
        one("vLLM's ids are SGLang's", "config.dialect", ids(shifted, shifted), "taps.wrong"),
        one("id too large", "config.dialect", ids([*shifted[:2], pair.layers + 1], [*right[:2], pair.layers + 2]),
            "taps.wrong", told=_told(pair)),
        one("two ids for three taps", "config.dialect", ids(shifted[:2], right[:2]), "taps.wrong", told=_told(pair)),
        one("taps switched off", "config.dialect", config({NESTED: {"use_aux_hidden_state": False, IDS: shifted}})),
        one("number of taps", "config.dialect", config({"num_aux_hidden_states": 4})),
        one("unknown architecture", "config.dialect", config({"architectures": ["LlamaForCausalLM"]})),
        one("model type of an MTP", "config.dialect", config({"model_type": "deepseek_v3"})),
    ]  # fmt: skip


def _math(pair: Pair) -> list[Planted]:
    """Norms, halves, rotation."""
    base = {"rope.base": {"reading": f"RoPE base {pair.rope_theta:g}"}}
    scaled = {"rope_type": "linear", "factor": 8.0}
    contradicting = config({"rope_theta": 50 * pair.rope_theta})
    return [
        one("norm_output", "norm.output", config({"norm_output": True}), everywhere=True),
        one("norm_before_residual", "norm.residual", config({"norm_before_residual": True}), everywhere=True),
        one("fc_norm without norms", "config.norms weights.missing", config({"fc_norm": True})),
        one("norm_before_fc without norm", "config.norms weights.missing", config({"norm_before_fc": True})),
        one("bias without flag", "config.norms", weights(_biased)),
        one("halves of q, k, v", "align.halves", both(*(put(name, halves) for name in HALVED)), everywhere=True),
        one("RoPE base x 50", "rope.base", rope(50 * pair.rope_theta), told=base, everywhere=True),
        one("RoPE base x 10", "rope.base", rope(10 * pair.rope_theta), told=base),
        one("RoPE scaling linear", "rope.scaling", rope(pair.rope_theta, scaled), everywhere=True,
            told={"rope.scaling": {"reading": "RoPE scaling: none"}}),
        one("RoPE scaling contradicts", "config.rope", config({"rope_scaling": scaled}), "rope.base rope.scaling"),
        one("half of each head rotated", "rope.partial", half_rotated(pair.head_dim), everywhere=True,
            told={"rope.partial": {"reading": "RoPE on 50% of a head"}}),
        one("RoPE contradicts", "config.rope", contradicting, "rope.base", told=base),
    ]  # fmt: skip


def _keys() -> list[Planted]:
    return [
        one("tied", "config.tied", config({"tie_word_embeddings": True}), everywhere=True),
        one("no draft_vocab_size", "config.missing-key", config(remove=("draft_vocab_size",))),
        one("draft_vocab_size null", "config.missing-key", config({"draft_vocab_size": None})),
        one("target_hidden_size null", "config.missing-key", config({"target_hidden_size": None})),
        one("no architectures", "config.missing-key", config(remove=("architectures",))),
        one("no heads", "config.missing-key", config(remove=("num_attention_heads", "num_key_value_heads"))),
        one("hidden_size contradicts", "weights.shape target.other", config({"hidden_size": 128})),
        one("vocabulary of another", "target.other", config({"vocab_size": 640}), "map.wrong"),
    ]


def doubles(pair: Pair) -> list[Planted]:
    """Two faults at once, each of which must be named."""
    a, b, c = pair.taps
    told = _told(pair)
    order = {"taps.order": {"taps": [b, a, c]}}
    wrong, absent = taps(a - 1, b, c + 1), drop("d2t")
    return [
        _two("two taps off, map absent", "taps.wrong", "map.absent", both(wrong, absent), told),
        _two("all taps +1, map absent", "taps.wrong", "map.absent", both(taps(a + 1, b + 1, c + 1), absent), told),
        _two("last tap +1, norm_output", "taps.wrong", "norm.output",
             both(taps(a, b, c + 1), config({"norm_output": True})), told),
        _two("first tap -1, norm_before_residual", "taps.wrong", "norm.residual",
             both(taps(a - 1, b, c), config({"norm_before_residual": True})), told),
        _two("all taps -1, layer renamed", "taps.wrong", "weights.unknown",
             both(taps(a - 1, b - 1, c - 1), rename("midlayer.", "decoder.block.")), told),
        _two("order, RoPE contradicts", "taps.order", "config.rope",
             both(blocks((1, 0, 2)), config({"rope_theta": 50 * pair.rope_theta})), order, "rope.base"),
        _two("map of ids, norm_output", "map.absolute", "norm.output",
             both(put("d2t", lambda t: t + torch.arange(len(t))), config({"norm_output": True}))),
        _two("taps of another trainer, tied", "taps.wrong", "config.tied",
             both(taps(1, pair.layers // 2 - 1, pair.layers - 2), config({"tie_word_embeddings": True})), told),
        _two("order, no draft_vocab_size", "taps.order", "config.missing-key",
             both(blocks((1, 0, 2)), config(remove=("draft_vocab_size",))), order),
        _two("halves, all taps +1", "align.halves", "taps.wrong",
             both(*(put(name, halves) for name in HALVED), taps(a + 1, b + 1, c + 1)), told),
        _two("norm_output, RoPE base x 50", "norm.output", "rope.base",
             both(config({"norm_output": True}), rope(50 * pair.rope_theta))),
    ]  # fmt: skip


def _two(
    name: str,
    kind: str,
    other: str,
    plant: Edit,
    told: Mapping[str, Mapping[str, object]] | None = None,
    also: str = "",
) -> Planted:
    return Planted(name, (frozenset({kind}), frozenset({other})), plant, frozenset(also.split()), told=told or {})


def healthy(pair: Pair) -> list[Planted]:
    """Drafts of different quality without a fault, written in different ways that engines understand."""
    few = [
        Planted("as published", pairs=EVERYWHERE),
        *(Planted(f"noise {share:.0%}", plant=perturbed(share, seed=i), pairs=EVERYWHERE)
          for i, share in enumerate((0.05, 0.15, 0.3))),
    ]  # fmt: skip
    if pair.name != "tiny":
        return few
    return [
        *few,
        *(Planted(f"noise {share:.0%}", plant=perturbed(share, seed=9 + i))
          for i, share in enumerate((0.01, 0.02, 0.08, 0.12, 0.2, 0.25))),
        *(Planted(f"mixed {share:.0%}", plant=perturbed(0, share, seed=20 + i))
          for i, share in enumerate((0.1, 0.2, 0.3))),
        Planted("noise 30% in fc", plant=perturbed(0.3, only="fc", seed=30)),
        Planted("noise 30% in the head", plant=perturbed(0.3, only="lm_head", seed=31)),
        Planted("rounded to 15 levels, map alone", plant=both(rounded(15), drop("t2d"))),
        Planted("copy of the embedding, own entry", own=True, plant=weights(
            lambda t: t.update({"embed_tokens.weight": stored_embedding()}))),
        *healthy_flags(),
    ]  # fmt: skip
