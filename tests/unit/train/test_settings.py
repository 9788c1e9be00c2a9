from __future__ import annotations

import pytest

from eyas.errors import EyasError
from eyas.train.settings import DraftOptions, TrainSettings


def test_a_recipe_reads_back_as_itself(tmp_path):
    settings = TrainSettings(
        draft=DraftOptions(taps=(2, 15, 27), fc_norm=True), loss="lk", patience=3, learning_rate=2e-4
    )
    path = tmp_path / "settings.yaml"
    path.write_text(settings.to_yaml())
    assert TrainSettings.from_yaml(path) == settings


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("lerning_rate: 0.1", "flags.unknown"),
        ("draft: {tap: [1]}", "flags.unknown"),
        ("learning_rate: -1", "flags.range"),
        ("ttt_steps: 0", "flags.range"),
        ("epochs: 1.5", "flags.range"),
        ("micro_batch_tokens: 100", "flags.contradiction"),
        ("- 1", "artifact.corrupt"),
        ("a: [", "artifact.corrupt"),
        ("draft: 3", "artifact.corrupt"),
    ],
)
def test_a_wrong_recipe_is_refused(tmp_path, text, code):
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    with pytest.raises(EyasError) as caught:
        TrainSettings.from_yaml(path)
    assert caught.value.code == code


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(EyasError, match=r"nowhere\.yaml") as caught:
        TrainSettings.from_yaml(tmp_path / "nowhere.yaml")
    assert caught.value.code == "artifact.missing"
