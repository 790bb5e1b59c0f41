"""TRL's own GRPOTrainer, with the same scripted policy, gives the same tool texts and rewards."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from stages.interaction.actions import parse_action
from stages.interaction.environments import make_environment
from stages.interaction.environments.adapters.options import TrlOptions
from stages.interaction.environments.base import Task
from tests.interaction.environments import adapted
from tests.tiny_models import tiny_qwen3

HERE = "tests.interaction.environments.adapted"


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


SCRIPTS = (
    (call("look", '{"locker": 1}'), call("take", '{"locker": 1}'), "I have it."),
    (call("take", '{"locker": 2}'), call("look", '{"locker": 2}'), "Too late."),
    (call("fly", "{}"), call("look", '{"where": 1}'), call("look", '{"locker": 0}'), "No."),
    ("I give up at once.",),
    (call("take", '{"locker": 1}') + "\n" + call("look", '{"locker": 1}'), "Both."),
    ('<tool_call>\n{"name": "look", "argu\n</tool_call>',),
    (*(call("look", f'{{"locker": {n}}}') for n in range(4)), "Never said."),
)
ROUNDS = 3
"""TRL's max_tool_calling_iterations; the reply after it is still made."""
ROWS = [
    {"prompt": [{"role": "user", "content": f"Find the key {n}."}], "number": 1 + n % 2, "n": n}
    for n in range(len(SCRIPTS))
]


def trl_episodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """n -> (prompt, completion, rewards per function) as TRL's trainer sees them."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    model = tiny_qwen3(folder / "model", max_position_embeddings=4096)
    tokenizer = AutoTokenizer.from_pretrained(model)
    templates = Path(trl.__file__).parent / "chat_templates"
    tokenizer.chat_template = (templates / "qwen3.jinja").read_text()
    seen: dict[int, Any] = {}

    def record(prompts: Any, completions: Any, n: Any, **columns: Any) -> list[float]:
        for number, prompt, completion in zip(n, prompts, completions, strict=True):
            seen[number] = (prompt, completion)
        return [0.0] * len(prompts)

    config = trl.GRPOConfig(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=len(ROWS) * 2,
        num_generations=2,
        max_completion_length=3000,
        max_tool_calling_iterations=ROUNDS,
        report_to=[],
        use_cpu=True,
        bf16=False,
    )
    trainer = trl.GRPOTrainer(
        model=str(model),
        reward_funcs=[adapted.live_reward, record],
        args=config,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=tokenizer,
        environment_factory=adapted.Lockers,
    )
    inputs = [{**row, "prompt": [dict(m) for m in row["prompt"]]} for row in ROWS]

    def say(prompt_ids: Any, *rest: Any, **more: Any) -> tuple[list[list[int]], None]:
        """The next text of whichever script a prompt belongs to."""
        said = []
        for ids in prompt_ids:
            text = tokenizer.decode(ids)
            number = int(text.split("Find the key ")[-1].split(".")[0])
            script = SCRIPTS[number]
            turn = min(text.count("<|im_start|>assistant\n") - 1, len(script) - 1)
            said.append(tokenizer(script[turn] + "<|im_end|>")["input_ids"])
        return said, None

    monkeypatch.setattr(trainer, "_generate_single_turn", say)
    calculate = trainer._calculate_rewards

    def calculated(inputs: Any, *rest: Any) -> Any:
        rewards = calculate(inputs, *rest)
        for row, given in zip(inputs, rewards.tolist(), strict=True):
            seen[row["n"]] = (*seen[row["n"]][:2], given)
        return rewards

    monkeypatch.setattr(trainer, "_calculate_rewards", calculated)
    doubled = [row for row in inputs for _ in range(2)]
    trainer._generate_and_score_completions(doubled)
    return seen


def our_episode(environment: Any, row: dict[str, Any], script: tuple[str, ...]) -> Any:
    """(prompt, tool messages in order, sum of rewards)."""
    reset = environment.reset(Task("t", "k", "g", {"row": row}))
    tools, total = [], 0.0
    for turn in range(environment.max_turns):
        step = environment.step(parse_action(script[min(turn, len(script) - 1)], reset.tools))
        tools += step.messages
        total += step.rewards.get("success", 0.0)
        if step.terminated:
            break
    return list(reset.messages), tools, total


@pytest.mark.full
def test_same_tool_texts_and_rewards_as_grpo(tmp_path, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = trl_episodes(tmp_path, monkeypatch)
    options = TrlOptions(
        trl=f"{HERE}:Lockers", reward_funcs=(f"{HERE}:live_reward",), max_turns=ROUNDS + 1
    )
    environment = make_environment(options)
    for row, script in zip(ROWS, SCRIPTS, strict=True):
        prompt, completion, rewards = theirs[row["n"]]
        ours = our_episode(environment, row, script)
        first = prompt[: len(ours[0])]
        assert [m["content"] for m in ours[0]] == [m["content"] for m in first]
        told = [m for m in completion if m["role"] == "tool"]
        assert list(ours[1]) == told, script
        assert ours[2] == pytest.approx(sum(rewards)), script
    assert {sum(theirs[n][2]) for n in theirs} == {0.0, 2.0}
