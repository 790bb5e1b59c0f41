"""The recipe's critic and the experience pool it learns from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ByteSize, Field, ValidationInfo, field_validator, model_validator

from stages.recipe.messages import nearest
from stages.recipe.section import Section

VIEW_PARTS = ("history", "state", "checklist", "limits", "privileged")
VIEWS = {
    "full": VIEW_PARTS,
    "symmetric": ("state",),
    "history": ("history", "limits"),
    "privileged": ("state", "checklist", "limits", "privileged"),
}
"""What one word for a critic's view stands for; ``symmetric`` is what the actor itself is shown,
``privileged`` leaves the history out."""


class ViewSection(Section):
    """What the critic sees before action t (c_t), besides the goal. Each part can be switched off;
    one word stands for the usual sets: full, symmetric, history, privileged."""

    history: bool = True
    """Full history: all earlier actions and their results."""
    state: bool = True
    """The actor's own state."""
    checklist: bool = True
    """Goals and what is solved, as the environment lists them to the actor."""
    limits: bool = True
    """Turns and tokens left."""
    privileged: bool = True
    """Privileged facts of the environment (gold answer, remaining sub-goals)."""
    max_tokens: int = Field(512, ge=16)
    """Token budget of a text view: the middle of history and state is cut; goal and facts never."""

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        if given not in VIEWS:
            near = nearest(given, list(VIEWS))
            raise ValueError(f"{given}, expected a section or one of {', '.join(VIEWS)}{near}")
        return {part: part in VIEWS[given] for part in VIEW_PARTS}


SHARED, DEFAULT_VF_COEF = "shared", 0.5
NOT_CAUSAL = ("light", "scratch", "reward-model")
"""Names of trunks that give no action a probability, as kind advantage needs it."""
OF_POOLED_VALUES = ("loss", "ensemble", "target", "target_update")
"""Switches that act on values fitted to pool samples and on nothing else."""


class WarmUpSection(Section):
    """Critic-only iterations before the first actor update."""

    max_iterations: int = Field(2, ge=0)
    """At most this many iterations of critic-only learning (0: none)."""
    min_explained_variance: float = 0.0
    """Ends early once explained variance on newest, not yet fitted episodes exceeds this (kind
    advantage explains none and lasts for max_iterations)."""


class DiscriminatorSection(Section):
    """What a good/bad classifier of the actor's turns adds to their rewards."""

    weight: float = Field(0.1, gt=0)
    """Reward of one unit of its output, in units of success."""
    cap: float = Field(0.2, gt=0, lt=1)
    """Most that its rewards of an episode may add up to, their signs dropped (their sum is 0)."""
    privileged: bool = True
    """Let it see privileged facts, where rl.critic.view shows them."""


class CriticSection(Section):
    """The critic: light, separate, with its own tokenizer, text, optimizer and cadence."""

    kind: Literal["v", "q", "advantage", "discriminative", "none"] = "v"
    """v: value of the enriched state; q: value of state and action, V as its baseline; advantage:
    log-ratio of a small language model; discriminative: v, with a good/bad classifier's bonus on
    every turn; none: leave-one-out mean of returns (within the task, where
    rl.episodes_per_task is above 1) as the baseline; nothing else here counts."""
    trunk: str = "light"
    """light (pooled embeddings, recurrent over turns), scratch (a fresh transformer encoder),
    reward-model (a copy of its trunk), a Hugging Face encoder folder or id, or shared: a head on
    the actor's own trunk, which learns in the actor's updates (steps and batch_size are then of
    the warm-up only). Kind advantage takes actor (the SFT actor's copy) or a causal language
    model's folder or id."""
    vf_coef: float | None = Field(None, ge=0)
    """Only with ``trunk: shared``: weight of the value loss beside the actor's; none: 0.5."""
    detach: bool = False
    """Only with ``trunk: shared``: the value loss trains the head and leaves the trunk alone."""
    frozen: bool = False
    """Only with an encoder's folder or id as trunk: it stands still, and what it makes of each text
    is kept; one hidden layer over that and over the view in numbers learns alone. For a few hundred
    episodes, on which a larger network learns the tasks by heart."""
    hidden_size: int = Field(96, ge=8)
    """Width of the light and scratch trunks, and of what learns over a frozen one."""
    layers: int = Field(6, ge=1)
    """Depth of the scratch trunk."""
    loss: Literal["mse", "huber", "hl_gauss"] = "mse"
    """mse; huber (errors beyond a quarter of success count linearly); hl_gauss (cross-entropy to a
    histogram of the smeared target)."""
    value_range: tuple[float, float] = (-1.0, 2.0)
    """hl_gauss: lowest and highest value, in units of success; targets outside are clipped."""
    bins: int = Field(51, ge=2)
    """hl_gauss: bins over the range."""
    ensemble: int = Field(1, ge=1)
    """Critics whose mean is the value; each sees the episodes with bootstrap weights of its own."""
    twin: bool | None = None
    """Two Q networks, of which the smaller counts (arXiv:1802.09477), as a static pool cannot put
    right what is overestimated: only in offline learning by iql; none: there yes, online no."""
    view: ViewSection = ViewSection()
    """What it sees."""
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    """Its own optimizer, of torch, with torch's settings."""
    learning_rate: float = Field(1e-3, gt=0)
    """Its own rate; from scratch it needs a larger one than the actor's (see README), a
    pretrained trunk one near 1e-5 to 1e-4."""
    steps: int = Field(30, ge=1)
    """Optimizer steps per iteration: its own cadence."""
    batch_size: int = Field(32, ge=1)
    """Episodes per critic step."""
    target_update: Literal["polyak", "periodic"] = "polyak"
    """How the target network follows: a step after each fit, or a copy now and then."""
    target_rate: float = Field(0.5, gt=0, le=1)
    """Step of ``polyak``: this share of the way after each fit (1: plain copy)."""
    target_period: int = Field(4, ge=1)
    """Iterations between the copies of ``periodic``."""
    target: Literal["td_lambda", "monte_carlo", "n_step"] = "td_lambda"
    """What it is fitted to: λ-returns, whole returns, or n rewards and then a value."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """λ of ``td_lambda``."""
    n_steps: int = Field(5, ge=1)
    """Turns of ``n_step``."""
    off_policy: Literal["none", "vtrace"] = "none"
    """vtrace: targets are corrected for what today's actor would do in the pool's old episodes
    (one forward of the actor over each sampled episode); none: taken as they are."""
    rho_bar: float = Field(1.0, gt=0)
    """Largest turn ratio of ``vtrace``: decides what values go to (1: between old and new)."""
    c_bar: float = Field(1.0, gt=0)
    """Largest ratio that ``vtrace`` passes back through a turn: speed against variance."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradient clipping by norm."""
    warm_up: WarmUpSection = WarmUpSection()
    """Learning before the actor moves."""
    discriminator: DiscriminatorSection = DiscriminatorSection()
    """The classifier of kind discriminative."""
    length_normalised: bool = True
    """Kind advantage: an action's log-ratio per token; false: its sum, for comparison."""

    @model_validator(mode="before")
    @classmethod
    def _own_trunk(cls, given: Any) -> Any:
        """A log-ratio needs a language model: the actor's own beginning, if none is named."""
        if isinstance(given, Mapping) and given.get("kind") == "advantage":
            return {"trunk": "actor", **given}
        return given

    @field_validator("trunk")
    @classmethod
    def _trunk_of_kind(cls, trunk: str, info: ValidationInfo) -> str:
        kind = info.data.get("kind")
        if kind == "advantage" and trunk in NOT_CAUSAL:
            raise ValueError(f"{trunk}, expected actor or a causal language model's folder or id")
        if kind not in ("advantage", "none") and trunk == "actor":
            raise ValueError(
                f"actor, which kind advantage takes and kind {kind} does not; expected one of "
                f"{', '.join(NOT_CAUSAL)}, {SHARED}, or an encoder's folder or id"
            )
        return trunk

    @field_validator("frozen")
    @classmethod
    def _stands_on_an_encoder(cls, frozen: bool, info: ValidationInfo) -> bool:
        kind, trunk = info.data.get("kind"), info.data.get("trunk")
        if frozen and (kind == "advantage" or trunk in (*NOT_CAUSAL, SHARED)):
            raise ValueError(
                f"true, but kind {kind} on trunk {trunk} has no encoder that could stand still; "
                "leave it out, or name an encoder's folder or id as rl.critic.trunk"
            )
        return frozen

    @field_validator("hidden_size")
    @classmethod
    def _halves(cls, width: int, info: ValidationInfo) -> int:
        if info.data.get("trunk") == "scratch" and width % 2:
            raise ValueError(
                f"{width}, expected an even number, as the attention of the scratch trunk turns "
                "its features in pairs"
            )
        return width

    @field_validator("value_range")
    @classmethod
    def _range_around_zero(cls, given: tuple[float, float]) -> tuple[float, float]:
        low, high = given
        if not low < 0 < high:
            raise ValueError(f"[{low:g}, {high:g}], expected a number below 0 and one above")
        return given

    @property
    def shared(self) -> bool:
        """Whether it sits on the actor's trunk."""
        return self.trunk == SHARED

    @property
    def replays(self) -> bool:
        """Whether it is fitted to episodes drawn from the pool by their priorities."""
        return not self.shared and self.kind in ("v", "q", "discriminative")

    @property
    def value_weight(self) -> float:
        """``vf_coef`` or its default; 0 where the critic lives apart."""
        default = DEFAULT_VF_COEF if self.shared else 0.0
        return default if self.vf_coef is None else self.vf_coef

    @model_validator(mode="after")
    def _fits_its_trunk(self) -> CriticSection:
        if not self.shared:
            for name, given in (("vf_coef", self.vf_coef is not None), ("detach", self.detach)):
                if given:
                    raise ValueError(
                        f"{name} means something only for a trunk shared with the actor, and trunk "
                        f"is {self.trunk}; leave {name} out or set rl.critic.trunk: {SHARED}"
                    )
            return self
        if self.kind != "v":
            raise ValueError(
                f"kind is {self.kind}, but a trunk shared with the actor gives V of its state and "
                "nothing else; set rl.critic.kind: v or another rl.critic.trunk"
            )
        seen = tuple(part for part in VIEW_PARTS if getattr(self.view, part))
        if set(seen) != set(VIEWS["symmetric"]):
            raise ValueError(
                f"the view holds {', '.join(seen) or 'nothing'}, but a trunk shared with the actor "
                "reads the actor's own state and can see nothing else; set rl.critic.view: "
                "symmetric or another rl.critic.trunk"
            )
        return self

    @model_validator(mode="after")
    def _uses_what_is_set(self) -> CriticSection:
        if self.kind == "none" or self.replays:
            return self
        idle = OF_POOLED_VALUES + (("optimizer",) if self.shared else ())
        for name in idle:
            given = getattr(self, name)
            if given != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} is {given}, which does nothing for kind {self.kind} on trunk "
                    f"{self.trunk}; leave rl.critic.{name} out, or set another kind or trunk"
                )
        return self

    @model_validator(mode="after")
    def _corrects_values_from_the_pool(self) -> CriticSection:
        if self.off_policy == "vtrace" and (self.kind == "q" or not self.replays):
            raise ValueError(
                "off_policy is vtrace, which corrects V fitted to the pool, but kind is "
                f"{self.kind} and trunk {self.trunk}; set rl.critic.off_policy: none, or kind: v "
                "with a trunk of its own"
            )
        return self


class PoolSection(Section):
    """The experience pool the critic learns from."""

    max_episodes: int = Field(512, ge=1)
    """Oldest iterations leave beyond this."""
    max_bytes: ByteSize = Field(ByteSize(2**30), ge=1)
    """Oldest iterations leave beyond this size on disk, such as 512 MiB (the newest stays)."""
    sampling: Literal["uniform", "prioritised"] = "uniform"
    """prioritised: more often where the critic was far off, weighed down to match in its loss."""
    priority_exponent: float = Field(0.6, ge=0)
    """Of ``prioritised``: chances go with the critic's error to this power (0: uniform)."""
    max_age: int = Field(8, ge=0)
    """Critic samples are at most this many actor versions old."""

    @property
    def exponent(self) -> float:
        """The exponent of the chosen sampling."""
        return self.priority_exponent if self.sampling == "prioritised" else 0.0
