"""Processes on this machine."""

import subprocess


def running() -> dict[int, int]:
    """The parents of all processes that have not ended, by process."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in table.splitlines()]
    return {int(pid): int(parent) for pid, parent, stat in rows if not stat.startswith("Z")}


def descendants(pid: int) -> set[int]:
    """A process's children, theirs, and so on."""
    children = {child for child, parent in running().items() if parent == pid}
    return children.union(*(descendants(child) for child in children))


def last_child(pid: int) -> int:
    """The child that was started last."""
    return max(child for child, parent in running().items() if parent == pid)
