"""What every section of a recipe is built on."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """Frozen, no unknown keys, attribute docstrings become field descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )


class CheckpointedSection(Section):
    """What every stage has: resumable checkpoints, which leave once it is done."""

    checkpoint_minutes: float = Field(10.0, ge=0)
    """Minutes to the next checkpoint, whatever was counted; 0: not by the clock."""
    checkpoints_kept: int = Field(2, ge=1)
    """How many of the newest checkpoints stay, in case the last one is damaged."""


def deciding(section: CheckpointedSection) -> dict[str, Any]:
    """What of a section decides a run's numbers: not where its data lies, nor when its state is
    saved."""
    content = section.model_dump(mode="json", exclude={"data"})
    return {name: value for name, value in content.items() if not name.startswith("checkpoint")}
