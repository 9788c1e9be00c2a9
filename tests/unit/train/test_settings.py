from __future__ import annotations

import pytest

from eyas.errors import EyasError
from eyas.train.settings import DraftOptions, TrainSettings, override


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


@pytest.mark.parametrize(("text", "value"), [("1e-4", 1e-4), ("5E-05", 5e-5), ("1.5e-3", 1.5e-3), ("0.001", 1e-3)])
def test_numbers_are_written_as_people_write_them(tmp_path, text, value):
    path = tmp_path / "settings.yaml"
    path.write_text(f"learning_rate: {text}")
    assert TrainSettings.from_yaml(path).learning_rate == value
    assert override(TrainSettings(), [f"learning_rate={text}"]).learning_rate == value


def test_settings_are_laid_over_a_recipe():
    settings = override(TrainSettings(), ["epochs=3", "draft.taps=[1, 2]", "patience=null", "loss=lk"])
    assert (settings.epochs, settings.draft.taps, settings.patience, settings.loss) == (3, (1, 2), None, "lk")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("epoch=3", "flags.unknown"),
        ("draft=3", "flags.unknown"),
        ("draft.tap=3", "flags.unknown"),
        ("epochs", "flags.range"),
        ("epochs=[", "flags.range"),
        ("epochs=0", "flags.range"),
    ],
)
def test_a_wrong_change_is_refused(change, code):
    with pytest.raises(EyasError) as caught:
        override(TrainSettings(), [change])
    assert caught.value.code == code


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(EyasError, match=r"nowhere\.yaml") as caught:
        TrainSettings.from_yaml(tmp_path / "nowhere.yaml")
    assert caught.value.code == "artifact.missing"
