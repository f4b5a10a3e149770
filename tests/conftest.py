"""One thread: the tests' tensors are small, and their results then do not depend on the machine's cores.

A kernel of numba that several workers need is compiled by one of them.

Tyro, which parses command lines, reads the source of a class of settings once, not at every command line; nor does it
compute a tenth of all that it has cached a second time, as it does where it finds pytest.

Triton's kernels are interpreted where there is no GPU. Triton reads this at its first import.

The garbage collector is off until all test files are imported, and then ignores what they imported.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import pytest
import torch
from filelock import FileLock
from numba.core.dispatcher import Dispatcher
from tyro import _docstrings, _unsafe_cache

from helpers import forked
from rmc_agents import plugins
from rmc_agents.envs import own
from rmc_agents.envs.processes import ChildContext
from rmc_agents.envs.warn_once import warn_once
from rmc_agents.evaluate import trainings

gc.disable()
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


compile_here, lock = Dispatcher.compile, cache(FileLock)


def compile_once(dispatcher: Any, signature: Any) -> Any:
    """What one of pytest's workers compiles, the others wait for and load from numba's cache."""
    folder = dispatcher._cache.cache_path
    with lock(f"{folder}/compiling.lock") if folder else nullcontext():
        return compile_here(dispatcher, signature)


Dispatcher.compile = compile_once
_docstrings._ClassTokenization.make = staticmethod(cache(_docstrings._ClassTokenization.make.__wrapped__))
_unsafe_cache.sys = SimpleNamespace(modules={})


def pytest_collection_finish() -> None:
    """Exclude all objects that exist now from later collections; tests' processes share what is imported now."""
    ChildContext()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def forget_registered() -> Iterator[None]:
    """What a test registers or was warned of is forgotten after it."""
    yield
    warn_once.cache_clear()
    of_plugins = (plugins._typed, plugins._named, plugins._envs, plugins._by_modules)
    for names in (*plugins.registered.values(), *of_plugins, own._given, own._given_twice):
        names.clear()


@pytest.fixture
def forked_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons and sweeps start trainings as forks."""
    monkeypatch.setattr(trainings, "start", forked.Training)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests marked `gpu` on machines without one."""
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
