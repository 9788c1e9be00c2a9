"""The engine's process itself, of the tiny pair: killed in the middle of an answer, and without its parent."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from eyas.errors import EyasError
from eyas.serve.frames import framed
from eyas.serve.process import EngineProcess
from eyas.testing import load_tiny_draft, load_tiny_target, tiny_pair
from support.engine_processes import ask, running, text_of, tiny_settings, whole
from support.promises import contract_of

PARENT = """
import asyncio
from eyas.serve.process import EngineProcess
from support.engine_processes import tiny_settings

async def main():
    process = EngineProcess(tiny_settings())
    await process.start()
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_killed_in_the_middle_of_an_answer_it_comes_back_and_answers_the_same() -> None:
    async def story() -> None:
        said: list[str] = []
        async with running(EngineProcess(tiny_settings(), say=said.append)) as process:
            before = text_of(await whole(process, ask("before", 2, 40)))
            pieces = process.answer(ask("killed", 2, 400))
            await anext(pieces)
            others = asyncio.create_task(whole(process, ask("beside", 1, 400)))
            await asyncio.sleep(0)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            with pytest.raises(EyasError, match=r"engine\.died"):
                _ = [piece async for piece in pieces]
            with pytest.raises(EyasError, match=r"engine\.died"):
                await others
            while process.ready is None:
                await asyncio.sleep(0.05)
            assert process.restarts == 1
            assert text_of(await whole(process, ask("after", 2, 40))) == before
            assert process.status is not None
        assert any("started again" in line for line in said)
        assert not any(before[:10] in line for line in said)

    asyncio.run(asyncio.wait_for(story(), 300))


def test_it_ends_when_its_parent_is_gone() -> None:
    tests = Path(__file__).parent.parent
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(tests)}
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the engine's process outlives its parent"
        time.sleep(0.05)


def test_it_ends_when_its_parent_is_gone_while_it_still_loads(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        os.mkfifo(tmp_path / name)
    settings = tiny_settings().model_copy(update={"target": tmp_path, "tokenizer": tmp_path})
    command = [sys.executable, "-P", "-m", "eyas.serve.worker"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert child.stdin is not None
    child.stdin.write(framed(settings.model_dump_json().encode()))
    # Nobody ever writes into what it reads; the end of its stdin is all that it can notice.
    child.stdin.close()
    try:
        assert child.wait(120) == 0
    finally:
        child.kill()


def test_a_draft_whose_contract_says_otherwise_is_refused_at_the_start(tmp_path: Path) -> None:
    target = load_tiny_target()
    draft = shutil.copytree(tiny_pair()[1], tmp_path / "draft")
    (draft / "contract.json").write_text(contract_of(target, load_tiny_draft(target)).to_json())

    async def story() -> None:
        process = EngineProcess(tiny_settings(speculative_draft_model_path=str(draft)))
        with pytest.raises(EyasError) as caught:
            await process.start()
        assert caught.value.code == "contract.mismatch"
        assert "weights_sha256" in caught.value.cause
        assert process.restarts == 0

    asyncio.run(asyncio.wait_for(story(), 120))
