"""Environments that need memory; importing this package registers them with gymnasium."""

if __name__ == "envs":
    raise ImportError("this folder is the package rmc_agents.envs: install the project and import that instead")

from gymnasium.envs.registration import register, registry

if "MiniPacman-v0" not in registry:
    register(
        id="MiniPacman-v0",
        entry_point="rmc_agents.envs.minipacman.env:MiniPacmanEnv",
        vector_entry_point="rmc_agents.envs.minipacman.env:MiniPacmanVectorEnv",
    )
if "Recall-v0" not in registry:
    register(id="Recall-v0", entry_point="rmc_agents.envs.recall:RecallEnv")
if "BoxWorld-v0" not in registry:
    register(
        id="BoxWorld-v0",
        entry_point="rmc_agents.envs.boxworld:BoxWorldEnv",
        vector_entry_point="rmc_agents.envs.boxworld:BoxWorldVectorEnv",
    )
for _name, _module in (("NthFarthest", "nth_farthest"), ("Program", "programs"), ("Text", "text")):
    if f"{_name}-v0" not in registry:
        register(
            id=f"{_name}-v0",
            entry_point=f"rmc_agents.envs.sequences.{_module}:{_name}Env",
            vector_entry_point=f"rmc_agents.envs.sequences.{_module}:{_name}VectorEnv",
        )
