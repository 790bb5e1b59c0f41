"""Stage 0: pretrain the tiny base model of the quickstart. ``make base`` runs it.

A budget in steps gives the same documents and schedule on any machine; one in minutes does not.

python -m stages.pretraining.run --output recipes/base --steps 5000 --seed 0
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from stages.pretraining import model as architecture
from stages.pretraining.data import Document, corpus, documents
from stages.pretraining.tokenizer import train_tokenizer

LEARNING_RATE, WARMUP_STEPS, DECAY_SHARE, CLIP_NORM = 3e-3, 60, 0.4, 1.0
BATCH_DOCUMENTS, BUCKET_BATCHES = 16, 24
CONTEXT_WEIGHT = 0.1
"""Weight in the loss of text that is not a target."""
CORPUS_DOCUMENTS, LONGEST = 3000, 400
LOG_EVERY, SAVE_EVERY_S = 100, 150.0

Batch = tuple[Tensor, Tensor]
"""Token ids and loss weights, both (documents, tokens)."""


@dataclass(frozen=True)
class Budget:
    """How long to train: a number of steps, or minutes."""

    minutes: float
    steps: int | None = None

    def progress(self, step: int, elapsed_s: float) -> float:
        """Share of the budget used, in [0, 1]."""
        share = step / self.steps if self.steps else elapsed_s / (60 * self.minutes)
        return min(1.0, share)


def encode(document: Document, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[float]]:
    """Ids and loss weights of a document, laid out as the chat template lays messages out."""
    ids, weights = [tokenizer.bos_token_id], [0.0]
    for segment in document:
        text = f"<|{segment.role}|>{segment.content}<|end|>"
        tokens = tokenizer.encode(text, add_special_tokens=False)
        weight = 1.0 if segment.target else CONTEXT_WEIGHT
        ids += tokens
        weights += [CONTEXT_WEIGHT, *[weight] * (len(tokens) - 1)]
    return ids, weights


def batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[Batch]:
    """Batches of documents of similar length, without end."""
    stream = (encode(d, tokenizer) for d in documents(seed))
    short = (row for row in stream if len(row[0]) <= LONGEST)
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = [next(short) for _ in range(BATCH_DOCUMENTS * BUCKET_BATCHES)]
        rows.sort(key=lambda row: len(row[0]))
        for i in torch.randperm(BUCKET_BATCHES, generator=generator).tolist():
            yield _padded(rows[i * BATCH_DOCUMENTS : (i + 1) * BATCH_DOCUMENTS], tokenizer)


def _padded(rows: list[tuple[list[int], list[float]]], tokenizer: PreTrainedTokenizerFast) -> Batch:
    longest = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), longest), int(tokenizer.pad_token_id))
    weights = torch.zeros(len(rows), longest)
    for i, (row, weight) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        weights[i, : len(row)] = torch.tensor(weight)
    return ids, weights


def weighted_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Cross-entropy of the next token, averaged with the weights of the predicted tokens."""
    ids, weights = batch
    # Padding is on the right and carries no weight, so causal attention needs no mask.
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    wanted = weights[:, 1:].flatten()
    return (losses * wanted).sum() / wanted.sum()


def rate(step: int, progress: float) -> float:
    """Learning rate: short warm-up, flat, linear decay over the last part of the budget."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * warm * max(0.02, min(1.0, (1.0 - progress) / DECAY_SHARE))


def pretrain(output: Path, budget: Budget, seed: int) -> float:
    """Train tokenizer and model and save them; returns the last smoothed loss."""
    tokenizer = train_tokenizer(list(corpus(CORPUS_DOCUMENTS, seed + 1_000_000)))
    special = {
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "pad": tokenizer.pad_token_id,
    }
    model = architecture.build(len(tokenizer), **special, seed=seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    smooth, tokens, start, saved = 0.0, 0, time.monotonic(), time.monotonic()
    for step, batch in enumerate(batches(tokenizer, seed)):
        now = time.monotonic()
        progress = budget.progress(step, now - start)
        if progress >= 1.0:
            break
        loss = _update(model, optimizer, batch, rate(step, progress))
        smooth = loss if step == 0 else 0.95 * smooth + 0.05 * loss
        tokens += int((batch[1] > 0).sum())
        if step % LOG_EVERY == 0:
            line = f"step {step}  {now - start:.0f} s  {tokens:,} tokens  loss {smooth:.3f}"
            print(line, flush=True)
        if now - saved > SAVE_EVERY_S:
            save(model, tokenizer, output)
            saved = now
    save(model, tokenizer, output)
    return smooth


def _update(
    model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, batch: Batch, learning_rate: float
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    loss = weighted_loss(model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Write a checkpoint, complete or not at all: weights as bf16, loaded as fp32 again."""
    part = output.with_name(output.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    state = {
        k: v.to(torch.bfloat16) for k, v in model.state_dict().items() if k != "lm_head.weight"
    }
    model.save_pretrained(part, state_dict=state)
    tokenizer.save_pretrained(part)
    output.mkdir(parents=True, exist_ok=True)
    for path in part.iterdir():
        path.chmod(0o644)
        os.replace(path, output / path.name)
    part.rmdir()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("recipes/base"))
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=None, help="instead of minutes: exact")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    loss = pretrain(given.output, Budget(given.minutes, given.steps), given.seed)
    print(f"saved {given.output}, loss {loss:.3f}")


if __name__ == "__main__":
    main()
