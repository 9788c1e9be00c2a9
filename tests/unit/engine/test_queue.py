import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.config import SamplingSettings
from eyas.engine.queue import MOST_NAMES, FairQueue
from eyas.engine.request import Extras, Request


def request(client: str = "", priority: int = 0, prompt: int = 10, answer: int = 10, user: str = "") -> Request:
    extras = Extras(client=client, priority=priority, user=user)
    return Request(tuple(range(prompt)), SamplingSettings(), None, answer, frozenset(), extras)


def drain(queue: FairQueue) -> list[Request]:
    return [queue.pop() for _ in range(len(queue))]


def test_first_come_first_served_for_one_client() -> None:
    queue = FairQueue()
    requests = [request(prompt=n) for n in (5, 1, 9)]
    for r in requests:
        queue.push(r)
    assert set(queue) == set(requests)
    assert queue.peek() is requests[0]
    assert drain(queue) == requests
    assert queue.peek() is None


def test_a_client_with_many_requests_does_not_shut_others_out() -> None:
    queue = FairQueue()
    many = [request("greedy") for _ in range(5)]
    for r in many:
        queue.push(r)
    late = request("modest")
    queue.push(late)
    assert drain(queue).index(late) == 1


def test_turns_are_by_tokens_not_by_requests() -> None:
    queue = FairQueue()
    long, short = [request("long", prompt=100) for _ in range(3)], [request("short", prompt=10) for _ in range(12)]
    for r in (*long, *short):
        queue.push(r)
    order = drain(queue)
    assert order.index(long[1]) > order.index(short[4])


def test_priority_goes_before_all() -> None:
    queue = FairQueue()
    low, high = request(), request(priority=3)
    queue.push(low)
    queue.push(high)
    queue.put_back(request(priority=-1))
    assert drain(queue)[:2] == [high, low]


def test_one_that_comes_back_goes_before_the_others_of_its_priority() -> None:
    queue = FairQueue()
    waiting, later, earlier = request(), request(), request()
    queue.push(waiting)
    queue.put_back(later)
    queue.put_back(earlier)
    assert drain(queue) == [earlier, later, waiting]


def test_a_removed_request_is_gone() -> None:
    queue = FairQueue()
    requests = [request() for _ in range(3)]
    for r in requests:
        queue.push(r)
    queue.remove(requests[1])
    assert requests[1] not in queue
    assert len(queue) == 2
    queue.remove(requests[0])
    assert queue.peek() is requests[2]
    assert drain(queue) == [requests[2]]
    with pytest.raises(AssertionError):
        queue.remove(requests[0])


def test_what_was_removed_far_behind_is_not_kept() -> None:
    queue = FairQueue()
    queue.push(request(priority=1))
    for _ in range(50):
        gone = request()
        queue.push(gone)
        queue.remove(gone)
    assert len(queue) == 1
    assert len(queue._places) < 5
    assert sum(len(users.heap) for users in queue._users.values()) == 1


def test_of_clients_without_end_few_are_known_while_one_waits() -> None:
    queue = FairQueue()
    queue.push(request("first"))
    for number in range(3 * MOST_NAMES):
        queue.push(request(f"{number}"))
        queue.pop()
    assert len(queue) == 1
    assert len(queue._tags.through) <= 2 * MOST_NAMES
    assert len(queue._users) <= 2 * MOST_NAMES


def test_a_client_gains_nothing_by_naming_many_users() -> None:
    queue = FairQueue()
    for number in range(20):
        queue.push(request("crowd", user=f"{number}"))
    modest = [request("modest", user="me") for _ in range(3)]
    for r in modest:
        queue.push(r)
    order = drain(queue)
    assert [order.index(r) for r in modest] == [1, 3, 5]


def test_the_users_of_a_client_take_turns_in_its_place() -> None:
    queue = FairQueue()
    greedy = [request("shop", user="greedy") for _ in range(5)]
    for r in greedy:
        queue.push(r)
    late = request("shop", user="modest")
    queue.push(late)
    other = request("other")
    queue.push(other)
    order = drain(queue)
    assert order.index(other) == 1
    assert order.index(late) == 2


def test_who_comes_in_new_names_again_and_again_does_not_starve_one_that_waits() -> None:
    queue = FairQueue()
    waits = [request("one") for _ in range(2)]
    for r in waits:
        queue.push(r)
    served = []
    for number in range(40):
        queue.push(request("crowd", user=f"{number}"))
        served.append(queue.pop())
    assert served.index(waits[1]) < 6


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=40))
def test_while_two_clients_wait_neither_gets_more_than_one_request_ahead(jobs: list[tuple[str, int]]) -> None:
    """Start-time fairness: the work done for two clients that both wait differs by one request of each at most."""
    queue = FairQueue()
    for client, size in jobs:
        queue.push(request(client, prompt=size))
    left = {c: [size + 10 for client, size in jobs if client == c] for c in "abc"}
    largest = {c: max(sizes, default=0) for c, sizes in left.items()}
    done = dict.fromkeys("abc", 0)
    while len(queue):
        r = queue.pop()
        done[r.client] += left[r.client].pop(0)
        busy = [c for c in "abc" if left[c]]
        for a in busy:
            for b in busy:
                assert done[a] - done[b] <= largest[a] + largest[b]
