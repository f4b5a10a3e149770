"""Connect to a Ray cluster, or start a local Ray: with a timeout, closed to the network, without output."""

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
SECONDS_TO_ANSWER = 10.0  # what a cluster's head may take
SECONDS_TO_FREE = 10.0  # what a cluster may take to notice that an earlier run's actors have ended


def connect(address: str | None, actors: int) -> None:
    """Join a cluster, or start one.

    Args:
      address: HOST:PORT of the cluster's head; 'auto': of the cluster that this machine belongs to; None: a new Ray of
        this machine's alone, which nobody else can reach.
      actors: how many will be started, each on a CPU of its own.

    Raises:
      ValueError: if the cluster does not answer, will not have us or has too few CPUs.
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
    except Exception as error:  # of no common class
        if address is None:
            raise ValueError(f"cannot start Ray: {error}") from error
        raise ValueError(
            f"ray_address {address}: {error}; if the cluster has a token, set RAY_AUTH_MODE=token and copy its "
            "~/.ray/auth_token"
        ) from error
    ray._private.worker._worker_logs_enabled = False  # otherwise Ray also logs an actor's death, at length


def check_answer(address: str) -> None:
    """Raises ValueError if no cluster's head answers there: left to itself, Ray tries for minutes."""
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
                f"ray_address {address}: nothing that is a Ray cluster's head has answered at {head} for "
                f"{SECONDS_TO_ANSWER:g} s; `ray status --address {head}` should"
            ) from None


@contextmanager
def _sigterm_left_alone() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it is initialised; a run has its own use for it."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """A Ray that is started in here listens on this machine's loopback interface alone.

    Ray knows that only of systems on which it has no clusters; told so by `_node_ip_address`, it takes the
    address for a mistake and listens on the network.
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
    """Raises ValueError if the cluster has not got a free CPU for each actor: Ray would wait for one without end."""
    deadline = time.monotonic() + SECONDS_TO_FREE
    total = ray.cluster_resources().get("CPU", 0)
    while (free := ray.available_resources().get("CPU", 0)) < actors:
        if total < actors or time.monotonic() > deadline:
            raise ValueError(
                f"actors: expected a free CPU of the Ray cluster for each of {actors}, got {free:g} of {total:g}; "
                "add nodes, or lower --actors"
            )
        time.sleep(0.2)
