"""The tiny actor's tokenizer: byte-level BPE in which a name is always the same tokens.

A model this small copies names well only if ``unit_price`` has the same tokens in a schema,
a question and a statement. So words carry no leading blank, digits and ``_`` stand alone, and
the fixed text around them (JSON, SQL, checklist) is one token a piece. Any text survives
``decode(encode(text))``: what is not known falls back to bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

BOS, PAD, END = "<s>", "<pad>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
VOCABULARY = 1536

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Every message is its role, its content and the end token: a prefix stays a prefix."""

_PIECES = Regex(r"\d|_|[A-Za-z]+|\p{L}+|\s|[^\s\d\p{L}_]")

_TOOLS = ("list_tables", "describe", "query", "answer")
_JSON = (
    '{"name": "',
    '", "arguments": {}}',
    '", "arguments": {"table": "',
    '", "arguments": {"sql": "',
    '", "arguments": {"value": "',
    '"}}',
    "'\"}}",
)
_SQL = (
    "SELECT ", " FROM ", " WHERE ", " JOIN ", " USING (", " GROUP BY ", " ORDER BY ", " LIMIT ",
    " DESC", " ASC", "COUNT(*)", "MAX(", "MIN(", "AVG(", "SUM(", " = ", " < ", " > ", " = '",
    " INTEGER, ", " TEXT, ", " REAL, ", " INTEGER", " TEXT", " REAL", " | ", ", ",
)  # fmt: skip
_WORDS = (
    "How many ", "What is the ", "Find the ", "Count the ", "Which ", " of the ", " with the ",
    " of ", " with ", " has the ", " have ", " over ", " under ", " belong to ", " belongs to",
    " that ", " named ", " the ", "highest ", "lowest ", "average ", "total ", "most ", "fewest ",
    "error: no such column: ", "error: no such table: ", "no rows", "answer received",
)  # fmt: skip
_CHECKLIST = tuple(
    f"{lead}[{mark}] {goal}"
    for mark in " x"
    for lead, goals in (("\n", ("tables",)), (" ", ("columns", "result", "answer")))
    for goal in goals
)
GLUE = (*_JSON, *_SQL, *_WORDS, *_CHECKLIST)
"""Fixed text that is one token each. ``list_tables`` and its like are one each too."""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn merges from texts and wrap the result with special tokens and chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [BOS, PAD, END, *(f"<|{role}|>" for role in ROLES)]
    pieces = [*GLUE, *(t for t in _TOOLS if t not in GLUE)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(pieces),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(p, normalized=False, special=False) for p in pieces])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=special[3:],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
