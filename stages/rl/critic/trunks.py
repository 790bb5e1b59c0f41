"""Critics by the name of their trunk, and a critic's folder on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor, nn

from stages.common.errors import UsageError
from stages.common.files import read_json, write_json
from stages.common.gemm import quicken
from stages.interaction.states.embedders import SentenceEncoder
from stages.recipe.critic import CriticSection
from stages.rl.critic.encoder import EncoderTrunk
from stages.rl.critic.ensemble import Ensemble
from stages.rl.critic.frozen import FrozenTrunk
from stages.rl.critic.heads import build_head
from stages.rl.critic.light import LightTrunk
from stages.rl.critic.network import CriticNetwork
from stages.rl.critic.text import TokenizerReader

LIGHT, SCRATCH, REWARD_MODEL = "light", "scratch", "reward-model"
CONFIG, WEIGHTS, ENCODER = "critic.json", "model.safetensors", "encoder"

ACTIONS = "actions"
"""Option of a saved network that judges proposed actions, beside the recipe's."""

Network = CriticNetwork | Ensemble


def build_network(
    critic: CriticSection, *, reward: Path | None = None, actions: bool = False
) -> Network:
    """Fresh heads on the trunk that the recipe names. ``reward``: the reward model's folder.

    Raises UsageError when the trunk cannot be loaded.
    """
    return _network(critic, lambda: build_trunk(critic, reward=reward, actions=actions))


def build_trunk(
    critic: CriticSection, *, reward: Path | None = None, actions: bool = False
) -> nn.Module:
    """``light``, ``scratch``, ``reward-model``, or the encoder of a folder or hub id.

    ``actions``: it reads (c_t, a_t) instead of c_t; an encoder finds a_t in the view's text.

    Raises UsageError when the encoder cannot be loaded or there is no reward model.
    """
    if critic.trunk == LIGHT:
        return LightTrunk(critic.hidden_size, actions=actions)
    budget = critic.view.max_tokens
    if critic.trunk == SCRATCH:
        return EncoderTrunk.scratch(
            hidden_size=critic.hidden_size, layers=critic.layers, max_tokens=budget
        )
    if critic.frozen:
        return FrozenTrunk(_standing(critic.trunk), critic.hidden_size, actions=actions)
    if critic.trunk != REWARD_MODEL:
        return _encoder(critic.trunk, budget)
    if reward is None:
        raise UsageError(
            "rl.critic.trunk is reward-model but this run has no reward model; set "
            "rl.rewards.reward_model above 0, or choose another trunk."
        )
    return EncoderTrunk.load(reward, max_tokens=budget)


def save_critic(network: Network, folder: Path, options: dict[str, Any]) -> None:
    """Weights as safetensors and the options that rebuild the network; its tokenizer, too."""
    from safetensors.torch import save_model

    folder.mkdir(parents=True, exist_ok=True)
    save_model(network, str(folder / WEIGHTS))
    if isinstance(network.trunk, EncoderTrunk):
        network.trunk.save(folder / ENCODER)
    write_json(folder / CONFIG, options)


def load_critic(folder: Path) -> tuple[Network, dict[str, Any]]:
    """Inverse of ``save_critic``. Raises UsageError when the folder holds no critic."""
    from safetensors.torch import load_model

    if not (folder / CONFIG).is_file():
        raise UsageError(f"{folder} holds no {CONFIG}; give the critic/ folder of an rl run")
    options = read_json(folder / CONFIG)
    actions = options.pop(ACTIONS, False)
    try:
        critic = CriticSection.model_validate(options)
    except ValidationError:
        raise UsageError(_unknown(folder / CONFIG)) from None
    if critic.shared or critic.kind == "advantage":
        raise UsageError(
            f"{folder} holds a critic of kind {critic.kind} on trunk {critic.trunk}, expected one "
            "with a value network of its own; give the critic/ folder of such a run"
        )
    own = critic.trunk in (LIGHT, SCRATCH) or critic.frozen
    budget = critic.view.max_tokens
    network = _network(
        critic,
        lambda: (
            build_trunk(critic, actions=actions)
            if own
            else EncoderTrunk.restore(folder / ENCODER, max_tokens=budget)
        ),
    )
    try:
        load_model(network, str(folder / WEIGHTS))
    except RuntimeError:  # other names or sizes
        raise UsageError(_unknown(folder / WEIGHTS)) from None
    return network, options


def _unknown(file: Path) -> str:
    return f"{file} describes no critic that this version knows; train it again."


def fitting_weights(network: Network, critic: CriticSection, folder: Path) -> dict[str, Tensor]:
    """The weights of a saved critic. Raises UsageError unless it is built as ``network`` is."""
    other, options = load_critic(folder)
    theirs = CriticSection.model_validate(options)
    for name in _shape(critic):
        ours, given = getattr(critic, name), getattr(theirs, name)
        paths = name == "trunk" and not {ours, given} & {LIGHT, SCRATCH, REWARD_MODEL}
        if ours != given and not paths:
            raise UsageError(
                f"--warm-start {folder} has rl.critic.{name} = {given}, this recipe {ours}; give a "
                "critic of the same trunk, size and loss, or change the recipe."
            )
    if _sizes(other) != _sizes(network) or _words(other) != _words(network):
        raise UsageError(
            f"--warm-start {folder} grew from another encoder than rl.critic.trunk = "
            f"{critic.trunk}; give a critic with the same encoder and tokenizer."
        )
    return other.state_dict()


def _network(critic: CriticSection, trunk: Callable[[], nn.Module]) -> Network:
    members = []
    for _ in range(critic.ensemble):
        built: Any = trunk()
        head = build_head(
            built.width, critic.loss, value_range=critic.value_range, bins=critic.bins
        )
        members.append(CriticNetwork(quicken(built), head))
    return members[0] if len(members) == 1 else Ensemble(members)


def _encoder(name: str, max_tokens: int) -> EncoderTrunk:
    with _of_trunk(name):
        return EncoderTrunk.load(name, max_tokens=max_tokens)


def _standing(name: str) -> SentenceEncoder:
    with _of_trunk(name):
        return SentenceEncoder(name, name)


@contextmanager
def _of_trunk(name: str) -> Iterator[None]:
    """Inside, what goes wrong in loading an encoder is told as the recipe's."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"rl.critic.trunk is {name}, which is none of {LIGHT}, {SCRATCH}, {REWARD_MODEL}, nor "
            f"an encoder that loads ({reason}); give a Hugging Face encoder folder"
        ) from None


def _shape(critic: CriticSection) -> list[str]:
    """The options that decide what a critic's weights mean."""
    names = ["kind", "trunk", "frozen", "loss", "ensemble"]
    names += ["hidden_size"] if critic.trunk in (LIGHT, SCRATCH) or critic.frozen else []
    names += ["layers"] if critic.trunk == SCRATCH else []
    return names + (["value_range", "bins"] if critic.loss == "hl_gauss" else [])


def _sizes(network: Network) -> dict[str, Any]:
    return {name: weight.shape for name, weight in network.state_dict().items()}


def _words(network: Network) -> dict[str, int]:
    reader = getattr(network.trunk, "reader", None)
    return reader.tokenizer.get_vocab() if isinstance(reader, TokenizerReader) else {}
