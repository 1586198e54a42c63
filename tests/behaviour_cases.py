"""Questions of users about what an engine did, from `cases/behaviour.toml`, by id."""

import tomllib
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "cases/behaviour.toml"
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in tomllib.loads(_FILE.read_text(encoding="utf-8"))["case"]
}
