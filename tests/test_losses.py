"""Returns and losses against their definitions and known values, also at episode boundaries."""

import math

import numpy as np
import pytest
import torch

from oracles.returns import lambda_return, vtrace_target
from rmc_agents import losses
from rmc_agents.distributions import Categorical
from rmc_agents.types import TimeStep


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def random_transitions(length: int, lanes: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(length + 1, lanes, dtype=torch.float64, generator=generator)
    rewards = torch.randn(length, lanes, dtype=torch.float64, generator=generator)
    discounts = 0.5 + 0.5 * torch.rand(length, lanes, dtype=torch.float64, generator=generator)
    return values[:-1], values[1:], rewards, discounts


def test_lambda_returns_known_values() -> None:
    # by hand: G_2 = 4 + 0.5 * 8 = 8; G_1 = 2 + 1 * (0.5 * 6 + 0.5 * 8) = 9; G_0 = 1 + 0.5 * (0.5 * 4 + 0.5 * 9) = 4.25
    returns = losses.lambda_returns(column(1, 2, 4), column(0.5, 1, 0.5), column(4, 6, 8), column(0.5, 0.5, 0.5))
    assert returns.squeeze(1).tolist() == [4.25, 9.0, 8.0]


@pytest.mark.parametrize("trace_lambda", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("length", [1, 7])
def test_lambda_returns_match_the_oracle(length: int, trace_lambda: float) -> None:
    _, v_t, r_t, discount_t = random_transitions(length, lanes=3)
    returns = losses.lambda_returns(r_t, discount_t, v_t, torch.full_like(r_t, trace_lambda))
    for t in range(length):
        for lane in range(3):
            expected = lambda_return(r_t[t:, lane], discount_t[t:, lane], v_t[t:, lane], trace_lambda)
            assert returns[t, lane].item() == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("clip_rho", [0.7, 1.0, 2.0])
@pytest.mark.parametrize("trace_lambda", [0.9, 1.0])
def test_vtrace_matches_the_oracle(trace_lambda: float, clip_rho: float) -> None:
    v_tm1, v_t, r_t, discount_t = random_transitions(8, lanes=4, seed=1)
    log_rho = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    lambda_t = torch.full_like(r_t, trace_lambda)
    result = losses.vtrace_targets(v_tm1, v_t, r_t, discount_t, log_rho, lambda_t, clip_rho=clip_rho, clip_pg_rho=1.5)
    rho = log_rho.exp().numpy()

    def target(t: int, lane: int) -> float:
        if t == 8:
            return float(v_t[7, lane])
        tail = [x[t:, lane].numpy() for x in (r_t, discount_t, v_t)]
        return float(vtrace_target(float(v_tm1[t, lane]), *tail, rho[t:, lane], trace_lambda, clip_rho))

    for t in range(8):
        for lane in range(4):
            assert result.targets[t, lane].item() == pytest.approx(target(t, lane), abs=1e-12)
            next_v = float(v_t[t, lane])
            q = float(r_t[t, lane]) + float(discount_t[t, lane]) * (
                next_v + trace_lambda * (target(t + 1, lane) - next_v)
            )
            assert result.advantages[t, lane].item() == pytest.approx(q - float(v_tm1[t, lane]), abs=1e-12)
            assert result.weights[t, lane].item() == pytest.approx(min(1.5, rho[t, lane]), abs=1e-12)


@pytest.mark.parametrize("trace_lambda", [0.0, 0.8, 1.0])
def test_vtrace_on_policy_is_lambda_returns(trace_lambda: float) -> None:
    v_tm1, v_t, r_t, discount_t = random_transitions(9, lanes=5, seed=3)
    lambda_t = torch.full_like(r_t, trace_lambda)
    lambda_t[4, 2] = 0.0
    returns = losses.lambda_returns(r_t, discount_t, v_t, lambda_t)
    result = losses.vtrace_targets(v_tm1, v_t, r_t, discount_t, torch.zeros_like(r_t), lambda_t)
    torch.testing.assert_close(result.targets, returns)
    torch.testing.assert_close(result.advantages, returns - v_tm1)
    assert torch.equal(result.weights, torch.ones_like(r_t))


def two_episodes(*, truncated: bool) -> dict[str, torch.Tensor]:
    """Seven time steps: an episode of 4 observations, the filler, and the beginning of the next of 3."""
    flag = torch.zeros(7, 1, dtype=torch.bool)
    is_first, is_last = flag.clone(), flag.clone()
    is_first[0], is_first[4], is_last[3] = True, True, True
    return {
        "is_first": is_first,
        "terminated": flag if truncated else is_last,
        "truncated": is_last if truncated else flag,
    }


@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("trace_lambda", [0.7, 1.0])
def test_one_trace_over_two_episodes_is_two_traces(truncated: bool, trace_lambda: float) -> None:
    flags = two_episodes(truncated=truncated)
    weights = losses.transition_weights(**flags, discount=0.9, trace_lambda=trace_lambda)
    assert weights.valid.squeeze(1).tolist() == [True, True, True, False, True, True]
    values = torch.randn(7, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    rewards = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0, 5.0], dtype=torch.float64).unsqueeze(1)
    together = losses.lambda_returns(rewards, weights.discount_t, values[1:], weights.lambda_t).squeeze(1)

    last_discount = 0.9 if truncated else 0.0
    first = [
        lambda_return(rewards[t:3, 0], [0.9, 0.9, last_discount][t:], values[t + 1 : 4, 0], trace_lambda)
        for t in range(3)
    ]
    second = [lambda_return(rewards[t:, 0], [0.9] * (6 - t), values[t + 1 :, 0], trace_lambda) for t in (4, 5)]
    np.testing.assert_allclose(together[:3], [float(x) for x in first], atol=1e-12)
    np.testing.assert_allclose(together[4:], [float(x) for x in second], atol=1e-12)

    log_rho = torch.randn(6, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    whole = losses.vtrace_targets(values[:-1], values[1:], rewards, weights.discount_t, log_rho, weights.lambda_t)
    for part in (slice(0, 3), slice(4, 6)):
        alone = losses.vtrace_targets(
            values[:-1][part],
            values[1:][part],
            rewards[part],
            weights.discount_t[part],
            log_rho[part],
            torch.full_like(rewards[part], trace_lambda),
        )
        torch.testing.assert_close(whole.targets[part], alone.targets)
        torch.testing.assert_close(whole.advantages[part], alone.advantages)


def test_approx_kl_is_the_divergence_in_the_mean() -> None:
    torch.manual_seed(0)
    old, new = torch.randn(2, 5).log_softmax(-1)
    action = torch.multinomial(old.exp(), 200_000, replacement=True).unsqueeze(0)
    valid = torch.arange(200_000).unsqueeze(0) % 3 > 0
    expected = (old.exp() * (old - new)).sum()
    log_ratio = torch.where(valid, (new - old)[action], 9.0)
    torch.testing.assert_close(losses.approx_kl(log_ratio, valid), expected, rtol=0.02, atol=0.0)


def test_filler_steps_enter_no_loss_and_no_gradient() -> None:
    valid = torch.tensor([[True], [False], [True]])
    logits = torch.randn(3, 1, 4, requires_grad=True)
    value = torch.randn(3, 1, requires_grad=True)
    poison = torch.tensor([[1.0], [math.nan], [2.0]])
    action = torch.tensor([[0], [1], [2]])
    policy = Categorical(logits)
    total = losses.policy_gradient_loss(policy.log_prob(action), poison, valid)
    total = total + losses.value_loss(value, poison, valid) - losses.masked_mean(policy.entropy(), valid)
    total.backward()
    assert torch.isfinite(total)
    assert logits.grad is not None
    assert value.grad is not None
    assert logits.grad[1].abs().sum() == 0
    assert value.grad[1] == 0
    assert logits.grad[0].abs().sum() > 0


def test_policy_gradient_is_probability_minus_choice() -> None:
    logits = torch.tensor([[[0.2, -0.5, 1.0]]], requires_grad=True)
    advantage = torch.tensor([[3.0]], requires_grad=True)
    log_prob = Categorical(logits).log_prob(torch.tensor([[2]]))
    losses.policy_gradient_loss(log_prob, advantage, torch.ones(1, 1).bool()).backward()
    expected = 3.0 * (logits.detach().softmax(-1) - torch.tensor([0.0, 0.0, 1.0]))
    torch.testing.assert_close(logits.grad, expected)
    assert advantage.grad is None


def test_value_loss_is_half_the_mean_square() -> None:
    value, target = (torch.tensor(x, requires_grad=True) for x in ([[1.0], [5.0]], [[3.0], [5.0]]))
    loss = losses.value_loss(value, target, torch.ones(2, 1).bool())
    assert loss.item() == 1.0
    loss.backward()
    assert value.grad is not None
    assert value.grad.squeeze(1).tolist() == [-1.0, 0.0]
    assert target.grad is None


def test_targets_carry_no_gradient() -> None:
    """Otherwise the value would move towards anything that makes the actions look good."""
    value = torch.randn(4, 2, requires_grad=True)
    no, fields = torch.zeros(4, 2, dtype=torch.bool), torch.zeros(4, 2)
    targets = losses.lambda_targets(value, TimeStep(fields, no, fields.long(), fields, no, no), discount=0.9)
    assert not targets.value.requires_grad
    assert not targets.advantage.requires_grad


def test_masked_normalize_and_explained_variance() -> None:
    x = torch.tensor([[1.0], [3.0], [1000.0]])
    valid = torch.tensor([[True], [True], [False]])
    assert losses.masked_normalize(x, valid).squeeze(1).tolist() == pytest.approx([-1.0, 1.0, 0.0])
    assert losses.explained_variance(x, x, valid).item() == 1.0
    for scale in (1.0, 1e-5):
        assert losses.explained_variance(torch.full_like(x, 2.0 * scale), scale * x, valid).item() == pytest.approx(0.0)
    assert losses.masked_mean(x, torch.zeros_like(valid)).item() == 0.0


@pytest.mark.parametrize("value", [0.0, 0.1, 1.1, 123.4])
def test_equal_advantages_and_targets_are_no_signal(value: float) -> None:
    equal, valid = torch.full((5120, 1), value), torch.arange(5120)[:, None] % 7 > 0
    assert losses.masked_normalize(equal, valid).abs().max() < 1e-4
    assert losses.explained_variance(torch.rand(5120, 1), equal, valid) == 0.0


def test_masked_variance_is_the_variance_of_what_is_valid() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 7.0 + torch.randn(20, 6, generator=generator)
    valid = torch.rand(20, 6, generator=generator) < 0.7
    x[~valid] = float("nan")
    torch.testing.assert_close(losses.masked_variance(x, valid), x[valid].var(correction=0))
    assert losses.masked_variance(x, torch.zeros_like(valid)).isnan()


def test_cross_entropy_is_the_mean_over_the_asked_steps() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 4, 3)
    targets = torch.randint(-1, 3, (6, 4))
    logits[targets < 0] = torch.nan  # outputs there are ignored
    logits.requires_grad_()
    loss, metrics = losses.cross_entropy(logits, targets)
    loss.backward()
    terms, right = [], []
    for t, lane in np.ndindex(6, 4):
        if (target := int(targets[t, lane])) >= 0:
            row = logits[t, lane].tolist()
            terms.append(math.log(sum(math.exp(x) for x in row)) - row[target])
            right.append(row[target] == max(row))
    assert 0 < len(terms) < 24
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)
    assert metrics["losses/cross_entropy"].item() == loss.item()
    assert metrics["charts/accuracy"].item() == pytest.approx(np.mean(right))
    assert metrics["charts/target_fraction"].item() == pytest.approx(len(terms) / 24)


def test_cross_entropy_takes_targets_of_int64() -> None:
    with pytest.raises(ValueError, match=r"targets: expected a tensor \[T, B\] of int64.* got torch.float32"):
        losses.cross_entropy(torch.zeros(2, 3, 4), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"targets: expected \[2, 3\], as of policy_logits, got \[1, 3\]"):
        losses.cross_entropy(torch.zeros(2, 3, 4), torch.zeros(1, 3, dtype=torch.int64))


def test_cross_entropy_where_nothing_is_asked() -> None:
    with pytest.raises(
        ValueError, match=r"targets: expected a tensor \[T, B\] of int64, from infos\['target'\], got None"
    ):
        losses.cross_entropy(torch.randn(6, 4, 3), None)  # type: ignore[arg-type]
    loss, metrics = losses.cross_entropy(torch.randn(6, 4, 3), torch.full((6, 4), -1))
    assert loss.item() == 0.0
    assert metrics["charts/accuracy"].isnan()
    assert metrics["losses/cross_entropy"].isnan()


@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
def test_a_policy_that_has_moved_far_away_has_a_finite_gradient(advantage: float) -> None:
    log_ratio = torch.full((1, 1), 200.0, requires_grad=True)
    loss = losses.clipped_policy_loss(log_ratio, torch.full((1, 1), advantage), torch.ones(1, 1).bool(), clip=0.2)
    loss.backward()
    assert torch.isfinite(loss)
    assert log_ratio.grad is not None
    assert torch.isfinite(log_ratio.grad).all()


@pytest.mark.parametrize("clips", [{"clip_rho": 0.0}, {"clip_pg_rho": -1.0}])
def test_clipping_thresholds_are_above_0(clips: dict[str, float]) -> None:
    one, valid = torch.ones(3, 2), torch.ones(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"{next(iter(clips))}: expected a number above 0"):
        losses.vtrace_targets(one, one, one, one, one, one, **clips)
    with pytest.raises(ValueError, match="clip: expected a number above 0, got -1"):
        losses.clipped_policy_loss(one, one, valid, clip=-1.0)


@pytest.mark.parametrize(("discount", "trace_lambda", "name"), [(9, 1.0, "discount"), (0.9, -0.1, "trace_lambda")])
def test_a_discount_or_a_trace_above_1_or_below_0_is_refused(discount: float, trace_lambda: float, name: str) -> None:
    flags = torch.zeros(3, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=f"{name}: expected a number from 0 to 1"):
        losses.returns.transition_weights(flags, flags, flags, discount, trace_lambda)
