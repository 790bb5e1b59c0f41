"""Recipes that a person might get wrong, and what the one sentence about each must name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GOOD = """\
name: demo
model: {actor: some-base}
environment: {name: sql}
"""


@dataclass(frozen=True)
class Bad:
    """``text`` is the file's content (None: no such file); ``names`` must occur in the message."""

    id: str
    text: str | bytes | None
    names: tuple[str, ...]
    overrides: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        """The recipe's path below ``folder``; its name always occurs in the message."""
        path = folder / "mine.yaml"
        if self.text is not None:
            path.write_bytes(self.text if isinstance(self.text, bytes) else self.text.encode())
        return path


def _laughs() -> str:
    """Ten aliases of ten aliases of ten, and so on."""
    rows = ["a: &a [x]"]
    rows += [
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]" for a, b in zip("abcdef", "bcdefg", strict=True)
    ]
    return "sft: {trainer: {" + ", ".join(rows) + "}}"


CASES = (
    # unknown key
    Bad(
        "unknown key, near one of its section",
        GOOD + "rl: {ppo: {clip_rang: 0.2}}",
        ("rl.ppo.clip_rang is no known key", "did you mean rl.ppo.clip_range"),
    ),
    Bad(
        "known key in the wrong section",
        GOOD + "rl: {clip_range: 0.2}",
        ("rl.clip_range is no known key", "did you mean rl.ppo.clip_range"),
    ),
    Bad(
        "unknown key, near nothing",
        GOOD + "zzz: 1",
        ("zzz is no known key", "known keys: name, seed, threads, model"),
    ),
    Bad(
        "unknown section", GOOD + "rewards: {}", ("rewards is no known key", "did you mean reward")
    ),
    Bad(
        "unknown key of the environment",
        "name: d\nmodel: {actor: b}\nenvironment: {name: sql, max_turn: 3}",
        ("environment.max_turn is no known key", "did you mean environment.max_turns"),
    ),
    Bad(
        "unknown key deep in the environment",
        "name: d\nmodel: {actor: b}\nenvironment: {name: sql, expert: {wrong_agregate: 1}}",
        ("environment.expert.wrong_agregate", "did you mean environment.expert.wrong_aggregate"),
    ),
    Bad(
        "misspelt required key",
        "name: d\nmodel: {actr: b}\nenvironment: {name: sql}",
        ("model.actr is no known key", "did you mean model.actor", "1 more problem"),
    ),
    # missing
    Bad(
        "missing section",
        "name: d\nenvironment: {name: sql}",
        ("model is missing", "a section with the keys actor"),
    ),
    Bad("missing key", "name: d\nmodel: {}\nenvironment: {name: sql}", ("model.actor is missing",)),
    # wrong type
    Bad(
        "text for a number",
        GOOD + "sft: {steps: many}",
        ("sft.steps = 'many'", "a whole number of at least 1"),
    ),
    Bad("fraction for a count", GOOD + "sft: {steps: 2.5}", ("sft.steps = 2.5", "a whole number")),
    Bad("switch for a number", GOOD + "sft: {steps: true}", ("sft.steps = true", "a whole number")),
    Bad(
        "number for text",
        "name: d\nmodel: {actor: 7}\nenvironment: {name: sql}",
        ("model.actor = 7", "text"),
    ),
    Bad("list for a section", GOOD + "rl: [1]", ("rl = [1]", "a section with the keys checkpoint")),
    Bad(
        "value for a section",
        GOOD + "rl: {ppo: 3}",
        ("rl.ppo = 3", "a section with the keys epochs"),
    ),
    Bad(
        "text for a switch",
        GOOD + "state: {checklist: perhaps}",
        ("state.checklist = 'perhaps'", "true or false"),
    ),
    Bad(
        "value for a list",
        GOOD + "tracking: {report_to: 5}",
        ("tracking.report_to = 5", "a list of one of mlflow, tensorboard"),
    ),
    Bad(
        "unknown word in a list",
        GOOD + "tracking: {report_to: [tensorbord]}",
        ("tracking.report_to.0 = 'tensorbord'", "did you mean tensorboard"),
    ),
    Bad(
        "wrong item of a list",
        "name: d\nmodel: {actor: b, frozen: [1]}\nenvironment: {name: sql}",
        ("model.frozen.0 = 1", "a list of text"),
    ),
    Bad(
        "text for a number in a mapping",
        GOOD + "rl: {rewards: {weights: {success: big}}}",
        ("rl.rewards.weights.success = 'big'", "a mapping"),
    ),
    Bad(
        "null where a value is needed",
        GOOD + "sft: {steps: null}",
        ("sft.steps = null", "a whole number"),
    ),
    # out of range
    Bad(
        "too small",
        GOOD + "rl: {ppo: {clip_range: 0}}",
        ("rl.ppo.clip_range = 0", "a number above 0"),
    ),
    Bad(
        "too large",
        GOOD + "rl: {ppo: {discount: 1.5}}",
        ("rl.ppo.discount = 1.5", "above 0 and of at most 1"),
    ),
    Bad("negative", GOOD + "seed: -1", ("seed = -1", "a whole number of at least 0")),
    Bad(
        "not finite",
        GOOD + "rl: {ppo: {kl_coef: .inf}}",
        ("rl.ppo.kl_coef = inf", "a number of at least 0"),
    ),
    Bad(
        "not a number",
        GOOD + "rl: {ppo: {kl_coef: .nan}}",
        ("rl.ppo.kl_coef = nan", "a number of at least 0"),
    ),
    Bad(
        "optional and out of range",
        GOOD + "sft: {learning_rate: -1e-4}",
        ("sft.learning_rate = -0.0001", "a number above 0 or null"),
    ),
    Bad(
        "unknown choice",
        GOOD + "rl: {ppo: {kl_loss: ful}}",
        ("rl.ppo.kl_loss = 'ful'", "one of k2, full, in_reward", "did you mean full"),
    ),
    Bad(
        "name that is no folder name",
        "name: a/b\nmodel: {actor: b}\nenvironment: {name: sql}",
        ("name = 'a/b'", "text that matches"),
    ),
    Bad(
        "rule of the environment",
        "name: d\nmodel: {actor: b}\nenvironment: {name: sql, templates: [cuont]}",
        ("environment is not allowed", "cuont", "known: count_filter"),
    ),
    Bad(
        "key of the other environment",
        "name: d\nmodel: {actor: b}\nenvironment: {name: sql-session, follow_ups: 2}",
        ("environment.follow_ups is no known key", "chain"),
    ),
    Bad(
        "environment without a name",
        "name: d\nmodel: {actor: b}\nenvironment: {max_turns: 9}",
        ("environment.name is missing", "expected one of sql, sql-session"),
    ),
    Bad(
        "reviews by a critic that knows the answer",
        GOOD + "state: {review: words}",
        ("mine.yaml: state.review = words", "set rl.critic.kind to v", "privileged to false"),
    ),
    Bad(
        "reviews of rewards that know the answer",
        GOOD + "state: {review: words}\nrl: {critic: {view: {privileged: false}}}",
        ("state.review = words", "rl.rewards.weights of sub_goal, right_tool"),
    ),
    Bad(
        "reviews without a critic",
        GOOD + "state: {review: words}\nrl: {critic: {kind: none}}",
        ("state.review = words", "set rl.critic.kind to v"),
    ),
    Bad(
        "misspelt reward component",
        GOOD + "rl: {rewards: {weights: {sucess: 5}}}",
        (
            "rl.rewards.weights is not allowed: sucess = 5",
            "expected one of success, sub_goal",
            "did you mean success",
        ),
    ),
    Bad(
        "reward component near nothing",
        GOOD,
        ("--set rl.rewards.weights.zzz=1", "zzz = 1", "expected one of success, sub_goal"),
        ("rl.rewards.weights.zzz=1",),
    ),
    Bad(
        "success that pays nothing",
        GOOD + "rl: {rewards: {weights: {success: 0}}}",
        ("rl.rewards.weights is not allowed: success = 0", "a number above 0"),
    ),
    Bad(
        "negative seed of the evaluation",
        GOOD + "evaluation: {seed: -1}",
        ("evaluation.seed = -1", "a whole number of at least 0"),
    ),
    # missing file
    Bad("no such recipe", None, ("does not exist",)),
    Bad(
        "no such data",
        GOOD + "sft: {data: no/such.jsonl}",
        ("sft.data = 'no/such.jsonl' does not exist", "correct the path"),
    ),
    Bad(
        "no such database",
        "name: d\nmodel: {actor: b}\n"
        "environment: {name: sql, database: a.sqlite, questions: q.jsonl}",
        ("environment.database = 'a.sqlite' does not exist",),
    ),
    # empty or malformed
    Bad("empty", "", ("is empty", "name, model and environment")),
    Bad("comments only", "# nothing yet\n", ("is empty",)),
    Bad("a list", "- name: demo", ("holds a list", "expected a mapping")),
    Bad("a word", "quickstart", ("holds only the value 'quickstart'", "expected a mapping")),
    Bad("broken indentation", "name: d\n model: {actor: b}", ("line 2", "not valid YAML")),
    Bad("open bracket", "name: d\nmodel: {actor: b", ("line 2", "not valid YAML")),
    Bad("tab", "name: d\nmodel:\n\tactor: b", ("line 3, column 1", "not valid YAML")),
    Bad("python object", "name: !!python/object:os.system {}", ("not valid YAML",)),
    Bad("key twice", GOOD + "seed: 1\nseed: 2", ("line 5", "the key 'seed' stands twice")),
    Bad("binary", "\x00\x01", ("not valid YAML",)),
    Bad("UTF-16", GOOD.encode("utf-16"), ("is no UTF-8 text", "save it in that encoding")),
    Bad("Latin-1", "name: \xe9".encode("latin-1"), ("byte 0xe9 at place 6", "save it")),
    Bad("an anchor in itself", GOOD + "sft: &a {trainer: *a}", ("an anchor stands for something",)),
    Bad("aliases without end", GOOD + _laughs(), ("more than 100000 values",)),
    Bad("unknown alias", GOOD + "sft: *nope", ("line 4", "undefined alias 'nope'")),
    Bad("two documents", GOOD + "---\n" + GOOD, ("line 4", "another document")),
    Bad("nested too deep", GOOD + "sft: " + "[" * 3000, ("not valid YAML", "recursion")),
    Bad("merge of a value", GOOD + "sft: {<<: 3}", ("line 4", "not valid YAML", "mapping")),
    Bad("key that is a list", GOOD + "? [a]\n: b", ("line 4", "unhashable key")),
    Bad("key that is a number", GOOD + "7: b", ("7 is not allowed", "strings")),
    Bad("date", GOOD + "seed: 2020-01-01", ("seed = datetime.date", "a whole number")),
    Bad("seed too large", GOOD + f"seed: {2**32}", ("seed = 4294967296", "below 4294967296")),
    Bad("actor without a name", GOOD.replace("some-base", "''"), ("model.actor = ''", "text")),
    Bad("path too long", GOOD + f"sft: {{data: {'x' * 5000}}}", ("sft.data", "does not exist")),
    # unknown environment
    Bad(
        "unknown environment",
        "name: d\nmodel: {actor: b}\nenvironment: {name: sqll}",
        ("environment.name = 'sqll'", "sql", "did you mean sql"),
    ),
    Bad(
        "environment without keys",
        "name: d\nmodel: {actor: b}\nenvironment: sql",
        ("environment = 'sql'", "a section whose name is one of sql"),
    ),
    # overrides
    Bad(
        "unknown key in an override",
        GOOD,
        ("--set rl.ppo.clip_rang=0.3", "did you mean rl.ppo.clip_range"),
        ("rl.ppo.clip_rang=0.3",),
    ),
    Bad(
        "bad value in an override",
        GOOD,
        ("--set sft.steps=x", "sft.steps = 'x'", "a whole number"),
        ("sft.steps=x",),
    ),
    Bad(
        "relabelled episodes that nothing learns from",
        GOOD + "rl: {hindsight: {}}",
        (
            "rl.hindsight is given, but nothing learns from it",
            "rl.ppo.sft_data: hindsight",
            "rl.hindsight.critic",
        ),
    ),
    Bad(
        "relabelled episodes of no weight",
        GOOD + "rl: {hindsight: {}, ppo: {sft_data: hindsight, sft_coef: 0}}",
        ("rl.hindsight is given, but nothing learns from it", "sft_coef above 0"),
    ),
    Bad(
        "relabelled episodes for a critic without Q",
        GOOD + "rl: {hindsight: {critic: 1.0}}",
        ("rl.hindsight.critic = 1 is about Q", "rl.critic.kind is v"),
    ),
    Bad(
        "imitation of relabelled episodes that nobody makes",
        GOOD + "rl: {ppo: {sft_data: hindsight, sft_coef: 1}}",
        ("rl.ppo.sft_data is hindsight, but nothing is relabelled", "give rl.hindsight"),
    ),
    Bad(
        "a share of the failures above all",
        GOOD + "rl: {hindsight: {share: 1.5}}",
        ("rl.hindsight.share = 1.5", "of at most 1"),
    ),
    Bad(
        "unknown potential",
        GOOD + "rl: {rewards: {shaping: {potential: gold}}}",
        ("rl.rewards.shaping.potential = 'gold'", "checklist"),
    ),
    Bad(
        "shaping that outweighs success",
        GOOD + "rl: {rewards: {shaping: {weight: 2}}}",
        ("rl.rewards.shaping.weight = 2", "of at most 1"),
    ),
    Bad(
        "a reward function with the shaping's name",
        GOOD + "rl: {rewards: {functions: {shaping: babble}, weights: {shaping: -1}}}",
        ("rl.rewards.functions", "shaping is a component of its own"),
    ),
    Bad(
        "budgets of the state that leave no room",
        GOOD + "state: {max_tokens: 256, summary: {max_tokens: 100}, facts: {max_tokens: 120}}",
        (
            "state",
            "state.summary.max_tokens = 100, state.facts.max_tokens = 120 leave 36 of "
            "state.max_tokens = 256",
            "at least 64",
        ),
    ),
    Bad(
        "questions that nobody is there to ask",
        GOOD + "state: {facts: {questions: ['who?']}}",
        ("state.facts.questions", "expected one in state.facts.model"),
    ),
    Bad(
        "unknown key of a processor",
        GOOD + "state: {memory: {embeder: hashing}}",
        ("state.memory.embeder is no known key", "did you mean state.memory.embedder"),
    ),
    # offline learning
    Bad(
        "twins online",
        GOOD + "rl: {critic: {kind: q, twin: true}}",
        ("rl.critic.twin is true", "for offline use only", "rl.offline.pool with method iql"),
    ),
    Bad(
        "twins of another method",
        GOOD + "rl: {critic: {kind: q, twin: true}, offline: {pool: sft, method: awr}}",
        ("rl.critic.twin is true", "for offline use only"),
    ),
    Bad(
        "iql without a critic",
        GOOD + "rl: {critic: {kind: none}, offline: {pool: sft}}",
        ("rl.offline.method iql fits V to the pool", "kind none", "filtered_cloning"),
    ),
    Bad(
        "awr on the actor's trunk",
        GOOD + "rl: {critic: {trunk: shared, view: symmetric}, offline: {pool: sft, method: awr}}",
        ("rl.offline.method awr", "trunk shared", "set kind to v or q"),
    ),
    Bad(
        "iql by a loss without expectile",
        GOOD + "rl: {critic: {loss: huber}, offline: {pool: sft}}",
        ("rl.critic.loss is huber", "no expectile", "mse or hl_gauss"),
    ),
    Bad(
        "iql with a target of its own",
        GOOD + "rl: {critic: {target: n_step}, offline: {pool: sft}}",
        ("rl.critic.target is n_step", "does nothing for rl.offline.method iql", "awr"),
    ),
    Bad(
        "nothing left to the actor",
        GOOD + "rl: {iterations: 2, offline: {pool: sft}}",
        ("rl.critic.warm_up.max_iterations is 2", "none of rl.iterations (2)", "lower it"),
    ),
    Bad(
        "a KL that nobody pays for offline",
        GOOD + "rl: {ppo: {kl_loss: in_reward}, offline: {pool: sft}}",
        ("rl.ppo.kl_loss is in_reward", "set it to k2 or full"),
    ),
    Bad(
        "hindsight where nothing is played",
        GOOD + "rl: {hindsight: {critic: 1.0}, critic: {kind: q}, offline: {pool: sft}}",
        ("rl.hindsight is given", "leave rl.hindsight or rl.offline.pool out"),
    ),
    Bad(
        "a pool of broken groups",
        GOOD + "rl: {episodes_per_task: 4, offline: {episodes: 10}}",
        ("rl.offline.episodes is 10", "a multiple of rl.episodes_per_task (4)"),
    ),
    Bad(
        "unknown offline method",
        GOOD + "rl: {offline: {method: iqn}}",
        ("rl.offline.method = 'iqn'", "iql, awr, filtered_cloning", "did you mean iql"),
    ),
    Bad(
        "an expectile that is none",
        GOOD + "rl: {offline: {expectile: 1}}",
        ("rl.offline.expectile = 1", "below 1"),
    ),
    Bad(
        "reviews where nothing is played",
        GOOD + "state: {review: words}\nrl: {offline: {pool: sft}}",
        ("state.review = words needs play", "rl.offline.pool"),
    ),
    Bad(
        "override without a value",
        GOOD,
        ("--set sft.steps is not understood", "path=value"),
        ("sft.steps",),
    ),
    Bad(
        "override below a plain value",
        GOOD,
        ("--set name.a=1", "name is a plain value"),
        ("name.a=1",),
    ),
    Bad("malformed override", GOOD, ("--set sft.steps=[", "not valid YAML"), ("sft.steps=[",)),
    Bad(
        "override with empty parts",
        GOOD,
        ("--set sft..steps=1 is not understood",),
        ("sft..steps=1",),
    ),
)
