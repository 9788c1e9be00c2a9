import importlib.util
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace

import pytest

from eyas.artifacts import no_progress
from eyas.errors import EyasError
from eyas.pull import packages
from eyas.pull.packages import fetch_package, open_member, unpack_member

Usage = namedtuple("Usage", "total used free")


def fetch_error(package, downloads):
    with pytest.raises(EyasError) as caught:
        fetch_package(package, downloads, no_progress)
    return caught.value


def test_a_wheel_is_fetched_once_and_read_without_installing(make_wheel, index, tmp_path):
    package = make_wheel("some-data", "some_data/x.txt", b"content")
    (tmp_path / "d").mkdir()
    wheel = fetch_package(package, tmp_path / "d", no_progress)
    shutil.rmtree(index)
    assert fetch_package(package, tmp_path / "d", no_progress) == wheel
    assert [path.name for path in (tmp_path / "d").iterdir()] == [wheel.name]
    reported = []
    unpack_member(wheel, "some_data/x.txt", tmp_path / "x.txt", lambda *report: reported.append(report))
    assert (tmp_path / "x.txt").read_bytes() == b"content"
    assert reported == [("unpacking x.txt", 7, 7)]
    assert importlib.util.find_spec("some_data") is None


def test_a_wheel_with_another_hash_is_refused_and_not_kept(make_wheel, tmp_path):
    package = make_wheel("some-data", "some_data/x.txt", b"content")
    error = fetch_error(replace(package, sha256="0" * 64), tmp_path / "d")
    assert error.code == "pull.hash-mismatch"
    assert package.sha256 in error.cause
    assert list((tmp_path / "d").iterdir()) == []


def test_a_kept_wheel_that_was_damaged_is_fetched_again(make_wheel, tmp_path):
    package = make_wheel("some-data", "some_data/x.txt", b"content")
    wheel = fetch_package(package, tmp_path / "d", no_progress)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:100])
    assert fetch_package(package, tmp_path / "d", no_progress).read_bytes() == whole


def test_an_index_without_the_package_is_named(index, tmp_path):
    error = fetch_error(packages.Package("no-such-data", "1.0", "0" * 64, 10), tmp_path / "d")
    assert error.code == "pull.no-network"
    assert "No matching distribution" in error.cause


@pytest.mark.parametrize(
    ("log", "code", "word"),
    [
        (
            "WARNING: NewConnectionError(...)\nERROR: No matching distribution found",
            "pull.no-network",
            "no index",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device", "pull.disk-full", "filled up"),
        ("ERROR: something else", "pull.no-network", "something else"),
    ],
)
def test_pips_failures_are_told_apart(make_wheel, tmp_path, monkeypatch, log, code, word):
    def run(command, environment, output, poll):
        output.write(log.encode())
        return 1

    monkeypatch.setattr(packages, "_run", run)
    error = fetch_error(make_wheel("some-data", "x", b""), tmp_path / "d")
    assert (error.code, word in error.cause) == (code, True)


def test_without_pip_the_fix_names_the_command(make_wheel, tmp_path, monkeypatch):
    package = make_wheel("some-data", "x", b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    error = fetch_error(package, tmp_path / "d")
    assert (error.code, "ensurepip" in error.fix) == ("pull.no-pip", True)


def test_a_full_disk_is_found_before_pip_runs(make_wheel, tmp_path, monkeypatch):
    package = replace(make_wheel("some-data", "x", b""), bytes=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(0, 0, 1999))
    monkeypatch.setattr(subprocess, "Popen", None)
    assert fetch_error(package, tmp_path / "d").code == "pull.disk-full"


def test_ctrl_c_ends_pip_and_a_rerun_works(make_wheel, tmp_path, monkeypatch):
    package = make_wheel("some-data", "x", b"")
    started = []
    real = subprocess.Popen

    def sleeper(command, **options):
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **options))
        return started[0]

    def interrupt(what, done, total):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", sleeper)
        with pytest.raises(KeyboardInterrupt):
            fetch_package(package, tmp_path / "d", interrupt)
    assert started[0].returncode == -signal.SIGKILL
    assert list((tmp_path / "d").iterdir()) == []
    assert fetch_package(package, tmp_path / "d", no_progress).is_file()


def test_a_package_without_its_file_is_named(make_wheel, tmp_path):
    wheel = fetch_package(make_wheel("some-data", "x", b""), tmp_path / "d", no_progress)
    with pytest.raises(EyasError, match=r"pull.package-layout"), open_member(wheel, "some_data/gone.txt"):
        pass
    wheel.write_bytes(b"no zip")
    with pytest.raises(EyasError, match=r"pull.package-layout"), open_member(wheel, "x"):
        pass
