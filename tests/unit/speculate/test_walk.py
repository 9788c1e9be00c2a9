import pytest

from eyas.config import SpeculativeSettings
from eyas.metrics import Round, completion_tokens
from eyas.models.target import Target
from eyas.speculate.tree import Tree
from eyas.speculate.walk import BEYOND, forced_tokens, walk_text
from rigs import Oracle, chain, random_draft, random_target

PROMPT = (1, 2, 3)


class Right(Oracle):
    """As many right drafts as the test says."""

    def __init__(self, answer: list[int], counts: list[int]) -> None:
        super().__init__({PROMPT: answer}, 128)
        self.counts = iter(counts)

    def wanted_count(self, position: int, num_steps: int) -> int:
        return next(self.counts)


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(layers=2)


def test_each_round_jumps_the_accepted_drafts_and_one(target: Target) -> None:
    answer = list(range(20, 32))
    rounds = walk_text(target, Right(answer, [0, 3, 2, 0, 1]), PROMPT, answer, chain(3))
    assert rounds == [Round(0, 3), Round(3, 3), Round(2, 3), Round(0, 3), Round(1, 3)]
    assert completion_tokens(rounds) == len(answer)


@pytest.mark.parametrize(
    ("length", "last"),
    [(5, Round(3, 3)), (4, Round(3, 3, cut=True)), (3, Round(2, 3, cut=True)), (2, Round(1, 3, cut=True))],
)
def test_the_answers_end_cuts_the_last_round(target: Target, length: int, last: Round) -> None:
    answer = list(range(20, 20 + length))
    assert walk_text(target, Right(answer, [3]), PROMPT, answer, chain(3)) == [last]


def test_an_answer_of_one_token_has_no_rounds(target: Target) -> None:
    assert walk_text(target, Right([5], []), PROMPT, [5], chain(3)) == []


def test_forced_tokens_stand_on_the_texts_own_path() -> None:
    tree = Tree((9, 1, 2, 1, 3), (-1, 0, 0, 1, 2))
    assert forced_tokens(tree, [2, 3, 4]) == [2, BEYOND, 3, BEYOND, 4]
    assert forced_tokens(tree, [2, 3]) == [2, BEYOND, 3, BEYOND, BEYOND]
    assert forced_tokens(tree, [7, 3]) == [7, BEYOND, BEYOND, BEYOND, BEYOND]


def test_drawn_proposals_have_no_walk(target: Target) -> None:
    settings = SpeculativeSettings(num_steps=2, num_draft_tokens=3, draft_sampling="probabilistic")
    with pytest.raises(AssertionError, match="chance"):
        walk_text(target, random_draft(target), PROMPT, [4, 5], settings)
