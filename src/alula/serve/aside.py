"""Long texts are tokenised in threads, so that short ones do not stand behind them: in few, for the memory it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from alula.serve.memory import give_back

T = TypeVar("T")

INLINE_CHARACTERS = 4_000
"""Texts of so many characters together are tokenised at once."""

AT_ONCE = 2
"""Requests whose texts are tokenised aside; a tokenizer may take a hundred bytes for each of their characters."""

LARGE_CHARACTERS = 250_000
"""Behind so many the heap is given back: glibc would keep what its threads have freed."""

_THREADS = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tokenizer")


async def tokenized(characters: int, make: Callable[[], T]) -> T:
    """What is made of so many characters: here if they are few, else in a thread, behind those that came before."""
    if characters <= INLINE_CHARACTERS:
        return make()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _made, characters, make)


def _made(characters: int, make: Callable[[], T]) -> T:
    try:
        return make()
    finally:
        if characters >= LARGE_CHARACTERS:
            give_back()
