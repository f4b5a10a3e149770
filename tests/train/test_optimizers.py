"""The optimizers by name: which one updates which parameter, their state, and Muon's step."""

import copy

import pytest
import torch
from torch import nn

from helpers.agents import make_agent, set_gradients
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config, TrainConfig
from rmc_agents.train import muon
from rmc_agents.train.muon import orthogonal
from rmc_agents.train.optimizers import Adam, Muon, Optimizers, make_optimizer

RATE = 0.01


def settings(optimizer: str) -> TrainConfig:
    return Config().updated({"optimizer": optimizer, "learning_rate": RATE}, "test").train


def make(optimizer: str, core: str = "rmc") -> tuple[ActorCritic, Optimizers]:
    torch.manual_seed(0)
    agent = make_agent(core, head_sizes=[20])
    return agent, make_optimizer(agent, settings(optimizer))


@pytest.mark.parametrize("core", ["rmc", "lstm", "none"])
@pytest.mark.parametrize("name", ["adam", "muon"])
def test_every_parameter_belongs_to_one_part(name: str, core: str) -> None:
    agent, optimizer = make(name, core)
    found = [p for part in optimizer.parts for group in part.param_groups for p in group["params"]]
    assert sorted(map(id, found)) == sorted(map(id, agent.parameters()))


def test_shared_matrices_are_stepped_once_and_embeddings_of_a_core_by_adam() -> None:
    agent, _ = make("muon", "lstm")
    agent.encoder.shared = agent.core.shared = nn.Linear(32, 32)
    agent.core.table = nn.Embedding(32, 32)
    agent.core.slot_embedding = nn.Parameter(torch.zeros(32, 32))
    adam, muon = make_optimizer(agent, settings("muon")).parts
    of_muon, of_adam = ([p for group in part.param_groups for p in group["params"]] for part in (muon, adam))
    assert sum(p is agent.core.shared.weight for p in of_muon) == 1
    assert sum(p is agent.core.table.weight or p is agent.core.slot_embedding for p in of_adam) == 2


def test_adam_is_torchs() -> None:
    agent, optimizer = make("adam")
    twin, _ = make("adam")
    expected = torch.optim.Adam(twin.parameters(), lr=RATE, eps=settings("adam").adam_epsilon)
    for seed in range(3):
        for one, stepped in ((agent, optimizer), (twin, expected)):
            set_gradients(one, seed)
            stepped.step()
    for one, other in zip(agent.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other)  # ours is fused, which rounds differently


@pytest.mark.parametrize("weight_decay", [0.0, 30.0])
def test_muons_steps_are_torchs_up_to_its_bfloat16(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (64, 192), (192, 64), (48, 48)
    mine, theirs = ([torch.zeros(shape, requires_grad=True) for shape in shapes] for _ in range(2))
    scale, decay = "match_rms_adamw", {"weight_decay": weight_decay}
    optimizers = Muon(mine, lr=RATE, **decay), torch.optim.Muon(theirs, lr=RATE, **decay, adjust_lr_fn=scale)
    for _ in range(3):
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
        muon.Muon([mine[0]], lr=0.0).step()  # the class without our training's wrapper
    for one, other in zip(mine, theirs, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()


def test_weight_decay_is_a_setting_of_muon_alone() -> None:
    agent, _ = make("muon")
    config = Config().updated({"optimizer": "muon", "weight_decay": 0.5}, "test")
    groups = [group for part in make_optimizer(agent, config.train).parts for group in part.param_groups]
    assert [group["weight_decay"] for group in groups] == [0, 0.5]
    assert "weight_decay" not in config.unused()
    for other in ({"optimizer": "adam"}, {"algo": "recurrent-ppo"}):
        assert "weight_decay" in config.updated(other, "test").unused()


@pytest.mark.parametrize("shape", [(64, 192), (100, 40), (48, 48)])
@pytest.mark.parametrize("decades", [0, 8])
def test_muons_direction_is_that_of_the_iteration_as_published(shape: tuple[int, int], decades: int) -> None:
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(0)).double(), False)
    matrix = (u * torch.logspace(0, -decades, min(shape), dtype=torch.float64)) @ v
    x = matrix / matrix.norm()
    for _ in range(5):
        a = x @ x.t()
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    found = orthogonal(matrix.float())
    assert (found - x).norm() < 1e-3 * x.norm()
    assert torch.equal(orthogonal(torch.zeros(shape)), torch.zeros(shape))
    thin = torch.outer(torch.randn(shape[0]), torch.randn(shape[1])).bfloat16()  # in bfloat16 it would blow up
    assert (orthogonal(thin).float() - orthogonal(thin.float())).norm() < 0.02


def test_muon_takes_the_hidden_matrices_and_moves_all_their_directions_alike() -> None:
    agent, optimizer = make("muon", "lstm")
    before = {name: p.detach().clone() for name, p in agent.named_parameters()}
    set_gradients(agent, 0)
    for parameter in agent.parameters():  # one direction far steeper than the others
        assert parameter.grad is not None
        parameter.grad[0] *= 30
    optimizer.step()
    muon = {id(p) for group in optimizer.parts[1].param_groups for p in group["params"]}
    for name, parameter in agent.named_parameters():
        change = parameter.detach() - before[name]
        is_hidden = (
            name.split(".")[0] in ("encoder", "core", "head_layers") and change.dim() == 2 and min(change.shape) >= 16
        )
        assert (id(parameter) in muon) == is_hidden, name
        if is_hidden:
            values = torch.linalg.svdvals(change)
            assert values[0] < 4 * values[len(values) // 2], name  # of the gradient itself: above 20 times
            assert change.square().mean().sqrt().item() == pytest.approx(0.2 * RATE, rel=0.5), name
    assert muon


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_weights_move_by_gradients_alone_and_by_none_at_a_learning_rate_of_zero(name: str) -> None:
    agent, optimizer = make(name)
    before = [parameter.detach().clone() for parameter in agent.parameters()]
    for parameter in agent.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.set_learning_rate(0.0)
    set_gradients(agent, 0)
    optimizer.step()
    for parameter, old in zip(agent.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


@pytest.mark.parametrize("name", ["adam", "muon"])
def test_state_goes_over_exactly(name: str) -> None:
    (agent, optimizer), (twin, other) = make(name), make(name)
    set_gradients(agent, 0)
    optimizer.step()
    twin.load_state_dict(agent.state_dict())
    other.set_state(copy.deepcopy(optimizer.get_state()))
    for one, stepped in ((agent, optimizer), (twin, other)):
        stepped.set_learning_rate(2 * RATE)
        set_gradients(one, 1)
        stepped.step()
    for one, same in zip(agent.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, same)
    with pytest.raises(ValueError, match="expected the optimizer's state of"):
        other.set_state(optimizer.get_state()[:-1])


def test_moments_continue_in_the_memory_layout_of_their_weights() -> None:
    def of(weight: torch.Tensor) -> Optimizers:
        return Optimizers(Adam([weight], lr=0.1, fused=True))

    weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).T)
    other = nn.Parameter(weight.detach().clone())
    first, second = of(weight), of(other)
    for each, optimizer in ((weight, first), (other, second)):
        each.grad = torch.arange(6.0).reshape(3, 2).T
        optimizer.step()
    state = second.get_state()
    second.set_state([{name: moment.contiguous() for name, moment in state[0].items()}])  # as in a checkpoint
    first.step()
    second.step()
    assert torch.equal(weight, other)
