"""Which customer the options ask for."""

from __future__ import annotations

from stages.interaction.environments.service.options import UserOptions
from stages.interaction.environments.service.users.base import User
from stages.interaction.environments.service.users.model import ModelUser
from stages.interaction.environments.service.users.person import PersonUser
from stages.interaction.environments.service.users.scripted import ScriptedUser
from stages.interaction.speaker import make_speaker


def make_user(options: UserOptions) -> User:
    """A customer of the kind asked for."""
    if options.kind == "model":
        return ModelUser(make_speaker(options.speaker), retries=options.retries)
    if options.kind == "human":
        return PersonUser()
    return ScriptedUser(patience=options.patience)
