"""Eyas's own HTTP side under measurement: tokens counted by their ids, figures from the answers, its refusals."""

from __future__ import annotations

from eyas.bench.client import Clock
from eyas.bench.run import Address, bench
from eyas.bench.settings import BenchSettings
from eyas.corpus.prompts import Prompt
from eyas.serve.api import ApiSettings
from support.fake_engine_client import FakeEngine
from support.http_rig import serving

PROMPTS = [Prompt(id=f"p{i}", messages=({"role": "user", "content": f"question {i}"},)) for i in range(4)]
SPECULATION = {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}


def test_eyas_against_itself():
    """The fake engine's pieces hold three tokens: two drafts of three accepted, and the target's own."""
    with serving(FakeEngine(), settings=ApiSettings(speculation=SPECULATION, keys=("sk-secret",))) as rig:
        key = "sk-secret"
        both = [Address("speculating", rig.url, key=key), Address("plain", rig.url, key=key, plain=True)]
        settings = BenchSettings(concurrency=(1, 2), warmup=1, max_tokens=200)
        result = bench(both, PROMPTS, settings, lambda step: None, Clock())
    ours = result.targets[0].server
    assert (ours.kind, ours.speculates, ours.ceiling) == ("eyas", True, 4)
    asked = [ask.speculation for ask in rig.engine.asks]
    assert asked[:2].count(None) == 1, "warm-up"
    assert len(set(asked)) == 2
    for level in result.levels:
        speculating, _ = level.figures
        assert (speculating.answered, speculating.faults, speculating.doubts) == (4, {}, 0)
        assert speculating.told == "counted"
        first = level.blocks[0][0].outcomes[0]
        chunks = [chunk.tokens for chunk in first.chunks]
        assert (speculating.tokens, sum(n or 0 for n in chunks)) == (4 * (first.completion or 0), first.completion)
        assert set(chunks[:-1]) == {3}
        assert speculating.accept is not None
        assert speculating.accept.source == "answers"
        assert level.paired is not None
        assert level.paired.same_text == 4


def test_its_errors_within_a_stream_are_counted():
    engine = FakeEngine(failure=RuntimeError("lost"), fail_after=1)
    with serving(engine) as rig:
        settings = BenchSettings(warmup=0, max_tokens=200)
        result = bench([Address("server", rig.url)], PROMPTS, settings, lambda step: None, Clock())
    (figures,) = result.levels[0].figures
    assert figures.faults == {"error": 4}
