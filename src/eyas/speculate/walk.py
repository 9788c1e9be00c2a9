"""The walk: a draft replayed over a text that the target wrote, jumping a + 1 tokens each round.

The target reads the whole text once; the proposals and their acceptance are those of a served round. So with row-exact
numerics its accepted counts are exactly those that the engine shows for this text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from eyas.config import SamplingSettings, SpeculativeSettings
from eyas.draft.model import DraftModel
from eyas.metrics import Round
from eyas.models.reading import read_text
from eyas.models.target import Target
from eyas.speculate.accept import walk
from eyas.speculate.propose import DraftProposer, Proposal, Proposer, fitting, scratch_slots
from eyas.speculate.round import Outcome
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree

BEYOND = -1
"""Stands for the token after the text's end, which is not known; no proposal equals it."""


def walk_text(
    target: Target,
    proposer: Proposer | DraftModel,
    prompt: Sequence[int],
    answer: Sequence[int],
    settings: SpeculativeSettings,
    sampling: SamplingSettings | None = None,
) -> list[Round]:
    """The rounds by which ``answer`` would have come after ``prompt``, one-hot proposals only.

    The answer's first token comes from the prefill and belongs to no round. ``answer`` is taken to end by a stop or a
    limit. A :class:`DraftProposer` needs a cache of len(prompt) + len(answer) + ``scratch_slots(settings)`` slots.
    """
    assert settings.draft_sampling == "one-hot", "accepting a drawn proposal is a matter of chance"
    assert prompt
    assert answer
    text = [*prompt, *answer]
    num_slots = len(text) + scratch_slots(settings)
    if isinstance(proposer, DraftModel):
        proposer = DraftProposer(proposer, proposer.new_cache(num_slots))
    features = read_text(target, text[:-1], proposer.taps).features if proposer.taps else None
    state = DecodeState(list(prompt), len(prompt), sampling or SamplingSettings(), list(range(num_slots)))
    _commit(state, answer[:1], features)
    rounds = []
    while len(state.tokens) < len(text):
        wanted = fitting(settings, state, target.max_positions)
        tree = proposer.propose([state], [wanted])[0].tree
        following = text[len(state.tokens) :]
        accepted, last = walk(tree, forced_tokens(tree, following))
        tokens = (*(tree.tokens[node] for node in accepted), last)
        kept = min(len(tokens), len(following))
        rounds.append(Outcome(tree, tuple(accepted), tokens).counted(kept))
        _commit(state, tokens[:kept], features)
    return rounds


class Recorder:
    """A proposer that remembers the chains it proposed."""

    def __init__(self, inner: DraftProposer) -> None:
        self.inner, self.taps = inner, inner.taps
        self.chains: list[tuple[int, ...]] = []

    def propose(self, states: Sequence[DecodeState], settings: Sequence[SpeculativeSettings | None]) -> list[Proposal]:
        proposals = self.inner.propose(states, settings)
        self.chains += [tuple(proposal.tree.tokens[1:]) for proposal in proposals]
        return proposals


def whole_rounds(
    target: Target, draft: DraftModel, prompt: Sequence[int], answer: Sequence[int], settings: SpeculativeSettings
) -> tuple[list[tuple[int, ...]], list[Round]]:
    """(chains, rounds) of the walk up to the first round that is cut or shorter than asked for."""
    slots = len(prompt) + len(answer) + scratch_slots(settings)
    recorder = Recorder(DraftProposer(draft, draft.new_cache(slots)))
    rounds = walk_text(target, recorder, prompt, answer, settings)
    whole = [not one.cut and one.proposed == settings.num_steps for one in rounds]
    count = whole.index(False) if False in whole else len(whole)
    return recorder.chains[:count], rounds[:count]


def rounds_of(accepted: Sequence[int], begin: int, end: int, num_steps: int) -> Iterator[Round]:
    """The rounds of a chain of ``num_steps`` over the answer ``begin`` … ``end``, given how many proposals of each row
    the text would accept.

    The first token of an answer comes from the prefill; the slot of a round stands one before its root. A round whose
    drafts reach the answer's last token is cut: the target's own token was not needed.
    """
    root = begin
    while root < end - 1:
        a, left = min(accepted[root - 1], num_steps), end - 1 - root
        if a >= left:
            yield Round(left, num_steps, cut=True)
            break
        yield Round(a, num_steps)
        root += a + 1


def forced_tokens(tree: Tree, following: Sequence[int]) -> list[int]:
    """What the target answers at each node of ``tree`` if ``following`` is its text after the root.

    ``BEYOND`` where it cannot be known: at nodes off the text's own path, and after its end.
    """
    forced = [BEYOND] * len(tree)
    node: int | None = 0
    for token in following:
        if node is None:
            break
        forced[node] = token
        node = next((child for child in tree.children[node] if tree.tokens[child] == token), None)
    return forced


def _commit(state: DecodeState, tokens: Sequence[int], features: Tensor | None) -> None:
    """Add tokens, and the rows before the last of them."""
    state.tokens += tokens
    rows = slice(state.cached, len(state.tokens) - 1)
    state.take(state.spare[: rows.stop - rows.start], None if features is None else features[rows])
