"""How each command in README.md and recipes/README.md is verified.

``Run``: it is typed as it stands, with smaller figures behind, and its effect is looked at.
``Made``: a target of the Makefile, which types these commands. ``Covered``: a test elsewhere types
it. ``Extra``: the extra exists. ``NotHere``: what no machine without a GPU can do; the document
must say that it has not been run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.readme.effects import (
    ALL_STAGES,
    Effect,
    Q,
    both,
    compared,
    converted,
    dry,
    finished,
    launch,
    learnt,
    offline,
    online,
    planned,
    pool,
    quickstart,
    said,
    stage,
    study,
    watched,
    written,
)
from tests.readme.home import SMALL

QUICK = "quickstart"
RUN = f"aac run {Q}"


@dataclass(frozen=True)
class Run:
    """Typed for real."""

    effect: Effect
    small: tuple[str, ...] | None = ()
    """Recipe keys that make it short; None: the command takes none."""
    more: tuple[str, ...] = ()
    """Other words behind it."""
    needs: tuple[str, ...] = ()
    """Commands typed before it in the same folder."""
    story: str = QUICK
    keys: str = ""
    full: bool = False
    launched: bool = False
    """Several processes, which a double stands for: tests/distributed starts real ones."""

    @property
    def words(self) -> tuple[str, ...]:
        """What stands behind the command."""
        sets = [] if self.small is None else [w for text in self.small for w in ("--set", text)]
        return (*sets, *self.more)


@dataclass(frozen=True)
class Made:
    """Typed by make."""

    types: tuple[str, ...] = ()
    """What the target's commands contain, in this order."""


@dataclass(frozen=True)
class Covered:
    """Typed by a test of its own."""

    by: str
    says: tuple[str, ...] = ()
    """Words of the command that the test's file contains."""


@dataclass(frozen=True)
class Extra:
    """An extra of the package."""


@dataclass(frozen=True)
class NotHere:
    """Needs what is not here."""

    said: str
    """Words of the document beside it."""


How = Run | Made | Covered | Extra | NotHere


def dry_study(name: str, *small: str) -> Run:
    """A study that takes long: what it would do."""
    return Run(study(name), ("sft.demonstrations=8", *small), ("--dry-run",), full=True)


def recipe(name: str, *stages: str, small: tuple[str, ...] = (), **more: Any) -> Run:
    """``aac run`` of another recipe."""
    given = tuple(text for text in SMALL if stages == ALL_STAGES or "reward." not in text)
    kept = tuple(t for t in given if t.split("=")[0] not in {s.split("=")[0] for s in small})
    under = f"runs/{name}"
    return Run(finished(*stages, under=under), (*kept, *small), full=True, story=name, **more)


WATCHFUL = ("rl.evaluate_every=1",)
ALONE = ("rl.rewards.reward_model=0",)
"""Two steps of SFT leave an actor whose replies nobody could rank."""
LAPTOP = (
    "model.actor=recipes/base",
    "model.dtype=float32",
    "reward.base=sft",
    "rl.critic.trunk=light",
    "rl.critic.frozen=false",
    "rl.critic.view.state=true",
    "rl.actor.lora_layers=null",
)
"""A model that is here in the place of those that are not."""
SCALE = ("tests/recipe/test_scale.py::test_a_dry_run_passes_on_a_small_model", ("--dry-run",))
WATCHED = (
    f"aac rl {Q} --sft runs/quickstart/sft --output-dir runs/watched/rl"
    " --set rl.critic.kind=q --set rl.critic.view.privileged=false --set rl.critic.steps=40"
    " --set rl.iterations=48 --set rl.critic.warm_up.max_iterations=48"
    " --set rl.critic.warm_up.min_explained_variance=1 --set rl.episodes_per_task=2"
    " --set rl.pool.max_episodes=3072 --set rl.actor.temperature_final=null"
)
COLLECTED = f"aac collect experience {Q} --episodes 384"
OFFLINE = (
    f"aac rl {Q} --no-reward --sft runs/quickstart/sft"
    " --offline runs/quickstart/experience.jsonl --output-dir runs/offline"
)
OWN_SFT = "aac sft my.yaml --set sft.data=dialogues.jsonl"
OWN_REWARD = "aac train-reward my.yaml --set reward.data=preferences.jsonl"
ACTOR = "--actor runs/quickstart/rl"
PLAYED = (
    "threads=1",
    "environment.max_turns=4",
    "evaluation.episodes=2",
    "rl.actor.max_new_tokens=48",
)

VERIFIED: Mapping[str, How] = {
    # README: two commands
    "make quickstart": Made((f"aac run {Q}",)),
    "make test": Made(
        ("ruff check", "mypy", '-m "not full and not server and not resume and not browser"')
    ),
    "make setup": Made(("-m venv", "pip install")),
    RUN: Run(quickstart, SMALL),
    "aac report runs/quickstart": Run(
        both(said("report.html"), written("runs/quickstart/report.html", "quickstart")),
        None,
        needs=(RUN,),
    ),
    f"aac chat {Q} {ACTOR}": Run(
        said("The agent works in sql", "answer"),
        PLAYED,
        needs=(RUN,),
        keys="How many orders were shipped?\nexit\n",
    ),
    f"aac chat {Q} {ACTOR} --task 5": Run(said("expected: "), PLAYED, needs=(RUN,)),
    # README: own model, data, environment
    "aac run my.yaml --dry-run": Run(dry, ("sft.demonstrations=8",), story="dry"),
    "aac run my.yaml": Run(
        finished(*ALL_STAGES, under="runs/my-agent"),
        (*SMALL, "reward.data=preferences.jsonl"),
        story="model",
        full=True,
    ),
    "aac init dialogues.jsonl preferences.jsonl --model path/to/your-model": Run(
        written("data.yaml", "dialogues.jsonl", "preferences.jsonl", "path/to/your-model"),
        None,
        story="data",
    ),
    "aac data check dialogues.jsonl": Run(
        said("instructions", "31", "read as it is by           aac sft"), None, story="data"
    ),
    OWN_SFT: Run(learnt("sft", "dialogues.jsonl"), SMALL, story="data"),
    OWN_REWARD: Run(
        learnt("reward", "preferences.jsonl"),
        SMALL,
        needs=(OWN_SFT,),
        story="data",
    ),
    "aac rl my.yaml": Run(
        stage("runs/my-agent/rl", name="my-agent"), SMALL, needs=(OWN_REWARD,), story="data"
    ),
    "aac data check episodes.jsonl --to preferences --drop-bad": Run(converted, None, story="data"),
    "aac collect preferences my.yaml --human": Covered(
        "tests/aacli/test_labelling.py::test_what_a_person_says_is_kept_resumed_and_trained_on",
        ("preferences", "--human"),
    ),
    "aac env check my.yaml": Run(
        said("environment sql", "expert", "success"), story="database", full=True
    ),
    "aac eval my.yaml --actor path/to/your-model": Run(
        said("success per kind and group of tasks", "own ", "of 2"), PLAYED, story="database"
    ),
    "aac chat my.yaml --actor path/to/your-model --database shop.sqlite": Run(
        said("The agent works in sql", "answer"),
        PLAYED,
        story="database",
        keys="How many orders were shipped?\n",
    ),
    # README: stages and commands
    "aac audit runs/quickstart/rl": Run(said("picked: "), None, needs=(RUN,)),
    f"aac diff {Q} runs/quickstart/rl runs/quickstart/sft": Run(
        said("McNemar", "only A", "only B"), PLAYED, needs=(RUN,)
    ),
    f"aac compare {Q} --vary rl.critic.view.history=true,false --seeds 5 --jobs 2": Run(
        compared, SMALL, ("--seeds", "1", "--jobs", "1"), story="compared", full=True
    ),
    "aac serve runs/quickstart/rl --port 8000": Covered(
        "tests/aacli/test_serve.py::test_the_command_serves_and_ends", ("serve", "--port")
    ),
    f"aac recipes show {Q}": Run(said("name: quickstart", "gae_lambda: 0.9"), None),
    "aac export runs/my-agent/rl": Covered(
        "tests/test_adapters.py::test_the_merged_folder_is_the_adapters_forward", ("export",)
    ),
    "make bench": Made(("-m stages.bench",)),
    "make test-resume": Made(("pytest -m resume tests/resume",)),
    "make test-full": Made(("ruff check", '-m "not server and not resume and not browser"')),
    "make test-browser": Made(("-m browser tests/browser",)),
    "make test-server": Made(("dev,server", "pytest -m server tests/server")),
    "make base": Made(("-m stages.pretraining.run --output recipes/base",)),
    'make setup PIP_ARGS="--find-links wheels/"': Made(("--find-links wheels/",)),
    "make setup PYTHON=python3.12": Made(("python3.12 -m venv",)),
    # README: on a cluster
    "aac rl my.yaml --launch zero3 --processes 8": Run(
        launch("accelerate launch", "--num_processes 8", "zero3", "rl my.yaml"),
        None,
        ("--no-reward",),
        story="launched",
        launched=True,
    ),
    'make rl RECIPE=my.yaml ARGS="--launch zero3 --processes 8"': Made(
        ("aac rl my.yaml --launch zero3 --processes 8",)
    ),
    "aac plan my.yaml --processes 8 --gpu-memory 80": Run(
        planned(8), (), ("--json",), story="data"
    ),
    "aac doctor": Run(said("torch", "memory"), None),
    "make device-check": Made(("-m stages.memory.device_check",)),
    # recipes/README: the quickstart
    'make bench-seeds ARGS="--set threads=1"': Made(
        (
            "sft.steps=1100",
            "aac run recipes/quickstart.yaml",
            "--set threads=1",
            "sft.steps=750",
            "aac eval recipes/quickstart.yaml",
            "stages.evaluation.seeds",
        )
    ),
    f"{RUN} --set rl.iterations=10 --output-dir runs/short": Run(
        finished(*ALL_STAGES, under="runs/short"), SMALL, full=True
    ),
    f"aac sft {Q} --output-dir runs/quickstart/cloning --set sft.steps=1100"
    " --set model.actor=runs/quickstart/sft --set sft.data=runs/quickstart/rl/trajectories"
    " --set sft.only_successful=true": Run(
        stage("runs/quickstart/cloning", model__actor="runs/quickstart/sft"),
        (*SMALL, "sft.only_successful=false"),
        needs=(RUN,),
        full=True,
    ),
    COLLECTED: Run(pool, PLAYED, ("--episodes", "6"), needs=(RUN,), full=True),
    OFFLINE: Run(offline, (*SMALL, "rl.offline.steps=2"), needs=(COLLECTED,), full=True),
    f"aac rl {Q} --no-reward --sft runs/quickstart/sft --start runs/offline"
    " --output-dir runs/online": Run(online, SMALL, needs=(OFFLINE,), full=True),
    WATCHED: Run(stage("runs/watched/rl", rl__critic__kind="q"), SMALL, needs=(RUN,), full=True),
    f"aac eval {Q} --actor runs/quickstart/sft --supervise runs/watched/rl --retries 3": Run(
        watched, PLAYED, ("--json",), needs=(WATCHED,), full=True
    ),
    f"aac chat {Q} --actor runs/quickstart/sft --supervise runs/watched/rl": Run(
        said("answer"),
        PLAYED,
        needs=(WATCHED,),
        keys="How many orders were shipped?\n",
        full=True,
    ),
    f"aac rl {Q} --warm-start runs/quickstart/rl/critic --output-dir runs/warm/rl": Run(
        stage("runs/warm/rl", name="quickstart"), SMALL, needs=(RUN,), full=True
    ),
    # recipes/README: the others
    "aac recipes list": Run(said("recipes/quickstart.yaml", "recipes/studies/sparse.yaml"), None),
    "aac recipes validate recipes/*.yaml": Run(said("recipes/hackable.yaml"), ()),
    "aac run recipes/smoke.yaml": recipe("smoke", *ALL_STAGES),
    "make sft reward rl RECIPE=recipes/smoke.yaml": Made(
        tuple(f"aac {name} recipes/smoke.yaml" for name in ("sft", "train-reward", "rl"))
    ),
    "aac run recipes/hackable.yaml": recipe("hackable", "sft", "rl", small=WATCHFUL),
    "aac run recipes/hackable.yaml --output-dir runs/hacked --set rl.keep=last"
    " --set rl.monitor.reward_hacking=warn --set rl.monitor.repetition=warn"
    " --set rl.monitor.out_of_budget=warn": recipe("hacked", "sft", "rl", small=WATCHFUL),
    "aac audit runs/hackable/rl": Run(
        said("picked: "),
        None,
        needs=("aac run recipes/hackable.yaml",),
        story="hackable",
        full=True,
    ),
    "aac run recipes/session.yaml": recipe("session", "sft", "rl"),
    "aac run recipes/sparse.yaml": recipe("sparse", "sft", "rl"),
    "aac run recipes/service.yaml": recipe("service", "sft", "rl"),
    "aac run recipes/service.yaml --seed 1": recipe("service", "sft", "rl", more=("--overwrite",)),
    "aac chat recipes/service.yaml": Run(
        said("You are a customer", "agent: "),
        PLAYED,
        story="service",
        keys="hello\nexit\n",
        full=True,
        needs=("aac run recipes/service.yaml",),
    ),
    "aac run recipes/code.yaml": recipe("code", "sft", "rl", small=ALONE),
    "aac run recipes/code.yaml --seed 1": recipe(
        "code", "sft", "rl", small=ALONE, more=("--overwrite",)
    ),
    "aac run recipes/laptop-easy.yaml": recipe("laptop-easy", "sft", "rl", small=(*LAPTOP, *ALONE)),
    "make models": Made(("-m stages.pretraining.packaged",)),
    "make laptop": Made(("-m stages.pretraining.packaged", "aac run recipes/laptop.yaml")),
    "make test-laptop": Made(("aac run recipes/laptop-smoke.yaml",)),
    "make bench-states": Made(("-m stages.evaluation.state_probes",)),
    "aac env list": Run(said("sql-session", "gymnasium"), None),
    "aac env check sql": Run(said("environment sql", "random policy"), None, full=True),
    # recipes/README: scale
    "aac run recipes/scale/0.5b-one-gpu.yaml": Covered(*SCALE),
    "aac run recipes/scale/7b-lora-one-gpu.yaml": Covered(*SCALE),
    "aac run recipes/scale/7b-zero3-8-gpus.yaml --launch zero3 --processes 8": Covered(
        "tests/distributed/test_commands.py::test_the_pipeline_launches_its_stages",
        ("--launch", "--processes"),
    ),
    "aac run recipes/scale/13b-zero3-2x8-gpus.yaml --launch zero3 --processes 16"
    " --hostfile hosts.txt": Covered(
        "tests/distributed/test_commands.py::test_machines_of_a_hostfile",
        ("--launch", "--hostfile"),
    ),
    "aac plan recipes/scale/0.5b-one-gpu.yaml": Run(planned(1), (), ("--json",)),
    "aac rl my.yaml --launch recipes/launch/zero3.json --processes 2": Run(
        launch("accelerate launch", "--num_processes 2", "recipes/launch/zero3.json"),
        None,
        ("--no-reward",),
        story="launched",
        launched=True,
    ),
    f"aac plan {Q} --model-size 7B --processes 8 --gpu-memory 80": Run(planned(8), (), ("--json",)),
    "make plan-check": Made(("-m stages.memory.check",)),
    "VLLM_SERVER_DEV_MODE=1 vllm serve runs/NAME/sft --weight-transfer-config"
    ' \'{"backend": "nccl"}\' --logprobs-mode processed_logprobs --max-logprobs -1': NotHere(
        "Rollouts by vLLM (not yet run)"
    ),
    # recipes/README: studies
    "aac compare recipes/studies/smoke.yaml": Run(
        compared, SMALL, ("--seeds", "0,1"), story="study", full=True
    ),
    "aac compare recipes/studies/shared-trunk.yaml --jobs 2": dry_study("shared-trunk"),
    "aac compare recipes/studies/critic-sql.yaml --jobs 2": dry_study("critic-sql"),
    "aac compare recipes/studies/critic-session.yaml --jobs 2": dry_study("critic-session"),
    "aac compare recipes/studies/critic-remedies.yaml": dry_study("critic-remedies"),
    "aac compare recipes/studies/review.yaml": dry_study("review"),
    "aac compare recipes/studies/states.yaml": dry_study("states"),
    "aac compare recipes/studies/supervision.yaml": dry_study("supervision"),
    "aac compare recipes/studies/sparse.yaml": dry_study("sparse"),
    "aac compare recipes/studies/offline.yaml": dry_study("offline"),
    "aac compare recipes/studies/offline-online.yaml": dry_study("offline-online"),
    "aac compare recipes/studies/laptop-critic.yaml --jobs 2": dry_study("laptop-critic", *LAPTOP),
    # recipes/README: pictures
    'python -m tests.readme.picture recipes/pictures/board.svg "iteration 20 of 30"'
    f" {RUN} --set threads=1": Covered(
        "tests/readme/test_terminal.py::test_a_run_in_a_terminal_of_80_columns", ("picture",)
    ),
    **{f"pip install 'aac[{name}]'": Extra() for name in ("serve", "memory", "qlora", "vllm")},
}
