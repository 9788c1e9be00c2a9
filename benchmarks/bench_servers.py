"""Throughput of servers side by side: Eyas's beside llama.cpp's and vLLM's, plain and with the same draft.

    python benchmarks/bench_servers.py [--llama-cpp FOLDER] [--vllm PYTHON] [--concurrency 1,8,32] [--out FILE]

All servers are up at once and take turns, block by block, under the same requests (``eyas bench`` measures them), so
that a noisy machine disturbs all. ``--llama-cpp``: a llama.cpp source tree with ``build/bin/llama-server``, whose
converter needs sentencepiece in this environment;
``--vllm``: the Python of an environment with vLLM. What is not given does not run, and the result says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console

from eyas.artifacts import cache_root, write_json
from eyas.bench.client import Clock
from eyas.bench.report import document, show
from eyas.bench.run import Address, Step, bench
from eyas.bench.settings import BenchSettings
from eyas.engine.session import builtin_draft_folder
from eyas.environment import environment
from eyas.kernels.bandwidth import read_bandwidth
from eyas.pull import load_prompts, resolve_model

MODEL = "builtin:smollm2-135m"
NAME = MODEL.removeprefix("builtin:")
"""By which the others serve it, in place of its folder."""
START_SECONDS = 900.0
SLOTS = 512
"""Tokens of a request at most, prompt and answer."""


@dataclass(frozen=True)
class Server:
    """How one is started; {port} stands for its port."""

    name: str
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


def eyas_servers(args: argparse.Namespace) -> Iterator[Server]:
    """With the draft, K as pays; and, as a server of its own, without."""
    threads, running = str(args.threads), str(max(args.levels))
    command = [sys.executable, "-m", "eyas", "serve", "--port", "{port}", "--threads", threads]
    command += ["--max-running-requests", running, "--max-total-tokens", str(SLOTS * max(args.levels))]
    for dtype in args.dtypes.split(","):
        kept = ["--quantization" if dtype == "int8" else "--dtype", dtype]
        yield Server(f"eyas {dtype}", [*command, *kept, "--speculative-algorithm", "NONE"])
        draft = ["--speculative-num-steps", str(args.steps)]
        yield Server(f"eyas {dtype} + draft", [*command, *kept, *draft])


def llama_servers(args: argparse.Namespace, target: Path, draft: Path, folder: Path) -> Iterator[Server]:
    """llama.cpp's own server, in f32, q8_0 and as the file named has it, each plain and with the draft in f32."""
    tree = Path(args.llama_cpp)
    convert = [sys.executable, str(tree / "convert_hf_to_gguf.py")]
    paths = {"PYTHONPATH": str(tree / "gguf-py")}
    drafted = folder / "draft.gguf"
    run = [*convert, str(draft), "--target-model-dir", str(target), "--outtype", "f32", "--outfile", str(drafted)]
    _convert(run, paths)
    binary = args.llama_server or str(tree / "build" / "bin" / "llama-server")
    running = max(args.levels)
    models = {kind: folder / f"{kind}.gguf" for kind in ("f32", "q8_0")}
    for kind, model in models.items():
        _convert([*convert, str(target), "--outtype", kind, "--outfile", str(model)], paths)
    if args.gguf is not None:
        models[args.gguf.stem.rpartition(".")[2]] = args.gguf
    for kind, model in models.items():
        command = [binary, "-m", str(model), "--port", "{port}", "-t", str(args.threads), "-np", str(running)]
        command += ["-c", str(SLOTS * running), "--metrics", "--no-webui", "--alias", NAME]
        yield Server(f"llama.cpp {kind}", command)
        more = ["-md", str(drafted), "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(args.steps)]
        yield Server(f"llama.cpp {kind} + draft", [*command, *more])


def _convert(command: Sequence[str], variables: dict[str, str]) -> None:
    done = subprocess.run(command, env=os.environ | variables, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"llama.cpp's converter failed:\n{done.stderr[-2000:]}")


def vllm_servers(args: argparse.Namespace, target: Path, draft: Path) -> Iterator[Server]:
    """vLLM in fp32."""
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{args.threads - 1}" if args.threads > 1 else "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(args.threads),
    }
    command = [args.vllm, "-m", "vllm.entrypoints.openai.api_server", "--model", str(target), "--dtype", "float32"]
    command += ["--host", "127.0.0.1", "--port", "{port}", "--max-num-seqs", str(max(args.levels))]
    command += ["--max-model-len", str(SLOTS), "--enforce-eager", "--served-model-name", NAME]
    yield Server("vllm fp32", command, variables)
    how = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": args.steps}
    yield Server("vllm fp32 + draft", [*command, "--speculative-config", json.dumps(how)], variables)


@contextlib.contextmanager
def running(server: Server, folder: Path) -> Iterator[str]:
    """The URL of the server, once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", folder / f"{server.name}.log"
    command = [word.replace("{port}", str(port)) for word in server.command]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=os.environ | server.environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait(process, url, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    paths = "/ready", "/health"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{log.stem} ended with {process.returncode}:\n{log.read_text()[-3000:]}")
        for path in paths:
            try:
                with urllib.request.urlopen(url + path, timeout=5):
                    return
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    break
            except OSError:
                break
        time.sleep(0.5)
    raise SystemExit(f"{log.stem} did not start in {START_SECONDS:g} s:\n{log.read_text()[-3000:]}")


def main() -> None:
    args = _arguments()
    target, draft = resolve_model(MODEL, cache_root()), builtin_draft_folder(MODEL)
    assert draft is not None, "the package brings the draft"
    console = Console(stderr=True, highlight=False)
    torch.set_num_threads(args.threads)
    bandwidth = read_bandwidth()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folder = Path(place)
        servers = [*eyas_servers(args)]
        servers += llama_servers(args, target, draft, folder) if args.llama_cpp else []
        servers += vllm_servers(args, target, draft) if args.vllm else []
        addresses = []
        for server in servers:
            addresses.append(Address(server.name, stack.enter_context(running(server, folder))))
            console.print(f"{server.name} is up")
        prompts = [
            p for name in args.prompts.split(",") for p in load_prompts(f"prompts:{name}", cache_root())[: args.limit]
        ]
        settings = BenchSettings(
            concurrency=args.levels, requests=args.requests, max_tokens=args.max_tokens, ignore_eos=True, warmup=2
        )
        result = bench(addresses, prompts, settings, _shown(console), Clock())
    show(result, Console(highlight=False))
    said = document(result, environment(sys.argv), with_requests=False)
    left_out = [name for name, given in (("llama.cpp", args.llama_cpp), ("vllm", args.vllm)) if not given]
    said |= {"bandwidth_bytes_per_second": bandwidth, "threads": args.threads, "not_run": left_out}
    if args.out:
        write_json(args.out, said)


def _shown(console: Console):
    def show_step(step: Step) -> None:
        if step.done % 50 == 0 or step.done == step.total:
            console.print(f"{step.load}: {step.done} of {step.total}")

    return show_step


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", help="llama.cpp's source tree")
    parser.add_argument("--llama-server", help="its server, if it is not in build/bin")
    parser.add_argument("--vllm", help="the Python of an environment with vLLM")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--steps", type=int, default=3, help="K, for Eyas the ceiling")
    parser.add_argument("--dtypes", default="fp32,bf16,int8", help="of Eyas")
    parser.add_argument("--gguf", type=Path, help="a file of the same target for llama.cpp, e.g. the one it came from")
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--prompts", default="mt-bench,humaneval")
    parser.add_argument("--limit", type=int, default=16, help="prompts of each set")
    parser.add_argument("--requests", type=int, default=32, help="of each level and server")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.levels = tuple(int(level) for level in args.concurrency.split(","))
    return args


if __name__ == "__main__":
    main()
