"""Where a run takes another limit of a step by default than an engine would."""

from collections.abc import Collection

from kvtwin.sim import RunConfig, find_gpu
from kvtwin.sim.setting_values import flag_of
from kvtwin.sim.sizing.engines.vllm import step_limits


def limit_notes(config: RunConfig, given: Collection[str]) -> list[str]:
    """A sentence for each limit that is not in `given`, names of fields, and that `vllm serve` sets otherwise."""
    num_tokens, num_seqs = step_limits(find_gpu(config.gpu))
    if "max_num_batched_tokens" in given:  # vLLM lowers its default to it
        num_seqs = min(num_seqs, config.max_num_batched_tokens)
    usual = {"max_num_batched_tokens": num_tokens, "max_num_seqs": num_seqs}
    return [
        f"{flag_of(name)} is {getattr(config, name):,} by default here; vllm serve takes {value:,} on {config.gpu}, "
        "and so does kvtwin size: give the one that you serve with, because the pool and what limits it depend on it"
        for name, value in usual.items()
        if name not in given and getattr(config, name) != value
    ]
