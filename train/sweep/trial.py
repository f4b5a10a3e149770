"""One trial of a sweep: an ordinary rmc-train in a folder and a process of its own."""

import fcntl
import math
import signal
import subprocess
from pathlib import Path

from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.evaluate import trainings
from rmc_agents.evaluate.summary import read_evaluated
from rmc_agents.runs.checkpoint import write_atomically
from rmc_agents.runs.folder import CONFIG, has_checkpoints

from .results import LOG, last_line, trial_folder


class TrialProcess:
    """A trial's training, begun, or gone on with where an earlier process left it.

    The log's lock is the process's too, since it inherits the open file: as long as the training of a sweep that was
    killed is still going on, this one waits for it and takes its result.

    Args:
      out: the sweep's folder.
      number: of the trial.
      config: all its settings.
      trust: whether to resume it from a checkpoint that may run code.

    Raises:
      OSError: if its folder cannot be written to.
    """

    def __init__(self, out: Path, number: int, config: Config, trust: bool = False) -> None:
        self.number, self.folder = number, trial_folder(out, number)
        self._trust = trust
        self.folder.mkdir(exist_ok=True)
        write_atomically(self.folder / CONFIG, config.to_yaml().encode())
        self._log = (self.folder / LOG).open("ab")
        self._process: subprocess.Popen[bytes] | None = None
        self.stopped = False

    def has_ended(self) -> bool:
        """Whether nothing trains any more; starts the process when nobody else trains in the folder.

        Raises:
          ValueError: if the folder holds a run of Stable-Baselines3's algorithms that is not trusted.
        """
        if self._process is None:
            if self.stopped:
                return True
            try:
                fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if read_evaluated(self.folder) is not None:
                return True
            self._process = self._start()
        return self._process.poll() is not None

    def _start(self) -> "subprocess.Popen[bytes]":
        if has_checkpoints(self.folder):
            flags = ["--resume", str(self.folder)]
        else:
            flags = ["--config", str(self.folder / CONFIG), "--run-dir", str(self.folder)]
        flags += [*plugins.flags(), *(["--trust"] if self._trust else [])]
        return trainings.start(flags, self._log)

    def stop(self, received: signal.Signals) -> None:
        """Have it save and end; only the first call counts."""
        if self._process is not None and not self.stopped:
            self._process.send_signal(received)
        self.stopped = True

    def close(self) -> float | None:
        """After the end: the mean evaluation return; None if there is none, and then the log's last line says why."""
        status = self._process.returncode if self._process is not None else 0
        found = read_evaluated(self.folder) if status == 0 else None
        score = found[1].mean_return if found is not None else None
        if score is not None and not math.isfinite(score):
            self._log.write(f"the mean return is {score}\n".encode())
            score = None
        elif status < 0:
            self._log.write(f"\nended by {signal.Signals(-status).name}\n".encode())
        elif score is None and not last_line(self.folder):
            self._log.write(f"ended with status {status} and no result\n".encode())
        self._log.close()
        return score
