"""A bundle opened in a process of its own first: what would end there must not end those that are served."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from alula.core.errors import EngineError
from alula.serve.named import Named
from alula.serve.opened import Opened
from alula.serve.process import EngineProcess, Opening
from alula.serve.receiving import receive
from alula.serve.supervisor import OPEN_S


async def tried(command: Sequence[str], bundle: Named, opening: Opening, within_s: float = OPEN_S) -> Opened:
    """What a process says that opens this bundle alone, has it answer, and ends; raises why it could not."""
    engine = EngineProcess.start(command, {0: bundle}, replace(opening, again=True))
    loop = asyncio.get_running_loop()
    try:
        answer = await asyncio.wait_for(receive(engine.connection), within_s)
        if answer is None:
            code = await loop.run_in_executor(None, engine.process.wait)
            raise EngineError(f"{bundle.root}: the process that was to open it ended with {code}")
        return Opened.of(answer)
    except asyncio.TimeoutError:
        raise EngineError(f"{bundle.root}: was not opened within {within_s:g} s") from None
    finally:
        await asyncio.shield(loop.run_in_executor(None, engine.end))
