"""How IMPALA scales past one machine: costs that are measured here, and what follows for 10, 100 and 1000 cores.

    python benchmarks/actor_scaling.py [--preset minipacman-lstm] [--repeats 15] [--device cpu] [--out FILE]

Measured on one thread, for Mini PacMan and for the same game at 100 microseconds a step (slow_env.py): an actor's
rollout, packing and weights, the learner's checking, updating and packing, and the bytes that travel. An update's
time is fitted by a line over rollouts an update. A real run with one actor and its simulation stand side by side, to
tell how far the simulation (actor_simulation.py) can be trusted; it wants a machine with two idle cores. The batch is
the smallest with which the weights can be at most `--lag` updates old: the actors have leave for actors *
rollouts_ahead rollouts, so that if the learner is the slower one, the oldest is that many over the batch updates old.
See docs/decisions/impala-scaling.md.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from statistics import fmean, median
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # before the imports, and for the actor that is started from here

import numpy as np  # noqa: E402
import torch  # noqa: E402
from actor_simulation import Costs, Outcome, Site, bounds, simulate  # noqa: E402
from reports import describe, machine, table, write  # noqa: E402
from rich.progress import track  # noqa: E402

from rmc_agents import configs  # noqa: E402
from rmc_agents.config import Config  # noqa: E402
from rmc_agents.train.bench.timing import rounds  # noqa: E402
from rmc_agents.train.impala.actors import Actor, ParcelReader, pack_weights  # noqa: E402
from rmc_agents.train.impala.learner import Impala, joined  # noqa: E402

HERE = Path(__file__).resolve().parent
ENVS = ("minipacman", "slow_env:SlowMiniPacman-v0")
BATCHES = (1, 2, 4, 8, 16)  # rollouts an update, of which updates are timed
ACTORS = (10, 100, 1000)
GIGABITS = (1, 10, 100)
SPEEDS = (1, 10, 100)
WARM_UP = 10  # updates of the real run that do not count


def settings_of(env: str, arguments: argparse.Namespace) -> Config:
    """A run with one actor."""
    changes = {"env": env, "algo": "impala", "actors": 1, "batch_rollouts": 1, "lanes_per_actor": arguments.lanes}
    return Config().updated_from_yaml(configs.find(Path(arguments.preset))).updated(changes, "actor_scaling").settled()


def measure(config: Config, device: torch.device, repeats: int) -> tuple[Costs, dict[str, list[float]]]:
    """What things cost, and the seconds that it was taken from."""
    with closing(Impala(config, device)) as learner, closing(Actor(config, 0)) as actor:
        weights = pack_weights(learner.agent)
        actor.take_weights(0, weights)
        parcel = actor.act(waited=0.0)
        content = parcel.to_bytes()
        reader = ParcelReader(parcel.rollout, actor.lanes.spec)
        rollout = reader.open(content, 0).rollout
        work = {
            "act": lambda: actor.act(waited=0.0).to_bytes(),
            "take_weights": lambda: actor.take_weights(0, weights),
            "open_parcel": lambda: reader.open(content, 0),
            "pack_weights": lambda: pack_weights(learner.agent),
            **{update_of(n): lambda n=n: learner._optimize(joined([rollout] * n, device)) for n in BATCHES},
        }
        seconds = rounds(work, repeats, None, device)
    per_rollout, per_update = np.polyfit(BATCHES, [median(seconds[update_of(n)]) for n in BATCHES], 1)
    costs = Costs(
        frames=rollout.value.numel(),
        act=seconds["act"],
        take_weights=median(seconds["take_weights"]),
        open_parcel=median(seconds["open_parcel"]),
        update=max(0.0, float(per_update)),
        rollout=float(per_rollout),
        pack_weights=median(seconds["pack_weights"]),
        parcel_bytes=len(content),
        weights_bytes=len(weights),
    )
    return costs, seconds


def update_of(rollouts: int) -> str:
    """The name of the update from so many."""
    return f"update of {rollouts}"


def really(config: Config, device: torch.device, seconds: float) -> dict[str, float]:
    """The same figures as `Outcome` of a real run, of at least so many seconds."""
    names = ("actors/learner_idle", "actors/actor_idle", "actors/policy_lag")
    with closing(Impala(config, device)) as run:
        for _ in range(WARM_UP):
            run.update()
        told, before, began = [], run.frames, time.perf_counter()
        while time.perf_counter() - began < seconds:
            metrics = run.update()
            told.append([metrics[name].item() for name in names])
            run.lanes.take_episodes()
        rate = (run.frames - before) / (time.perf_counter() - began)
    means = (fmean(values) for values in zip(*told, strict=True))
    return {"frames_per_second": rate, **{n.removeprefix("actors/"): v for n, v in zip(names, means, strict=True)}}


def sites(lag: int) -> Iterator[Site]:
    """All that are simulated."""
    for speed in SPEEDS:
        for actors in ACTORS:
            batch = math.ceil(actors * Site._field_defaults["rollouts_ahead"] / lag)
            yield from (Site(actors, batch, gigabits, speed) for gigabits in GIGABITS)


def constants(costs: Costs) -> str:
    """The table of what was measured and what follows from it at once."""
    act, learn = fmean(costs.act) + costs.take_weights, costs.rollout + costs.open_parcel
    rows = [
        ("frames of a rollout", f"{costs.frames:,}"),
        ("a rollout's bytes", f"{costs.parcel_bytes:,}"),
        ("the weights' bytes", f"{costs.weights_bytes:,}"),
        ("acting, frames/s a core", f"{costs.frames / act:,.0f}"),
        ("of that, taking the weights", f"{costs.take_weights / act:.1%}"),
        ("an update: its own, ms", f"{1e3 * costs.update:.2f}"),
        ("and for each rollout, ms", f"{1e3 * costs.rollout:.2f}"),
        ("checking a rollout, ms", f"{1e3 * costs.open_parcel:.2f}"),
        ("packing the weights, ms", f"{1e3 * costs.pack_weights:.2f}"),
        ("learning, frames/s, in large updates", f"{costs.frames / learn:,.0f}"),
        ("so many actors it then takes", f"{act / learn:.1f}"),
    ]
    for gigabits in GIGABITS:
        link = Site(1, 1, gigabits)
        rows.append((f"actors that fill {gigabits} Gbit/s", f"{act / link.seconds(costs.parcel_bytes):,.0f}"))
    return table(("", ""), rows)


def outcomes(results: Sequence[tuple[Site, dict[str, float], Outcome]]) -> str:
    """A row for each number of cores and speed of the learner, the networks side by side."""
    heads = [f"frames/s, {gigabits} Gbit/s" for gigabits in GIGABITS]
    columns = ("learner", "cores", "rollouts an update", *heads, "limit", "policy lag", "learner idle", "actors idle")
    rows = []
    for i in range(0, len(results), len(GIGABITS)):
        row = results[i : i + len(GIGABITS)]
        site, limits = row[0][0], [min(bound, key=lambda name: bound[name]) for _, bound, _ in row]
        by_network = (
            [f"{outcome.frames_per_second:,.0f}" for _, _, outcome in row],
            " / ".join(limits),
            " / ".join(f"{outcome.policy_lag:.1f}" for _, _, outcome in row),
            " / ".join(f"{outcome.learner_idle:.0%}" for _, _, outcome in row),
            " / ".join(f"{outcome.actor_idle:.0%}" for _, _, outcome in row),
        )
        cells = (f"x {site.learner_speed:g}", f"{site.actors:,}", f"{site.batch_rollouts:,}")
        rows.append((*cells, *by_network[0], *by_network[1:]))
    return table(columns, rows)


def beside(real: dict[str, float], simulated: Outcome) -> str:
    """The real run and its simulation."""
    rows = [
        (
            name,
            f"{o['frames_per_second']:,.0f}",
            f"{o['learner_idle']:.0%}",
            f"{o['actor_idle']:.0%}",
            f"{o['policy_lag']:.2f}",
        )
        for name, o in (("real", real), ("simulated", simulated._asdict()))
    ]
    return table(("one actor", "frames/s", "learner idle", "actor idle", "policy lag"), rows)


def study(env: str, arguments: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """An environment's figures, and its part of the Markdown file."""
    config, device = settings_of(env, arguments), torch.device(arguments.device)
    costs, seconds = measure(config, device, arguments.repeats)
    real = really(config, device, arguments.seconds)
    alone = simulate(costs, Site(1, 1), updates=300)
    results = [
        (site, bounds(costs, site), simulate(costs, site))
        for site in track(list(sites(arguments.lag)), env, disable=not sys.stdout.isatty())
    ]
    figures = {
        "costs": costs._asdict(),
        "seconds": seconds,
        "one_actor": {"real": real, "simulated": alone._asdict()},
        "sites": [{**s._asdict(), "bounds": b, **o._asdict()} for s, b, o in results],
    }
    return figures, "\n\n".join((f"## {env}", constants(costs), beside(real, alone), outcomes(results)))


def main() -> None:
    """Measures, simulates, and writes the figures and the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="minipacman-lstm", help="of agent and learner")
    parser.add_argument("--lanes", type=int, default=32, help="of an actor")
    parser.add_argument("--lag", type=int, default=8, help="updates: the most that the batch is chosen for")
    parser.add_argument("--repeats", type=int, default=15, help="of each measurement, in turn")
    parser.add_argument("--seconds", type=float, default=20.0, help="of the real run with one actor")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="the learner's")
    parser.add_argument("--envs", nargs="+", default=ENVS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "actor-scaling", help="without suffix")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    here = machine()
    studies = {env: study(env, arguments) for env in arguments.envs}
    text = "\n\n".join(
        (
            "# How IMPALA scales past one machine",
            "Made by `python benchmarks/actor_scaling.py`, whose `--help` says what is measured and what is simulated; "
            f"preset {arguments.preset}, {arguments.lanes} lanes an actor, the learner on {arguments.device}. On "
            f"{describe(here)}",
            "In the last table of each part, all is simulated: learner x 10 is one ten times as fast as that which was "
            "measured; limits, and what is separated by strokes, are those with 1, 10 and 100 Gbit/s.",
            *(text for _, text in studies.values()),
        )
    )
    figures = {env: figures for env, (figures, _) in studies.items()}
    write(arguments.out, {"machine": here, "arguments": vars(arguments) | {"out": None}, **figures}, text)
    print(text)


if __name__ == "__main__":
    main()
