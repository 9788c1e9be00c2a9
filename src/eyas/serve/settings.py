"""What ``eyas serve`` can be told, with SGLang's names where SGLang has the thing; each default is written once.

None: not given; ``eyas.serve.resolve`` says what runs then, and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from eyas.artifacts import read_yaml
from eyas.config import DRAFT_SAMPLING_FLAG, Settings
from eyas.errors import EyasError
from eyas.serve.flags import flag
from eyas.serve.limits import Limits

DEFAULT_MODEL = "builtin:smollm2-135m"
LIMIT_PREFIX = "limit_"
SECRETS = ("api_key", "api_key_file")
"""Never shown, never sent to the engine's process."""

Count = Annotated[int, Field(ge=1)]
Origin = Literal[
    "flag",
    "config file",
    "draft's contract",
    "model config",
    "chat template",
    "measured memory",
    "this machine",
    "default",
]
Given = Literal["flag", "config file"]


MODEL, SPECULATION, BATCH, HTTP = "Model", "Speculation", "Memory and batching", "HTTP"


class ServeSettings(Settings):
    """Raises ``flags.range``, ``flags.unknown``, ``flags.contradiction``."""

    model_path: Annotated[
        str, flag(MODEL, "The target: builtin:…, a hub id, a model folder or a GGUF file.", "--model")
    ] = DEFAULT_MODEL
    tokenizer_path: Annotated[str | None, flag(MODEL, "A folder with another tokenizer.", "--tokenizer")] = None
    served_model_name: Annotated[str | None, flag(MODEL, "The name in /v1/models; else that of the model.")] = None
    dtype: Annotated[
        Literal["fp32", "float32", "float", "bf16", "bfloat16"], flag(MODEL, "Weights of the target: fp32 or bf16.")
    ] = "fp32"
    quantization: Annotated[
        str | None, flag(MODEL, "int8: weights and activations as integers of 8 bits, scaled by 32 inputs.", "-q")
    ] = None
    context_length: Annotated[
        Count | None, flag(MODEL, "Tokens of prompt and answer together; else what the model's config says.")
    ] = None
    device: Annotated[str, flag(MODEL, "cpu or cuda.")] = "cpu"
    backend: Annotated[
        Literal["auto", "native", "onednn", "eager"], flag(MODEL, "Kernels: auto, native, onednn or eager.")
    ] = "auto"
    chat_template: Annotated[Path | None, flag(MODEL, "A Jinja file in place of the tokenizer's own template.")] = None
    tool_call_parser: Annotated[
        str | None, flag(MODEL, "How the model writes tool calls; else by its chat template; none.")
    ] = None
    reasoning_parser: Annotated[
        str | None, flag(MODEL, "How it marks its reasoning; else by its chat template; none.")
    ] = None
    random_seed: Annotated[
        Annotated[int, Field(ge=0, lt=1 << 63)] | None,
        flag(MODEL, "Seed of requests that bring none; else each draws its own.", "--seed"),
    ] = None

    speculative_algorithm: Annotated[str | None, flag(SPECULATION, "EAGLE3, NGRAM or NONE.", "--speculative-algo")] = (
        None
    )
    speculative_draft_model_path: Annotated[
        str, flag(SPECULATION, "A draft folder; auto: what the model brings; none.", "--speculative-draft-model")
    ] = "auto"
    speculative_num_steps: Annotated[int | None, flag(SPECULATION, "Draft steps in a round, K.")] = None
    speculative_eagle_topk: Annotated[int | None, flag(SPECULATION, "Tokens kept per step; 1 is a chain.")] = None
    speculative_num_draft_tokens: Annotated[
        int | None, flag(SPECULATION, "Tokens verified in a round, the root counted.")
    ] = None
    speculative_adaptive: Annotated[
        bool | None,
        flag(SPECULATION, "The steps are a ceiling, and each round takes what measured best; off: always all steps."),
    ] = None
    draft_sampling: Annotated[str, flag(SPECULATION, "one-hot or probabilistic.")] = "one-hot"

    mem_fraction_static: Annotated[
        Annotated[float, Field(gt=0, lt=1)] | None,
        flag(BATCH, "Share of the free memory that weights and cache may take."),
    ] = None
    max_total_tokens: Annotated[Count | None, flag(BATCH, "Cache slots: tokens that all requests can hold.")] = None
    max_running_requests: Annotated[Count, flag(BATCH, "Requests in a batch.")] = 64
    max_queued_requests: Annotated[
        Annotated[int, Field(ge=0)], flag(BATCH, "Requests that may wait; beyond, status 429.")
    ] = 1024
    chunked_prefill_size: Annotated[Count | None, flag(BATCH, "Prompt tokens that a step reads at most.")] = None
    max_prefill_tokens: Annotated[Count | None, flag(BATCH, "The same, by SGLang's other name.")] = None
    schedule_policy: Annotated[
        Literal["priority", "fcfs"],
        flag(BATCH, "priority: by priority, clients in turn; fcfs: in the order of arrival alone."),
    ] = "priority"
    disable_radix_cache: Annotated[bool, flag(BATCH, "Keep no prefixes.")] = False
    threads: Annotated[Count | None, flag(BATCH, "CPU threads of each replica.")] = None
    tp_size: Annotated[Count, flag(BATCH, "Processes that share each layer.", "--tp", "--tensor-parallel-size")] = 1
    dp_size: Annotated[
        Annotated[int, Field(ge=1, le=64)],
        flag(BATCH, "Replicas behind the one port.", "--dp", "--data-parallel-size"),
    ] = 1
    watchdog_timeout: Annotated[
        Annotated[float, Field(ge=1, le=86400)],
        flag(BATCH, "Seconds without a sign of an engine that has work; then it is started again."),
    ] = 300.0

    host: Annotated[str, flag(HTTP, "Address to listen on.")] = "127.0.0.1"
    port: Annotated[Annotated[int, Field(ge=0, le=65535)], flag(HTTP, "Port to listen on; 0: any that is free.")] = (
        30000
    )
    api_key: Annotated[
        tuple[str, ...], flag(HTTP, "A key that requests must bring; may be repeated. Others can see it in ps.")
    ] = Field((), repr=False)
    api_key_file: Annotated[Path | None, flag(HTTP, "A file of such keys, one a line.")] = None
    log_level: Annotated[Literal["info", "warning", "error"], flag(HTTP, "info, warning or error.")] = "info"
    log_requests: Annotated[bool, flag(HTTP, "A line for each request, without its text.")] = False
    enable_metrics: Annotated[bool, flag(HTTP, "Always so: /metrics.")] = True

    limits: Limits = Limits()
    """Of the HTTP side; on the command line ``--limit-…``."""

    @field_validator("dtype")
    @classmethod
    def _short(cls, value: str) -> str:
        return "bf16" if value.startswith("b") else "fp32"

    @field_validator("api_key")
    @classmethod
    def _keys_are_given(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for key in value:
            _check_key(key, "--api-key")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ServeSettings:
        if not self.enable_metrics:
            fix = "leave it out, and keep /metrics from others in front of the server"
            raise EyasError("flags.range", "enable_metrics is false, and /metrics is always there", fix)
        if self.quantization not in (None, "int8"):
            cause = f"--quantization {self.quantization}: weights run in fp32, bf16 or int8"
            raise EyasError("flags.unsupported", cause, "use --quantization int8, or leave it out and choose --dtype")
        if self.quantization is not None and "dtype" in self.model_fields_set:
            cause = f"--dtype {self.dtype} and --quantization {self.quantization} both say how weights are kept"
            raise EyasError("flags.contradiction", cause, "give one of them")
        if self.draft_sampling not in ("one-hot", "probabilistic"):
            cause = f"{DRAFT_SAMPLING_FLAG} {self.draft_sampling}"
            raise EyasError("flags.range", cause, "use one-hot or probabilistic")
        _check_prefill(self.chunked_prefill_size, self.max_prefill_tokens)
        return self

    @property
    def numerics(self) -> str:
        """``fp32``, ``bf16`` or ``int8``."""
        return self.quantization or self.dtype

    def keys(self) -> tuple[str, ...]:
        """All API keys, those in the file too. Raises ``artifact.missing``, ``flags.range``."""
        if self.api_key_file is None:
            return self.api_key
        path = self.api_key_file.expanduser()
        if not path.is_file():
            raise EyasError("artifact.missing", f"there is no file {path}", "check --api-key-file")
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        found = [line for line in lines if line]
        if not found:
            fix = "write a key into it, or leave --api-key-file out"
            raise EyasError("flags.range", f"{path} holds no key", fix)
        for key in found:
            _check_key(key, "--api-key-file")
        return (*self.api_key, *found)


def _check_key(key: str, flag: str) -> None:
    """A header carries it, so it is printable ASCII; the key itself is not repeated in the error."""
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise EyasError("flags.range", f"{flag}: a key is empty, or not of printable ASCII", "use letters and digits")


def _check_prefill(chunk: int | None, most: int | None) -> None:
    if chunk is not None and most is not None and most < chunk:
        cause = (
            f"--chunked-prefill-size {chunk} with --max-prefill-tokens {most}: a step has one budget of prompt tokens"
        )
        raise EyasError("flags.contradiction", cause, f"use --chunked-prefill-size {most}, or drop one")


def merge(flags: dict[str, Any], file: Path | None) -> tuple[ServeSettings, dict[str, Given]]:
    """Settings out of flags that were given and a file of settings, and where each name came from; flags win.

    ``flags``: by field; limits as ``limit_…``. The file is YAML of the same names, with dashes or without; limits stand
    there in a mapping ``limits`` or as ``limit_…``. Raises ``flags.…``, ``artifact.…``.
    """
    written = {} if file is None else _flat(read_yaml(file.expanduser()), file)
    values = {**written, **flags}
    origins: dict[str, Given] = {name: "flag" if name in flags else "config file" for name in values}
    limits = {name.removeprefix(LIMIT_PREFIX): values.pop(name) for name in [*values] if name.startswith(LIMIT_PREFIX)}
    return ServeSettings(**values, limits=Limits(**limits)), origins


def _flat(document: dict[str, Any], file: Path) -> dict[str, Any]:
    """As flags would give it: names with underscores, limits beside the rest, lists as tuples, texts as paths."""
    values: dict[str, Any] = {}
    for key, value in document.items():
        name = str(key).replace("-", "_")
        if name == "limits" and isinstance(value, dict):
            entries = {f"{LIMIT_PREFIX}{inner}": limit for inner, limit in value.items()}
        else:
            entries = {name: value}
        doubled = sorted(entries.keys() & values.keys())
        if doubled:
            raise EyasError("flags.contradiction", f"{file} gives {doubled[0]} twice", "drop one")
        values |= entries
    return {name: _typed(name, value) for name, value in values.items()}


def _typed(name: str, value: Any) -> Any:
    if name in ("api_key_file", "chat_template") and isinstance(value, str):
        return Path(value)
    if name == "api_key":
        return tuple(value) if isinstance(value, list) else (value,)
    return value
