"""Reading YAML strictly: a key stands once, and no error quotes what may be a secret."""

from collections.abc import Hashable
from typing import Any

import yaml


class _Strict(yaml.SafeLoader):
    """YAML in which a key is a string and stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """As ever, but another key is an error."""
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _refused(f"the key {key!r:.40} is not a string", key_node)
            if key in keys:
                raise _refused(f"{key!r} stands twice", key_node)
            keys.add(key)
        return super().construct_mapping(node, deep)


def _refused(why: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


def parse_yaml(content: bytes) -> Any:
    """What a file holds; raises ValueError with what is wrong and in which line."""
    try:
        return yaml.load(content.decode(), Loader=_Strict)  # noqa: S506  (safe)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"{error.problem}{where}") from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
