"""Reading YAML strictly: a key stands once, and no complaint quotes what may be a secret."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml


class _Strict(yaml.SafeLoader):
    """YAML in which a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As ever, but a key that stands twice is an error."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} stands twice")
        return super().construct_mapping(node, deep)


def load(path: Path) -> Any:
    """What a file holds; raises OSError, or ValueError with what is wrong and in which line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Strict)  # noqa: S506  (safe)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{error.problem}{where}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
