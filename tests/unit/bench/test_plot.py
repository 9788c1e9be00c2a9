"""Which loads a picture shows."""

import pytest

from eyas.bench.plot import spread
from eyas.bench.run import Level
from eyas.bench.settings import Load


@pytest.mark.parametrize(("count", "shown"), [(1, [0]), (6, [0, 1, 2, 3, 4, 5]), (9, [0, 2, 3, 5, 6, 8])])
def test_the_first_and_the_last_load_are_shown(count: int, shown: list[int]) -> None:
    levels = [Level(Load("closed", float(i)), [], [], None) for i in range(count)]
    assert [int(level.load.value) for level in spread(levels, 6)] == shown
