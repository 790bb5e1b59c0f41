"""The recipe's ``rl.generation``: which engine samples rollouts, and from which weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from stages.recipe.section import Section


class VllmSection(Section):
    """vLLM as the engine of rollouts (rl.generation.engine)."""

    mode: Literal["colocate", "server"] = "colocate"
    """colocate: in the training processes, on their GPUs; server: a vllm serve that runs apart."""
    gpu_memory_utilization: float = Field(0.3, gt=0, lt=1)
    """colocate: share of each GPU for the engine's weights and KV cache; training has the rest."""
    tensor_parallel: int = Field(1, ge=1)
    """colocate: GPUs that hold one engine together; a divisor of the number of processes."""
    host: str = "127.0.0.1"
    """server: where it runs."""
    port: int = Field(8000, ge=1, le=65535)
    """server: its port."""
    max_model_length: int | None = Field(None, ge=2)
    """Most tokens of a prompt and its reply in the engine; none: the model's context."""

    @model_validator(mode="after")
    def _of_its_mode(self) -> VllmSection:
        other = {
            "colocate": ("host", "port"),
            "server": ("gpu_memory_utilization", "tensor_parallel"),
        }
        for name in other[self.mode]:
            given, field = getattr(self, name), type(self).model_fields[name]
            if given != field.default:
                advice = "an option of vllm serve" if self.mode == "server" else "a server's"
                raise ValueError(
                    f"{name} = {given} is given, but with mode {self.mode} it is {advice}; leave "
                    "it out, or change the mode"
                )
        return self


class GenerationSection(Section):
    """What samples rollouts, and with which weights (F25)."""

    engine: Literal["native", "vllm"] = "native"
    """native: transformers, everywhere; vllm: through TRL's own class, on GPUs (extra vllm)."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = "auto"
    """auto: the actor itself, or its bfloat16 copy where it computes in bfloat16; another type: a
    copy, adapters merged in. int8 (dynamic quantisation of the linear layers) needs a CPU."""
    importance_cap: float | None = Field(2.0, ge=1)
    """What a copy, or vLLM, samples otherwise than the actor would is made up for by importance
    weights per token, cut off at this value. none: PPO's ratio is taken to what the copy sampled
    with, which saves a forward of every episode; for copies that differ by rounding alone."""
    vllm: VllmSection = VllmSection()
    """The vLLM engine."""

    @field_validator("dtype")
    @classmethod
    def _chosen_by_vllm(cls, dtype: str, info: ValidationInfo) -> str:
        if info.data.get("engine") == "vllm" and dtype != "auto":
            raise ValueError(
                f"{dtype} is given, but vLLM chooses the type of its weights by the model's "
                "config; set it to auto"
            )
        return dtype

    @field_validator("vllm")
    @classmethod
    def _asked_for(cls, vllm: VllmSection, info: ValidationInfo) -> VllmSection:
        if info.data.get("engine") == "native" and vllm != VllmSection():
            raise ValueError(
                "options of vLLM are given, but rl.generation.engine is native; set it to vllm, "
                "or leave them out"
            )
        return vllm
