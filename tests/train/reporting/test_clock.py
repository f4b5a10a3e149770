"""The clock of a training: compilation is announced and not counted."""

import io
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from numba import njit
from numba.core import event
from rich.console import Console

from rmc_agents.kernels import pointwise
from rmc_agents.train.reporting import clock as module
from rmc_agents.train.reporting.clock import COMPILING, TrainingClock
from rmc_agents.train.run import train


def test_the_clock_stands_still_while_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reported = 0.0, []
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    with TrainingClock(lambda: reported.append(now)) as clock:
        now = 5.0
        with event.trigger_event(COMPILING):
            now = 7.0
            with event.trigger_event(COMPILING):
                now = 8.0
            assert clock() == 5
        now = 10.0
        assert clock() == 7
        with event.trigger_event(COMPILING):
            now = 11.0
    assert clock() == 7
    assert reported == [5]


def test_compilations_of_other_threads_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the end of one that began before."""
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now))
    now, reported = 0.0, []
    with ThreadPoolExecutor(1) as other, TrainingClock(lambda: reported.append(now)) as clock:
        for tell in (clock.on_end, clock.on_start):
            other.submit(tell, None).result()
            now += 5.0
            assert clock() == now
    assert not reported


@pytest.mark.parametrize(
    ("is_cached", "said"), [(True, "they are cached, so this happens once"), (False, "every process does: no folder")]
)
def test_a_run_that_compiles_says_so_once_and_is_timed_without(
    is_cached: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pointwise, "is_cached", lambda: is_cached)
    ticks = itertools.count()
    monkeypatch.setattr(TrainingClock, "__call__", lambda clock: float(next(ticks)))
    settings = {"env": "recall", "core": "lstm", "backend": "reference", "hidden_size": 8, "num_envs": 2}
    settings |= {"unroll_length": 3, "total_frames": 12, "eval_episodes": 0, "video": False}
    output = io.StringIO()
    new = [njit(lambda x: x + 1), njit(lambda x: x + 2)]  # kernels that no cache has
    run = train(
        settings, run_dir=tmp_path, callback=lambda progress: bool(new.pop()(1.0) < 0), console=Console(file=output)
    )
    assert output.getvalue().count(f"compiling kernels; {said}") == 1
    assert run.summary["seconds"].is_integer()
    assert run.summary["seconds"] > 0
