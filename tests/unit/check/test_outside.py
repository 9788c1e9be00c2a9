"""A server judged over the walk: vLLM's own counting at a text's end, its own text, named faults, unknowns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from eyas.check.conclude import conclude
from eyas.check.endpoint_read import Observation
from eyas.check.evidence import answered
from eyas.check.findings import Finding
from eyas.check.forced import Text
from eyas.check.hypotheses import DECLARED, single_changes
from eyas.check.measure import Rig, accepted_counts
from eyas.check.outside import Asked, judge_server
from eyas.check.readings import Reading, arrange, declared
from eyas.check.run import CheckRequest, Progress, _run_levels, run_check
from eyas.check.ways import ways_of
from eyas.dialects.counters import Counts, total_of
from eyas.dialects.flags import Resolution
from eyas.draft.checkpoint import read_draft
from eyas.errors import EyasError
from eyas.servers.figures import Answered
from eyas.speculate.walk import rounds_of
from eyas.testing import load_tiny_target, tiny_pair, tiny_prompts

K, TOKENS, BEYOND = 3, 40, 6
TARGET = load_tiny_target()
DRAFT = read_draft(Path(tiny_pair()[1]), TARGET)
PROMPTS = [list(prompt) for prompt in tiny_prompts()[:8]]
LONG = [text.conversation for text in answered(TARGET, PROMPTS, (), TOKENS + BEYOND)]
ANSWERS = [answer[:TOKENS] for _, answer in LONG]
RIG = Rig(DRAFT, TARGET, Text.read_all(TARGET, [(p, a[:TOKENS]) for p, a in LONG]))
NOW = declared(DRAFT.config)


def served(reading: Reading = NOW, num_steps: int = K, longer: list[tuple[list[int], list[int]]] = LONG) -> Observation:
    """As vLLM counts: the last round with all its drafts, however many of them lie beyond the end."""
    view, requests = arrange(DRAFT, reading, TARGET), []
    for text in Text.read_all(TARGET, longer):
        rounds, said = [], 1
        for one in rounds_of(accepted_counts(view, reading, text, num_steps), text.prompt, len(text.tokens), num_steps):
            if said >= TOKENS:
                break
            rounds.append(one.accepted)
            said += one.committed
        histogram = tuple(rounds.count(i) for i in range(num_steps + 1))
        counts = Counts(len(rounds), sum(rounds), num_steps * len(rounds), histogram, TOKENS, said > TOKENS)
        tokens = tuple(text.tokens[text.prompt : text.prompt + TOKENS].tolist())
        requests.append(Answered(tokens, None, counts))
    total = total_of([one.counts for one in requests if one.counts])
    return Observation(tuple(requests), "vllm", "0.32.0", total, True)


def kinds(findings: object) -> list[tuple[str, str]]:
    return [(f.kind, f.weight) for f in findings]  # type: ignore[attr-defined]


def test_a_right_server_is_proven_to_the_round_also_where_a_text_ends() -> None:
    seen = served()
    assert any(one.counts and one.counts.cut for one in seen.requests)
    findings, link, ranking = judge_server(seen, RIG, ANSWERS, Asked(K))
    assert (findings, link.state) == ([], "proven")
    assert "8 of 8 requests exact to the round" in link.said
    assert ranking[0].name == DECLARED


FAULTS = {
    "fed taps": replace(NOW, taps=tuple(tap + 1 for tap in NOW.taps)),
    "norm_output": replace(NOW, norm_output=not NOW.norm_output),
    "features one position late": replace(NOW, feature_shift=-1),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_said_of_the_server(name: str) -> None:
    findings, link, ranking = judge_server(served(FAULTS[name]), RIG, ANSWERS, Asked(K))
    assert kinds(findings) == [("endpoint.mismatch", "fault")]
    assert name in findings[0].said
    assert "trained" not in findings[0].said
    assert findings[0].data["kinds"]
    assert (link.state, ranking[0].name[: len(name)]) == ("broken", name)


def test_a_server_with_the_taps_of_training_is_told_from_its_files() -> None:
    """The files are wrong, the check knows better, and the server runs what the check found."""
    trained = replace(NOW, taps=(0, *NOW.taps[:-1]))
    findings, _, _ = judge_server(served(trained), RIG, ANSWERS, Asked(K, trained=trained))
    assert "as the check finds that it was trained" in findings[0].said


def test_vllm_says_itself_how_many_drafts_it_proposes() -> None:
    findings, link, _ = judge_server(served(num_steps=2), RIG, ANSWERS, Asked(K))
    assert (findings, link.state) == ([], "proven")
    seen = replace(served(num_steps=1), engine="sglang")
    assert "K = 1" in judge_server(seen, RIG, ANSWERS, Asked(K))[0][0].said


def test_the_walk_goes_over_the_servers_own_text() -> None:
    """It parts from the target's after half of it, and its drafts are accepted as that text wants."""
    second = TARGET.vocab_size - 5
    begun = [(prompt + answer[:20], [second]) for prompt, answer in LONG]
    rest = [text.conversation[1] for text in answered(TARGET, [p + a for p, a in begun], (), TOKENS + BEYOND - 21)]
    other = [
        (p, [*a[:20], second, *tail]) for (p, a), tail in zip(LONG, rest, strict=True)
    ]  # fmt: skip
    findings, link, _ = judge_server(served(longer=other), RIG, ANSWERS, Asked(K))
    assert kinds(findings) == [("endpoint.other-text", "warning")]
    assert "logits below" in findings[0].evidence
    assert link.state == "proven"


def test_near_ties_are_noted_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.check.outside.NEAR_TIE", 1e9)
    seen = served()
    parted = replace(seen.requests[0], tokens=(*(seen.requests[0].tokens or ())[:-1], 7))
    findings, link, _ = judge_server(replace(seen, requests=(parted, *seen.requests[1:])), RIG, ANSWERS, Asked(K))
    assert kinds(findings) == [("endpoint.other-text", "note")]
    assert link.state == "proven"


def test_tokens_that_the_target_lacks_are_refused() -> None:
    seen = served()
    wrong = replace(seen.requests[0], tokens=(TARGET.vocab_size,))
    with pytest.raises(EyasError) as error:
        judge_server(replace(seen, requests=(wrong, *seen.requests[1:])), RIG, ANSWERS, Asked(K))
    assert error.value.code == "server.metrics"


def test_what_cannot_be_compared_is_unknown() -> None:
    seen = served()
    tree = Asked(K, Resolution(3, 4, 8, ()), ceiling=4)
    assert judge_server(seen, RIG, ANSWERS, tree)[1].state == "unknown"
    silent = tuple(replace(one, counts=None) for one in seen.requests)
    gauge = Observation(silent, "sglang", None, None, True, gauge=1.5)
    findings, link, _ = judge_server(gauge, RIG, ANSWERS, Asked(K))
    assert (findings, link.state) == ([], "unknown")
    assert "accept length 1.50 over all its traffic" in link.said
    assert judge_server(replace(seen, requests=seen.requests[:2]), RIG, ANSWERS, Asked(K))[1].state == "unknown"


def test_a_server_without_speculation_is_broken() -> None:
    silent = tuple(replace(one, counts=None) for one in served().requests)
    findings, link, _ = judge_server(Observation(silent, "vllm", None, None, False), RIG, ANSWERS, Asked(K))
    assert (kinds(findings), link.state) == ([("endpoint.plain", "fault")], "broken")


def test_the_flags_say_what_a_round_should_propose() -> None:
    findings, _, _ = judge_server(served(), RIG, ANSWERS, Asked(K, Resolution(1, 1, 2, ()), ceiling=2))
    assert ("endpoint.ceiling", "fault") in kinds(findings)


def test_hypotheses_are_said_of_a_server() -> None:
    layers = TARGET.num_layers
    names = [way.name for way in ways_of(RIG, None, K)]
    assert names[0] == DECLARED
    assert len(names) == len(set(names))
    assert not any("trained on" in name for name in names)
    shifted = [tuple(tap + shift for tap in NOW.taps) for shift in (1, -1)]
    for taps, who in zip(shifted, ("SGLang reads ids that are meant for vLLM", "vLLM reads"), strict=True):
        if all(0 <= tap <= layers for tap in taps):
            assert any(f"fed taps ({', '.join(map(str, taps))})" in name and who in name for name in names)
    others = Rig(read_draft(Path(tiny_pair()[1]), TARGET), TARGET, RIG.texts)
    others.model.config = DRAFT.config.model_copy(update={"taps": tuple(tap + 1 for tap in NOW.taps)})
    assert any("which engines take where they read no layer ids" in way.name for way in ways_of(others, None, K))
    assert len(names) > len(list(single_changes(NOW, DRAFT.config, None, False)))


@pytest.mark.parametrize(
    ("flags", "said", "state"),
    [
        ("--speculative-algorithm EAGLE3 --speculative-num-steps 3", "it would not start", "broken"),
        ("--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1", "at most 4", "proven"),
    ],
)
def test_the_flags_link_says_what_is_known(flags: str, said: str, state: str) -> None:
    verdict = run_check(
        CheckRequest(draft=Path(tiny_pair()[1]), target=None, flags=f"{flags} --speculative-draft-model-path d")
    )
    link = next(link for link in verdict.links if link.name == "flags")
    assert said in link.said
    assert "None" not in link.said
    assert link.state == state


def test_a_server_that_nothing_explains_leaves_the_verdict_open() -> None:
    finding = Finding("endpoint.unexplained", "endpoint", "warning", "no hypothesis predicts it")
    state = SimpleNamespace(
        links=[], findings=[finding], seconds={}, static=None, replay=None, search=None, survival=None, outside=[]
    )
    verdict = conclude(state)
    assert (verdict.answer, verdict.exit_code, verdict.headline) == ("undecided", 3, finding.said)


def test_what_an_engine_cannot_do_leaves_the_witness_to_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReplayedError(Exception):
        pass

    def replayed(*_: object) -> None:
        raise ReplayedError

    monkeypatch.setattr("eyas.check.run.replay", replayed)
    monkeypatch.setattr("eyas.check.run.model_of", lambda *_: DRAFT)
    limit = Finding("engine.limit", "static", "fault", "sglang cannot capture tap 0")
    static = SimpleNamespace(witness=object(), contract=object(), faults=[limit], folder=Path("d"), config=None)
    state = Progress(CheckRequest(draft=Path("d"), target=None), lambda _: None, static=static)  # type: ignore[arg-type]
    with pytest.raises(ReplayedError):
        _run_levels(state, SimpleNamespace(target=TARGET), DRAFT)  # type: ignore[arg-type]
