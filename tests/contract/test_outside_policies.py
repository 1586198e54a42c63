"""Policies by name: the built-in ones, those of other packages, and mistakes."""

from pathlib import Path

import pytest
from outside_policy import Halves
from random_cases import config_of, trace_of

from kvtwin.sim import Policy, describe_policies, find_policy, policy_names, simulate
from kvtwin.traces import UserError


def test_a_policy_from_outside_runs(tmp_path: Path) -> None:
    """Two at a time, each in 10 of 20 slots: four requests of 3 steps of 10 ns take 60 ns."""
    assert find_policy("outside_policy:Halves") is Halves
    config = config_of("outside_policy:Halves", num_gpu_blocks_override=20, block_size=1)
    trace = trace_of([(0, 2, 3)] * 4 + [(0, 9, 3)])
    summary = simulate(trace, config, tmp_path, paranoid=True)
    assert summary["policy"] == "outside_policy:Halves"
    assert (summary["num_finished"], summary["num_rejected"], summary["end_ns"]) == (4, 1, 60)
    # 9 + 3 - 1 = 11 slots are more than half of the pool.
    assert summary["rejections"] == [
        {"row": 4, "reason": "largest need exceeds a half of the pool", "value": 11, "limit": 10}
    ]


def test_every_name_has_a_class_and_a_line_about_it() -> None:
    described = describe_policies()
    assert [name for name, _, _ in described] == policy_names()
    for name, line, rule in described:
        assert issubclass(find_policy(name), Policy)
        assert len(line) > 20
        assert ("whole batches" in rule) == (name == "static")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "pagde",
            ["'pagde'", "did you mean paged?", "static, static-iteration", "package.module:Class"],
        ),
        ("no_such_package:Policy", ["no_such_package", "PYTHONPATH"]),
        ("outside_policy:Missing", ["Missing", "PYTHONPATH"]),
        (":Halves", ["':Halves'", "PYTHONPATH"]),
        ("outside_policy:NotOne", ["not a subclass of kvtwin.sim.Policy"]),
        ("outside_policy:Unfinished", ["does not define evict"]),
        ("kvtwin.sim:Allocator", ["does not define", "num_free_slots"]),
        ("kvtwin.sim:simulate", ["not a subclass"]),
    ],
)
def test_a_wrong_policy_is_named_in_one_line(name: str, words: list[str], tmp_path: Path) -> None:
    config = config_of(name, num_gpu_blocks_override=20)
    with pytest.raises(UserError) as raised:
        simulate(trace_of([(0, 1, 1)]), config, tmp_path / "out")
    assert all(word in str(raised.value) for word in words), str(raised.value)
    assert not (tmp_path / "out").exists()
