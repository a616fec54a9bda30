"""All rules as files."""

from alerts.hardware import HARDWARE
from alerts.model import rule_file

GROUPS = (HARDWARE,)


def files() -> dict[str, str]:
    """Relative path to text of everything that this room generates."""
    return {"prometheus/alerts.yaml": rule_file(GROUPS)}
