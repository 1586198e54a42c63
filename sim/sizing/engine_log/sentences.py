"""The sentences that a log is read by: regular expressions whose groups are named as the facts are."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .facts import Reading, Stated, StatedText, Unit

# Bounded, so that no line can ask for unbounded work; "78,384" has its commas in groups of three.
NUMBER = r"-?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,15})(?:\.\d{1,18})?(?!\d)"
VERSION = r"[0-9][\w.+-]{0,60}"
_TEXT_SHOWN = 400
_UNITS: Mapping[str, Unit] = {
    "memory_utilization": "share",
    "tensor_parallel_size": "ranks",
    "pipeline_parallel_size": "ranks",
    "data_parallel_size": "ranks",
    "decode_context_parallel_size": "ranks",
    "max_num_seqs": "requests",
    "max_concurrency": "requests",
    "num_gpu_blocks": "blocks",
    "num_cpu_blocks": "blocks",
    "num_gpu_blocks_override": "blocks",
    "kv_bytes_per_token": "bytes",
    **dict.fromkeys(
        [
            "max_model_len",
            "max_num_batched_tokens",
            "block_size",
            "num_tokens",
            "pool_tokens",
            "concurrency_at",
            "estimated_max_model_len",
            "window_size",
        ],
        "tokens",
    ),
}
_TEXTS = frozenset(
    ["version", "model", "quantization", "kv_cache_dtype", "enforce_eager", "remark"]
)
_COUNTED = frozenset(["tokens", "blocks", "ranks", "bytes"])
_AT_LEAST_ONE = frozenset(
    [
        "block_size",
        "concurrency_at",
        "kv_bytes_per_token",
        "max_model_len",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "window_size",
    ]
)
# Python prints round(x, 2) without trailing zeros ("5.4"): two decimals are the fewest that any
# engine rounds a figure in GiB to.
_FEWEST_GIB_DECIMALS = 2


@dataclass(frozen=True)
class EngineFormat:
    """How one engine's log reads.

    A group of a sentence is named as the fact it states; `__bytes`, `__MiB`, `__exact` after it say
    that the figure is in that unit, or printed in full. `keywords`: no line without one of them is
    looked at. `settings`: what starts a list of settings; `settings_keys`: the fact that each key of
    the list states. `markers`: what an engine prints as it
    starts. `loads`: the fact that a process states once, early, in each start. `sizes`: facts that
    end the sizing; a load after one is another start. `first_counts`: where one rank states a fact
    several times, its first statement counts (a draft model follows), else its last.
    """

    name: Literal["vllm", "sglang", "trtllm"]
    looked_for: str
    sentences: tuple[re.Pattern[str], ...]
    keywords: tuple[str, ...]
    settings: re.Pattern[str]
    settings_keys: Mapping[str, str]
    markers: re.Pattern[str]
    rank: re.Pattern[str]
    loads: str
    sizes: frozenset[str]
    first_counts: frozenset[str] = frozenset()


def speaks(engine: EngineFormat, text: str) -> bool:
    """Whether a line may state something; logs are long, and few lines do."""
    for keyword in engine.keywords:  # noqa: SIM110 - a generator costs more than the search
        if keyword in text:
            return True
    return False


def readings_of(engine: EngineFormat, text: str, line_number: int, rank: str) -> Iterator[Reading]:
    """What a line states, settings first."""
    start = engine.settings.search(text)
    if start is not None:
        yield from _settings(engine, text, start.end(), line_number, rank)
    for sentence in engine.sentences:
        for match in sentence.finditer(text):
            for group, printed in match.groupdict().items():
                if printed is not None:
                    yield from _reading(group, printed, line_number, text, rank)


def _reading(group: str, printed: str, line_number: int, text: str, rank: str) -> Iterator[Reading]:
    """The fact that a group states; none where the number cannot be of its kind."""
    name, _, form = group.partition("__")
    text = text[:_TEXT_SHOWN]
    if name in _TEXTS:
        yield StatedText(name, printed, line_number, text, rank)
        return
    printed = printed.replace(",", "")
    unit: Unit = _UNITS.get(name, "GiB")
    if form == "bytes":
        unit = "bytes"
    elif form == "MiB":
        unit = "MiB"
    num_decimals = len(printed.partition(".")[2])
    if unit == "GiB":
        num_decimals = max(num_decimals, _FEWEST_GIB_DECIMALS)
    exact = form == "exact" or unit in _COUNTED or name == "max_num_seqs"
    half_width = Fraction(0) if exact else Fraction(1, 2 * 10**num_decimals)
    value = Fraction(printed)
    least = 1 if name in _AT_LEAST_ONE else 0
    if unit in _COUNTED and (value.denominator != 1 or value < least):
        return
    yield Stated(name, value, unit, half_width, line_number, text, rank)


def _settings(
    engine: EngineFormat, text: str, start: int, line_number: int, rank: str
) -> Iterator[Reading]:
    """The first value of each known key of a list such as a printed dict, Namespace or dataclass."""
    seen = set()
    for match in _SETTING.finditer(text, start):
        key = match["key"]
        name = engine.settings_keys.get(key)
        value = match["quoted"] if match["quoted"] is not None else match["bare"]
        # A nested value such as model=SomeConfig(...) is not the setting itself.
        if name is None or key in seen or value in ("", "None"):
            continue
        seen.add(key)
        if name in _TEXTS:
            yield StatedText(name, value, line_number, text[:_TEXT_SHOWN], rank)
        elif re.fullmatch(NUMBER, value):
            yield from _reading(name + "__exact", value, line_number, text, rank)


_SETTING = re.compile(
    r"""(?<![\w.-])(['"]?)(?P<key>[a-z_]{2,40})\1\s{0,3}[=:]\s{0,3}"""
    r"""(?:(?P<q>['"])(?P<quoted>[^'"]{0,300})(?P=q)|(?P<bare>[^\s,(){}\[\]'"]{0,300}))"""
)
