"""Cores as fixtures."""

import pytest

from helpers.cores import (
    CORES,
    build,
)

RECURRENT = [name for name in CORES if name != "none"]


@pytest.fixture(params=CORES)
def core(request):
    return build(request.param)


@pytest.fixture(params=["rmc-plain", "lstm", "gru", "mingru", "rnn", "relational-rnn", "transformer", "none"])
def each_kind(request):
    """One core of each class, for tests that do not depend on the settings."""
    return build(request.param)


@pytest.fixture(params=RECURRENT)
def recurrent(request):
    return build(request.param)
