"""Environments that need memory; importing this package registers them with gymnasium."""

if __name__ == "envs":
    raise ImportError("this folder is the package rmc_agents.envs: install the project and import that instead")

from gymnasium.envs.registration import register, registry

if "Recall-v0" not in registry:
    register("Recall-v0", "rmc_agents.envs.recall:RecallEnv")
for _name, _module in {
    "MiniPacman": "minipacman.env",
    "BoxWorld": "boxworld.env",
    "NthFarthest": "sequences.nth_farthest",
    "Program": "sequences.programs",
    "Text": "sequences.text",
}.items():
    if f"{_name}-v0" not in registry:
        _path = f"rmc_agents.envs.{_module}:{_name}"
        register(f"{_name}-v0", f"{_path}Env", vector_entry_point=f"{_path}VectorEnv")
