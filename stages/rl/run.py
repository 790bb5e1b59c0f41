"""Stage 3: verify the parents, build the parts, train, save."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stages.common.console import warn
from stages.common.errors import HandoffError, RunError, UsageError
from stages.common.files import read_json, write_json
from stages.common.libraries import quiet_libraries
from stages.common.manifest import (
    Manifest,
    build_manifest,
    content_hash,
    read_manifest,
    verify_parent,
)
from stages.common.ranks import Ranks
from stages.common.run_folder import MANIFEST, RunFolder, RunRequest
from stages.common.seeding import seed_everything, set_threads
from stages.common.trackers import check_trackers, tracked
from stages.interaction.rollout import Reviewer
from stages.interaction.supervision import Judge
from stages.interaction.trajectory import Trajectory
from stages.recipe.models import Recipe, RlSection
from stages.recipe.offline import OWN


@dataclass(frozen=True)
class Parents:
    """Verified folders of the earlier stages."""

    sft: Path
    sft_manifest: Manifest
    reward: Path | None
    reward_manifest: Manifest | None
    critic: Path | None = None
    """Another run's critic to start from."""
    start: Path | None = None
    """Another run whose actor this one starts from."""

    @cached_property
    def hashes(self) -> dict[str, str]:
        """Content hashes by stage, as they were verified."""
        manifests = {"sft": self.sft_manifest, "reward": self.reward_manifest}
        found = {name: made.content_hash for name, made in manifests.items() if made}
        others = {"critic": self.critic, "start": self.start}
        return found | {n: content_hash(f) for n, f in others.items() if f and f.is_dir()}


def run(recipe: Recipe, request: RunRequest) -> dict[str, Any]:
    """Train the actor of the SFT folder in the recipe's environment; returns the summary.

    Raises HandoffError for parents that do not fit, UsageError for a recipe that cannot work,
    RunError when training itself fails.
    """
    from stages.common.engine import join

    check_trackers(recipe.tracking.report_to)
    parents = verify_parents(recipe, request)
    ranks = join(recipe.distributed.timeout_s)
    _check_launch(recipe, ranks)
    folder = RunFolder.open(request, "rl", ranks)
    set_threads(recipe.threads)
    seed_everything(recipe.seed)
    if request.dry_run:
        _rehearse(recipe, parents, ranks)
        return {}
    with quiet_libraries(folder.log_path):
        with ExitStack() as stack:
            with folder.undone_on_bad_input():
                session = _session(recipe, folder, parents)
                session.resume()
                names = recipe.tracking.report_to
                stack.enter_context(tracked(names, session.trainer, folder))
            session.train()
        summary = session.save() | _earlier(parents.start)
    _refuse_sick(session.trainer.progress.stopped, folder, summary)
    if not ranks.main:
        return summary
    others = {"reward": parents.reward, "start": parents.start}
    folders = {"sft": parents.sft} | {name: path for name, path in others.items() if path}
    manifest = build_manifest(
        folder.path,
        "rl",
        recipe=recipe.model_dump(mode="json"),
        parents=folders,
        used=parents.hashes,
        data=_started_from(parents) | _static_pool(recipe, folder.path),
        metrics=summary,
    )
    folder.finish(manifest, summary)
    session.tidy()
    return summary


def _refuse_sick(stopped: str, folder: RunFolder, summary: dict[str, Any]) -> None:
    """RunError where an alarm ended the run; its figures stay, no manifest says it is finished."""
    if not stopped:
        return
    if folder.ranks.main:
        write_json(folder.path / "summary.json", {**summary, "stopped": stopped})
    best = summary["best"]
    kept = "the last actor, as none was evaluated yet,"
    if best:
        kept = f"the actor of iteration {best['step']} (held-out success {best['success']:.2f})"
    raise RunError(
        f"the run was stopped at iteration {summary['iterations']} by the alarm {stopped}; {kept} "
        f"is kept in {folder.path}, where alarms.jsonl tells the usual cure."
    )


def load_reviewer(folder: Path, recipe: Recipe) -> Reviewer | None:
    """The saved critic as reviewer of an rl folder's actor; None for an actor of before RL.

    It judges as in training: by the manifest's recipe, where there is one. UsageError if the
    folder lacks its critic.
    """
    if not (folder / MANIFEST).is_file() or (made := read_manifest(folder)).stage != "rl":
        return None
    from stages.rl.critic.assembly import saved_reviewer

    budget = int(made.recipe["state"]["max_tokens"])
    return saved_reviewer(RlSection.model_validate(made.recipe["rl"]), budget, folder)


def load_supervisor(folder: Path, mode: str) -> tuple[Judge | None, Reviewer | None]:
    """The critic of an rl folder as judge of proposals and as reviewer of finished turns.

    ``mode``: screen, review or both. UsageError for a critic that cannot do it without privileged
    facts.
    """
    made = read_manifest(folder)
    from stages.rl.critic.assembly import outside_reviewer
    from stages.rl.critic.judge import saved_judge

    budget = int(made.recipe["state"]["max_tokens"])
    rl = RlSection.model_validate(made.recipe["rl"])
    judge = saved_judge(folder / "critic", budget) if mode != "review" else None
    return judge, outside_reviewer(rl, budget, folder) if mode != "screen" else None


def critic_views(recipe: Mapping[str, Any], episode: Trajectory) -> list[str]:
    """What the critic of a run of this resolved recipe sees of an episode: c_0 … c_T as texts, c_t
    before turn t. None where it has no critic, or the recipe is of another version.

    A critic that reads tokens cuts the middle of a view that is longer than its max_tokens.
    """
    from stages.rl.critic import views

    try:
        critic = RlSection.model_validate(recipe["rl"]).critic
        state_tokens = int(recipe["state"]["max_tokens"])
    except (KeyError, ValueError):
        return []
    if critic.kind == "none":
        return []
    shown = critic.view.model_dump(exclude={"max_tokens"})
    parts = views.ViewParts(**shown, state_tokens=state_tokens)
    return [view.text() for view in views.critic_views(episode, parts)]


def review_demonstrations(
    recipe: Recipe, episodes: Sequence[Trajectory]
) -> Sequence[Sequence[str]]:
    """What critics like the recipe's say of each turn of its demonstrations, for stage 1."""
    from stages.rl.critic import demonstrated

    return demonstrated.review_demonstrations(
        recipe.rl, episodes, state_tokens=recipe.state.max_tokens, seed=recipe.seed
    )


def _session(recipe: Recipe, folder: RunFolder, parents: Parents) -> Any:
    from stages.rl.offline.session import OfflineSession
    from stages.rl.session import Session

    folders = (parents.sft, parents.reward, parents.critic, parents.start)
    made = OfflineSession if recipe.rl.offline.active else Session
    return made(recipe, folder, *folders, used=parents.hashes)


def _check_launch(recipe: Recipe, ranks: Ranks) -> None:
    from stages.common.sharding import offloads_to, zero_stage
    from stages.rl.vllm_adapter import check_vllm

    check_vllm(recipe.rl.generation, ranks.size)
    if zero_stage() and recipe.rl.critic.shared:
        raise UsageError(
            "rl.critic.trunk = shared is given, but under ZeRO every gradient has to come from a "
            "forward of the whole actor, and the head alone is fitted in the warm-up; launch with "
            "ddp, or set rl.critic.trunk to one of its own."
        )
    lora = recipe.model.lora
    if ranks.size > 1 and lora is not None and lora.quantize != "none":
        raise UsageError(
            f"model.lora.quantize = {lora.quantize} is given, but {ranks.size} processes were "
            "launched, and weights in 4 bits are neither partitioned nor spread by us; set it to "
            "none, or launch one process."
        )
    if zero_stage() == 3 and recipe.rl.generation.dtype != "auto":
        raise UsageError(
            f"rl.generation.dtype = {recipe.rl.generation.dtype} asks for a copy to sample from, "
            "but under ZeRO-3 the partitioned actor plays itself; set it to auto."
        )
    if offloads_to("nvme") and recipe.rl.checkpoint_every:
        raise UsageError(
            f"rl.checkpoint_every = {recipe.rl.checkpoint_every} is given, but the launch's "
            "DeepSpeed configuration keeps the optimizer on NVMe, from where it is not gathered; "
            "set it to 0, or offload to the CPU."
        )


def _rehearse(recipe: Recipe, parents: Parents, ranks: Ranks) -> None:
    """Build every part in a scratch folder: what would fail later is told now."""
    with TemporaryDirectory() as scratch, quiet_libraries(None):
        folder = RunFolder.open(RunRequest(Path(scratch) / "rl"), "rl", ranks)
        _session(recipe, folder, parents)


def verify_parents(recipe: Recipe, request: RunRequest) -> Parents:
    """The SFT folder and, if the recipe weighs it, the reward model; each proved unaltered."""
    sft = request.parents.get("sft")
    if sft is None:
        raise UsageError("aac rl needs an SFT folder; run aac sft first or name one with --sft")
    sft_manifest = verify_parent(sft, "sft")
    start = _verify_start(request.parents.get("start"), sft, sft_manifest)
    if start is not None and recipe.rl.offline.pool == OWN:
        raise UsageError(
            f"--start {start} would play the pool, but rl.offline.pool = sft asks for the SFT "
            f"actor's; make one with aac collect experience --actor {start}, and name that file."
        )
    critic = request.parents.get("critic") or _critic_of(start, recipe.rl)
    if recipe.rl.rewards.reward_model == 0:
        return Parents(sft, sft_manifest, None, None, critic, start)
    reward = request.parents.get("reward")
    if reward is None:
        raise HandoffError(
            "rl.rewards.reward_model is above 0 but there is no reward model; run aac train-reward "
            "first, name one with --reward, or go without by --no-reward"
        )
    reward_manifest = verify_parent(reward, "reward")
    _verify_tokenizers(reward, reward_manifest, sft, sft_manifest)
    return Parents(sft, sft_manifest, reward, reward_manifest, critic, start)


def _verify_start(start: Path | None, sft: Path, ours: Manifest) -> Path | None:
    """A run of stage 3 on the same SFT actor, which stays the reference."""
    if start is None:
        return None
    built_on = verify_parent(start, "rl").parents.get("sft", {})
    if built_on.get("hash") != ours.content_hash:
        raise HandoffError(
            f"--start {start} was trained from the SFT actor {built_on.get('path')}, not from "
            f"{sft}; name that one with --sft, or another --start."
        )
    return start


def _critic_of(start: Path | None, rl: RlSection) -> Path | None:
    """The critic beside the actor that is started from, where it has one that this run can take."""
    cloning = rl.offline.active and not rl.offline.has_critic
    if start is None or cloning or rl.critic.shared or rl.critic.kind not in ("v", "q"):
        return None
    folder = start / "critic"
    if not (folder / "critic.json").is_file():
        return None
    theirs, ours = read_json(folder / "critic.json"), rl.critic.model_dump(mode="json")
    other = [
        name for name in ("kind", "trunk", "loss", "ensemble") if theirs.get(name) != ours[name]
    ]
    if other:
        warn(
            f"the critic of {start} is built otherwise ({', '.join(other)}), so this run begins "
            "with a fresh one."
        )
        return None
    return folder


def _earlier(start: Path | None) -> dict[str, int]:
    """How many episodes the run that was started from, and those before it, had learnt from."""
    if start is None:
        return {}
    before = read_json(start / "summary.json")
    return {"earlier_episodes": before["training_episodes"] + before.get("earlier_episodes", 0)}


def _started_from(parents: Parents) -> dict[str, str]:
    """What the manifest says of another run's critic that this one started from."""
    return {f"critic {parents.critic}": parents.hashes["critic"]} if parents.critic else {}


def _static_pool(recipe: Recipe, folder: Path) -> dict[str, str]:
    """What the manifest says of the pool that was learnt from, as it lies in the run's folder."""
    if not recipe.rl.offline.active:
        return {}
    content = hashlib.sha256()
    for file in sorted((folder / "pool").glob("*.jsonl")):
        content.update(file.read_bytes())
    return {f"pool {recipe.rl.offline.pool}": content.hexdigest()}


def _verify_tokenizers(reward: Path, theirs: Manifest, sft: Path, ours: Manifest) -> None:
    """A reward model grown from the actor's trunk must read text as the actor does."""
    own_trunk = theirs.recipe.get("reward", {}).get("base") in ("sft", "actor")
    if own_trunk and theirs.tokenizer_hash != ours.tokenizer_hash:
        raise HandoffError(
            f"the tokenizer of the reward model {reward} differs from that of the actor {sft}; "
            "train the reward model from this actor again"
        )
