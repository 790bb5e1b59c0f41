"""Options of the adapters: worlds that people already have, named in a recipe by one key.

``module:name`` is looked up in installed packages and in the working directory. It comes from the
recipe, so it is trusted as the recipe is; texts of agents never get here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from stages.interaction.environments.parallel import ParallelOptions

ENTRY = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
Entry = Annotated[str, Field(pattern=ENTRY)]
"""``module:name``."""


class AdapterOptions(ParallelOptions):
    """What all adapters have in common."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False
    )

    name: str
    """Which environment this is."""
    max_turns: int = Field(10, ge=1, le=1000)
    """Replies the actor has for one episode."""
    tasks: Path | None = None
    """JSON lines, JSON or parquet, one task a row (optional id and split: train, validation,
    test; without split all are divided, fewer than 10 are in each); none: tasks are seeds."""
    reward_scale: float = Field(1.0, gt=0)
    """Return of a solved task: rewards are divided by it, as 1 means success here."""
    success_at: float | None = None
    """Return (before scaling) from which an episode counts as success; none: reward_scale."""
    expert: Entry | None = None
    """module:function (task row, seed) -> function (newest messages) -> action text; it
    demonstrates for aac sft."""

    @property
    def solved_at(self) -> float:
        """Return from which an episode counts as success."""
        return self.reward_scale if self.success_at is None else self.success_at


class TrlOptions(AdapterOptions):
    """An environment class written for the environment_factory of TRL's GRPOTrainer."""

    name: Literal["trl"] = "trl"
    """Which environment this is."""
    trl: str | dict[str, str]
    """module:Class, or a mapping of names to such, chosen by each row's column environment."""
    reward_funcs: tuple[Entry, ...] = ()
    """module:function in TRL's form; added to get_reward where the class has that."""
    reward_weights: tuple[float, ...] = ()
    """One weight per function of reward_funcs; none: all 1."""
    stop_when_done: bool = False
    """End the episode once the instance's attribute done is true (TRL itself does not look)."""

    @property
    def preloaded(self) -> tuple[str, ...]:
        """What an instance in a process of its own would need seconds to import, to describe its
        tools as TRL does."""
        return ("transformers.utils.chat_template_utils", "torch")

    @field_validator("trl")
    @classmethod
    def _entries(cls, given: Any) -> Any:
        for entry in given.values() if isinstance(given, dict) else (given,):
            if not re.match(ENTRY, entry):
                raise ValueError(f"{entry!r} was given; expected module:Class")
        return given

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.reward_weights and len(self.reward_weights) != len(self.reward_funcs):
            raise ValueError(
                f"reward_weights has {len(self.reward_weights)} numbers for "
                f"{len(self.reward_funcs)} reward_funcs; give one each or none"
            )
        if isinstance(self.trl, dict) and self.tasks is None:
            raise ValueError(
                "several trl classes need tasks, whose column environment names one of "
                + ", ".join(self.trl)
            )
        return self


class GymnasiumOptions(AdapterOptions):
    """An object with reset and step: gymnasium, its older form, TextArena, TextWorld, GEM."""

    name: Literal["gymnasium"] = "gymnasium"
    """Which environment this is."""
    gymnasium: str = Field(min_length=1)
    """A registered id (gymnasium.make), or module:factory."""
    arguments: dict[str, Any] = {}
    """Keyword arguments of the factory, or of gymnasium.make."""
    prompt: str = ""
    """Said before the first observation: the rules, how to act."""
    actions: Literal["auto", "text", "discrete"] = "auto"
    """text: the reply is the action; discrete: its number or name; auto: by the action space."""
    action_names: tuple[str, ...] = ()
    """Names of the discrete actions, in their order."""
    cumulative_reward: bool = False
    """The step's reward is the score so far (TextWorld), not what the step earned."""
    success_key: str | None = None
    """Key of info that tells whether the episode is won; none: by success_at."""
    opponent: Entry | None = None
    """module:function (observation) -> move, for the other seats of a TextArena game."""


class ProgramOptions(AdapterOptions):
    """A program that owns its loop and asks an OpenAI-compatible endpoint for the replies."""

    name: Literal["program"] = "program"
    """Which environment this is."""
    program: Entry | tuple[str, ...] = Field(min_length=1)
    """module:function (base_url, api_key, task) -> reward, or the words of a command, which finds
    OPENAI_BASE_URL, OPENAI_API_KEY and AAC_TASK and posts {"reward": ...} to AAC_REWARD_URL."""
    isolation: Literal["thread"] = "thread"
    """With workers, where an instance lives: the program itself is elsewhere already."""
    timeout_s: float = Field(60.0, gt=0)
    """Seconds the program may take between two requests; then its episode is dropped."""


class McpOptions(AdapterOptions):
    """The tools of an MCP server, with tasks and a reward function of the person's."""

    name: Literal["mcp"] = "mcp"
    """Which environment this is."""
    mcp: str | tuple[str, ...] = Field(min_length=1)
    """The words of the command that starts the server, or the URL of a running one, which all
    episodes share: for tools that keep no state."""
    reward: Entry
    """module:function (task, messages, call) -> reward, asked once at the end; call(tool,
    **arguments) tells what a tool says."""
    prompt: str = ""
    """System message of every task; a task's own request is its column prompt."""
    isolation: Literal["thread"] = "thread"
    """With workers, where an instance lives: the server itself is elsewhere already."""
    reset_tool: str | None = None
    """Tool that clears the server, hidden from the agent; none: a new server per episode."""
    timeout_s: float = Field(30.0, gt=0)
    """Seconds a call may take; the agent is told when it takes longer."""

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        if self.tasks is None:
            raise ValueError("an mcp environment needs tasks: rows with a column prompt")
        if isinstance(self.mcp, str) and self.reset_tool is not None:
            raise ValueError(
                "a running mcp server is shared by all episodes, so reset_tool would clear it "
                "under the others; give the command that starts one"
            )
        return self


class OpenEnvOptions(AdapterOptions):
    """A server that speaks OpenEnv's protocol."""

    name: Literal["openenv"] = "openenv"
    """Which environment this is."""
    openenv: str = Field(pattern=r"^(ws|http)s?://")
    """Address of the server, such as ws://127.0.0.1:8000."""
    isolation: Literal["thread"] = "thread"
    """With workers, where an instance lives: the server itself is elsewhere already."""
    prompt: str = ""
    """Said before the first observation: the rules, how to act."""
    timeout_s: float = Field(30.0, gt=0)
    """Seconds the server may take to answer; then the episode is dropped."""
