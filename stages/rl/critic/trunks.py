"""Critics by the name of their trunk, and a critic's folder on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from stages.common.errors import UsageError
from stages.common.run_folder import read_json, write_json
from stages.rl.critic.encoder import EncoderTrunk
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork

LIGHT = "light"
CONFIG, WEIGHTS = "critic.json", "model.safetensors"


def build_network(trunk: str, *, hidden_size: int, max_tokens: int) -> CriticNetwork:
    """A fresh head on a trunk. Raises UsageError when the trunk cannot be loaded."""
    return CriticNetwork(build_trunk(trunk, hidden_size=hidden_size, max_tokens=max_tokens))


def build_trunk(name: str, *, hidden_size: int, max_tokens: int) -> nn.Module:
    """``light``, or the Hugging Face encoder of a folder or hub id.

    Raises UsageError when the encoder cannot be loaded.
    """
    if name == LIGHT:
        return LightTrunk(hidden_size)
    try:
        return EncoderTrunk.load(name, max_tokens=max_tokens)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"rl.critic.trunk is {name}, which is neither 'light' nor an encoder that loads "
            f"({reason}); give a Hugging Face encoder folder"
        ) from None


def save_critic(network: CriticNetwork, folder: Path, options: dict[str, Any]) -> None:
    """Weights as safetensors and the options that rebuild the network; its tokenizer, too."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in network.state_dict().items()}, folder / WEIGHTS)
    if isinstance(network.trunk, EncoderTrunk):
        network.trunk.save_encoder(folder / "encoder")
    write_json(folder / CONFIG, options)


def load_critic(folder: Path) -> tuple[CriticNetwork, dict[str, Any]]:
    """Inverse of ``save_critic``. Raises UsageError when the folder holds no critic."""
    from safetensors.torch import load_file

    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} holds no {CONFIG}; give the critic/ folder of an rl run")
    options = read_json(folder / CONFIG)
    name = options["trunk"] if options["trunk"] == LIGHT else str(folder / "encoder")
    network = build_network(
        name, hidden_size=options["hidden_size"], max_tokens=options["view"]["max_tokens"]
    )
    network.load_state_dict(load_file(folder / WEIGHTS))
    return network, options
