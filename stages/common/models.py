"""Models and tokenizers from plain Hugging Face folders, and back into them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from stages.common import quantized
from stages.common.adapters import attach, has_adapters, merged, save_adapters, saved_heads
from stages.common.allocator import keep_less
from stages.common.chat import stop_ids
from stages.common.errors import HandoffError, UsageError
from stages.common.manifest import adapter_base
from stages.common.model_folder import base_of, check_model_folder
from stages.common.template import PLAIN_TEMPLATE, check_template

_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_GENERATION = "generation_config.json"


def load_tokenizer(
    path: str | Path, chat_template: Path | None = None, *, plain: bool = False
) -> Any:
    """The tokenizer of a folder or hub id; UsageError without a chat template that works.

    ``chat_template``: a jinja file to use instead of the tokenizer's own. ``plain``: one that has
    none takes ``PLAIN_TEMPLATE``, as encoders were never told of dialogues. A missing pad token is
    left missing: masks are explicit everywhere, and ``padding_id`` says what to fill with.
    """
    from transformers import AutoTokenizer

    source = _source(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(_not_loaded("tokenizer", path, error)) from error
    if chat_template is not None:
        tokenizer.chat_template = _read_template(chat_template)
    if plain and not tokenizer.chat_template and tokenizer.sep_token:
        tokenizer.chat_template = PLAIN_TEMPLATE
    if not tokenizer.chat_template:
        raise UsageError(
            f"The tokenizer of {path} has no chat template, which multi-turn dialogues need; "
            "give one as model.chat_template (a jinja file)."
        )
    check_template(tokenizer, chat_template or f"the tokenizer of {path}")
    return tokenizer


def load_actor(
    path: str | Path,
    *,
    dtype: str = "auto",
    frozen: Sequence[str] = (),
    tokenizer: Any = None,
    shares: bool = False,
) -> Any:
    """The causal language model of a folder or hub id; adapters are merged into their base.

    ``dtype``: float32, bfloat16, or auto (float32 on a CPU, bfloat16 on a GPU). Parameters
    whose name contains a text of ``frozen`` take no gradient. ``shares``: under ZeRO-3 each
    process takes its share only, at once. UsageError: missing folder,
    pickled weights, a vocabulary smaller than ``tokenizer``'s, a text of ``frozen`` that
    names nothing.
    """
    from transformers import AutoModelForCausalLM

    check_model_folder(path, writes=True)
    with _in_shares() if shares else nullcontext():
        model, missing = _load_merged(AutoModelForCausalLM, path, dtype)
    _require_whole(missing, path)
    if tokenizer is not None:
        check_vocabulary(model, tokenizer, path)
    freeze(model, frozen)
    keep_less(count_parameters(model))
    return model


def load_trained_actor(
    path: str | Path, section: Any, *, dtype: str, tokenizer: Any, reference: bool = False
) -> Any:
    """The causal language model that is to learn: whole, or by adapters over frozen weights.

    ``section`` has ``frozen`` and ``lora`` (a recipe's model section does); adapters in ``path``
    are gone on with, and ``reference`` keeps a frozen copy of them. UsageError as ``load_actor``
    and ``adapters.attach``, and for a quantised base without bitsandbytes or a GPU.
    """
    lora = section.lora
    if lora is None:
        return load_actor(
            path, dtype=dtype, frozen=section.frozen, tokenizer=tokenizer, shares=True
        )
    from transformers import AutoModelForCausalLM

    check_model_folder(path, writes=True)
    base, start = _base_and_start(path)
    model, missing = _load_frozen(AutoModelForCausalLM, base, dtype, lora.quantize)
    _require_whole(missing, base)
    check_vocabulary(model, tokenizer, path)
    freeze(model, section.frozen)
    keep_less(count_parameters(model))
    return attach(model, lora, base=base, start=start, reference=reference)


def load_reward_model(path: str | Path, *, dtype: str = "auto") -> Any:
    """A trained reward model; HandoffError if its head is not in the folder's weights."""
    from transformers import AutoModelForSequenceClassification

    model, missing = _load_merged(AutoModelForSequenceClassification, path, dtype)
    if missing or model.config.num_labels != 1:
        lacking = ", ".join(sorted(missing)) or "a head with one output"
        raise HandoffError(
            f"{path} is no trained reward model: its weights lack {lacking}; "
            "train one with aac train-reward."
        )
    return model


def new_reward_model(
    path: str | Path, *, dtype: str = "auto", frozen: Sequence[str] = (), lora: Any = None
) -> Any:
    """The trunk of ``path`` under a fresh head with one output (seeded by the caller).

    Texts of ``frozen`` that only name parts of an actor (its output layer) are passed over.
    ``lora``: adapters and the head learn, the trunk stands still; see ``load_adapted_actor``.
    """
    from transformers import AutoModelForSequenceClassification as Architecture

    if lora is None:
        model, missing = _load_merged(Architecture, path, dtype, num_labels=1)
    else:
        base, start = _base_and_start(path)
        model, missing = _load_frozen(Architecture, base, dtype, lora.quantize, num_labels=1)
    head = set(_head_names(model))
    _require_whole(missing - head, path)
    if lora is not None:
        heads = sorted({name.rpartition(".")[0] for name in head})
        return attach(model, lora, base=base, start=start, heads=heads)
    names = [name for name, _ in model.named_parameters()]
    freeze(model, [text for text in frozen if any(text in name for name in names)])
    return model


def stored_dtype(path: str | Path) -> str:
    """The type that the weights of a folder or hub id are kept in, by its config."""
    from transformers import AutoConfig

    kept = getattr(AutoConfig.from_pretrained(_source(path)), "dtype", None)
    return str(kept or "float32").removeprefix("torch.")


def longest_row(path: str | Path) -> int | None:
    """Most tokens that a model with a table of positions reads; None where they are computed."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(_source(base_of(path) or path))
    most = getattr(config, "max_position_embeddings", None)
    computed = getattr(config, "rope_parameters", None) is not None
    return None if most is None or computed else int(most)


def load_trunk(path: str | Path) -> Any:
    """The model below all heads, in float32; adapters are merged into their base.

    Raises OSError, ValueError or UsageError for what is none.
    """
    from transformers import AutoModel

    _, start = _base_and_start(path)
    if start is None:
        return AutoModel.from_pretrained(path, dtype=_dtype("float32"))
    model = load_reward_model(path, dtype="float32") if saved_heads(start) else load_actor(path)
    return model.base_model


def _in_shares() -> AbstractContextManager[None]:
    from stages.common.engine import loading_in_shares

    return loading_in_shares()


def padding_id(tokenizer: Any) -> int:
    """What to fill short rows with: the pad token, else eos, else 0. Masks say what counts."""
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in known if token is not None)


def score_padding(tokenizer: Any) -> str:
    """The token a reward model's rows are filled with: one that never ends a reply.

    Hugging Face's classification heads read the last token that is not the pad token, so a
    pad equal to the stop token would move the place that is read.
    """
    ends = set(stop_ids(tokenizer))
    own = tokenizer.pad_token_id
    special = {k for k, token in tokenizer.added_tokens_decoder.items() if token.special}
    for token in [own, tokenizer.unk_token_id, tokenizer.bos_token_id, *sorted(special)]:
        if token is not None and token not in ends:
            return str(tokenizer.convert_ids_to_tokens(token))
    raise UsageError(
        "The tokenizer has no special token besides its stop token, and a reward model needs "
        "one to pad with; add a pad_token."
    )


def freeze(model: Any, frozen: Iterable[str]) -> None:
    """Stop gradients of parameters whose name contains one of the texts; each must match."""
    parameters = dict(model.named_parameters())
    for text in frozen:
        hits = [name for name in parameters if text in name]
        if not hits:
            raise UsageError(
                f"model.frozen has '{text}', which is in no parameter's name; "
                f"names look like {', '.join(list(parameters)[:3])}."
            )
        for name in hits:
            parameters[name].requires_grad_(False)


def count_parameters(model: Any) -> int:
    """Parameters in all, wherever they lie; tied ones count once."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())


def check_vocabulary(model: Any, tokenizer: Any, path: str | Path) -> None:
    """UsageError if the tokenizer can produce ids the model has no embedding for."""
    rows, tokens = model.get_input_embeddings().num_embeddings, len(tokenizer)
    if rows < tokens:
        raise UsageError(
            f"The model of {path} has {rows} embeddings but its tokenizer {tokens} tokens; "
            "give the tokenizer that belongs to the model."
        )


def save_folder(
    model: Any,
    tokenizer: Any,
    path: Path,
    *,
    card: str = "",
    state_dict: Mapping[str, Any] | None = None,
) -> None:
    """A plain Hugging Face folder: weights, tokenizer, chat template, generation config, card.

    Of a model with adapters only these, in peft's format: they name their base.
    The generation config is told every stop token, so that other programs stop there too.
    ``state_dict``: weights gathered elsewhere (sharded training).
    """
    _set_generation(model, tokenizer)
    text = card or f"Trained with aac. Architecture: {type(model).__name__}."
    if has_adapters(model):
        save_adapters(model, path, state_dict)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(path)
        text += f" LoRA adapters over {adapter_base(path)}; aac export merges them."
    else:
        model.save_pretrained(path, state_dict=state_dict)
    tokenizer.save_pretrained(path)
    (path / "README.md").write_text(f"---\nlibrary_name: transformers\n---\n\n{text}\n", "utf-8")


def _set_generation(model: Any, tokenizer: Any) -> None:
    """Stop and pad ids for other programs; a config that could not be saved is replaced."""
    config = getattr(model, "generation_config", None)
    if config is None:
        return
    stops = stop_ids(tokenizer, config)
    try:
        config.validate(strict=True)
    except ValueError:  # sampling flags that contradict each other, common in older models
        model.generation_config = config = type(config)(bos_token_id=tokenizer.bos_token_id)
    config.eos_token_id = list(stops) if len(stops) > 1 else stops[0]
    config.pad_token_id = padding_id(tokenizer)


def _load_merged(
    architecture: Any, path: str | Path, dtype: str, **options: Any
) -> tuple[Any, set[str]]:
    """As ``_load``, with adapters merged (in float32) into their base; their heads lack nothing."""
    base, start = _base_and_start(path)
    if start is None:
        return _load(architecture, path, dtype=_dtype(dtype), **options)
    kept = set(saved_heads(start))
    fitting = {"num_labels": 1} if kept else {}
    model, missing = _load(architecture, base, dtype=_dtype("float32"), **(fitting | options))
    model = merged(model, start).to(_dtype(dtype))
    if (start / _GENERATION).is_file() and getattr(model, "generation_config", None):
        model.generation_config = type(model.generation_config).from_pretrained(start)
    return model, {name for name in missing if name.rpartition(".")[0] not in kept}


def _load_frozen(
    architecture: Any, base: str, dtype: str, quantize: str, **options: Any
) -> tuple[Any, set[str]]:
    """A base that adapters are to learn over, quantised if that was asked for."""
    options = {"dtype": _dtype(dtype), **quantized.loading_options(quantize), **options}
    model, missing = _load(architecture, base, **options)
    return quantized.ready_to_train(model, quantize), missing


def _base_and_start(path: str | Path) -> tuple[str, Path | None]:
    """(the whole model, the folder of adapters to go on from or None)."""
    base = base_of(path)
    return (str(path), None) if base is None else (base, Path(path))


def _load(architecture: Any, path: str | Path, **options: Any) -> tuple[Any, set[str]]:
    """(model, names of parameters that the weights lack)."""
    from stages.common.gemm import quicken
    from stages.common.sharding import zero_stage

    source = _source(path)
    check_model_folder(source)
    try:
        model, info = architecture.from_pretrained(
            source, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(_not_loaded("model", path, error)) from error
    except RuntimeError as error:
        if "mismatched" not in str(error):  # no memory, say: not the folder's fault
            raise
        raise UsageError(
            f"The weights of {path} do not have the shapes that its config.json tells; restore "
            "the config that belongs to them."
        ) from error
    if not zero_stage():
        quicken(model)
    return model, set(info["missing_keys"])


def _source(path: str | Path) -> str:
    """The folder or hub id, told apart from a mistyped folder before any network is asked."""
    text = str(path)
    if Path(text).is_dir():
        return text
    parent = Path(text).parent
    mistyped = parent != Path() and parent.is_dir()
    if mistyped or Path(text).is_file() or not _HUB_ID.fullmatch(text):
        raise UsageError(f"{text} is no folder; give a Hugging Face model folder or a hub id.")
    return text


def _read_template(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"model.chat_template {path} cannot be read: {_first(error)}") from error


def _require_whole(missing: set[str], path: str | Path) -> None:
    """What a folder lacks would be made up at random."""
    if missing:
        lacking = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        raise UsageError(f"The weights of {path} lack {lacking}; give a complete model.")


def _dtype(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return getattr(torch, name)


def _head_names(model: Any) -> list[str]:
    """Parameters outside the trunk."""
    prefix = f"{model.base_model_prefix}."
    return [name for name, _ in model.named_parameters() if not name.startswith(prefix)]


def _not_loaded(what: str, path: str | Path, error: Exception) -> str:
    if Path(path).is_dir():
        return f"No {what} could be loaded from {path}: {_first(error)}"
    why = _first(error).rstrip(".")
    told = f"{path} is no folder here, and no {what} of that hub id could be loaded: {why}"
    if str(path).count("/") != 1:  # no owner/name, so rather a folder with a typing error
        return f"{told}; check the path."
    return f"{told}; make models brings those of recipes/laptop.yaml without the hub."


def _first(error: Exception) -> str:
    """The first sentence of another library's message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".") + "."
