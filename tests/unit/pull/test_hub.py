import shutil
from collections import namedtuple
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from eyas.artifacts import verify_folder
from eyas.errors import EyasError
from eyas.pull import hub, list_cache, pull

Usage = namedtuple("Usage", "total used free")
FILES = {
    "config.json": 2,
    "tokenizer.json": 2,
    "model.safetensors": 4,
    "consolidated.safetensors": 4,
    "pytorch_model.bin": 4,
    "modeling_custom.py": 4,
    "onnx/model.json": 4,
    ".gitattributes": 4,
}


class FakeHub:
    """Answers as the hub does for one model, and keeps what it was asked."""

    def __init__(self, files, error=None):
        self.files, self.error, self.asked, self.fetched = files, error, [], []

    def model_info(self, repo, revision=None, files_metadata=False):
        self.asked.append((repo, revision))
        if self.error:
            raise self.error
        return SimpleNamespace(
            sha="c0ffee",
            siblings=[SimpleNamespace(rfilename=name, size=size) for name, size in self.files.items()],
        )

    def snapshot_download(self, repo, revision, local_dir, allow_patterns):
        for name in allow_patterns:
            if not (local_dir / name).exists():
                self.fetched.append(name)
                (local_dir / name).write_bytes(b"x" * self.files[name])
        (local_dir / ".cache").mkdir(exist_ok=True)


@pytest.fixture
def fake(monkeypatch):
    def install(files=FILES, error=None):
        made = FakeHub(files, error)
        monkeypatch.setattr(hub, "HfApi", lambda: made)
        monkeypatch.setattr(hub, "snapshot_download", made.snapshot_download)
        return made

    return install


def code_of(source, cache):
    with pytest.raises(EyasError) as caught:
        pull(source, cache)
    return caught.value.code


def test_only_data_files_are_fetched_and_the_commit_is_kept(fake, tmp_path):
    made = fake()
    folder = pull("org/name@v1", tmp_path)
    assert made.asked == [("org/name", "v1")]
    manifest = verify_folder(folder)
    assert set(manifest.files) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert manifest.provenance == {"repo": "org/name", "revision": "v1", "commit": "c0ffee"}
    assert pull("org/name@v1", tmp_path) == folder
    assert len(made.asked) == 1
    assert [entry.name for entry in list_cache(tmp_path)] == ["org/name@v1"]


def test_an_interrupted_download_resumes_and_drops_what_is_not_wanted_now(fake, tmp_path, monkeypatch):
    made = fake()

    def interrupted(repo, revision, local_dir, allow_patterns):
        (local_dir / "config.json").write_text("{}")
        (local_dir / "of-an-older-commit.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hub, "snapshot_download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull("org/name", tmp_path)
    assert list_cache(tmp_path) == []
    folder = pull("org/name", tmp_path)
    assert made.fetched == ["model.safetensors", "tokenizer.json"]
    assert not (folder / "of-an-older-commit.json").exists()


def http(kind):
    return kind("no", response=SimpleNamespace(headers={}, request=None, status_code=404))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (http(RepositoryNotFoundError), "pull.unknown-source"),
        (http(RevisionNotFoundError), "pull.unknown-source"),
        (http(GatedRepoError), "pull.no-access"),
        (HTTPError("connection refused"), "pull.no-network"),
        (OfflineModeIsEnabled("offline"), "pull.no-network"),
    ],
)
def test_the_hubs_answers_are_told_apart(fake, tmp_path, error, code):
    fake(error=error)
    assert code_of("org/name", tmp_path) == code
    assert list_cache(tmp_path) == []


def test_a_model_without_safetensors_is_refused(fake, tmp_path):
    fake({"config.json": 2, "pytorch_model.bin": 4})
    assert code_of("org/name", tmp_path) == "artifact.pickle"
    fake({"config.json": 2})
    assert code_of("org/name", tmp_path) == "pull.unknown-source"


def test_the_disk_is_checked_against_the_files_wanted(fake, tmp_path, monkeypatch):
    fake()
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 7))
    assert code_of("org/name", tmp_path) == "pull.disk-full"
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 8))
    assert pull("org/name", tmp_path).is_dir()
