"""Sliding window of recent exchanges, with the checklist after each observation (F4), and under
the goal what other processors have to say of the exchanges that have left (F1-F3).

The literal texts are kept, so that while nothing has left the window every prompt extends the
previous one and its tokens can be reused as they were sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from stages.interaction.actions import TOOL_PROMPTS
from stages.interaction.environments.base import Reset
from stages.interaction.states.base import (
    CountTokens,
    Piece,
    StateOverflow,
    content_bytes,
)
from stages.interaction.states.checklist import render_checklist
from stages.interaction.states.options import StateOptions
from stages.interaction.trajectory import REVIEW, ChecklistItem, Message, Turn

SHORTEST_CUT = 48
"""Observations are never cut below this many characters."""
CUT_MARK = " ... "
_TEMPLATE_TOKENS = 64
"""More tokens than any chat template known to us wraps around one message."""
_LOOKED_AT = 200
"""Characters of a result that pieces are asked in view of."""


class _Exchange(NamedTuple):
    action: Message
    observation: tuple[Message, ...]
    line: str
    """Checklist as it stood after this exchange, then the review of it."""

    def messages(self, limit: int | None = None) -> list[Message]:
        """Action and observation, the latter's texts cut to ``limit`` characters."""
        observation = list(self.observation)
        if limit is not None:
            observation = [m | {"content": cut_middle(m["content"], limit)} for m in observation]
        if self.line:
            observation[-1] = _with_line(observation[-1], self.line)
        return [self.action, *observation]


class WindowState:
    """[tools] + goal + the last ``exchanges`` exchanges, within ``max_tokens``.

    Over budget the oldest exchanges leave first, then long observations lose their middle; the
    goal and the last exchange stay. So does the user's newest request: once the exchange that
    brought it has left, it stands under the goal.

    ``pieces`` speak of what has left, each within its own budget and all within ``max_tokens``;
    where even the cut last exchange leaves them no room, the last of them is silent first.
    """

    def __init__(
        self, options: StateOptions, count_tokens: CountTokens, pieces: Sequence[Piece] = ()
    ) -> None:
        self.max_tokens = options.max_tokens
        self._options = options
        self._count = count_tokens
        self.pieces = pieces
        self._told: list[str] = []
        """What the pieces say in the latest state."""
        self._turns = 0
        self._head: list[Message] = []
        self._request: Message | None = None
        """The user's newest message after the reset."""
        self._line = ""
        self._exchanges: deque[_Exchange] = deque(maxlen=options.exchanges)
        self._rendered: deque[list[Message]] = deque(maxlen=options.exchanges)
        self._bound = 0
        """No fewer tokens than ``_joined`` has."""
        self._whole = True
        """The latest state was not cut: its token ids tell the length of ``_joined``."""

    def reset(self, reset: Reset) -> None:
        """Forget everything and start an episode."""
        self._exchanges.clear()
        self._rendered.clear()
        self._told, self._turns = [], 0
        for piece in self.pieces:
            piece.reset(reset)
        self._request = None
        self._line = self._checklist(reset.checklist)
        self._head = _head(reset, self._options.tool_prompt)
        if self._line and self._head:
            self._head[-1] = _with_line(self._head[-1], self._line)
        self._bound = 2 * _TEMPLATE_TOKENS + _most_tokens(self._head)

    def update(self, turn: Turn) -> None:
        """Take in a finished turn: the literal action text and what came back."""
        self._take_note(turn)
        self._line = self._checklist(turn.checklist)
        action: Message = {"role": "assistant", "content": turn.action.text}
        observation = turn.observation or ({"role": "tool", "content": ""},)
        exchange = _Exchange(action, tuple(observation), self._judged(turn))
        self._exchanges.append(exchange)
        self._turns += 1
        self._let_go()
        self._request = next((m for m in reversed(observation) if _is_user(m)), self._request)
        self._rendered.append(exchange.messages())
        new = self._rendered[-1]
        if turn.prompt_ids and self._whole:
            self._bound = len(turn.prompt_ids) + len(turn.action_ids) + _most_tokens(new[1:])
        else:
            self._bound += _most_tokens(new)

    def render(self) -> list[Message]:
        """The messages the actor is shown now. Raises StateOverflow when they cannot fit."""
        self._whole = True
        self._ask()
        while not self._fits(messages := self._joined()):
            if len(self._exchanges) < 2:
                return self._cut()
            self._forget()
            self._let_go()
            self._ask()
        return messages

    def produced(self) -> dict[str, Any]:
        """The checklist line at the end of the latest state, the number of turns that have left
        the window, and what each piece made."""
        made: dict[str, Any] = {"checklist": self._line} if self._line else {}
        if self._left:
            made |= {"left": self._left}
            made |= {p.name: of_piece for p in self.pieces if (of_piece := p.produced())}
        return made

    @property
    def _left(self) -> int:
        """Turns that are shown no more."""
        return self._turns - len(self._exchanges)

    def _take_note(self, turn: Turn) -> None:
        """Before a turn comes in: its record says what had left by then (see ``replay``)."""
        while self._exchanges and self._left < turn.produced.get("left", 0):
            self._forget()
        for piece in self.pieces:
            piece.update(turn)

    def _forget(self) -> None:
        """The oldest exchange leaves for good, even if a later state would have room for it."""
        self._exchanges.popleft()
        self._rendered.popleft()

    def _let_go(self) -> None:
        if self._left:
            for piece in self.pieces:
                piece.leave(self._left)

    def _ask(self) -> None:
        """What the pieces have to say, once something has left."""
        if self._left and self.pieces:
            query = self._query()
            self._told = [text for piece in self.pieces if (text := piece.render(query))]

    def _query(self) -> str:
        """The newest request and the newest result."""
        requests = [m for m in (*self._head, self._request) if m is not None and _is_user(m)]
        request = str(requests[-1]["content"]) if requests else ""
        seen = [str(m["content"]) for m in self._exchanges[-1].observation if not _is_user(m)]
        return "\n".join([request, *(text[:_LOOKED_AT] for text in seen)])

    def _joined(self) -> list[Message]:
        return [*self._top(), *(message for exchange in self._rendered for message in exchange)]

    def _top(self) -> list[Message]:
        """The head; under the goal what the pieces say, and the newest request unless an exchange
        still shows it."""
        top, request = self._head, self._request
        for text in self._told:
            top = _under(top, {"role": "user", "content": text})
        if request is None or any(m is request for e in self._exchanges for m in e.observation):
            return top
        return _under(top, request)

    def _fits(self, messages: list[Message]) -> bool:
        """Counting costs a tokenisation, so a bound from what is known already goes first."""
        if self._bound <= self.max_tokens and not self._told:
            return True
        count = self._count(messages)
        if count > self.max_tokens:
            return False
        self._bound = count
        return True

    def _cut(self) -> list[Message]:
        """Goal and last exchange, its observations as long as the budget lets them be."""
        self._whole = False
        if not self._exchanges:
            raise StateOverflow("the goal alone is longer than the token budget")
        while (messages := self._longest()) is None:
            if not self._told:
                raise StateOverflow(
                    "the goal and the last exchange are longer than the token budget"
                )
            self._told.pop()
        return messages

    def _longest(self) -> list[Message] | None:
        """The last exchange cut as little as must be; None if it cannot be cut enough."""
        last = self._exchanges[-1]
        longest = max(len(m["content"]) for m in last.observation)
        low, high = SHORTEST_CUT, max(longest, SHORTEST_CUT)
        best: list[Message] | None = None
        while low <= high:
            middle = (low + high + 1) // 2 if best else low
            messages = [*self._top(), *last.messages(middle)]
            if self._count(messages) <= self.max_tokens:
                best, low = messages, middle + 1
            elif best is None:
                break
            else:
                high = middle - 1
        return best

    def _judged(self, turn: Turn) -> str:
        """Each exchange keeps the review it got, so that a prompt still extends the last one."""
        review = turn.produced.get(REVIEW, "") if self._options.review == "words" else ""
        return "\n".join(filter(None, (self._line, review)))

    def _checklist(self, items: tuple[ChecklistItem, ...]) -> str:
        return render_checklist(items) if self._options.checklist else ""


def cut_middle(text: str, limit: int) -> str:
    """At most ``limit`` characters of a text (``limit`` > 5): its beginning and its end."""
    if len(text) <= limit:
        return text
    kept = limit - len(CUT_MARK)
    return text[: kept - kept // 2] + CUT_MARK + text[len(text) - kept // 2 :]


def _head(reset: Reset, tools: str) -> list[Message]:
    """One system message (the environment's, then the tools), then the rest of the reset."""
    system = [str(m["content"]) for m in reset.messages if m["role"] == "system"]
    if tools in TOOL_PROMPTS and reset.tools:
        system.append(TOOL_PROMPTS[tools](reset.tools))
    head: list[Message] = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return head + [m for m in reset.messages if m["role"] != "system"]


def _with_line(message: Message, line: str) -> Message:
    content = str(message.get("content") or "")
    return message | {"content": f"{content}\n{line}" if content else line}


def _under(head: list[Message], message: Message) -> list[Message]:
    """A user's message at the end of a head; one with that of the user before, if there is one,
    as many chat templates refuse two in a row."""
    if not (head and _is_user(head[-1])):
        return [*head, message]
    return [*head[:-1], _with_line(head[-1], str(message["content"]))]


def _is_user(message: Message) -> bool:
    return str(message["role"]) == "user"


def _most_tokens(messages: list[Message]) -> int:
    return content_bytes(messages) + _TEMPLATE_TOKENS * len(messages)
