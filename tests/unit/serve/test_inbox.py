"""What ranks take in: the same messages in the same order, and never a grammar that only some of them have."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from eyas.errors import EyasError
from eyas.serve.inbox import Compiled, OwnInbox, SharedInbox
from eyas.serve.wire import Ask, Drop, Flush, Grammar, Stop

REGEX = Grammar("regex", "a*")
SOUGHT = EyasError("request.grammar", "none", "none")


class Told:
    """Ranks as far as an inbox needs them: what the first one tells is there for the other."""

    def __init__(self, first: bool, line: SimpleQueue) -> None:
        self.is_first, self.rank, self.patience, self.line = first, 1 - first, 0.05, line

    def tell(self, message: bytes | None = None) -> bytes:
        assert (message is not None) == self.is_first
        if message is None:
            return self.line.get_nowait()
        self.line.put(message)
        return message


@pytest.fixture
def inboxes() -> tuple[SharedInbox, SharedInbox]:
    line: SimpleQueue = SimpleQueue()
    first, other = (SharedInbox(Told(is_first, line), beat=0.01) for is_first in (True, False))  # type: ignore[arg-type]
    return first, other


def bound(id_: str) -> Ask:
    return Ask(id_, [1], "{}", grammar=REGEX)


def test_an_own_inbox_gives_all_that_came_in_order() -> None:
    inbox = OwnInbox()
    assert inbox.take(wait=False) == []
    assert inbox.take(wait=True, seconds=0.01) == []
    for news in (Flush(), Drop("1"), Stop()):
        inbox.put(news)
    assert inbox.take(wait=True) == [Flush(), Drop("1"), Stop()]


def test_others_take_what_the_first_one_took(inboxes: tuple[SharedInbox, SharedInbox]) -> None:
    first, other = inboxes
    news = [bound("1"), Ask("2", [3, 4], "{}", stop=["x"]), Drop("2"), Flush(), Stop(True)]
    for each in news:
        first.put(each)
    assert first.take(wait=False) == news
    assert other.take(wait=False) == news
    assert first.take(wait=False) == []
    assert other.take(wait=False) == []


def test_a_rank_that_waits_is_told_of_beats_and_goes_on_waiting(inboxes: tuple[SharedInbox, SharedInbox]) -> None:
    first, other = inboxes
    for _ in range(2):
        assert first.take(wait=False) == []
    first.put(Flush())
    assert first.take(wait=True) == [Flush()]
    assert other.take(wait=True) == [Flush()]


def test_each_rank_goes_on_with_its_own_grammar_when_the_first_one_does(
    inboxes: tuple[SharedInbox, SharedInbox],
) -> None:
    first, other = inboxes
    ask, late = bound("1"), bound("2")
    first.put(ask)
    first.put(late)
    first.take(wait=False)
    other.take(wait=False)
    theirs, ours = Compiled(ask, SOUGHT), Compiled(ask, SOUGHT)
    other.put(Compiled(late, SOUGHT))
    other.put(ours)
    first.put(theirs)
    (taken,) = first.take(wait=False)
    assert taken is theirs
    (taken,) = other.take(wait=False)
    assert taken is ours


@pytest.mark.parametrize("end", [Drop("1"), Stop(True)])
def test_a_grammar_that_nobody_waits_for_is_not_told(inboxes: tuple[SharedInbox, SharedInbox], end: object) -> None:
    """The others stopped compiling it, and would wait for it for ever."""
    first, other = inboxes
    ask = bound("1")
    for news in (ask, end, Compiled(ask, SOUGHT), Flush()):
        first.put(news)
    assert first.take(wait=False) == [ask, end, Flush()]
    assert other.take(wait=False) == [ask, end, Flush()]


def test_a_grammar_that_does_not_come_ends_the_rank(inboxes: tuple[SharedInbox, SharedInbox]) -> None:
    first, other = inboxes
    ask = bound("1")
    first.put(ask)
    first.put(Compiled(ask, SOUGHT))
    first.take(wait=False)
    with pytest.raises(EyasError, match="still compiling") as caught:
        other.take(wait=False)
    assert caught.value.code == "engine.died"
