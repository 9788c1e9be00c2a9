"""What ``eyas data sample`` puts together: the target, the filters, the evaluation sets, the files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eyas.artifacts import MANIFEST, atomic_write, cache_root, hold_lock, read_manifest, write_json
from eyas.cli.options import open_model, with_progress
from eyas.corpus.prompts import write_prompts
from eyas.data.draws import Draw, DrawJournal
from eyas.data.filters import FilterSettings, Sieve, rules_for
from eyas.data.overlap import Evaluation, evaluation_texts
from eyas.data.selfsample import Openings, Sampled, SelfSampleSettings, UserSampler, sample_prompts
from eyas.data.surprise import mean_surprise
from eyas.engine.session import Session, facts_of
from eyas.errors import EyasError
from eyas.pull import load_prompts, resolve_model

NOT_STATED = "not stated"


@dataclass(frozen=True)
class SampleJob:
    """What was asked for. ``avoid``: evaluation sets, or ("none",)."""

    model: str
    out: Path
    count: int
    settings: SelfSampleSettings
    filters: FilterSettings
    avoid: tuple[str, ...]
    licence: str | None
    batch: int


def run_sample(job: SampleJob, dtype: str, backend: str, threads: int | None, quiet: bool) -> dict[str, Any]:
    """Draw, filter and write the prompts; returns the report, which also lies beside the draws."""
    if job.out.suffix != ".jsonl":
        fix = f"write --out {job.out.with_suffix('.jsonl')}"
        raise EyasError("flags.range", f"--out {job.out} does not end in .jsonl", fix)
    folder = with_progress(lambda progress: resolve_model(job.model, cache_root(), progress), quiet)
    evaluation = with_progress(partial(_evaluation, job.avoid), quiet)
    session = open_model(job.model, None, dtype, backend, threads, quiet)
    draws = job.out.with_name(f"{job.out.name}.draws")
    sampler = UserSampler(session, job.settings, Openings.packaged(), job.batch)
    known = facts_of(folder, session.tokenizer).model_dump(mode="json")
    depends = {**sampler.depends(), **known, "dtype": dtype}
    sieve: Sieve[Draw] = Sieve(rules_for(job.filters, *_measures(session, sampler, evaluation)), lambda draw: draw.text)
    origin = (job.model, job.licence or _licence(folder))
    with hold_lock(draws, "draws"), DrawJournal(draws, depends) as journal:
        sampled = with_progress(
            lambda progress: sample_prompts(sampler, sieve, journal, job.count, origin, progress), quiet
        )
        atomic_write(job.out, write_prompts(sampled.prompts))
        report = _report(job, sampled)
        write_json(draws / "report.json", report)
    return report


def _evaluation(avoid: tuple[str, ...], progress: Any) -> Evaluation | None:
    if avoid == ("none",):
        return None
    prompts = [prompt for name in avoid for prompt in load_prompts(name, cache_root(), progress=progress)]
    return Evaluation(evaluation_texts(prompts))


def _measures(session: Session, sampler: UserSampler, evaluation: Evaluation | None) -> tuple[Any, Any, Any]:
    def encode(text: str) -> list[int]:
        return list(session.tokenizer(text, add_special_tokens=False)["input_ids"])

    before = encode(sampler.turn.before)
    return (
        lambda text: len(encode(text)),
        evaluation,
        lambda text: mean_surprise(session.target, before, encode(text)),
    )


def _licence(folder: Path) -> str:
    manifest = read_manifest(folder).provenance if (folder / MANIFEST).is_file() else {}
    return str(manifest.get("licence", NOT_STATED))


def _report(job: SampleJob, sampled: Sampled) -> dict[str, Any]:
    domains = [prompt.domain for prompt in sampled.prompts]
    return {
        "out": str(job.out),
        "prompts": len(sampled.prompts),
        "draws": sampled.draws,
        "dropped": sampled.dropped,
        "domains": {domain: domains.count(domain) for domain in sorted(set(domains))},
        "source": sampled.prompts[0].source,
        "licence": sampled.prompts[0].licence,
    }
