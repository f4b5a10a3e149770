"""Connect to a Ray cluster with a timeout, or start a local Ray that the network cannot reach, without output."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import ray

LOOPBACK = "127.0.0.1"
SECONDS_TO_ANSWER = 10.0  # timeout for a cluster's head
SECONDS_TO_FREE = 10.0  # timeout for a cluster to release an earlier run's actors


def connect(address: str | None, actors: int) -> None:
    """Join a cluster, or start one.

    Args:
      address: HOST:PORT of the cluster's head node; 'auto': the cluster of this machine; None: start a new Ray on this
        machine, which the network cannot reach.
      actors: number of actors to start, each on its own CPU.

    Raises:
      ValueError: if the cluster does not answer, rejects the connection or has too few CPUs.
    """
    if ray.is_initialized():
        raise ValueError("expected a process that uses Ray for nothing else, got one that is connected already")
    if address is not None:
        check_answer(address)
    try:
        with _sigterm_left_alone():
            _initialize(address, actors)
        check_room(actors)
    except BaseException:
        ray.shutdown()
        raise


def _initialize(address: str | None, actors: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            ray.init(address, **quiet)
        else:
            with _on_loopback():
                ray.init("local", num_cpus=actors, include_dashboard=False, **quiet)
    except Exception as error:  # Ray's errors have no common base class
        if address is None:
            raise ValueError(f"cannot start Ray: {error}") from error
        raise ValueError(
            f"ray_address {address}: {error}; if the cluster has a token, set RAY_AUTH_MODE=token and copy its "
            "~/.ray/auth_token"
        ) from error
    ray._private.worker._worker_logs_enabled = False  # otherwise Ray also logs a long report of an actor's death


def check_answer(address: str) -> None:
    """Raises ValueError if no head node answers at the address; Ray itself would retry for minutes."""
    if address != "auto" and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise ValueError(f"ray_address: expected 'auto' or HOST:PORT, got {address!r}")
    try:
        head = ray._private.services.canonicalize_bootstrap_address(address)
    except ConnectionError:
        raise ValueError("ray_address auto: no Ray runs on this machine; `ray start` starts one") from None
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return
    with grpc.insecure_channel(head) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=SECONDS_TO_ANSWER)
        except grpc.FutureTimeoutError:
            raise ValueError(
                f"ray_address {address}: no head node of a Ray cluster has answered at {head} for "
                f"{SECONDS_TO_ANSWER:g} s; `ray status --address {head}` should"
            ) from None


@contextmanager
def _sigterm_left_alone() -> Iterator[None]:
    """Context that keeps the SIGTERM handler, which Ray would replace when it is initialised."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():  # None: a handler in C
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Context in which a new Ray listens only on the loopback interface.

    Ray does that only on systems on which it supports no clusters. Given the loopback address as `_node_ip_address`, it
    ignores it and listens on the network.
    """
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
    if (address := ray.util.get_node_ip_address()) != LOOPBACK:
        ray.shutdown()
        raise RuntimeError(f"expected a Ray that listens on {LOOPBACK}, got {address}; use version 2.60 of ray")


def check_room(actors: int) -> None:
    """Raises ValueError unless the cluster has a free CPU for each actor; Ray would wait for one forever."""
    deadline = time.monotonic() + SECONDS_TO_FREE
    total = ray.cluster_resources().get("CPU", 0)
    while (free := ray.available_resources().get("CPU", 0)) < actors:
        if total < actors or time.monotonic() > deadline:
            raise ValueError(
                f"actors: expected a free CPU of the Ray cluster for each of {actors}, got {free:g} of {total:g}; "
                "add nodes, or lower --actors"
            )
        time.sleep(0.2)
