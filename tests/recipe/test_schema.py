"""Keys, allowed values and paths are read off the models, also through unions of sections."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages.recipe.messages import sentence
from stages.recipe.schema import allowed, clean_path, field_at, walk


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Literal["cat"]
    lives: int = Field(9, ge=1, le=9)


class Dog(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: Literal["dog"]
    barks: bool = True
    pair: tuple[int, int] = (1, 2)


class House(BaseModel):
    model_config = ConfigDict(extra="forbid")
    pet: Annotated[Cat | Dog, Field(discriminator="name")]
    guest: Cat | None = None


def message(content: dict) -> str:
    with pytest.raises(ValidationError) as caught:
        House.model_validate(content)
    return sentence(caught.value, model=House, content=content, file="house.yaml")


def test_walk_takes_the_named_member_of_a_union():
    keys = [known.dotted for known in walk(House, {"pet": {"name": "dog"}})]
    assert keys == [
        "pet",
        "pet.name",
        "pet.barks",
        "pet.pair",
        "guest",
        "guest.name",
        "guest.lives",
    ]


def test_paths_lose_the_members_names():
    content = {"pet": {"name": "cat"}}
    assert clean_path(House, ("pet", "cat", "lives"), content) == ("pet", "lives")
    assert clean_path(House, ("pet", "cat", "cat"), content) == ("pet", "cat")
    assert clean_path(House, ("guest", "cat"), content) == ("guest", "cat")


def test_field_at_leads_into_lists():
    field = field_at(House, ("pet", "pair", 1), {"pet": {"name": "dog"}})
    assert field is not None
    assert allowed(field) == "a list of 2 values, each a whole number"


def test_union_messages():
    assert message({"pet": {"name": "cat", "lives": 10}}) == (
        "house.yaml: pet.lives = 10 is not allowed; expected a whole number of at least 1 and of "
        "at most 9."
    )
    assert message({"pet": {"name": "dog", "bark": True}}) == (
        "house.yaml: pet.bark is no known key; did you mean pet.barks."
    )
    assert message({"pet": {"name": "dgo"}}) == (
        "house.yaml: pet.name = 'dgo' is not known; expected one of cat, dog; did you mean dog."
    )
    assert "pet.name is missing; expected one of cat, dog" in message({"pet": {}})
    assert message({"pet": 3}) == (
        "house.yaml: pet = 3 is not allowed; expected a section whose name is one of cat, dog."
    )
    assert "pet is missing; expected a section whose name is one of cat, dog" in message({})
    assert "guest.lives = 0 is not allowed" in message(
        {"pet": {"name": "cat"}, "guest": {"name": "cat", "lives": 0}}
    )
