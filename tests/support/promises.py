"""Facts and a contract of the tiny pair, as far as a witness of it needs them."""

from __future__ import annotations

from eyas.contract import Contract, DataFacts, DataSource, FeatureFormat, Rendering, TargetIdentity
from eyas.corpus.samples import LOSS_MASK_RULE, SampleFacts
from eyas.draft.checkpoint import draft_facts, target_shape
from eyas.draft.model import DraftModel
from eyas.models.target import Target

SELF = DataSource(name="self-sampled", licence="Apache-2.0")
RENDERING = Rendering(thinking="none", system_prompt="none", system_prompt_text=None)


def facts(*sources: DataSource) -> SampleFacts:
    return SampleFacts(
        tokenizer_sha256="b" * 64,
        chat_template_sha256=None,
        target_weights_sha256="a" * 64,
        rendering=RENDERING,
        loss_mask_rule=LOSS_MASK_RULE,
        sources=sources or (SELF,),
    )


def contract_of(target: Target, draft: DraftModel) -> Contract:
    known = draft_facts(draft)
    return Contract(
        schema_version=2,
        basis="training",
        target=TargetIdentity(**target_shape(target).model_dump(), weights_sha256="a" * 64),
        tokenizer_sha256="b" * 64,
        chat_template_sha256=None,
        rendering=RENDERING,
        taps=known.taps or (),
        norms=known.norms,
        rope=known.rope,
        vocab_map_sha256=known.vocab_map_sha256,
        longest_trained_position=100,
        features=FeatureFormat(dtype="float32", quantisation=None),
        loss_mask_rule=LOSS_MASK_RULE,
        data=DataFacts(conversations=1, answer_tokens=1, sources=(SELF,)),
        expected=(),
    )
