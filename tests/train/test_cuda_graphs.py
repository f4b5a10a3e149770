"""Training by graphs against training without: on any machine with graphs emulated, on a GPU with CUDA's own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.optim import adam
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.runs import assert_same
from rmc_agents.collect import Lanes
from rmc_agents.config import Config
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.runs import checkpoint
from rmc_agents.train import cuda_graphs
from rmc_agents.train.a2c import A2C
from rmc_agents.train.optimizers import Optimizers

CPU = torch.device("cpu")
UPDATES = 7  # three are warm-up, the fourth is captured
SIZES = {"num_envs": 6, "unroll_length": 5, "hidden_size": 8, "head_size": 4, "mem_slots": 3, "encoder_sizes": [16]}
CORES = ["rmc", "lstm", "gru", "rnn", "relational-rnn", "none"]
SAVED = {"env": "minipacman"}  # an environment whose state a checkpoint holds


class Tape(TorchDispatchMode):
    """What a CUDA graph captures: the operations and the memory they work on, but none of the Python around them."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Callable, tuple, dict, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "equal", "multinomial"):
            raise AssertionError(f"{name} waits for the GPU, so it cannot be captured")
        flat = tree_leaves((args, kwargs))
        if name == "index" and any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in flat[1:]):
            raise AssertionError("the size of what a mask selects is known to the GPU alone")
        result = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        """Does the operations again, each from the captured memory to the captured memory."""
        for function, args, kwargs, captured in self.operations:
            results = tree_leaves(function(*args, **kwargs))
            for place, result in zip(tree_leaves(captured), results, strict=True):
                if isinstance(place, torch.Tensor) and place.numel() and place.data_ptr() != result.data_ptr():
                    place.copy_(result)


@pytest.fixture(autouse=True)
def encoder_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the encoder's layers have compiled passes, which a tape of torch's operations does not see."""
    layer = lambda x, weight, bias: functional.relu(functional.linear(x, weight, bias))  # noqa: E731
    monkeypatch.setattr("rmc_agents.encoders.rectified_linear", layer)


class Emulated:
    """`cuda_graphs.Graphed` on a tape; here the capture does the work of its call itself, on a GPU the first replay."""

    def __init__(self, function: Callable, generator: torch.Generator | None = None) -> None:
        self._function, self._generator, self._calls = function, generator, 0

    def __call__(self, *args: Any) -> Any:
        self._calls += 1
        if self._calls <= cuda_graphs.WARM_UP:
            return self._function(*args)
        if self._calls == cuda_graphs.WARM_UP + 1:
            with Tape() as self._tape:
                self._result = self._function(*args)
        else:
            with torch.no_grad():
                self._tape.replay()
        return self._result


def as_it_is(function: Callable, generator: torch.Generator | None = None) -> Callable:
    return function


def settings(core: str, **others: object) -> Config:
    return Config().updated(
        {"core": core, "algo": "a2c", "optimizer": "adam", "env": "recall", "backend": "reference"} | SIZES | others,
        "test",
    )


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., A2C]:
    """Makes a trainer whose graphs are `graphed`'s, on the CPU, with Adam's arithmetic as on a GPU or as usual."""
    monkeypatch.setattr(cuda_graphs, "check_device", lambda device: None)
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda *args, **kwargs: ["cpu"])
    make_capturable = Optimizers.make_capturable

    def make(graphed: Callable, core: str, *, capturable: bool = True, **others: object) -> A2C:
        monkeypatch.setattr(cuda_graphs, "graphed", graphed)
        monkeypatch.setattr(Optimizers, "make_capturable", make_capturable if capturable else lambda self: None)
        return A2C(settings(core, cuda_graphs=True, **others), CPU)

    return make


def without_config(trainer: A2C) -> dict[str, Any]:
    return {name: value for name, value in trainer.get_state().items() if name != "config"}


@pytest.mark.parametrize("core", ["rmc", "lstm", "none"])
def test_static_tensors_change_nothing(core: str, on_cpu: Callable[..., A2C]) -> None:
    """The same actions, losses, weights and counters, to the bit, as of a trainer that knows nothing of graphs."""
    plain, static = A2C(settings(core), CPU), on_cpu(as_it_is, core, capturable=False)
    for _ in range(UPDATES):
        expected, got = plain.update(), static.update()
        assert {name: x.item() for name, x in got.items()} == {name: x.item() for name, x in expected.items()}
    assert plain.lanes.take_episodes() == static.lanes.take_episodes()
    assert_same(without_config(plain), without_config(static))


@pytest.mark.parametrize("core", CORES)
def test_what_is_captured_is_all_there_is(core: str, on_cpu: Callable[..., A2C]) -> None:
    """A replay of the captured operations alone does what a call does: nothing comes from Python or from elsewhere."""
    others = {"learning_rate_schedule": "linear", "total_frames": UPDATES * 30}
    called, replayed = on_cpu(as_it_is, core, **others), on_cpu(Emulated, core, **others)
    for _ in range(UPDATES):
        expected, got = called.update(), replayed.update()
        assert {name: x.item() for name, x in got.items()} == {name: x.item() for name, x in expected.items()}
    assert_same(without_config(called), without_config(replayed))


def test_adam_with_its_learning_rate_in_a_tensor_is_adam(on_cpu: Callable[..., A2C]) -> None:
    plain, capturable = A2C(settings("rmc"), CPU), on_cpu(as_it_is, "rmc")
    for _ in range(2):
        plain.update(), capturable.update()
    torch.testing.assert_close(plain.agent.state_dict(), capturable.agent.state_dict(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("core", ["rmc", "lstm", "none"])
def test_resume_in_the_midst_of_replays(core: str, on_cpu: Callable[..., A2C], tmp_path: Path) -> None:
    """Into a fresh trainer and into one that has captured other tensors already."""
    whole, used, fresh = (on_cpu(Emulated, core, **SAVED) for _ in range(3))
    for _ in range(UPDATES):
        whole.update(), used.update()
    used.update()
    checkpoint.save(tmp_path / "saved", whole.get_state())
    for trainer in (used, fresh):
        trainer.set_state(checkpoint.load(tmp_path / "saved"))
    for _ in range(UPDATES):
        for trainer in (whole, used, fresh):
            trainer.update()
    assert_same(whole.get_state(), used.get_state())
    assert_same(whole.get_state(), fresh.get_state())


@pytest.mark.parametrize("graphs", [False, True])
def test_checkpoints_pass_between_training_with_and_without(
    graphs: bool, on_cpu: Callable[..., A2C], tmp_path: Path
) -> None:
    trainers = [on_cpu(as_it_is, "rmc", **SAVED), A2C(settings("rmc", **SAVED), CPU)]
    source, target = trainers if graphs else reversed(trainers)
    for _ in range(2):
        source.update()
    checkpoint.save(tmp_path / "saved", source.get_state())
    target.set_state(checkpoint.load(tmp_path / "saved"))
    assert_same(without_config(source), without_config(target))
    source.update(), target.update()
    torch.testing.assert_close(source.agent.state_dict(), target.agent.state_dict(), rtol=1e-4, atol=1e-6)


def test_divergence_stops_before_the_weights_are_spoilt(on_cpu: Callable[..., A2C]) -> None:
    trainer = on_cpu(Emulated, "lstm")
    for _ in range(UPDATES):
        trainer.update()
    trainer.agent.policy.bias.data.fill_(float("nan"))
    before = [parameter.clone() for parameter in trainer.agent.core.parameters()]
    with pytest.raises(ValueError, match="training diverged"):
        trainer.update()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.agent.core.parameters(), strict=True))


@pytest.mark.parametrize("name", ["minipacman", "CartPole-v1"])
def test_staged_time_steps_are_those_of_lanes(name: str) -> None:
    plain, staged = (kind(make_vector_env(name, 5), 3, CPU) for kind in (Lanes, cuda_graphs.StagedLanes))
    for t in range(60):
        for expected, got in zip(plain.steps, staged.steps, strict=True):
            assert got.dtype == expected.dtype
            assert got.data_ptr() % cuda_graphs.ALIGNMENT == 0
            assert got.equal(expected)
        action = torch.from_numpy(np.random.default_rng(t).integers(2, size=5))
        plain.step(action), staged.step(action)


def test_rows_of_bytes_hold_every_field_at_every_time() -> None:
    like = Lanes(make_vector_env("recall", 3), 0, CPU).steps
    rows = torch.zeros(4, cuda_graphs.row_size(like), dtype=torch.uint8)
    steps = cuda_graphs.views(rows, like)
    for t in range(4):
        for field, one in zip(steps, like, strict=True):
            assert field.shape == (4, *one.shape)
            field[t] = t % 2 if one.dtype == torch.bool else t + 1
    for t in range(4):
        assert all((field[t] == (t % 2 if field.dtype == torch.bool else t + 1)).all() for field in steps)


def test_without_a_gpu_graphs_are_refused_in_a_line() -> None:
    with pytest.raises(
        ValueError, match="cuda_graphs: expected device cuda, got cpu; leave out --cuda-graphs"
    ) as error:
        A2C(settings("rmc", cuda_graphs=True), CPU)
    assert "\n" not in str(error.value)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("core", "backend"),
    [*((core, "reference") for core in CORES), ("rmc", "triton"), ("lstm", "triton")],
)
def test_graphs_on_a_gpu_do_what_calls_do(core: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are the same, and so are their arguments: nearly the same weights after replays of all three graphs."""
    if backend == "triton":
        pytest.importorskip("triton")
    gpu, config = torch.device("cuda"), settings(core, backend=backend, cuda_graphs=True)
    replayed = A2C(config, gpu)
    monkeypatch.setattr(cuda_graphs, "graphed", as_it_is)
    called = A2C(config, gpu)
    for _ in range(UPDATES):
        expected, got = called.update(), replayed.update()
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-4)
    assert called.lanes.take_episodes() == replayed.lanes.take_episodes()
    torch.testing.assert_close(replayed.agent.state_dict(), called.agent.state_dict(), rtol=1e-3, atol=1e-4)
    assert called.collector.generator.get_state().equal(replayed.collector.generator.get_state())


@pytest.mark.gpu
def test_resume_on_a_gpu_in_the_midst_of_replays(tmp_path: Path) -> None:
    whole, parts = (A2C(settings("rmc", cuda_graphs=True, **SAVED), torch.device("cuda")) for _ in range(2))
    for _ in range(UPDATES):
        whole.update()
    checkpoint.save(tmp_path / "saved", whole.get_state())
    parts.set_state(checkpoint.load(tmp_path / "saved"))
    for _ in range(UPDATES):
        whole.update(), parts.update()
    trees = [trainer.get_state()["agent"] for trainer in (whole, parts)]
    torch.testing.assert_close(*trees, rtol=1e-3, atol=1e-4)
