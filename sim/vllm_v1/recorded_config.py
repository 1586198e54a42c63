"""config.json of a recorded run, checked field by field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtwin.traces import UserError

from .settings import SchedulerSettings

_MOST_BLOCKS = 1 << 24  # more than any device holds; every block costs the replay memory
_MOST_TOKENS = 1 << 40

_DEFAULTS: dict[str, Any] = {
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_active_seqs": None,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "policy": "fcfs",
    "async_scheduling": False,
    "prefix_cache_retention_interval": 0,
}
_WHOLE = {  # least, most, whether it may be null
    "num_gpu_blocks": (1, _MOST_BLOCKS, False),
    "max_model_len": (1, _MOST_TOKENS, False),
    "block_size": (1, _MOST_TOKENS, False),
    "max_num_seqs": (1, _MOST_TOKENS, False),
    "max_num_active_seqs": (1, _MOST_TOKENS, True),
    "max_num_batched_tokens": (1, _MOST_TOKENS, False),
    "long_prefill_token_threshold": (0, _MOST_TOKENS, False),
    "prefix_cache_retention_interval": (0, _MOST_TOKENS, True),
    "max_steps": (1, _MOST_TOKENS, False),
}
_FLAGS = (
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "long_prefill_token_threshold_adaptive",
    "scheduler_reserve_full_isl",
    "async_scheduling",
)
_CHOICES = {
    "policy": ("fcfs", "priority"),
    "tables": ("digest", "full"),
    "events": ("counts", "full"),
    "hash_algo": ("sha256",),
    "on_stall": ("abort_head",),
}
_OF_THE_RECORDING: dict[str, Any] = {
    "num_gpu_blocks": None,
    "max_model_len": None,
    "max_steps": 1_000_000,
    "tables": "digest",
    "events": "counts",
    "hash_algo": "sha256",
    "on_stall": "abort_head",
    "step_time": None,
    "groups": [{"type": "full"}],
}
_WORDS = ("name", "about", "seed")  # for people
_GROUP_KEYS = {"full": {"type", "block_size"}, "sliding": {"type", "block_size", "window"}}


@dataclass(frozen=True)
class RecordedConfig:
    """What the scheduler was told, and what the recording is like."""

    settings: SchedulerSettings
    step_time: float | None  # seconds, for traces with times instead of steps
    has_tables: bool  # the rows have block tables in clear
    has_events: bool
    most_rows: int


def is_whole(value: object, least: int, most: int = _MOST_TOKENS) -> bool:
    """Whether it is an integer within bounds; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def read_config(path: Path) -> RecordedConfig:
    """The checked config.json. Raises UserError naming file, field and value."""
    try:
        config = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # syntax, wrong text, endless digits or depth
        raise UserError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: is {type(config).__name__}; it must be an object")
    values = _DEFAULTS | _OF_THE_RECORDING
    for key in config:
        if key not in values and key not in _WORDS:
            raise UserError(f"{path}: unknown key {key}")
    values |= {key: config[key] for key in config if key in values}
    _check(path, values)
    windows = _windows(path, values)
    return RecordedConfig(
        SchedulerSettings(
            num_gpu_blocks=values["num_gpu_blocks"],
            max_model_len=values["max_model_len"],
            windows=windows,
            **{key: values[key] for key in _DEFAULTS},
        ),
        values["step_time"],
        has_tables=values["tables"] == "full",
        has_events=values["events"] == "full",
        most_rows=values["max_steps"],
    )


def _check(path: Path, values: dict[str, Any]) -> None:
    def require(holds: bool, key: str, what: str) -> None:
        if not holds:
            raise UserError(f"{path}: {key} is {values[key]!r}; it must be {what}")

    for key, (least, most, or_null) in _WHOLE.items():
        what = f"a whole number from {least} to {most}" + " or null" * or_null
        value = values[key]
        require(is_whole(value, least, most) or (or_null and value is None), key, what)
    for key in _FLAGS:
        require(isinstance(values[key], bool), key, "true or false")
    for key, choices in _CHOICES.items():
        require(values[key] in choices, key, " or ".join(choices))
    for key, lowest, highest in (("watermark", 0.0, 1.0), ("step_time", 1e-9, 1e9)):
        value = values[key]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = (key == "step_time" and value is None) or (is_number and lowest <= value <= highest)
        require(fits, key, f"a number from {lowest:g} to {highest:g}")
    interval, size = values["prefix_cache_retention_interval"], values["block_size"]
    whole_blocks = interval is None or interval % size == 0
    require(whole_blocks, "prefix_cache_retention_interval", f"a multiple of block_size, {size}")


def _windows(path: Path, values: dict[str, Any]) -> tuple[int | None, ...]:
    """Of each group."""
    groups, size = values["groups"], values["block_size"]
    if not isinstance(groups, list) or not groups:
        raise UserError(f"{path}: groups is {groups!r}; it must be a list of one group or more")
    windows = []
    for group in groups:
        kind = group.get("type") if isinstance(group, dict) else None
        known = _GROUP_KEYS.get(kind, set()) if isinstance(kind, str) else set()
        window = group.get("window") if kind == "sliding" else None
        if not known or not known.issuperset(group) or (kind == "sliding") != is_whole(window, 1):
            raise UserError(
                f"{path}: groups has {group!r}; it must be of type full, or sliding with a window of 1 token or more"
            )
        if group.get("block_size", size) != size:
            raise UserError(
                f"{path}: groups has {group!r}; blocks must be of one size in all groups, here {size}"
            )
        windows.append(window)
    return tuple(windows)
