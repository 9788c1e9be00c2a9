"""config.json key by key: what an engine would replace, guess or fail on, and the config that was probably meant.

The mended config serves to look at the rest of the draft; a repair writes only what was told or is certain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eyas.check.findings import Finding, Weight
from eyas.contract import Contract
from eyas.dialects.checkpoint import DRAFT_ARCHITECTURES, EAGLE_KEY, USE_KEY, WRITTEN_ARCHITECTURE
from eyas.draft.entries import own_entry
from eyas.draft.layout import check_rope, rope_entries
from eyas.draft.names import HEAD, OFFSETS
from eyas.errors import EyasError
from eyas.models.config import parse_rope

Shapes = Mapping[str, tuple[int, ...]]
_FIX = "`eyas check DRAFT --fix OUT` writes it"
_MEND = "take config.json from the draft's source again, or mend this key"
FLAGGED = {"fc_norm.0.weight": "fc_norm", "input_norm.weight": "norm_before_fc", "fc.bias": "bias",
          "midlayer.self_attn.q_proj.bias": "attention_bias"}  # fmt: skip
"""A stored tensor and the flag without which engines have no place for it."""
_OUTPUT_BIAS = "midlayer.self_attn.o_proj.bias"


class Keys:
    """A config under examination: ``document`` is mended as ``findings`` are made. ``readable`` turns False for a
    draft of a kind that Eyas does not compute.
    """

    def __init__(self, document: Mapping[str, Any], shapes: Shapes, contract: Contract | None) -> None:
        self.document = dict(document)
        self.shapes, self.contract = shapes, contract
        self.findings: list[Finding] = []
        self.readable = True

    def say(
        self, kind: str, said: str, fix: str = _FIX, weight: Weight = "fault", data: Mapping[str, object] | None = None
    ) -> None:
        """Note a finding of the static level."""
        self.findings.append(Finding(kind, "static", weight, f"config.json: {said}", fix=fix, data=data or {}))


def check_keys(document: Mapping[str, Any], shapes: Shapes, vocab_size: int | None, contract: Contract | None) -> Keys:
    """Examine a config in the engines' layout. ``shapes``: of the stored tensors, by canonical name; ``vocab_size``:
    the target's, if known.
    """
    keys = Keys(document, shapes, contract)
    steps: tuple[Callable[[Keys], None], ...] = (
        _own, _architecture, _sizes, _draft_vocabulary, _target_width, _rope, _tied, _nested, _flags, _unsupported,
    )  # fmt: skip
    if vocab_size is not None and "vocab_size" not in document:
        _missing(keys, "vocab_size", vocab_size)
    for step in steps:
        step(keys)
    return keys


def _own(keys: Keys) -> None:
    try:
        own_entry(keys.document)
    except EyasError as error:
        keys.say("config.dialect", error.cause.removeprefix("config.json: "), error.fix, data={"code": error.code})
        del keys.document["eyas"]


def _architecture(keys: Keys) -> None:
    written = WRITTEN_ARCHITECTURE["gqa"]
    names = keys.document.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else names
    known = DRAFT_ARCHITECTURES.get(name) if isinstance(name, str) else None
    if names is None:
        keys.say("config.missing-key", f"no architectures: engines do not know what to load; it is {written}")
    elif known is None:
        keys.say("config.dialect", f"architectures is {names!r}, which no engine loads as an EAGLE-3 draft")
    elif known.attention != "gqa":
        said = f"architectures is {name}: Eyas has no definition of such a draft and cannot check its tensors"
        keys.say("engine.unknown", said, "check it with the engine that it was made for", "warning")
        keys.readable = False
        return
    if known is None:
        keys.document["architectures"] = [written]
    kind = keys.document.get("model_type")
    if kind is None:
        keys.say("config.missing-key", "no model_type: transformers cannot tell what to load; it is llama")
    elif kind != "llama":
        keys.say(
            "config.dialect", f"model_type is {kind!r}, and the draft's layer is a Llama's", data={"key": "model_type"}
        )
    keys.document["model_type"] = "llama"


def _sizes(keys: Keys) -> None:
    """Sizes without which nothing loads, each with the tensor that shows it."""
    shapes = keys.shapes
    layers = len({name.split(".")[1] for name in shapes if name.startswith("layers.")}) + 1
    inferred = {
        "hidden_size": _size(shapes, "fc.weight", 0) or _size(shapes, "norm.weight", 0),
        "intermediate_size": _size(shapes, "midlayer.mlp.gate_proj.weight", 0),
        "num_hidden_layers": layers if any(name.startswith("midlayer.") for name in shapes) else None,
        "num_attention_heads": _heads(keys, "q"),
        "max_position_embeddings": None,
        "vocab_size": None,
    }
    for key, value in inferred.items():
        if keys.document.get(key) is None:
            _missing(keys, key, value)
    width = _size(shapes, "norm.weight", 0)
    if width is not None and width == _size(shapes, "fc.weight", 0) != keys.document["hidden_size"]:
        said = f"hidden_size is {keys.document['hidden_size']!r}, and fc.weight and norm.weight have {width}"
        keys.say("weights.shape", said, data={"value": width})
        keys.document["hidden_size"] = width
    kv_heads, heads = _heads(keys, "k"), keys.document.get("num_attention_heads")
    if keys.document.get("num_key_value_heads") is None and kv_heads is not None and kv_heads != heads:
        _missing(keys, "num_key_value_heads", kv_heads)


def _missing(keys: Keys, key: str, value: int | None) -> None:
    if value is None:
        keys.say("config.missing-key", f"no {key}", _MEND, data={"key": key})
        return
    keys.say("config.missing-key", f"no {key}; the stored tensors have {value}", data={"key": key, "value": value})
    keys.document[key] = value


def _size(shapes: Shapes, name: str, dimension: int) -> int | None:
    return shapes[name][dimension] if len(shapes.get(name, ())) > dimension else None


def _heads(keys: Keys, which: str) -> int | None:
    rows, width = _size(keys.shapes, f"midlayer.self_attn.{which}_proj.weight", 0), keys.document.get("head_dim")
    hidden, heads = keys.document.get("hidden_size"), keys.document.get("num_attention_heads")
    if width is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        width = hidden // heads
    return rows // width if rows and isinstance(width, int) and width > 0 and rows % width == 0 else None


def _draft_vocabulary(keys: Keys) -> None:
    rows = _size(keys.shapes, HEAD, 0) or _size(keys.shapes, OFFSETS, 0)
    absent = "draft_vocab_size" not in keys.document
    size = keys.document.get("draft_vocab_size")
    if not absent and size is not None:
        if type(size) is not int or size <= 0:
            keys.say("config.missing-key", f"draft_vocab_size is {size!r}, not a positive integer")
            keys.document["draft_vocab_size"] = rows
        return
    if absent:
        said = "no draft_vocab_size: SGLang fails, and vLLM takes the target's whole vocabulary"
    elif HEAD in keys.shapes:
        said = f"draft_vocab_size is null, so that SGLang puts the target's head in place of the {HEAD} that is stored"
    else:
        return
    keys.say("config.missing-key", said + (f"; the head has {rows} rows" if rows else ""), data={"value": rows})
    keys.document["draft_vocab_size"] = rows


def _target_width(keys: Keys) -> None:
    if keys.document.get("target_hidden_size", 0) is None:
        keys.say("config.missing-key", "target_hidden_size is null, which both engines multiply: they fail")
        del keys.document["target_hidden_size"]


def _rope(keys: Keys) -> None:
    document, promised = keys.document, None if keys.contract is None else keys.contract.rope
    places = {key: document.get(key) for key in ("rope_theta", "rope_scaling", "rope_parameters")}
    try:
        check_rope(document)
        theta, scaling = parse_rope(document)
    except EyasError as error:
        promise = "" if promised is None else f"; contract.json says {promised.theta}"
        fix = "say which base the draft was trained with" if promised is None else _FIX
        keys.say("config.rope", error.cause.removeprefix("config.json: ") + promise, fix, data={"code": error.code})
        theta, scaling = (document.get("rope_theta") or 10_000.0, None)
    else:
        if all(value is None for value in places.values()):
            weight: Weight = "note" if promised is None or promised.theta == theta else "fault"
            promise = "" if promised is None else f", and contract.json says {promised.theta}"
            keys.say("config.rope", f"no RoPE base: engines take 10000{promise}", weight=weight)
        elif promised is not None and (theta, scaling) != (promised.theta, promised.scaling):
            said = f"the RoPE base is {theta} with scaling {scaling}, and contract.json says {promised.theta} with"
            keys.say("config.rope", f"{said} {promised.scaling}", data={"theta": theta, "promised": promised.theta})
    if promised is not None:
        theta, scaling = promised.theta, promised.scaling
    usable = type(theta) in (int, float) and theta > 0
    document.update(rope_entries(float(theta) if usable else 10_000.0, scaling))


def _tied(keys: Keys) -> None:
    if keys.document.get("tie_word_embeddings"):
        said = "tie_word_embeddings is true: SGLang puts the target's embedding in the head's place, vLLM ignores it"
        keys.say("config.tied", said)
        keys.document["tie_word_embeddings"] = False


def _nested(keys: Keys) -> None:
    nested = keys.document.get(EAGLE_KEY)
    if nested is None:
        return
    if not isinstance(nested, dict):
        keys.say("config.dialect", f"{EAGLE_KEY} is {nested!r}, not an object")
        del keys.document[EAGLE_KEY]
    elif nested.get(USE_KEY, True) is not True:
        said = f"{EAGLE_KEY}.{USE_KEY} is {nested[USE_KEY]!r}: SGLang then feeds the final norm's output and no taps"
        keys.say("config.dialect", said)
        keys.document[EAGLE_KEY] = nested | {USE_KEY: True}


def _flags(keys: Keys) -> None:
    """Norms and biases: stored tensors against flags, flags against the contract."""
    document, nested = keys.document, keys.document.get(EAGLE_KEY) or {}
    for key in (*dict.fromkeys(FLAGGED.values()), "use_aux_norm", "norm_output", "norm_before_residual"):
        if document.get(key) is not None and type(document[key]) is not bool:
            keys.say("config.norms", f"{key} is {document[key]!r}, neither true nor false", _MEND)
            document[key] = False
    for tensor, key in FLAGGED.items():
        on = document.get(key) or nested.get(key) or (key == "fc_norm" and document.get("use_aux_norm"))
        # A missing tensor is named by itself; without its flag it would be dropped in silence.
        if tensor in keys.shapes and not on:
            said = f"{tensor} is stored, and {key} is not set: engines have no place for it"
            keys.say("config.norms", said, data={"key": key})
            # The engines' key for a bias in fc asks for one in o_proj as well.
            document[key] = key != "bias" or _OUTPUT_BIAS in keys.shapes
    if keys.contract is None:
        return
    promised = keys.contract.norms.model_dump()
    stated = {key: bool(document.get(key) or nested.get(key)) for key in promised}
    stated["fc_norm"] = stated["fc_norm"] or bool(document.get("use_aux_norm"))
    wrong = {key: value for key, value in promised.items() if stated[key] != value}
    if wrong:
        said = "; ".join(f"{key} is {stated[key]}, and contract.json says {value}" for key, value in wrong.items())
        keys.say("config.norms", said, data={"promised": wrong})
        document.update(wrong)


def _unsupported(keys: Keys) -> None:
    document = keys.document
    if document.get("quantization_config"):
        keys.say("weights.dtype", "the draft's weights are quantised", "use weights in fp32, bf16 or fp16")
        del document["quantization_config"]
    if document.get("mlp_bias"):
        keys.say("config.dialect", "mlp_bias is true, and a draft's MLP has no biases", _MEND)
        document["mlp_bias"] = False
    for key, harmless in (("logit_scale", 1), ("qkv_bias", bool(document.get("attention_bias")))):
        if document.get(key, harmless) != harmless:
            keys.say("config.dialect", f"{key} is {document[key]!r}, which only one engine heeds", _MEND)
            del document[key]
