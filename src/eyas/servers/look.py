"""Which engine a server is, what it serves, and what its flags allow, as far as it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eyas import metrics
from eyas.dialects import counters
from eyas.errors import EyasError
from eyas.servers.figures import is_list
from eyas.servers.http import Http

Kind = Literal["eyas", "sglang", "vllm", "llama.cpp", "other"]
MAX_STEPS = 1024
_SETTINGS = ("num_steps", "num_draft_tokens", "eagle_topk")


@dataclass(frozen=True)
class Server:
    """``speculates``, ``ceiling`` (the greatest accept length that its flags allow) None: it does not say ·
    ``counted``: its counters of speculation stand in /metrics.
    """

    kind: Kind
    version: str | None = None
    speculates: bool | None = None
    counted: bool = False
    ceiling: int | None = None


async def look(http: Http) -> Server:
    """What the server says of itself. Raises ``server.unreachable``, ``server.metrics``."""
    reply = await http.get("/metrics")
    text = reply.body.decode(errors="replace") if reply.status == 200 else ""
    if "\nvllm:" in f"\n{text}":
        found = counters.read_metrics(text)
        counted = counters.has_counters(found)
        deepest = counters.deepest(found)
        return Server("vllm", await _version(http, "/version"), counted, counted, deepest + 1 if deepest else None)
    for path in ("/server_info", "/get_server_info"):
        reply = await http.get(path)
        if reply.status == 200:
            return _of_info(reply.json(), counters.has_counters(counters.read_metrics(text)))
    props = await http.get("/props")
    if props.status == 200 and props.body.lstrip().startswith(b"{"):
        return _of_props(props.json(), text)
    return Server("sglang" if "\nsglang:" in f"\n{text}" else "other")


def _of_info(info: Mapping[str, Any], counted: bool) -> Server:
    """Of SGLang's arguments, null where one is not given, or of Eyas's settings in effect."""
    version = printable(info.get("version"))
    if info.get("engine") == "eyas":
        settings = info.get("speculation")
        speculates = settings is not None if "speculation" in info else None
        ceiling = _ceiling(settings) if isinstance(settings, dict) else None
        return Server("eyas", version, speculates, counted, ceiling)
    known = "speculative_algorithm" in info
    speculates = info["speculative_algorithm"] is not None if known else None
    kind: Kind = "sglang" if known or "internal_states" in info else "other"
    given = {name: info.get(f"speculative_{name}") for name in _SETTINGS}
    return Server(kind, version, speculates, False, _ceiling(given) if speculates else None)


def _of_props(props: Mapping[str, Any], text: str) -> Server:
    """llama.cpp's. It does not say whether it speculates."""
    version = printable(props.get("build_info"))
    counted = counters.has_counters(counters.read_metrics(text))
    return Server("llama.cpp", version, None, counted) if version is not None else Server("other")


def _ceiling(settings: Mapping[str, Any]) -> int | None:
    values = [settings.get(name) for name in _SETTINGS]
    if not all(isinstance(v, int) and not isinstance(v, bool) and 0 < v <= MAX_STEPS for v in values):
        return None
    steps, tokens, topk = values
    return metrics.ceiling(steps, tokens, topk) if steps and tokens and topk else None


async def _version(http: Http, path: str) -> str | None:
    reply = await http.get(path)
    return printable(reply.json().get("version")) if reply.status == 200 else None


def printable(version: Any) -> str | None:
    """A version if it can be shown."""
    fits = isinstance(version, str) and version.isprintable() and len(version) <= 60
    return version if fits else None


async def only_model(http: Http) -> str:
    """The name of the model that is served. Raises ``server.refused`` where there is not one alone."""
    data = (await http.get("/v1/models")).json().get("data")
    names = [m["id"] for m in data if isinstance(m, dict) and isinstance(m.get("id"), str)] if is_list(data) else []
    if len(names) != 1:
        raise EyasError("server.refused", f"{http.root} serves {len(names)} models", "name the model that is meant")
    return names[0]


async def counters_now(http: Http) -> counters.Gauges:
    """The known figures of /metrics. Raises ``server.refused``, ``server.metrics``."""
    reply = (await http.get("/metrics")).whole()
    return counters.read_metrics(reply.body.decode(errors="replace"))


async def gauge(http: Http) -> float | None:
    """SGLang's own mean accept length, over other traffic too; None: it does not say."""
    reply = await http.get("/metrics")
    if reply.status != 200:
        return None
    found = counters.read_metrics(reply.body.decode(errors="replace"))
    value = found.get("sglang:spec_accept_length", {}).get(0, 0.0)
    return value if value >= 1 else None
