"""What an engine's start-up log states, with the place and the rounding of every figure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Self

Unit = Literal["GiB", "MiB", "bytes", "tokens", "blocks", "requests", "ranks", "share"]
_UNIT_BYTES = {"GiB": 2**30, "MiB": 2**20, "bytes": 1}


@dataclass(frozen=True)
class Stated:
    """A number that a log states: `value` in `unit`, right within `half_width` of that unit.

    The half-width is that of the printed rounding, 0 for what is printed in full. `text` is the
    line without colours, cut where it is long. `rank`: the log's own label of the process that
    printed it, empty for the main one.
    """

    name: str
    value: Fraction
    unit: Unit
    half_width: Fraction
    line_number: int
    text: str
    rank: str = ""

    @property
    def unit_bytes(self) -> int:
        """Bytes in one of the unit; 1 for what is counted and for shares."""
        return _UNIT_BYTES.get(self.unit, 1)

    @property
    def num_bytes(self) -> int:
        """The value in bytes, rounded once."""
        return round(self.value * _UNIT_BYTES[self.unit])

    @property
    def half_width_bytes(self) -> int:
        """How far the true figure may be from `num_bytes`, rounded up."""
        return -(-self.half_width * _UNIT_BYTES[self.unit] // 1)

    @property
    def whole(self) -> int:
        """The value of a quantity that is counted, such as tokens or blocks."""
        assert self.value.denominator == 1, f"{self.name} is {self.value} {self.unit}"
        return int(self.value)


@dataclass(frozen=True)
class StatedText:
    """A setting or a name that a log states."""

    name: str
    value: str
    line_number: int
    text: str
    rank: str = ""


Reading = Stated | StatedText
# Of several ranks the one that binds counts: the smallest pool, the largest use. What is not here
# is a setting of all ranks, and its last statement counts.
_SMALLEST = frozenset(
    [
        "available_kv",
        "checked_kv",
        "num_gpu_blocks",
        "num_cpu_blocks",
        "num_tokens",
        "pool_tokens",
        "max_concurrency",
        "estimated_max_model_len",
        "free_before_load",
        "free_after_load",
        "k_size",
        "v_size",
        "kv_size",
    ]
)
_LARGEST = frozenset(
    [
        "weights",
        "activation_peak",
        "non_torch",
        "consumed",
        "torch_peak",
        "cuda_graphs",
        "cuda_graph_estimate",
        "needed_kv",
        "peak_used",
        "profiling_kv",
    ]
)


def binding(name: str, readings: Sequence[Reading]) -> Reading:
    """Of one reading of `name` from each rank, in the order of the log, the one that counts."""
    numbers = [reading for reading in readings if isinstance(reading, Stated)]
    if numbers and name in _SMALLEST:
        return min(numbers, key=lambda stated: stated.value)
    if numbers and name in _LARGEST:
        return max(numbers, key=lambda stated: stated.value)
    return readings[-1]


@dataclass(frozen=True)
class LogFacts:
    """One start of one engine, as its log states it; None where the log is silent.

    Memory is that of one rank. Where several ranks state the same, the field has the smallest pool
    and the largest use; `readings` has every statement, `by_rank` those that count for each rank.
    """

    path: str
    engine: Literal["vllm", "sglang", "trtllm"]
    readings: tuple[Reading, ...] = field(repr=False)
    by_rank: dict[str, dict[str, Reading]] = field(repr=False)
    notes: tuple[str, ...] = ()

    version: StatedText | None = None
    model: StatedText | None = None
    quantization: StatedText | None = None
    kv_cache_dtype: StatedText | None = None
    enforce_eager: StatedText | None = None  # "True" or "False"
    # vLLM: of the total; SGLang: of what is free before loading, for weights and KV; TensorRT-LLM:
    # of what is free after loading, for KV.
    memory_utilization: Stated | None = None
    tensor_parallel_size: Stated | None = None
    pipeline_parallel_size: Stated | None = None
    data_parallel_size: Stated | None = None
    decode_context_parallel_size: Stated | None = None
    max_model_len: Stated | None = None
    max_num_seqs: Stated | None = None
    max_num_batched_tokens: Stated | None = None
    block_size: Stated | None = None  # tokens in a block or page
    num_gpu_blocks_override: Stated | None = None

    total_memory: Stated | None = None
    budget: Stated | None = None  # total x utilization, as printed
    weights: Stated | None = None
    activation_peak: Stated | None = None  # above the weights
    non_torch: Stated | None = None
    consumed: Stated | None = None  # weights + non-torch, as one figure
    torch_peak: Stated | None = None  # weights + activation peak, as one figure
    peak_used: Stated | None = None  # all memory in use at the peak, a trial KV pool included
    profiling_kv: Stated | None = None  # that trial pool
    cuda_graphs: Stated | None = None  # what capturing took
    cuda_graph_estimate: Stated | None = None  # what was set aside for it beforehand
    free_before_load: Stated | None = None
    free_after_load: Stated | None = None
    available_kv: Stated | None = None  # for the KV pool

    num_gpu_blocks: Stated | None = None
    num_cpu_blocks: Stated | None = None
    # The KV-cache size that the engine announces, else that of the pool whose allocation it reports.
    num_tokens: Stated | None = None
    pool_tokens: Stated | None = None  # of that pool
    k_size: Stated | None = None
    v_size: Stated | None = None
    kv_size: Stated | None = None  # K and V together
    kv_bytes_per_token: Stated | None = None
    max_concurrency: Stated | None = None
    concurrency_at: Stated | None = None  # tokens of a request that it is counted for
    # A start that was refused: what one request of max_model_len needs, and what there is.
    needed_kv: Stated | None = None
    checked_kv: Stated | None = None
    estimated_max_model_len: Stated | None = None

    @classmethod
    def of(
        cls,
        path: str,
        engine: Literal["vllm", "sglang", "trtllm"],
        readings: tuple[Reading, ...],
        by_rank: dict[str, dict[str, Reading]],
        notes: tuple[str, ...],
    ) -> Self:
        """Fill the fields from what counts for each rank."""
        of_all_ranks: dict[str, list[Reading]] = {}
        for of_rank in by_rank.values():
            for name, reading in of_rank.items():
                of_all_ranks.setdefault(name, []).append(reading)
        fields: dict[str, Any] = {
            name: binding(name, sorted(several, key=lambda reading: reading.line_number))
            for name, several in of_all_ranks.items()
            if name in cls.__dataclass_fields__
        }
        if "pool_tokens" in fields:
            fields.setdefault("num_tokens", fields["pool_tokens"])
        return cls(path, engine, readings, by_rank, notes, **fields)

    def of_rank(self, name: str, rank: str) -> Stated | None:
        """The number that a rank states, else the one that counts for all of them."""
        reading = self.by_rank[rank].get(name) or getattr(self, name)
        return reading if isinstance(reading, Stated) else None
