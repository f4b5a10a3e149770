"""Several learners on one machine: how many, and the processes of all but the first.

`--learners 2` starts one more process. Both connect through a free port of the loopback interface and then work like
torchrun's processes (see `distributed`): both ways share one implementation.
"""

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection

import cloudpickle
import psutil
import torch
import torch.distributed as dist

from rmc_agents import plugins
from rmc_agents.config import SB3_ALGORITHMS, Config
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.envs.processes import (
    GUARD,
    SECONDS_TO_END,
    ChildContext,
    Fault,
    available_memory,
    cpu_cores,
    describe_death,
    end_all,
    idle_cpus,
    pickled,
    stop_signals_blocked,
)
from rmc_agents.train import distributed

from .board import Board

MIN_LANES = 32  # per learner, for --learners auto: a step with fewer is hardly faster
BYTES_OF_LEARNER = 350 << 20  # to leave for each learner; with the default lanes it has 160 MiB of its own
LOOPBACK = "127.0.0.1"
POLL, TIME_TO_MEET = 0.01, timedelta(minutes=1)  # of processes that are ready
INTERFACE = "GLOO_SOCKET_IFNAME"  # the environment variable that gloo reads


def with_number(config: Config, device: torch.device) -> Config:
    """The settings with learners 'auto' replaced by a number, at most that of idle CPUs, or by that of torchrun's
    processes.

    Raises:
      ValueError: if that number of learners is not possible.
    """
    number = automatic(config, device) if config.run.learners == "auto" else config.run.learners
    if config.run.learners == "auto" and number > 1 and device.type == "cpu":
        number = min(number, idle_cpus())  # all would wait for one that shares its core
    if distributed.by_torchrun() and (number := int(os.environ["WORLD_SIZE"])) > distributed.size():
        raise ValueError(
            f"learners: torchrun has started {number}, and only rmc-train joins them; start a script without "
            "torchrun: in Python the setting learners starts the others"
        )
    config = config.updated({"learners": number}, "learners")
    if number > 1:
        _check(config, number, device)
    return config


def automatic(config: Config, device: torch.device) -> int:
    """One learner per GPU or physical core, but at most as many as have enough lanes."""
    if config.train.algo == "impala" or config.train.algo in SB3_ALGORITHMS or config.env.env_workers:
        return 1  # actors and workers keep the cores busy; Stable-Baselines3 uses one process
    cpu = device.type == "cpu"
    most = min(cpu_cores(), config.env.num_envs // MIN_LANES) if cpu else torch.cuda.device_count()
    return max(1, min(most, _most_learners(config), _room()))


def _most_learners(config: Config) -> int:
    """The largest number with which every learner has a lane in every minibatch."""
    lanes, train = config.env.num_envs, config.train
    return lanes // min(train.ppo_minibatches, lanes) if train.algo == "ppo" else lanes


def _room() -> int:
    """Number of learners that fit in memory."""
    return available_memory() // BYTES_OF_LEARNER


def _check(config: Config, number: int, device: torch.device) -> None:
    algo, env = config.train.algo, config.env
    if algo in SB3_ALGORITHMS:
        raise ValueError(f"learners: expected 1 for {algo}, which uses one process, got {number}")
    if algo != "impala" and number > (most := _most_learners(config)):
        raise ValueError(
            f"learners: expected at most {most}, each with a lane in every minibatch, for num_envs {env.num_envs}"
            f"{f' and ppo_minibatches {config.train.ppo_minibatches}' if algo == 'ppo' else ''}, got {number}"
        )
    if env.env_workers:
        raise ValueError(f"env_workers: expected 0 for {number} learners, which step their lanes themselves")
    here = distributed.on_this_machine(number)
    if device.type == "cuda" and (gpus := torch.cuda.device_count()) < here:
        raise ValueError(f"learners: expected a GPU for each of {here} on this machine, got {gpus}; or --device cpu")
    is_alone = distributed.size() == 1  # when the other learners run this check, they hold their memory already
    if is_alone and not distributed.by_torchrun() and number > (room := _room()):
        raise ValueError(f"learners: expected at most {room}, limited by memory, got {number}")


def notes(config: Config, device: torch.device) -> list[str]:
    """Hints for the user about the number of learners."""
    number, here = int(config.run.learners), cpu_cores()
    if device.type != "cpu" or distributed.by_torchrun() or config.env.env.startswith(NAMESPACE):
        return []
    if number > here:
        return [f"warning: {number} learners on {here} physical cores: more learners than cores are slower"]
    if number == 1 and config.run.threads == 1 and (possible := automatic(config, device)) > 1:
        return [f"one of {here} CPU cores is used; if the others are idle, --learners {possible} is faster"]
    return []


@contextmanager
def with_other_learners(config: Config) -> Iterator[None]:
    """Context in which this process is the first of several learners, with the others started by it.

    Does nothing for one learner, or if torchrun has started them. The others end with this context, and with this
    process, however it ends.

    Raises:
      LearnerLost: if one of them has ended; the message says how.
      WorkerError: if one of them cannot be started.
    """
    learners = int(config.run.learners)
    if learners == distributed.size():
        yield
        return
    with socket.create_server((LOOPBACK, 0)) as server:  # a free port
        port = server.getsockname()[1]
        others: list[_Other] = []
        try:
            board = Board(ChildContext(), learners)
            _start(others, config, port, board)
            store = dist.TCPStore(
                LOOPBACK,
                port,
                learners,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=os.dup(server.fileno()),
            )
            _await(store, others)
            _meet(store, distributed.FIRST, learners)
            with distributed.using_board(
                board, distributed.FIRST, lambda: all(other.process.is_alive() for other in others)
            ):
                yield
        except distributed.LearnerLost as error:
            raise _explained(error, others) from error
        finally:
            has_met = dist.is_initialized()
            if has_met:
                dist.destroy_process_group()  # the others detect this
            for other in others:
                other.connection.close()
                if not has_met:
                    other.process.kill()
            end_all([other.process for other in others])


class _Other:
    """The first learner's handle of another one."""

    def __init__(self, context: ChildContext, follow: bytes, number: int, board: Board) -> None:
        self.connection, self.process = context.start(_run, follow, number, board, daemon=False)

    def wait(self) -> Fault | None:
        """Wait until it is ready (None), or has failed or died."""
        try:
            message: Fault | None = self.connection.recv()
        except (EOFError, OSError):
            return self.fault(SECONDS_TO_END) or Fault("ended", "")
        return message

    def fault(self, seconds: float) -> Fault | None:
        """How it ended, waiting up to `seconds`; None: not at all, or only because another has ended."""
        self.process.join(seconds)
        with suppress(EOFError, OSError):
            if self.connection.poll():
                message: Fault = self.connection.recv()
                return message
        return Fault(describe_death(self.process.exitcode), "") if self.process.exitcode else None


def _start(others: list[_Other], config: Config, port: int, board: Board) -> None:
    """Add processes to `others` and wait until they are ready to connect."""
    learners = int(config.run.learners)
    carried = plugins.carried(partial(_follow, learners, port), config.env.env)
    follow = pickled(carried, f"learners: expected 1 for {config.env.env}")
    context = ChildContext()
    with stop_signals_blocked():
        for number in range(1, learners):
            others.append(_Other(context, follow, number, board))
    for number, other in enumerate(others, start=1):
        if fault := other.wait():
            hint = "" if fault.trace else f" before it could begin ({GUARD})"
            raise fault.error(f"learner {number} ", f"{hint}; all learners end with it")


def _explained(error: distributed.LearnerLost, others: Sequence[_Other]) -> distributed.LearnerLost:
    """The error with what is known about the lost learner."""
    deadline = time.monotonic() + SECONDS_TO_END
    for number, other in enumerate(others, start=1):
        if fault := other.fault(max(0.0, deadline - time.monotonic())):
            error = distributed.LearnerLost(f"learner {number} {fault.summary}; all learners end with it")
            if fault.trace:
                error.add_note(fault.trace)
            break
    return error


def _run(follow: bytes, number: int, board: Board, connection: Connection) -> None:
    """The main function of another learner's process."""
    with suppress(OSError):  # the first learner is gone
        try:
            cloudpickle.loads(follow)(number, board, connection)
        except Exception as error:
            fault = Fault.of(error)
            connection.send(fault._replace(summary=f"failed: {fault.summary}"))


def _follow(learners: int, port: int, number: int, board: Board, connection: Connection) -> None:
    from .follower import follow

    connection.send(None)
    store = dist.TCPStore(LOOPBACK, port, learners)
    store.set(_key(number), "")
    _meet(store, number, learners)
    try:
        with distributed.using_board(board, number):
            follow()
    finally:
        dist.destroy_process_group()


def _key(number: int) -> str:
    """A learner's entry in the store, which says that it has reached it."""
    return f"learner {number}"


def _await(store: dist.Store, others: Sequence[_Other]) -> None:
    """In the first learner, wait until the others have reached the store. Raises LearnerLost if one of them ends."""
    while not store.check([_key(number) for number in range(1, 1 + len(others))]):
        if not all(other.process.is_alive() for other in others):
            raise distributed.LearnerLost("another learner has ended")
        time.sleep(POLL)


def _meet(store: dist.Store, number: int, learners: int) -> None:
    """Connect to the other learners, only over the loopback interface. Raises LearnerLost if they do not."""
    interfaces = psutil.net_if_addrs().items()
    loopback = next((name for name, found in interfaces if any(each.address == LOOPBACK for each in found)), None)
    before = os.environ.get(INTERFACE)
    if loopback is not None and before is None:
        os.environ[INTERFACE] = loopback
    try:
        distributed.connect(number, store, number, learners, TIME_TO_MEET)
    except RuntimeError as error:
        raise distributed.LearnerLost(f"the learners cannot connect: {str(error).splitlines()[0]}") from error
    finally:
        if before is None:
            os.environ.pop(INTERFACE, None)
