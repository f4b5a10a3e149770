"""The cache of compiled functions, as several processes share it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import caching

from rmc_agents.numba_cache import Files, compiled

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def adder() -> Any:
    def add(x):
        return x + 1

    return compiled(add, HERE)


def loads(function: Callable[[int], int]) -> bool:
    assert function(1) == 2
    return bool(function.stats.cache_hits)  # type: ignore[attr-defined]


def test_code_is_loaded_by_later_processes() -> None:
    assert [loads(adder()), loads(adder())] == [False, True]


def test_a_full_disk_or_none_for_the_cache_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    cached = adder()
    assert not loads(cached)
    assert cached._cache.cache_path is not None
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    assert not loads(alone := adder())
    assert alone._cache.cache_path is None


def test_two_processes_that_save_at_once_never_load_each_others_code(folder: Path) -> None:
    class Late(Files):
        """Between its index and its data another process writes both, which has read the index before."""

        def _save_data(self, name: str, data: str) -> None:
            other = Files(str(folder), "f", 0)
            other._load_index = dict
            other.save("theirs", "their code")
            super()._save_data(name, data)

    Late(str(folder), "f", 0).save("mine", "my code")
    assert Files(str(folder), "f", 0).load("theirs") == "their code"


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
def test_files_that_a_crash_has_cut_are_written_again(suffix: str, folder: Path) -> None:
    loads(adder())
    (path,) = folder.rglob(f"*.{suffix}")
    path.write_bytes(path.read_bytes()[:-20] if suffix == "nbc" else b"")
    assert [loads(adder()), loads(adder())] == [False, True]


def test_files_that_another_user_may_not_read_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError

    with monkeypatch.context() as context:
        context.setattr(Files, "load", denied)
        assert not loads(adder())
    assert loads(adder())


def test_without_a_home_no_folder_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", none)
    assert adder()._cache.cache_path is not None
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    assert adder()._cache.cache_path is None
