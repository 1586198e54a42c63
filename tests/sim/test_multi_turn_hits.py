"""Clients that add as much in every round: what policies hit, against a plain LRU over blocks and by arithmetic."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from random_cases import config_of, trace_of

from kvtwin.sim import simulate
from kvtwin.traces import Trace, find_prefixes
from kvtwin.traces.block_cache import lru_hits

BLOCK = 16
NUM_CLIENTS, NUM_ROUNDS = 4, 12
STEP_NS = 1000


def rounds(new_tokens: int) -> Trace:
    """Each round every client comes once, in turn and alone, with all it had and `new_tokens` more."""
    visits = [(number, client) for number in range(NUM_ROUNDS) for client in range(NUM_CLIENTS)]
    requests = [
        (place * 10 * STEP_NS, (number + 1) * new_tokens, 1)
        for place, (number, _) in enumerate(visits)
    ]
    contents = [((client, 0, (number + 1) * new_tokens),) for number, client in visits]
    return trace_of(requests, contents)


# With blocks of the pool that hold nothing: V1's null block.
NUM_NULL_BLOCKS = {"vllm-v1": 1, "vllm-v0-prefix-caching": 0}


def hit_tokens(policy: str, trace: Trace, num_blocks: int, out_dir: Path) -> np.ndarray:
    """Of each round and client."""
    config = config_of(
        policy,
        num_gpu_blocks_override=num_blocks + NUM_NULL_BLOCKS[policy],
        block_size=BLOCK,
        max_model_len=8192,
        cost=f"constant:{STEP_NS}",
    )
    summary = simulate(trace, config, out_dir, paranoid=True)
    assert summary["num_finished"] == NUM_ROUNDS * NUM_CLIENTS
    hits = pq.read_table(out_dir / "requests.parquet")["num_hit_tokens"].to_numpy()
    return np.asarray(hits).reshape(NUM_ROUNDS, NUM_CLIENTS)


@pytest.mark.parametrize("policy", NUM_NULL_BLOCKS)
@pytest.mark.parametrize("new_tokens", [2 * BLOCK, 3 * BLOCK + 5])
def test_round_r_hits_all_but_what_is_new(policy: str, new_tokens: int, tmp_path: Path) -> None:
    """r / (r + 1) of its prompt in round r from 0, less the block that the last round has begun."""
    hits = hit_tokens(policy, rounds(new_tokens), 2000, tmp_path)
    for number in range(NUM_ROUNDS):
        shared = number * new_tokens
        assert hits[number].tolist() == [shared // BLOCK * BLOCK] * NUM_CLIENTS
        share = hits[number].sum() / (NUM_CLIENTS * (number + 1) * new_tokens)
        ideal = number / (number + 1)
        assert ideal - BLOCK / ((number + 1) * new_tokens) < share <= ideal


@pytest.mark.parametrize("policy", NUM_NULL_BLOCKS)
def test_what_does_not_fit_collapses_as_in_a_plain_lru(policy: str, tmp_path: Path) -> None:
    """Half of what all clients have in the end: first all hits, then those that the others leave, then none."""
    new_tokens = 2 * BLOCK
    trace = rounds(new_tokens)
    num_blocks = NUM_CLIENTS * NUM_ROUNDS * 2 // 2
    hits = hit_tokens(policy, trace, num_blocks, tmp_path)
    prompts = np.concatenate([chunk.num_prompt_tokens for chunk in trace.chunks])
    offsets, ids = find_prefixes(trace).block_ids(prompts, BLOCK)
    plain = lru_hits(offsets, ids, num_blocks, tail_first=True).reshape(hits.shape) * BLOCK
    assert hits.tolist() == plain.tolist()
    assert hits[3].tolist() == [3 * new_tokens] * NUM_CLIENTS
    assert hits[-1].tolist() == [0] * NUM_CLIENTS
