"""Deploy a policy with numpy and onnxruntime alone. `rmc-export recall-rmc --format onnx` wrote its file."""

import sys

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


class Policy:
    """Acts in one environment, and keeps the recurrent state and the last action."""

    def __init__(self, path):
        self.session = onnxruntime.InferenceSession(path)
        states = [x for x in self.session.get_inputs() if x.name.startswith("state_")]
        self.state, self.action = {x.name: np.zeros([1, *x.shape[1:]], TYPES[x.type]) for x in states}, 0

    def act(self, obs, reward=0.0, is_first=False):
        """The most likely action at an observation, which came with a reward or is the first of an episode."""
        inputs = {"obs": obs[None], "is_first": np.array([is_first]), **self.state}
        inputs |= {"prev_action": np.array([self.action]), "prev_reward": np.array([reward], np.float32)}
        logits, *state = self.session.run(["policy_logits", *(f"next_{name}" for name in self.state)], inputs)
        self.state, self.action = dict(zip(self.state, state, strict=True)), int(logits.argmax())
        return self.action


def main(path="recall-rmc.onnx"):
    """Recall: see one of three cues, wait for three steps, then name it. The task is played by hand."""
    policy, right = Policy(path), 0
    for cue in range(3):
        policy.act(np.eye(4, dtype=np.float32)[cue], is_first=True)
        for _ in range(3):
            policy.act(np.zeros(4, np.float32))
        right += policy.act(np.array([0, 0, 0, 1], np.float32)) == 1 + cue
    print(f"{right} of 3 cues remembered")


if __name__ == "__main__":
    main(*sys.argv[1:])
