"""Quick tests of each of hundreds of things, as one test: one by one each would cost milliseconds
of its own, and of the collection of every worker."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def of_each(
    things: Iterable[Thing], name: Callable[[Thing], object] = str
) -> Callable[[Callable[[Thing], None]], Callable[[], None]]:
    """Make a test of one thing a test of all; a failure says of which."""
    listed = list(things)

    def of_all(test: Callable[[Thing], None]) -> Callable[[], None]:
        def each() -> None:
            assert listed
            for thing in listed:
                try:
                    test(thing)
                except Exception as error:
                    error.add_note(f"of {name(thing)}")
                    raise

        each.__name__, each.__doc__ = test.__name__, test.__doc__
        return each

    return of_all
