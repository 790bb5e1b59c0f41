"""Which runs are planned, what they share, and when a finished one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.common.errors import UsageError
from stages.common.files import write_json
from stages.common.manifest import build_manifest, content_hash
from stages.interaction.rewards.mix import GOLD_DEPENDENT
from stages.study.plan import Job, build_plan, is_done
from stages.study.study import Study

pytestmark = pytest.mark.usefixtures("place")

OUT = Path("out")


def study(**fields: object) -> Study:
    content = {"name": "s", "recipe": "demo.yaml", "seeds": [0, 5], "variants": {"full": {}}}
    return Study.model_validate(content | fields)


def folders(jobs: object) -> list[str]:
    return [str(job.folder.relative_to(OUT)) for job in jobs]


def finish(job: Job) -> None:
    """What a finished run leaves, as far as its manifest goes."""
    job.folder.mkdir(parents=True)
    (job.folder / "config.json").write_text(f'"{job.label}"')
    recipe = job.recipe.model_dump(mode="json")
    manifest = build_manifest(job.folder, job.stage, recipe=recipe, parents=job.parents)
    write_json(job.folder / "manifest.json", manifest.to_json())


def test_variants_of_a_seed_share_its_sft_and_reward_runs():
    variants = {"full": {}, "blind": {"rl.critic.view.history": False}}
    plan = build_plan(study(variants=variants), [], OUT)
    names = ("sft", "reward", "full/rl", "blind/rl")
    assert folders(plan.jobs) == [f"seed-{seed}/{name}" for seed in (0, 5) for name in names]
    blind = plan.runs["blind", 5]
    assert blind.recipe.seed == 5 and blind.recipe.rl.critic.view.history is False
    assert blind.parents == {"sft": OUT / "seed-5/sft", "reward": OUT / "seed-5/reward"}


def test_a_recipe_without_reward_model_needs_no_reward_run():
    changes = {"rl.rewards.reward_model": 0}
    plan = build_plan(study(seeds=[0], variants={"full": {}, "none": changes}), [], OUT)
    assert "reward" not in plan.runs["none", 0].parents
    assert folders(plan.jobs) == ["seed-0/sft", "seed-0/reward", "seed-0/full/rl", "seed-0/none/rl"]
    plan = build_plan(study(seeds=[0]), ["rl.rewards.reward_model=0"], OUT)
    assert folders(plan.jobs) == ["seed-0/sft", "seed-0/full/rl"]


def test_variants_that_change_sft_alike_share_another_one():
    narrow, warm = {"state.exchanges": 2}, {"rl.actor.temperature": 0.5}
    variants = {
        "full": {},
        "narrow": narrow,
        "narrow-blind": narrow | {"rl.critic.view.history": False},
        "warm": warm,
        "short": {"sft.steps": 5},
    }
    runs = build_plan(study(seeds=[0], variants=variants), [], OUT).runs
    sft = {name: runs[name, 0].parents["sft"].name for name in variants}
    assert sft["full"] == sft["warm"] == "sft"
    assert sft["narrow"] == sft["narrow-blind"] != "sft" and sft["short"] not in (
        "sft",
        sft["narrow"],
    )
    reward = {name: runs[name, 0].parents["reward"].name for name in variants}
    # Its pairs are played at the temperature of stage 3; another SFT actor plays others.
    assert reward["warm"] not in ("reward", reward["narrow"])
    assert reward["narrow"] == reward["narrow-blind"] != reward["short"]
    other = {"short": variants["short"], "narrow": narrow}
    again = build_plan(study(seeds=[0], variants=other), [], OUT).runs
    assert again["narrow", 0].parents == runs["narrow", 0].parents  # whatever the order


def test_sft_that_shows_reviews_depends_on_the_critic_that_writes_them():
    words = {
        "state.review": "words",
        "rl.critic.view": "history",
        "rl.rewards.weights": dict.fromkeys(GOLD_DEPENDENT, 0),
    }
    variants = {
        "none": words | {"state.review": "none"},
        "words": words,
        "patient": words | {"rl.ppo.epochs": 3},
        "wide": words | {"rl.critic.hidden_size": 128},
    }
    runs = build_plan(study(seeds=[0], variants=variants), [], OUT).runs
    sft = {name: runs[name, 0].parents["sft"].name for name in variants}
    assert sft["words"] == sft["patient"] and len({*sft.values()}) == 3
    wide = {"none": variants["none"] | {"rl.critic.hidden_size": 128}, "plain": variants["none"]}
    runs = build_plan(study(seeds=[0], variants=wide), [], OUT).runs
    assert runs["none", 0].parents["sft"] == runs["plain", 0].parents["sft"]


def test_a_variant_goes_on_from_another():
    first = {"rl.offline.pool": "sft", "rl.rewards.reward_model": 0}
    online = {"rl.rewards.reward_model": 0}
    variants = {"first": first, "then": online | {"after": "first"}, "alone": online}
    plan = build_plan(study(variants=variants), [], OUT)
    for seed in (0, 5):
        then = plan.runs["then", seed]
        assert then.parents == {
            "sft": OUT / f"seed-{seed}/sft", "start": OUT / f"seed-{seed}/first/rl",
        }  # fmt: skip
        assert "start" not in plan.runs["alone", seed].parents
    order = [job.label for job in plan.jobs]
    assert order.index("seed 5, first") < order.index("seed 5, then")
    for job in plan.jobs:
        if job.recipe.seed == 0:
            finish(job)
            assert is_done(job)
    then = plan.runs["then", 0]
    manifest = then.folder / "manifest.json"
    manifest.unlink()
    finish_alone = build_manifest(then.folder, "rl", recipe=then.recipe.model_dump(mode="json"),
                                  parents={"sft": then.parents["sft"]})  # fmt: skip
    write_json(manifest, finish_alone.to_json())
    with pytest.raises(UsageError, match="was built on another start than"):
        is_done(then)


def test_a_variant_begins_with_the_critic_of_another():
    variants = {"lender": {}, "own": {"rl.ppo.epochs": 3}, "warm": {"warm_start": "lender"}}
    plan = build_plan(study(seeds=[0], variants=variants), [], OUT)
    warm, lender = plan.runs["warm", 0], plan.runs["lender", 0]
    assert warm.parents["critic"] == lender.folder  # the run it waits for
    assert warm.handed == {**warm.parents, "critic": lender.folder / "critic"}
    assert "critic" not in plan.runs["own", 0].parents
    for job in plan.jobs[:-1]:
        finish(job)
    (lender.folder / "critic").mkdir()
    (lender.folder / "critic/model.safetensors").write_text("weights")
    recipe = warm.recipe.model_dump(mode="json")
    warm.folder.mkdir(parents=True)
    used = {f"critic {warm.handed['critic']}": content_hash(warm.handed["critic"])}
    parents = {name: path for name, path in warm.parents.items() if name != "critic"}
    manifest = build_manifest(warm.folder, "rl", recipe=recipe, parents=parents, data=used)
    write_json(warm.folder / "manifest.json", manifest.to_json())
    assert is_done(warm)
    (lender.folder / "critic/model.safetensors").write_text("other weights")
    with pytest.raises(UsageError, match="began with another critic than"):
        is_done(warm)


def test_overrides_take_effect_in_order():
    made = study(
        seeds=[0],
        set={"rl.iterations": 2, "rl.episodes": 6},
        variants={"full": {}, "long": {"rl.iterations": 9}},
    )
    runs = build_plan(made, ["rl.iterations=4"], OUT).runs
    assert [runs[name, 0].recipe.rl.iterations for name in ("full", "long")] == [4, 9]
    assert runs["full", 0].recipe.rl.episodes == 6


@pytest.mark.parametrize(
    ("variants", "sentence"),
    [
        (
            {"full": {}, "bad": {"rl.ppo.clip_rang": 1}},
            "variant bad: demo.yaml with --set .*did you",
        ),
        ({"full": {}, "same": {"rl.iterations": 20}}, "variants full and same are the same recipe"),
    ],
)
def test_bad_variants_are_named(variants, sentence):
    with pytest.raises(UsageError, match=sentence):
        build_plan(study(variants=variants), [], OUT)


def test_a_finished_run_counts_if_it_is_this_recipes():
    made = study(seeds=[0])
    plan = build_plan(made, ["rl.rewards.reward_model=0"], OUT)
    sft = plan.jobs[0]
    assert not is_done(sft)
    for job in plan.jobs:
        finish(job)
        assert is_done(job)
    changed = build_plan(made, ["rl.rewards.reward_model=0", "rl.ppo.epochs=7"], OUT).jobs
    assert is_done(changed[0])  # SFT does not depend on it
    with pytest.raises(UsageError, match=r"made with another recipe \(changed: rl.ppo.epochs\)"):
        is_done(changed[1])
    (sft.folder / "config.json").write_text("other")
    with pytest.raises(UsageError, match="was altered after its run finished"):
        is_done(sft)


def test_a_finished_run_on_other_parents_is_refused():
    plan = build_plan(study(seeds=[0]), ["rl.rewards.reward_model=0"], OUT)
    for job in plan.jobs:
        finish(job)
    sft, rl = plan.jobs
    (sft.folder / "config.json").write_text("retrained")
    manifest = build_manifest(sft.folder, "sft", recipe=sft.recipe.model_dump(mode="json"))
    write_json(sft.folder / "manifest.json", manifest.to_json())
    with pytest.raises(UsageError, match="was built on another sft"):
        is_done(rl)


def test_sft_runs_of_an_earlier_study_are_taken_where_they_fit():
    earlier = build_plan(study(), [], Path("earlier"))
    for job in earlier.jobs[:2]:  # of seed 0
        finish(job)
    variants = {"full": {}, "narrow": {"state.exchanges": 2}}
    plan = build_plan(study(variants=variants), [], OUT, [Path("earlier")])
    assert plan.runs["full", 0].parents == {
        "sft": Path("earlier/seed-0/sft"),
        "reward": Path("earlier/seed-0/reward"),
    }
    assert plan.runs["full", 5].parents["sft"] == OUT / "seed-5/sft"
    assert plan.runs["narrow", 0].parents["sft"].parent == OUT / "seed-0"
    planned = folders(plan.jobs)
    assert "seed-0/sft" not in planned and "seed-0/reward" not in planned
    with pytest.raises(UsageError, match="--sft-root earlier holds no finished"):
        build_plan(study(), ["sft.steps=7"], OUT, [Path("earlier")])


def test_a_reward_run_of_another_sft_run_is_not_taken():
    for job in build_plan(study(), [], Path("earlier")).jobs:
        if job.stage != "rl":
            finish(job)
    sft = next(iter(build_plan(study(seeds=[0]), [], Path("newer")).jobs))
    finish(sft)
    (sft.folder / "config.json").write_text("other weights")
    manifest = build_manifest(sft.folder, "sft", recipe=sft.recipe.model_dump(mode="json"))
    write_json(sft.folder / "manifest.json", manifest.to_json())
    plan = build_plan(study(), [], OUT, [Path("newer"), Path("earlier")])
    assert plan.runs["full", 0].parents == {
        "sft": Path("newer/seed-0/sft"),
        "reward": OUT / "seed-0/reward",
    }
    assert plan.runs["full", 5].parents["reward"] == Path("earlier/seed-5/reward")
