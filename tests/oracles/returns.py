"""Returns by their definitions, in Python floats, one transition at a time."""

from collections.abc import Sequence


def n_step_return(rewards: Sequence[float], discounts: Sequence[float], values: Sequence[float], n: int) -> float:
    """r_1 + d_1 r_2 + ... + d_1...d_(n-1) r_n + d_1...d_n v_n from step 0; `values[i]` is that of step i + 1."""
    total, product = 0.0, 1.0
    for i in range(n):
        total += product * rewards[i]
        product *= discounts[i]
    return total + product * values[n - 1]


def lambda_return(
    rewards: Sequence[float], discounts: Sequence[float], values: Sequence[float], trace_lambda: float
) -> float:
    """The weighted sum of all n-step returns from step 0: (1 - l) sum l^(n-1) G_n, the rest on the longest."""
    horizon = len(rewards)
    total, weight = 0.0, 1.0
    for n in range(1, horizon):
        total += (1.0 - trace_lambda) * weight * n_step_return(rewards, discounts, values, n)
        weight *= trace_lambda
    return total + weight * n_step_return(rewards, discounts, values, horizon)


def vtrace_target(
    value: float,
    rewards: Sequence[float],
    discounts: Sequence[float],
    values: Sequence[float],
    ratios: Sequence[float],
    trace_lambda: float = 1.0,
    clip_rho: float = 1.0,
) -> float:
    """Equation 1 of Espeholt et al. (2018) as it is written: v + sum over t of discounts, traces and the TD error.

    `value` is that of step 0, `values[i]` that of step i + 1.
    """
    before = [value, *values[:-1]]
    target = value
    for t in range(len(rewards)):
        product = 1.0
        for i in range(t):
            product *= discounts[i] * trace_lambda * min(1.0, ratios[i])
        delta = min(clip_rho, ratios[t]) * (rewards[t] + discounts[t] * values[t] - before[t])
        target += product * delta
    return target
