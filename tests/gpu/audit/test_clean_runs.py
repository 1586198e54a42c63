"""An audit finds nothing in honest runs, and its parts are the recorder's, whatever the trace and the settings."""

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_device import audited_run
from random_cases import configs, traces

from kvtwin.sim import find_policy, policy_names


@pytest.mark.parametrize("policy", policy_names())
def test_random_runs_are_clean(policy: str, costs: list[str]) -> None:
    reuses_prefixes = find_policy(policy).reuses_prefixes

    @settings(max_examples=examples(8))
    @given(traces(with_content=reuses_prefixes), configs(policy, costs), st.integers(1, 4))
    def check(trace, config, every):  # type: ignore[no-untyped-def]
        audit = audited_run(trace, config, every=every)
        assert [str(finding) for finding in audit.findings.kept] == []

    check()
