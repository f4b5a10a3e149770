"""The tables of rmc-evaluate."""

from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rmc_agents import command_line
from rmc_agents.formatting import agent_title, counted, decimals, with_interval

from .statistics import GROUPS, cut_note, share_text


def print_result(result: dict[str, Any], console: Console) -> None:
    """Print an evaluation, or an ablation of memory, as rmc-evaluate writes it to JSON."""
    acting = "most likely actions" if result["deterministic"] else "sampled actions"
    title = agent_title(result["env"], result["core"], result["frames"])
    table = Table(
        title=escape(title), caption=f"{counted(result['episodes'], 'episode')} from seed {result['seed']}, {acting}"
    )
    (_fill_ablation if "ablation" in result else _fill)(table, result)
    command_line.say(console, f"checkpoint {result['checkpoint']}")
    command_line.show(console, table)
    for name, played in result.get("ablation", {"": result}).items():
        if note := cut_note(played | {"max_steps": result["max_steps"]}):
            command_line.say(console, f"{name}: {note}" if name else note)


def _fill_ablation(table: Table, result: dict[str, Any]) -> None:
    table.add_column("memory", no_wrap=True)
    table.add_column("mean return (95 % interval)", justify="right")
    table.add_column("difference (95 % interval)", justify="right")
    answers = all(statistics["accuracy"] is not None for statistics in result["ablation"].values())
    if answers:
        table.add_column("accuracy (95 % interval)", justify="right")
        table.add_column("bits per answer", justify="right")
    successes = all(statistics["success_rate"] is not None for statistics in result["ablation"].values())
    if successes:
        table.add_column("success rate (95 % interval)", justify="right")
    intact = result["ablation"]["intact"]
    for name, statistics in result["ablation"].items():
        mean = statistics["mean_return"]
        difference = with_interval(mean - intact["mean_return"], statistics["difference_ci95"], decimals(mean))
        row = [name, with_interval(mean, statistics["ci95"]), "" if statistics is intact else difference]
        if answers:
            row += [share_text(statistics["accuracy"], statistics["accuracy_ci95"]), f"{statistics['bits']:.3f}"]
        if successes:
            row += [share_text(statistics["success_rate"], statistics["success_ci95"])]
        table.add_row(*row)


def _fill(table: Table, result: dict[str, Any]) -> None:
    digits = decimals(result["mean_return"], result["random_mean_return"])
    table.add_column()
    table.add_column("agent", justify="right")
    table.add_column("uniform random", justify="right")
    table.add_row(
        "mean return (95 % interval)",
        with_interval(result["mean_return"], result["ci95"], digits),
        with_interval(result["random_mean_return"], result["random_ci95"], digits),
    )
    for name in ("median", "min", "max"):
        table.add_row(f"{name} return", f"{result[name]:.{digits}f}", "")
    table.add_row("mean length", f"{result['mean_length']:.1f}", "")
    if result["mean_level"] is not None:
        table.add_row("mean level reached", f"{result['mean_level']:.2f}", "")
    if result["accuracy"] is not None:
        guessing = "" if result["chance"] is None else f"chance {result['chance']:.2%}"
        table.add_row("accuracy (95 % interval)", share_text(result["accuracy"], result["accuracy_ci95"]), guessing)
    if result["bits"] is not None:
        with np.errstate(over="ignore"):  # a diverged agent's is infinite
            perplexity = np.exp2(result["bits"])
        table.add_row("bits per answer (perplexity)", f"{result['bits']:.3f} ({perplexity:,.4g})", "")
    if result["success_rate"] is not None:
        random = result["random_success_rate"]
        success = share_text(result["success_rate"], result["success_ci95"])
        table.add_row("success rate (95 % interval)", success, "" if random is None else f"{random:.1%}")
    for name, rates in result["success_by"].items():
        for value, rate in rates.items():
            table.add_row(f"success rate, {GROUPS[name].format(value)}", f"{rate:.1%}", "")
