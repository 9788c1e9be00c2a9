"""Servers that speak of speculation as SGLang, vLLM and Eyas do, and that hang, lie or send garbage on demand."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Rounds = Sequence[int]
Body = dict[str, Any]
Replace = Callable[["FakeEngine", str, Body | None], "tuple[int, bytes] | None"]
"""(server, path, body of a POST) → status and body in place of the usual ones; None: as usual."""


class FakeEngine:
    """Answers request i with ``rounds[i]``, accepted drafts per round, K proposed in each. Use as a context.

    ``flavour``: "sglang" (meta_info, server_info), "vllm" (counters), "vllm-request" (per-request metrics), "eyas".
    """

    def __init__(self, flavour: str, rounds: Sequence[Rounds], K: int = 3, replace: Replace | None = None) -> None:
        self.flavour, self.rounds, self.K, self.replace = flavour, rounds, K, replace
        self.requests: list[tuple[str, Body]] = []
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeEngine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answered(self) -> list[int]:
        """Accepted drafts of all rounds so far."""
        return [a for rounds in self.rounds[: len(self.requests)] for a in rounds]

    def reply(self, path: str, body: Body | None) -> tuple[int, Any]:
        if body is not None:
            self.requests.append((path, body))
            return 200, self.answer(path, self.rounds[len(self.requests) - 1])
        if path == "/v1/models":
            return 200, {"data": [{"id": "m"}]}
        if path == "/metrics" and self.flavour.startswith("vllm"):
            return 200, vllm_counters(self.answered(), self.K)
        if path == "/version" and self.flavour.startswith("vllm"):
            return 200, {"version": "0.32.0"}
        if path == "/server_info" and self.flavour == "sglang":
            return 200, {"version": "0.5.23", "speculative_algorithm": "EAGLE3", "internal_states": [{}]}
        return 404, {"detail": "Not Found"}

    def answer(self, path: str, rounds: Rounds) -> Body:
        completion = 1 + sum(a + 1 for a in rounds)
        tokens = list(range(completion))
        if self.flavour == "sglang":
            meta = {"completion_tokens": completion, **sglang_meta(rounds, self.K, completion)}
            if path == "/generate":
                return {"text": "said", "output_ids": tokens, "meta_info": meta}
            return {
                "choices": [{"message": {"content": "said"}, "meta_info": meta}],
                "usage": {"completion_tokens": completion},
            }
        first: Body = {"text": "said"} if path == "/v1/completions" else {"message": {"content": "said"}}
        said: Body = {"choices": [first | {"token_ids": tokens}], "usage": {"completion_tokens": completion}}
        histogram = histogram_of(rounds)
        if self.flavour == "vllm-request":
            figures = {
                "acceptance_histogram": histogram,
                "num_spec_steps": len(rounds),
                "num_accepted_draft_tokens": sum(rounds),
            }
            said["metrics"] = {"speculative_decoding": figures | {"num_draft_tokens": len(rounds) * self.K}}
        if self.flavour == "eyas":
            said["speculation"] = {"accepted_histogram": histogram, "cut_rounds": 0}
        return said


def histogram_of(rounds: Rounds) -> list[int]:
    return [list(rounds).count(i) for i in range(max(rounds, default=0) + 1)]


def sglang_meta(rounds: Rounds, K: int, completion: int) -> Body:
    return {
        "spec_accept_rate": sum(rounds) / (len(rounds) * K),
        "spec_accept_length": completion / len(rounds),
        "spec_num_correct_drafts": sum(rounds),
        "spec_num_proposed_drafts": len(rounds) * K,
        "spec_verify_ct": len(rounds),
        "spec_correct_drafts_histogram": histogram_of(rounds),
    }


def vllm_counters(rounds: Rounds, K: int) -> bytes:
    """Two engines' worth of labels, as data parallelism has them; the second is idle."""
    named = {"num_drafts": len(rounds), "num_draft_tokens": len(rounds) * K, "num_accepted_tokens": sum(rounds)}
    lines = ["# HELP vllm:spec_decode_num_drafts Number of spec decoding drafts."]
    for engine in (0, 1):
        label = f'engine="{engine}",model_name="m"'
        lines += [f"vllm:spec_decode_{name}_total{{{label}}} {float(n) * (1 - engine)}" for name, n in named.items()]
        lines += [
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{label},position="{i}"}} '
            f"{float(sum(a > i for a in rounds)) * (1 - engine)}"
            for i in range(K)
        ]
    return "\n".join([*lines, 'vllm:e2e_request_latency_seconds_bucket{le="+Inf"} 3', "not a line at all"]).encode()


def _handler(engine: FakeEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: Body | None) -> None:
            replaced = engine.replace(engine, self.path, body) if engine.replace else None
            status, said = replaced or engine.reply(self.path, body)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def hang(engine: FakeEngine, path: str, body: Body | None) -> tuple[int, bytes] | None:
    """Never answers a request for text."""
    if body is not None:
        engine.closing.wait(20)
    return None


def drip(engine: FakeEngine, path: str, body: Body | None) -> tuple[int, bytes] | None:
    """Answers the first look late enough that only a bound over the whole can end it."""
    time.sleep(0.15)
    return None
