"""Cores as fixtures."""

import pytest

from helpers.cores import CORES, build

NUMBERS = {"wide-keys", "narrow-keys", "one-slot", "one-head", "cut-identity", "mlp-1", "mlp-3", "biases"}
CONTRACTED = [name for name in CORES if name.removeprefix("rmc-") not in NUMBERS]  # their code is that of others
RECURRENT = [name for name in CONTRACTED if name != "none"]


@pytest.fixture(params=CONTRACTED)
def core(request):
    return build(request.param)


@pytest.fixture(params=["lstm", "none"])
def each_kind(request):
    """A core with a state and one without, for tests of what their base class does."""
    return build(request.param)


@pytest.fixture(params=RECURRENT)
def recurrent(request):
    return build(request.param)
