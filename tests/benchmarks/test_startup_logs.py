"""Predicted KV-cache sizes stay near those that real engines printed."""

from statistics import median

import pytest
from startup_logs import ALL_OF_MEMORY, KV_MEMORY, NOTHING, Row, all_rows, read_records


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return all_rows()[0]


def errors(rows: list[Row], known: str) -> list[float]:
    """Of logs whose own figures agree with each other."""
    return [abs(row.error) for row in rows if row.known == known and not row.remark]


@pytest.mark.parametrize("known", [ALL_OF_MEMORY, KV_MEMORY])
def test_what_the_log_states_leads_to_what_it_prints(rows: list[Row], known: str) -> None:
    found = errors(rows, known)
    assert len(found) >= 10
    assert median(found) <= 0.03
    assert max(found) <= 0.10


def test_logs_that_contradict_themselves_are_few_and_named(rows: list[Row]) -> None:
    assert sorted({row.record["id"] for row in rows if row.remark}) == ["L05", "L23"]


def test_every_engine_is_there(rows: list[Row]) -> None:
    assert {row.record["engine"] for row in rows} == {"vllm", "sglang", "trtllm"}
    assert len({row.record["id"] for row in rows}) >= 40
    assert all(record["source"] and record["lines"] for record in read_records())


def test_without_memory_lines_the_figures_are_only_near(rows: list[Row]) -> None:
    """Engines of other versions, other tenants of the GPU: a bound on the whole, none on each."""
    found = errors(rows, NOTHING)
    assert len(found) >= 30
    assert median(found) <= 0.10
