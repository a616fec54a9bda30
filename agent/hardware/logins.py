"""Login names by user number. A directory service may take its time, or hang: no one waits."""

import pwd
import threading
from collections.abc import Callable

from agent.errors import encodable

TIMEOUT = 0.05  # Seconds that the first question for a user may take: enough for /etc/passwd


def of_system(uid: int) -> str:
    """The login name that this system knows; raises KeyError where there is none."""
    return encodable(pwd.getpwuid(uid).pw_name)


class Logins:
    """Names that were found; each user is asked for once, on a thread of its own."""

    def __init__(self, find: Callable[[int], str] = of_system) -> None:
        self._find = find
        self._names: dict[int, str] = {}

    def name(self, uid: int) -> str:
        """The login name; the number while there is none."""
        if uid not in self._names:
            self._names[uid] = str(uid)
            asking = threading.Thread(target=self._ask, args=(uid,), name="login", daemon=True)
            asking.start()
            asking.join(TIMEOUT)
        return self._names[uid]

    def _ask(self, uid: int) -> None:
        try:
            self._names[uid] = self._find(uid)
        except (KeyError, OverflowError):  # no such user, or no number of one: the number stays
            return
