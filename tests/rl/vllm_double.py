"""vLLM itself, played by transformers: what stands beneath TRL's real generation class in tests.

TRL's own code runs (sampling parameters, weights by name, log-probs by rank, what a server is
sent); only the engine, which needs a GPU, is a double.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stages.interaction.native import Job, decode
from stages.interaction.replies import Sampled
from stages.recipe.generation import VllmSection


class Vllm:
    """``vllm.LLM`` and TRL's client of a server, as far as TRL's class uses them."""

    def __init__(self, folder: str) -> None:
        """Weights from the folder, in bfloat16 as an engine would hold them."""
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
        self.rng = np.random.default_rng(5)
        self.settings: list[dict[str, Any]] = []
        """Sampling parameters of every call."""
        self.drawn: list[tuple[list[int], list[int]]] = []
        """(prompt, reply) of every row, in the order it was asked."""
        self.synchronised = 0
        runner = SimpleNamespace(model=self)
        driver = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(model_executor=driver)

    def load_weights(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Colocated: one after the other."""
        parameters = dict(self.model.named_parameters())
        for name, tensor in named:
            parameters[name].data.copy_(tensor)

    def update_named_params(self, known: Sequence[Any], named: Any) -> None:
        """Server: announced by name, type and shape, then streamed."""
        announced = {name: shape for name, _, shape in known}
        for name, tensor in named:
            assert announced.pop(name) == list(tensor.shape)
            self.load_weights([(name, tensor)])
        assert not announced

    def reset_prefix_cache(self) -> None:
        """What was cached was the old weights'."""
        self.synchronised += 1

    def generate(self, prompts: list[Any], **words: Any) -> Any:
        """Both ways to be asked, by what TRL hands over."""
        if "sampling_params" in words:
            return self._colocated(prompts, vars(words["sampling_params"]))
        assert words.pop("features") is None and words.pop("structured_outputs_regex") is None
        extra = words.pop("generation_kwargs")
        rows = self._draw(prompts, words | extra)
        return {
            "prompt_ids": prompts,
            "completion_ids": [row.ids for row in rows],
            "logprobs": [[[0.0, lp] for lp in row.logprobs] for row in rows],
            "logprob_token_ids": [[[-1, token] for token in row.ids] for row in rows],
        }

    def _colocated(self, prompts: list[dict[str, list[int]]], setting: dict[str, Any]) -> Any:
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        rows = self._draw(ids, setting)
        return [
            SimpleNamespace(prompt_token_ids=prompt, outputs=[_output(row)])
            for prompt, row in zip(ids, rows, strict=True)
        ]

    def _draw(self, prompts: list[list[int]], setting: dict[str, Any]) -> list[Sampled]:
        self.settings.append(setting)
        greedy, limit = setting["temperature"] == 0, setting["max_tokens"]
        job = Job(
            prompts=prompts,
            limits=[limit] * len(prompts),
            uniforms=None if greedy else self.rng.random((len(prompts), limit)),
            stops=setting["stop_token_ids"],
            temperature=1.0 if greedy else setting["temperature"],
        )
        rows = decode(self.model, job)
        self.drawn += [(p, row.ids) for p, row in zip(prompts, rows, strict=True)]
        return rows


def _output(row: Sampled) -> Any:
    """The sampled token stands after one that is likelier, as ranks go."""
    places = zip(row.ids, row.logprobs, strict=True)
    likelier = SimpleNamespace(logprob=0.0, rank=1)
    logprobs = [{t: SimpleNamespace(logprob=lp, rank=2), -1: likelier} for t, lp in places]
    return SimpleNamespace(token_ids=row.ids, logprobs=logprobs)


def beneath_trl(monkeypatch: pytest.MonkeyPatch) -> list[Vllm]:
    """TRL's class starts the double; the engines it started."""
    from trl.generation import vllm_generation as theirs

    started: list[Vllm] = []

    def start(self: Any) -> None:
        started.append(Vllm(self.model.name_or_path))
        self.llm = self.vllm_client = started[-1]

    monkeypatch.setattr(theirs.VLLMGeneration, "_init_vllm", start)
    parameters = lambda **words: SimpleNamespace(**words)  # noqa: E731
    monkeypatch.setattr(theirs, "SamplingParams", parameters, raising=False)
    return started


SECTIONS = {"colocate": VllmSection(), "server": VllmSection(mode="server")}
