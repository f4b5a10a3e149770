"""Actors in a Ray cluster: equal to local actors, whichever process dies; and one-line errors."""

import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.runs import assert_same, find_and_load
from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.train import cli
from rmc_agents.train.impala import pool as pools
from rmc_agents.train.impala import trainer as impala
from rmc_agents.train.impala.actors import Actor, MakeActor, Parcel, ParcelReader, pack_weights
from rmc_agents.train.impala.pool import ActorPool

ray = pytest.importorskip("ray")

from ray.cluster_utils import Cluster  # noqa: E402  # only where Ray is

from rmc_agents.train.impala import ray_cluster, ray_engine  # noqa: E402

pytestmark = pytest.mark.slow
SETTINGS: dict[str, Any] = {
    "algo": "impala",
    "core": "lstm",
    "hidden_size": 8,
    "encoder_sizes": (8,),
    "actors": 2,
    "lanes_per_actor": 3,
    "unroll_length": 4,
    "seed": 7,
}
CONFIG = Config().updated(SETTINGS, "test").settled()
FLAGS = ["--algo", "impala", "--actor-engine", "ray", "--core", "lstm", "--hidden-size", "8", "--encoder-sizes", "8"]
FLAGS += ["--actors", "1", "--lanes-per-actor", "3", "--unroll-length", "4"]
FLAGS += ["--no-video", "--eval-episodes", "0", "--device", "cpu"]
LIGHT = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}


def patiently(start_node: Callable[[], Any]) -> Any:
    """Retry, because Ray gives up a node that needs more than fifteen seconds to start, as on a busy machine."""
    for _ in range(4):
        with suppress(Exception):
            return start_node()
    return start_node()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node with room for two actors, that notices within seconds when another is gone."""
    noticing = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000}
    noticing |= {"health_check_timeout_ms": 2000, "health_check_failure_threshold": 3}
    as_urgent = {"worker_niceness": 0}  # otherwise actors wait for all other tests
    few = {"prestart_worker_first_driver": False}  # starts no processes before they are needed
    head = {"num_cpus": 2, **LIGHT, "_system_config": noticing | as_urgent | few}
    cluster = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def example() -> Iterator[Actor]:
    with closing(Actor(CONFIG, 0)) as actor:
        yield actor


@contextmanager
def started(
    make_actor: MakeActor, actors: int, address: str | None, example: Actor
) -> Iterator[tuple[ray_engine.RayEngine, ActorPool]]:
    reader = ParcelReader(example.collector.collect(), example.lanes.spec)
    engine = ray_engine.RayEngine(make_actor, actors, address)
    with closing(engine):
        pool = ActorPool(engine, reader, [None] * actors, rollouts_ahead=2, max_policy_lag=0, timeout=300)
        pool.start(0, pack_weights(example.agent))
        yield engine, pool


def assert_same_rollouts(received: Parcel, expected: Parcel) -> None:
    assert_same(*(parcel.rollout._replace(distribution=None) for parcel in (received, expected)))
    ended, as_expected = ([e._replace(number=0) for e in parcel.episodes] for parcel in (received, expected))
    assert ended == as_expected  # a new actor counts a lane's episodes from 0


def node_of(engine: ray_engine.RayEngine, actor: int) -> str:
    report = engine._placed[actor].report
    assert report is not None
    return report.node


def test_actors_that_cannot_be_sent_are_one_line() -> None:
    with pytest.raises(ValueError, match=r"^algo: expected another than impala for this environment, which cannot"):
        ray_engine.RayEngine(partial(print, file=sys.stdout), 1, None)


def test_other_versions_on_a_node_and_an_environments_error_are_reported(
    cluster: Cluster, example: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "TRIES", 1)

    def make_actor(index: int) -> Actor:
        raise OSError("no room for another")

    here = ray_engine.find_versions()
    versions = rf"^node \S+ has torch {here['torch']} \(here 1.0\): expected the same versions on all nodes"
    fault = r"actor 0 failed: OSError: no room for another \(.*, line \d+, in make_actor\)"
    with started(make_actor, 1, cluster.address, example) as (_, pool):
        with monkeypatch.context() as patched:
            patched.setattr(ray_engine, "find_versions", lambda: here | {"torch": "1.0"})
            with pytest.raises(WorkerError, match=versions):
                pool.take(1)
        with pytest.raises(WorkerError, match=fault) as e:
            pool.take(1)
    assert "Traceback" in e.value.__notes__[0]


def test_too_few_cpus_are_reported(cluster: Cluster) -> None:
    with pytest.raises(
        ValueError, match=r"expected a free CPU of the Ray cluster for each of 3, got \d of 2; add nodes"
    ):
        ray_engine.RayEngine(partial(Actor, CONFIG), 3, cluster.address)
    assert not ray.is_initialized()


def test_a_run_on_a_cluster_continues_without_one(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    handler = signal.getsignal(signal.SIGTERM)
    assert cli.main([*FLAGS, "--ray-address", cluster.address, "--total-frames", "48", "--run-dir", str(run)]) == 0
    assert signal.getsignal(signal.SIGTERM) == handler
    assert not ray.is_initialized()
    captured = capsys.readouterr()
    assert "actors: 1 of 3 lanes (ray), rollouts per update: 1" in captured.out
    assert captured.err == ""
    tree = find_and_load(run)[1]
    assert tree["frames"] == 48
    assert all(tree["actors"])
    elsewhere = ["--actor-engine", "local", "--ray-address", "None", "--rollouts-ahead", "1", "--max-policy-lag", "2"]
    assert cli.main(["--resume", str(run), "--total-frames", "96", *elsewhere]) == 0
    assert find_and_load(run)[1]["frames"] == 96


def test_rollouts_are_those_of_actors_here_though_a_node_dies(cluster: Cluster, example: Actor) -> None:
    doomed = patiently(lambda: cluster.add_node(num_cpus=2, **LIGHT))
    received: dict[int, list[Parcel]] = {0: [], 1: []}
    with started(partial(Actor, CONFIG), 2, cluster.address, example) as (engine, pool):

        def take_one() -> None:
            time.sleep(0.05)  # the machine is needed for starting actors
            (parcel,) = pool.take(1)
            received[parcel.actor].append(parcel)

        while not all(received.values()):
            take_one()
        places = [node_of(engine, actor) for actor in range(2)]
        assert len(set(places)) == 2
        lost = places.index(doomed.node_id)
        cluster.remove_node(doomed, allow_graceful=False)
        while pool.counts.actors_replaced == 0:
            take_one()
        came = len(received[lost])
        while len(received[lost]) < came + 3:
            take_one()
        assert asdict(pool.counts) == {
            "rollouts_stale": 0,
            "rollouts_unfit": 0,
            "rollouts_repeated": 0,
            "actors_replaced": 1,
        }
        assert {node_of(engine, actor) for actor in range(2)} == {places[1 - lost]}
    for index, parcels in received.items():
        assert_continues(parcels)
        with closing(Actor(CONFIG, index)) as reference:
            reference.take_weights(0, pack_weights(example.agent))
            for sequence, parcel in enumerate(parcels[: came + 3]):  # the other actor may have sent hundreds
                assert (parcel.sequence, parcel.version) == (sequence, 0)
                assert_same_rollouts(parcel, reference.act(0.0))


def assert_continues(parcels: Sequence[Parcel]) -> None:
    """Each rollout begins where the one before it ended."""
    for before, after in pairwise(parcels):
        for field_before, field_after in zip(before.rollout.steps[:6], after.rollout.steps[:6], strict=True):
            assert torch.equal(field_before[-1], field_after[0])
        for leaf, handed_over in zip(before.snapshot["collector"]["core"], after.rollout.initial_state, strict=True):
            assert torch.equal(leaf, handed_over)


def test_a_local_ray_is_closed_to_the_network() -> None:
    with closing(ray_engine.RayEngine(partial(Actor, CONFIG), 1, None)):
        host, port = ray.get_runtime_context().gcs_address.rsplit(":", 1)
        assert host == ray_cluster.LOOPBACK
        with closing(socket.create_connection((host, int(port)), timeout=10)):
            pass
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as outside:
            with suppress(OSError):  # without a network there is nothing to check
                outside.connect(("192.0.2.1", 9))  # sends nothing
            own = outside.getsockname()[0]
        if own not in (host, "0.0.0.0"):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((own, int(port)), timeout=10)
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--ray-address", "elsewhere"], "ray_address: expected 'auto' or HOST:PORT, got 'elsewhere'"),
        (["--ray-address", "127.0.0.1:{port}"], "no head node of a Ray cluster has answered at"),
        (["--actor-engine", "local", "--ray-address", "auto"], "expected None without --actor-engine ray, got 'auto'"),
    ],
)
def test_bad_input_is_one_line(
    flags: list[str],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "SECONDS_TO_ANSWER", 1.0)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # accepts connections, and never answers
        flags = [flag.format(port=silent.getsockname()[1]) for flag in flags]
        assert cli.main([*FLAGS, "--run-dir", str(tmp_path / "run"), *flags]) == 2
    output = capsys.readouterr().err
    assert expected in output
    assert output.count("\n") == 1


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "is_installed", lambda name: False)
    with pytest.raises(ValueError, match=r"needs Ray: pip install 'rmc-agents\[ray\]'"):
        impala.check_settings(CONFIG.updated({"actor_engine": "ray"}, "test"))
