"""One event loop in the background for asynchronous tools, which may hold on to their loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any

_STARTING = threading.Lock()


def run_async(coroutine: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
    """The coroutine's result, or its exception; TimeoutError after ``timeout_s`` seconds."""
    future = asyncio.run_coroutine_threadsafe(coroutine, background_loop())
    try:
        return future.result(timeout_s)
    except TimeoutError:
        future.cancel()
        raise


def background_loop() -> asyncio.AbstractEventLoop:
    """The loop; started when it is first needed, which may be in many threads at once."""
    with _STARTING:
        return _started()


@lru_cache(maxsize=1)
def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="aac-async", daemon=True).start()
    return loop
