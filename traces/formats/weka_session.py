"""One Weka session: its calls, forked and joined at subagents. See `weka` for the format."""

from collections import Counter
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from .calls import Call
from .json_value import JsonValue, count_unknown

FAILED = "failed call, no output tokens"
_CALL_KEYS = frozenset(
    (
        "t",
        "type",
        "model",
        "in",
        "out",
        "hash_ids",
        "api_time",
        "think_time",
        "ttft",
        "input_types",
        "output_types",
        "stop",
    )
)
_SUBAGENT_KEYS = frozenset(
    (
        "t",
        "type",
        "duration_ms",
        "models",
        "requests",
        "status",
        "agent_id",
        "subagent_type",
        "total_tokens",
        "tool_use_count",
        "tool_tokens",
        "system_tokens",
    )
)
_TYPES = ("n", "s", "subagent")
_S, _MS = 10**9, 10**6


class _Done(NamedTuple):
    """What a next call may wait for. Times are the recording's, in ns from the session's start."""

    start_ns: int
    end_ns: int  # the start, where the recording does not say how long it took
    calls: list[int]  # the last calls of it


@dataclass(slots=True)
class SessionReader:
    """Collects the calls of one session, in no particular order."""

    session: int
    block_tokens: int
    skipped: Counter[str]
    unknown_keys: Counter[str]
    calls: list[Call] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)  # block ids of each call
    models: list[str] = field(default_factory=list)  # of each call
    num_background: int = 0  # subagents without a duration
    num_session_times: int = 0  # subagents whose calls have times of the session
    num_start_to_start: int = 0  # think times that hold the service time of the call before

    def read_agent(
        self, requests: JsonValue, origin_ns: int, model: str, parent: _Done | None = None
    ) -> list[int]:
        """Read the calls of one agent, whose times count from `origin_ns`, and its subagents'.

        The first call waits for `parent`. Returns the calls that nobody in here waits for: the
        agent has finished when they have.
        """
        own: list[_Done] = []
        # Subagents that no call has waited for yet. As their time is their end, they have ended.
        ended: list[_Done] = []
        timed = [(origin_ns + item["t"].ns(_S, "seconds"), item) for item in requests.items()]
        for t_ns, item in sorted(timed, key=itemgetter(0)):
            before = own[-1] if own else parent
            if item["type"].one_of(_TYPES) == "subagent":
                start_ns = t_ns - _duration_ns(item)
                forks_from = [done for done in own if done.start_ns <= start_ns]
                subagent = self._read_subagent(
                    item, start_ns, origin_ns, model, forks_from[-1] if forks_from else parent
                )
                if subagent.calls and item.get("duration_ms") is not None:
                    ended.append(subagent)
            elif item["out"].tokens(least=0) == 0:
                self.skipped[FAILED] += 1
            else:
                awaited = ([before] if before else []) + ended
                own.append(self._read_call(item, t_ns, model, awaited, is_first=not own))
                ended = []
        return [call for done in own[-1:] + ended for call in done.calls]

    def _read_subagent(
        self, marker: JsonValue, start_ns: int, session_ns: int, model: str, parent: _Done | None
    ) -> _Done:
        count_unknown(marker, _SUBAGENT_KEYS, self.unknown_keys)
        models = marker.get("models")
        if models is not None:
            model = next((name.text() for name in models.items()), model)
        requests = marker["requests"]
        if any(item["t"].value == 0 for item in requests.items()):
            session_ns = start_ns
        else:
            self.num_session_times += bool(requests.value)
        self.num_background += marker.get("duration_ms") is None
        calls = self.read_agent(requests, session_ns, model, parent)
        return _Done(start_ns, start_ns + _duration_ns(marker), calls)

    def _read_call(
        self, item: JsonValue, t_ns: int, model: str, awaited: list[_Done], is_first: bool
    ) -> _Done:
        count_unknown(item, _CALL_KEYS, self.unknown_keys)
        ids, num_prompt_tokens = item["hash_ids"].ids(bits=64), item["in"].tokens()
        num_full_blocks = num_prompt_tokens // self.block_tokens
        if len(ids) != num_full_blocks:
            item["hash_ids"].fail(
                f"has {len(ids)} ids; {num_prompt_tokens} tokens in need {num_full_blocks},"
                f" one for each full block of {self.block_tokens}"
            )
        named = item.get("model")
        self.models.append(named.text() if named else model)
        self.ids.append(ids)
        self.calls.append(
            Call(
                session=self.session,
                arrival_ns=t_ns,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=item["out"].tokens(),
                after=[call for done in awaited for call in done.calls],
                think_ns=self._think_ns(item, t_ns, awaited, is_first),
            )
        )
        api_time = item.get("api_time")
        end_ns = t_ns + (api_time.ns(_S, "seconds") if api_time else 0)
        return _Done(t_ns, end_ns, [len(self.calls) - 1])

    def _think_ns(self, item: JsonValue, t_ns: int, awaited: list[_Done], is_first: bool) -> int:
        """The recorded one; after a fork or a join, the time since the last of them ended."""
        think_time = item.get("think_time")
        if think_time and not is_first and len(awaited) == 1:
            return think_time.ns(_S, "seconds")
        if not awaited:
            return -1
        last = max(awaited, key=lambda done: done.end_ns)
        self.num_start_to_start += last.start_ns == last.end_ns
        return max(0, t_ns - last.end_ns)


def _duration_ns(marker: JsonValue) -> int:
    duration = marker.get("duration_ms")
    return duration.ns(_MS, "milliseconds") if duration else 0
