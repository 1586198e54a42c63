"""The waiting queue: arrivals in order, preempted sequences foremost."""

from kvtwin.sim.queue import NO_ARRIVAL, WaitingQueue, sequence_of
from kvtwin.sim.requests import RequestTable


def table(arrival_ns: list[int], accepted: list[int]) -> RequestTable:
    num = len(arrival_ns)
    return RequestTable(
        arrival_ns=arrival_ns,
        num_prompt_tokens=[10 + row for row in range(num)],
        num_output_tokens=[5] * num,
        trace_output_tokens=[5] * num,
        max_tokens=[7] * num,
        accepted=accepted,
    )


def test_requests_come_in_when_they_arrive_and_leave_in_order() -> None:
    requests = table([0, 0, 5, 9, 9], accepted=[0, 2, 3, 4])  # 1 was rejected
    queue = WaitingQueue(requests, sequence_of)
    assert queue.next_arrival_ns == 0
    assert queue.head() is None, "nobody has been let in"
    assert queue.advance(0) == 1
    assert queue.next_arrival_ns == 5
    head = queue.head()
    assert (head.row, head.known, head.end, head.max_tokens) == (0, 10, 14, 7)
    assert queue.head() is head, "looking changes nothing"
    assert queue.advance(4) == 1
    assert queue.advance(5) == 2, "an arrival at this very time is in"
    queue.pop(6)
    assert requests.admitted_ns[0] == 6
    assert queue.head().row == 2
    assert queue.advance(100) == 3
    assert queue.next_arrival_ns == NO_ARRIVAL
    for row in (2, 3, 4):
        assert not queue.all_admitted
        assert queue.head().row == row
        queue.pop(200)
    assert queue.all_admitted
    assert queue.head() is None
    assert queue.advance(300) == 0
    assert list(requests.admitted_ns) == [6, -1, 200, 200, 200]


def test_preempted_sequences_go_first_the_earliest_at_the_head() -> None:
    requests = table([0, 0, 0], accepted=[0, 1, 2])
    queue = WaitingQueue(requests, sequence_of)
    queue.advance(0)
    seqs = []
    for _ in range(2):
        seqs.append(queue.head())
        queue.pop(1)
    for seq in reversed(seqs):  # the latest is preempted first
        queue.push_preempted(seq)
    assert queue.advance(2) == 3
    for expected in seqs:
        assert queue.head() is expected
        queue.pop(3)
    assert queue.head().row == 2
    assert not queue.all_admitted
    assert list(requests.admitted_ns) == [1, 1, -1], "the first admission is what counts"


def test_nobody_was_accepted() -> None:
    queue = WaitingQueue(table([0, 3], accepted=[]), sequence_of)
    assert queue.next_arrival_ns == NO_ARRIVAL
    assert queue.advance(10) == 0
    assert queue.head() is None
    assert queue.all_admitted
