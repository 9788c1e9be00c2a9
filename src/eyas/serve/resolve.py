"""What was asked becomes what runs, value by value with its origin; or an error that names both sides and the fix.

Rule: what is asked is run, or the server does not start. Only what is not asked is filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eyas.config import STEPS_FLAG, SpeculativeSettings
from eyas.contract import Contract
from eyas.draft.checkpoint import CONTRACT
from eyas.engine.asked import Asked, Plan
from eyas.engine.engine import DEFAULT_PREFILL_TOKENS
from eyas.errors import EyasError
from eyas.models.config import read_config
from eyas.serve.engine_settings import EngineSettings
from eyas.serve.flags import flags_of
from eyas.serve.room import Room, room_for
from eyas.serve.settings import LIMIT_PREFIX, SECRETS, Given, Origin, ServeSettings
from eyas.serve.sizes import check_device, check_ranks, free_bytes, shown, sizes_of
from eyas.serve.wording import formats, read_template, sampling_defaults, template_kwargs

PLACES = ("model_path", "tokenizer_path", "chat_template", "speculative_draft_model_path")
DRAFT_FLAG = "--speculative-draft-model-path"


@dataclass(frozen=True)
class Value:
    """One effective value. ``name``: of the flag, with underscores, or of what follows from flags."""

    name: str
    value: Any
    origin: Origin
    note: str = ""


@dataclass(frozen=True)
class Serving:
    """All that will run."""

    settings: ServeSettings
    """As asked."""
    engine: EngineSettings
    """Of each replica."""
    tool_format: str | None
    reasoning_format: str | None
    sampling_defaults: Mapping[str, float | int]
    template_kwargs: Mapping[str, Any]
    values: tuple[Value, ...]

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Name → value, origin, note."""
        return {v.name: {"value": v.value, "origin": v.origin, "note": v.note} for v in self.values}

    def public(self) -> dict[str, dict[str, Any]]:
        """The same for clients: of places in the file system only the last part."""
        shown = self.to_json()
        for name in PLACES:
            value = shown[name]["value"]
            if isinstance(value, str):
                shown[name]["value"] = _public_name(value)
        return shown


def resolve(
    settings: ServeSettings,
    origins: Mapping[str, Given],
    target: Path,
    template: object = None,
    free: int | None = None,
) -> Serving:
    """Everything that will run. ``target``: the folder of the model that ``model_path`` names · ``template``: its
    tokenizer's chat template · ``free``: memory in bytes, measured if None.

    Raises ``flags.…``, ``artifact.…``, ``model.config``, ``contract.schema``.
    """
    return _Resolver(settings, dict(origins), target).serving(
        template, free_bytes(settings.device) if free is None else free
    )


class _Resolver:
    def __init__(self, settings: ServeSettings, origins: dict[str, Given], target: Path) -> None:
        self.settings, self.origins, self.target = settings, origins, target
        self.known: dict[str, Value] = {}
        """What is not simply as it was given."""

    def serving(self, template: object, free: int) -> Serving:
        s = self.settings
        self._check_places()
        given_template = read_template(s)
        tools, reasoning = self._formats(template)
        plan = self._speculation()
        name = self._fill("served_model_name", s.served_model_name, _public_name(s.model_path), "default")
        if s.random_seed is None:
            self._put("random_seed", None, "default", "each request draws its own")
        threads = max(1, torch.get_num_threads() // (s.dp_size * s.tp_size))
        sizes = sizes_of(self.target, plan.draft, s.numerics, s.backend, s.device, s.tp_size)
        room = room_for(s, sizes, free, plan.speculation)
        self._note_room(room, shown(room.slots, sizes.slot))
        engine = EngineSettings(
            model=name,
            target=self.target.absolute(),
            tokenizer=None if s.tokenizer_path is None else Path(s.tokenizer_path).expanduser().absolute(),
            chat_template=given_template,
            draft=None if plan.draft is None else plan.draft.absolute(),
            algorithm=plan.algorithm,
            speculation=plan.speculation,
            adaptive=self._adaptive(plan),
            dtype=s.numerics,
            backend=s.backend,
            device=s.device,
            threads=self._fill("threads", s.threads, threads, "this machine"),
            tp_size=s.tp_size,
            context=room.context,
            num_slots=room.slots,
            prefill_tokens=self._prefill(),
            max_running=s.max_running_requests,
            prefix_cache=not s.disable_radix_cache,
            by_priority=s.schedule_policy == "priority",
        )
        defaults, kwargs = sampling_defaults(self.target), template_kwargs(_contract(plan.draft))
        for default, value in defaults.items():
            self._put(f"default {default}", value, "model config")
        if kwargs:
            self._put("default enable_thinking", kwargs["enable_thinking"], "draft's contract")
        return Serving(s, engine, tools, reasoning, defaults, kwargs, self._values())

    # ----------------------------------------------------------------------------------------------------------------

    def _check_places(self) -> None:
        s = self.settings
        check_device(s.device)
        check_ranks(self.target, s.tp_size, s.device)
        if s.dp_size > 1 and not s.device.startswith("cpu"):
            cause = f"--dp-size {s.dp_size} with --device {s.device}: replicas would share the one device"
            raise EyasError("flags.contradiction", cause, "start a server for each device, or use --dp-size 1")

    def _formats(self, template: object) -> tuple[str | None, str | None]:
        s = self.settings
        tools, reasoning = formats(s, template, str(read_config(self.target).get("model_type", "")))
        if s.tool_call_parser is None:
            self._put("tool_call_parser", tools, "chat template")
        if s.reasoning_parser is None:
            self._put("reasoning_parser", reasoning, "chat template")
        return tools, reasoning

    def _speculation(self) -> Plan:
        s = self.settings
        promised = self._promised_steps()
        asked = Asked(
            s.speculative_algorithm,
            s.speculative_draft_model_path,
            s.speculative_num_steps,
            s.speculative_eagle_topk,
            s.speculative_num_draft_tokens,
            s.draft_sampling,
            DRAFT_FLAG,
        )
        plan = asked.resolve(s.model_path)
        origin: Origin = "default"
        contract = _contract(plan.draft)
        steps = max((e.num_steps for e in contract.expected), default=None) if contract is not None else None
        if promised and steps is not None and plan.algorithm == "EAGLE3":
            plan = Plan(plan.algorithm, plan.draft, SpeculativeSettings.resolve(steps, draft_sampling=_drawn(plan)))
            origin = "draft's contract"
        self._note_speculation(plan, origin, contract)
        return plan

    def _promised_steps(self) -> bool:
        """Whether the steps are left to the contract: no count of any kind is asked for."""
        s = self.settings
        return (s.speculative_num_steps, s.speculative_eagle_topk, s.speculative_num_draft_tokens) == (None,) * 3

    def _note_speculation(self, plan: Plan, steps_origin: Origin, contract: Contract | None) -> None:
        s, how = self.settings, plan.speculation
        if s.speculative_algorithm is None:
            self._put("speculative_algorithm", plan.algorithm, "default", "a draft is there" if plan.draft else "")
        else:
            self._put("speculative_algorithm", plan.algorithm, self._given("speculative_algorithm"))
        if "speculative_draft_model_path" not in self.origins and plan.draft is not None:
            self._put("speculative_draft_model_path", s.model_path, "default", "the draft that the model brings")
        if how is None:
            return
        counts = {
            "speculative_num_steps": (s.speculative_num_steps, how.num_steps, steps_origin),
            "speculative_eagle_topk": (s.speculative_eagle_topk, how.eagle_topk, "default"),
            "speculative_num_draft_tokens": (s.speculative_num_draft_tokens, how.num_draft_tokens, steps_origin),
        }
        for name, (given, value, origin) in counts.items():
            self._fill(name, given, value, origin)
        note = "tokens of a round at most"
        self._put("accept_length_ceiling", how.ceiling, self.known["speculative_num_steps"].origin, note)
        for expected in contract.expected if contract is not None else ():
            if expected.num_steps == how.num_steps and not how.is_tree:
                name = f"accept_length_expected ({expected.prompt_set})"
                self._put(name, round(expected.accept_length, 3), "draft's contract")

    def _adaptive(self, plan: Plan) -> bool:
        asked = self.settings.speculative_adaptive
        if plan.speculation is None:
            if asked:
                cause = f"--speculative-adaptive with --speculative-algorithm {plan.algorithm}, which has no steps"
                raise EyasError("flags.contradiction", cause, f"drop it, or give {DRAFT_FLAG}")
            self._fill("speculative_adaptive", asked, False, "default")
            return False
        self._fill("speculative_adaptive", asked, True, "default")
        note = f"{STEPS_FLAG} is the ceiling" if asked is not False else "every round takes all steps"
        self.known["speculative_adaptive"] = replace(self.known["speculative_adaptive"], note=note)
        return asked is not False

    def _prefill(self) -> int:
        s = self.settings
        most = DEFAULT_PREFILL_TOKENS if s.max_prefill_tokens is None else s.max_prefill_tokens
        chunk = self._fill("chunked_prefill_size", s.chunked_prefill_size, min(DEFAULT_PREFILL_TOKENS, most), "default")
        self._fill("max_prefill_tokens", s.max_prefill_tokens, chunk, "default")
        return chunk

    def _note_room(self, room: Room, size: str) -> None:
        s = self.settings
        bounded = room.context_origin == "flag"
        origin = self._given("max_total_tokens") if bounded else room.context_origin
        self._fill("context_length", s.context_length, room.context, origin)
        self._fill("max_total_tokens", s.max_total_tokens, room.slots, room.slots_origin)
        self.known["max_total_tokens"] = replace(self.known["max_total_tokens"], note=size)

    def _fill(self, name: str, asked: Any, otherwise: Any, origin: Origin) -> Any:
        """The value that was asked for, else ``otherwise`` with its origin; noted either way."""
        value = otherwise if asked is None else asked
        self._put(name, value, origin if asked is None else self._given(name))
        return value

    def _put(self, name: str, value: Any, origin: Origin, note: str = "") -> None:
        self.known[name] = Value(name, value, origin, note)

    def _given(self, name: str) -> Origin:
        return self.origins.get(name, "default")

    def _values(self) -> tuple[Value, ...]:
        """In the order of the settings; what follows from them beside them; secrets only counted."""
        s = self.settings
        found = []
        for name in flags_of(ServeSettings):
            value = getattr(s, name)
            if name in SECRETS:
                value = len(value) if name == "api_key" else "given" if value is not None else None
            elif isinstance(value, Path):
                value = str(value)
            found.append(self.known.pop(name, Value(name, value, self._given(name))))
            for place, follows in (("draft_sampling", "accept_length"), ("random_seed", "default ")):
                if name == place:
                    found += [self.known.pop(n) for n in [*self.known] if n.startswith(follows)]
        assert not self.known, self.known
        for name, value in s.limits.model_dump().items():
            found.append(Value(LIMIT_PREFIX + name, value, self._given(LIMIT_PREFIX + name)))
        return tuple(found)


def _drawn(plan: Plan) -> Any:
    assert plan.speculation is not None
    return plan.speculation.draft_sampling


def _contract(draft: Path | None) -> Contract | None:
    return Contract.read(draft / CONTRACT) if draft is not None and (draft / CONTRACT).is_file() else None


def _public_name(model: str) -> str:
    """The model's name as it was given, of a folder or file only the last part: its place is nobody's business."""
    path = Path(model).expanduser()
    return path.resolve().name if path.exists() else model
