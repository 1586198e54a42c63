"""What goes wrong in one run of a comparison says in which."""

from pathlib import Path

import pytest

from kvtwin.analysis.cli import main


def test_a_broken_invariant_names_the_policy(tmp_path: Path) -> None:
    """Raised in a worker process, and shown by this one."""
    policy = "faulty_policies:LeakedBlock"
    with pytest.raises(AssertionError, match="INV-") as raised:
        main(
            [
                *("compare", "--policies", f"static,{policy},paged", "--num-requests", "4"),
                *("--paranoid", "--out", str(tmp_path / "out")),
            ]
        )
    assert raised.value.__notes__ == [f"in the run of policy {policy}"]
    assert list(tmp_path.iterdir()) == []
