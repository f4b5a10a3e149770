"""Processes that this package starts."""

import gc
import signal
from multiprocessing.connection import Connection

from rmc_agents.envs.processes import STOPS, ChildContext, stops_held_back


class Unpickled:
    """Tells whether the garbage collector was on while it was unpickled."""

    def __setstate__(self, state: object) -> None:
        self.__dict__ = {"collected": gc.isenabled()}

    def __getstate__(self) -> object:
        return {"some": "state"}


def report(unpickled: Unpickled, connection: Connection) -> None:
    handlers = [signal.getsignal(number) for number in STOPS]
    connection.send(
        (unpickled.__dict__["collected"], gc.isenabled(), gc.get_freeze_count() > 1000, *map(callable, handlers))
    )


def test_a_child_imports_without_the_collector_and_leaves_stops_to_its_parent() -> None:
    context = ChildContext()
    ours, theirs = context.Pipe()
    with stops_held_back():
        child = context.Process(target=report, args=(Unpickled(), theirs))
        child.start()
    assert ours.recv() == (False, True, True, True, True, True)
    child.join()
    assert child.exitcode == 0
    assert gc.isenabled()
