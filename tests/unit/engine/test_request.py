import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.config import SamplingSettings
from eyas.engine.request import Request
from eyas.metrics import Round, completion_tokens
from eyas.speculate.round import Outcome
from eyas.speculate.state import DecodeState
from eyas.speculate.tree import Tree

PROMPT = (50, 51, 52)
STOP = 9


def started(max_tokens: int = 100) -> Request:
    """A request whose prompt has been answered with the token 1."""
    sampling = SamplingSettings(max_new_tokens=max_tokens)
    request = Request(PROMPT, sampling, None, max_tokens, frozenset({STOP}))
    state = DecodeState(list(PROMPT), len(PROMPT), sampling, list(range(200)))
    state.take(range(3), None)
    state.tokens.append(1)
    request.state = state
    request.begin(Outcome(Tree.chain([52]), (), (1,)))
    return request


def commit(request: Request, tree: Tree, accepted: list[int], bonus: int) -> None:
    """What a round does to the state, then the request's note of it."""
    state = request.state
    assert state is not None
    tokens = (*(tree.tokens[node] for node in accepted), bonus)
    state.take(state.spare[: len(tokens)], None)
    state.tokens += tokens
    request.note(Outcome(tree, tuple(accepted), tokens))


def chain(*drafts: int) -> Tree:
    return Tree.chain([0, *drafts])


def test_a_whole_round() -> None:
    request = started()
    commit(request, chain(2, 3, 4), [1, 2], 5)
    assert request.answer == [1, 2, 3, 5]
    assert request.origins == [0, 1, 2, 0]
    assert request.rounds == [Round(2, 3)]
    assert request.finished is None
    commit(request, Tree.chain([5]), [], 6)
    assert request.rounds[1] == Round(0, 0)
    assert request.origins == [0, 1, 2, 0, 0]


def test_a_stop_inside_the_accepted_drafts_cuts_the_round() -> None:
    request = started()
    commit(request, chain(2, STOP, 4), [1, 2, 3], 5)
    assert request.answer == [1, 2, STOP]
    assert request.origins == [0, 1, 2]
    assert request.rounds == [Round(2, 3, cut=True)]
    assert request.finished == "stop"
    assert request.state is not None
    assert request.state.cached == len(PROMPT) + 3 - 1


def test_a_stop_as_the_last_accepted_draft_still_cuts_the_round() -> None:
    request = started()
    commit(request, chain(2, STOP), [1, 2], 5)
    assert request.answer == [1, 2, STOP]
    assert request.rounds == [Round(2, 2, cut=True)]


def test_a_stop_as_the_targets_own_token_does_not_cut() -> None:
    request = started()
    commit(request, chain(2, 3), [1], STOP)
    assert request.answer == [1, 2, STOP]
    assert request.origins == [0, 1, 0]
    assert request.rounds == [Round(1, 2)]
    assert request.finished == "stop"


@pytest.mark.parametrize(
    ("limit", "answer", "counted"),
    [
        (5, [1, 2, 3, 4, 5], Round(3, 3)),  # exactly at the target's own token
        (4, [1, 2, 3, 4], Round(3, 3, cut=True)),
        (2, [1, 2], Round(1, 3, cut=True)),
    ],
)
def test_the_limit(limit: int, answer: list[int], counted: Round) -> None:
    request = started(limit)
    commit(request, chain(2, 3, 4), [1, 2, 3], 5)
    assert request.answer == answer
    assert request.rounds == [counted]
    assert request.finished == "length"
    assert request.origins == [0, 1, 2, 3, 0][:limit]


def test_a_stop_at_the_limit_is_a_stop() -> None:
    request = started(3)
    commit(request, chain(2, STOP), [1, 2], 7)
    assert request.finished == "stop"


@pytest.mark.parametrize(("limit", "token", "reason"), [(1, 1, "length"), (1, STOP, "stop"), (5, STOP, "stop")])
def test_an_answer_of_one_token_has_no_rounds(limit: int, token: int, reason: str) -> None:
    request = started(100)
    assert request.state is not None
    request.state.tokens[-1] = token
    request.max_tokens, request.origins = limit, []
    request.begin(Outcome(Tree.chain([52]), (), (token,)))
    assert request.finished == reason
    assert request.rounds == []
    assert request.origins == [0]


def test_a_tree_counts_its_nodes_and_names_its_depth() -> None:
    request = started()
    #     0 → 1:2, 2:3;  1 → 3:4, 4:5;  3 → 5:6
    tree = Tree((0, 2, 3, 4, 5, 6), (-1, 0, 0, 1, 1, 3))
    commit(request, tree, [1, 4], 7)
    assert request.answer == [1, 2, 5, 7]
    assert request.origins == [0, 1, 2, 0]
    assert request.rounds == [Round(2, 5, depth=3)]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12), st.integers(1, 25), st.data())
def test_completion_tokens_are_one_and_all_committed(
    rounds: list[tuple[int, int]], limit: int, data: st.DataObject
) -> None:
    request = started(limit)
    for proposed, accepted in rounds:
        if request.finished:
            break
        drafts = data.draw(st.lists(st.integers(2, STOP), min_size=proposed, max_size=proposed))
        bonus = data.draw(st.integers(2, STOP))
        commit(request, chain(*drafts), list(range(1, min(accepted, proposed) + 1)), bonus)
    assert len(request.answer) == completion_tokens(request.rounds) == len(request.origins)
    assert len(request.answer) <= limit
    assert STOP not in request.answer[:-1]
    assert request.state is not None
    assert request.state.cached == len(request.state.tokens) - 1
    slots = [*request.state.table.tolist(), *request.state.spare]
    assert sorted(slots) == list(range(200))
