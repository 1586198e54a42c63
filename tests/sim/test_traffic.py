"""The traffic model against counting by hand; tests/gpu holds the kernels to it to the byte."""

from dataclasses import replace

import pytest

from kvtwin.sim import find_model
from kvtwin.sim.traffic import (
    AttentionShape,
    Traffic,
    decode_traffic,
    prefill_traffic,
    store_traffic,
)

# 6 query heads on 2 KV heads of 10 elements, 2 bytes each, blocks of 5 tokens.
SHAPE = AttentionShape(6, 2, 10, 2, block_size=5)


def read(traffic: Traffic) -> dict[str, int]:
    return dict(traffic.read_bytes)


def test_one_decode_by_hand() -> None:
    """7 tokens in one tile: 2 heads x 7 rows x 20 bytes each of K and V; 2 table entries a head."""
    traffic = decode_traffic([7], SHAPE, tile_tokens=16)
    assert read(traffic) == {"k": 280, "v": 280, "tables": 16, "lens": 8, "query": 120}
    assert dict(traffic.written_bytes) == {"out": 120}
    assert traffic.kv_bytes == 560
    assert traffic.num_bytes == 280 + 280 + 16 + 8 + 120 + 120


def test_a_block_that_two_tiles_touch_is_looked_up_twice() -> None:
    """Tokens 0-15 lie in blocks 0-3, tokens 16-17 in block 3: 5 entries for each of 2 heads."""
    assert read(decode_traffic([18], SHAPE, tile_tokens=16))["tables"] == 5 * 2 * 4


def test_splits_by_hand() -> None:
    """40 tokens in 2 parts of 32 (whole tiles) and 8, of 4 asked for; the other two are empty."""
    traffic = decode_traffic([40], SHAPE, tile_tokens=16, num_splits=4, min_split_tokens=20)
    assert traffic.read_bytes["query"] == 2 * 120
    assert traffic.read_bytes["lens"] == 4 * 2 * 4
    assert traffic.written_bytes["partials"] == 2 * 6 * 10 * 4 == traffic.read_bytes["partials"]
    # Of all four parts, empty ones too: that is how the merge knows them.
    for name in ("maxima", "sums"):
        assert traffic.written_bytes[name] == 4 * 6 * 4 == traffic.read_bytes[name]
    assert traffic.kv_bytes == 2 * 40 * 2 * 10 * 2


def test_a_window_bounds_what_is_read() -> None:
    windowed = replace(SHAPE, window=8)
    assert decode_traffic([100], windowed, tile_tokens=16).kv_bytes == 8 * 80
    assert decode_traffic([5], windowed, tile_tokens=16).kv_bytes == 5 * 80


def test_padding_and_sinks() -> None:
    """A sequence of length 0 writes its output, and its programs read its length and the sinks."""
    traffic = decode_traffic([0], replace(SHAPE, has_sinks=True), tile_tokens=16)
    assert read(traffic) == {"lens": 8, "sinks": 24}
    assert dict(traffic.written_bytes) == {"out": 120}


def test_contiguous_kv_has_no_table() -> None:
    paged = decode_traffic([50, 3], SHAPE, tile_tokens=16)
    contiguous = decode_traffic([50, 3], replace(SHAPE, block_size=None), tile_tokens=16)
    assert "tables" not in contiguous.read_bytes
    assert paged.num_bytes - contiguous.num_bytes == paged.read_bytes["tables"]


def test_a_prefill_by_hand() -> None:
    """Tokens 6-9 of 10 in tiles of 3 queries: the first sees 9 keys, the second all 10."""
    traffic = prefill_traffic([4], [10], SHAPE, tile_tokens=16, query_tile_tokens=3)
    assert traffic.read_bytes["k"] == (9 + 10) * 40
    assert traffic.read_bytes["tables"] == (2 + 2) * 2 * 4
    assert traffic.read_bytes["query"] == 4 * 120 == traffic.written_bytes["out"]
    windowed = replace(SHAPE, window=2)
    # Queries 6, 7, 8 see keys 5-8, query 9 keys 8 and 9.
    cut = prefill_traffic([4], [10], windowed, tile_tokens=16, query_tile_tokens=3)
    assert cut.read_bytes["k"] == (4 + 2) * 40


def test_queries_that_see_nothing_read_no_keys() -> None:
    """Seven tokens of padding in tiles of 3: queries and outputs, and not less than no keys."""
    prompt = prefill_traffic([4], [10], SHAPE, tile_tokens=16, query_tile_tokens=3)
    padded = prefill_traffic([4, 7], [10, 0], SHAPE, tile_tokens=16, query_tile_tokens=3)
    more = {"query": 7 * 120}
    assert {n: padded.read_bytes[n] - prompt.read_bytes[n] for n in prompt.read_bytes} == {
        name: more.get(name, 0) for name in prompt.read_bytes
    }
    # Of 6 tokens in front of a context of 2 the last two see 1 and 2 keys: the second tile's.
    short = prefill_traffic([6], [2], SHAPE, tile_tokens=16, query_tile_tokens=3)
    assert short.read_bytes["k"] == 2 * 40


def test_a_decode_is_a_prefill_of_one_token() -> None:
    decode = decode_traffic([37], SHAPE, tile_tokens=16)
    prefill = prefill_traffic([1], [37], SHAPE, tile_tokens=16, query_tile_tokens=4)
    for name in ("k", "v", "tables", "query"):
        assert decode.read_bytes[name] == prefill.read_bytes[name]


def test_padding_reads_its_slot_and_nothing_else() -> None:
    traffic = store_traffic(3, 2, SHAPE)
    assert read(traffic) == {"key": 120, "value": 120, "slots": 40}
    assert dict(traffic.written_bytes) == {"k": 120, "v": 120}


@pytest.mark.parametrize("name", ["llama-3.1-8b", "opt-13b"])
def test_kv_bytes_are_those_that_the_roofline_prices(name: str) -> None:
    """A slot's KV over all layers: what the simulator multiplies a decode's context with."""
    model = find_model(name)
    shape = AttentionShape(model.num_heads, model.num_kv_heads, model.head_dim, 2, block_size=16)
    one_layer = decode_traffic([1000], shape, tile_tokens=64)
    assert one_layer.kv_bytes * model.num_layers == 1000 * model.kv_bytes_per_token("auto", 1)
