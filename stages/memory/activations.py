"""Bytes that a forward keeps for the backward, of a Llama-type decoder with fused attention.

Korthikanti et al. 2022 (arXiv:2205.05198, section 4) count them for GPT; here the same for RMSNorm,
rotary positions, grouped keys and a gated MLP, as Hugging Face writes them. Attention is fused: no
scores are kept. A test compares the counts with the tensors a real forward saves.
"""

from __future__ import annotations

from stages.memory.architecture import Architecture
from stages.memory.strategies import Precision

_FLOAT = 4
SFT_CHUNK = 256
"""Tokens whose logits TRL's chunked loss holds at once."""
CHUNK_COPIES = 4
"""Logits, their log-softmax, its exponential, and a gradient."""
LOSS_COPIES = {"k2": 5, "in_reward": 5, "full": 8}
"""Float32 matrices (action tokens, vocabulary) alive in the PPO loss, by ``rl.ppo.kl_loss``:
logits, log-probs, probabilities, and two gradients; ``full`` adds those of the reference."""


def block_bytes(model: Architecture, precision: Precision) -> int:
    """Per token and block: two norms, q, k, v, the attention's output, four matrices of the MLP."""
    c, heads = precision.compute, model.heads + model.kv_heads
    inner = 2 * heads * model.head_width + 4 * model.intermediate
    of_heads = heads * model.head_width * (_FLOAT + c) if model.head_norms else 0
    return _norms(model, precision) + c * inner + of_heads


def _norms(model: Architecture, precision: Precision) -> int:
    """Two norms keep their inputs in float32, the normalised inputs, and what they give out."""
    h, c = model.hidden, precision.compute
    if precision.rank:
        # Frozen scales need no normalised input. In bf16 every adapter casts its input anew.
        casts = 5 * h + model.heads * model.head_width if c < _FLOAT else 2 * h
        return 2 * _FLOAT * h + c * (casts + 7 * precision.rank)
    if precision.cast:  # under autocast a norm is float32, and every linear layer casts it anew
        return (2 * 2 * _FLOAT + 5 * c) * h
    return 2 * (_FLOAT + 2 * c) * h


def working_bytes(model: Architecture, precision: Precision) -> int:
    """Per token: gradients inside one block during the backward, freed block by block."""
    return precision.compute * (3 * model.intermediate + 2 * model.hidden)


def activation_bytes(
    model: Architecture, precision: Precision, tokens: int, *, checkpointing: bool
) -> float:
    """Of a forward over ``tokens`` at the start of its backward, logits apart.

    ``checkpointing``: only each block's input is kept, and one block is computed again.
    """
    block = block_bytes(model, precision)
    if checkpointing:
        stream = _FLOAT if precision.cast else precision.compute
        kept = model.layers * stream * model.hidden + block
    else:
        kept = model.layers * block
    return float(tokens * (kept + working_bytes(model, precision)))


def forward_bytes(model: Architecture, precision: Precision, tokens: int) -> float:
    """Of a forward without gradients: one block at a time, and the stream between blocks."""
    wide = 3 * model.intermediate + 4 * model.hidden
    return float(tokens * precision.compute * wide)


def logit_bytes(model: Architecture, tokens: int, copies: int) -> float:
    """Float32 matrices (tokens, vocabulary)."""
    return float(tokens * model.vocabulary * _FLOAT * copies)


def cache_bytes(model: Architecture, bytes_each: float, tokens: int) -> float:
    """Keys and values of ``tokens`` tokens in every block."""
    return float(2 * model.layers * model.kv_heads * model.head_width * bytes_each * tokens)
