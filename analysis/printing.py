"""What every verb prints or writes as JSON."""

import json
from collections.abc import Mapping
from typing import Any

SCHEMA_VERSION = 1


def to_json(facts: Mapping[str, Any]) -> str:
    """`facts` led by the schema version. A NaN has no JSON and is a bug here."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **facts}, indent=2, allow_nan=False)


def print_json(facts: Mapping[str, Any]) -> None:
    """Print `facts` as the one object on stdout."""
    print(to_json(facts))
