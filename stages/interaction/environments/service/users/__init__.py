"""The customers of the service: by rules, by a language model, or a person."""

from stages.interaction.environments.service.users.base import Card, Reply, User
from stages.interaction.environments.service.users.make import make_user

__all__ = ["Card", "Reply", "User", "make_user"]
