"""When a command that serves is asked to end."""

import asyncio
import signal


def asked_to_end() -> asyncio.Future[None]:
    """Done once SIGTERM or SIGINT (Ctrl-C) has come; a second one changes nothing. Needs a running
    loop."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not asked.done():
            asked.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    return asked
