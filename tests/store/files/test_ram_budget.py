"""A budget of bytes: who keeps, who claims, who waits, what a process holds uncounted, and what the machine has."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings, strategies as st

from dualform.errors import BadInput, Cancelled, Overloaded
from dualform.store.files import ram_budget
from dualform.store.files.ram_budget import RamBudget, memory_bytes


@pytest.fixture(autouse=True)
def counted(monkeypatch):
    """Numbers here are of budgets that leave 15 in 100 to the allocator."""
    monkeypatch.setattr(ram_budget, "_ACCOUNTED", 0.85)


def test_what_was_used_longest_ago_goes_first_whosever_it_is():
    budget, one, two = RamBudget(100, 40), object(), object()
    budget.keep(one, "a", "A", 40)
    budget.keep(two, "a", "B", 40)
    budget.keep(one, "large", "C", 41)
    assert budget.find(one, "large") is None
    assert budget.find(one, "a") == "A"
    budget.keep(two, "b", "D", 30)
    assert (budget.find(one, "a"), budget.find(two, "a"), budget.find(two, "b")) == ("A", None, "D")
    budget.keep(two, "b", "D", 10)
    assert (budget.kept_bytes, budget.bytes_of(one), budget.bytes_of(two)) == (50, 40, 10)
    with budget.claimed(70, lambda: None):
        assert budget.kept_bytes == 10
    budget.forget(two)
    assert budget.kept_bytes == 0


def test_who_came_first_is_served_first_though_smaller_claims_would_fit():
    budget, order, threads = RamBudget(100), [], []

    def ask(size):
        with budget.claimed(size, lambda: None):
            order.append(size)

    with budget.claimed(30, lambda: None):
        for size in (90, 20, 70):
            threads.append(threading.Thread(target=ask, args=(size,)))
            threads[-1].start()
            while len(budget._line) + len(order) < len(threads):
                time.sleep(0.001)
        threads[1].join(0.15)  # long enough to be let in, were there no line
    for thread in threads:
        thread.join(60)
    assert order[0] == 90
    assert sorted(order) == [20, 70, 90]


@settings(deadline=None, max_examples=10)
@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=2, max_size=8))
def test_any_claims_are_served_or_given_up_and_never_together_too_many(claims):
    budget, held, most, served = RamBudget(100), [0], [0], [0]
    lock = threading.Lock()

    def leave():
        raise Cancelled("the question was given up")

    def ask(size, patient):
        with suppress(Cancelled), budget.claimed(size, (lambda: None) if patient else leave):
            with lock:
                held[0] += size
                most[0] = max(most[0], held[0])
                served[0] += patient
            time.sleep(0.001)
            with lock:
                held[0] -= size

    threads = [threading.Thread(target=ask, args=claim, daemon=True) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most[0] <= 100
    assert served[0] == sum(patient for _, patient in claims)
    with budget.claimed(100, leave):
        pass


def test_caches_make_room_for_what_a_process_holds_and_nobody_counts():
    budget, owner, held = RamBudget.shared(1000), object(), [100]
    budget.leave(100, 100, lambda: held[0])
    for number in range(4):
        budget.keep(owner, number, number, 150)
    assert (budget.most_bytes, budget.kept_bytes) == (765, 600)
    held[0] = 100 + 600 + 101  # of a thousand bytes 135 are left to the allocator, a quarter of them till the next look
    with budget.claimed(165, lambda: None):
        assert budget.kept_bytes == 600
    held[0] += 1
    with budget.claimed(165, lambda: None):
        assert budget.kept_bytes == 450
        held[0] = 100 + 450 + 101  # of the claim nothing is in use yet, and what is uncounted seems to be gone
        with budget.claimed(150, lambda: None):
            assert budget.kept_bytes == 300
    held[0] = 100 + 300
    budget.keep(owner, 5, 5, 150)
    with budget.claimed(300, lambda: None):
        assert budget.kept_bytes == 450


def test_a_question_that_finds_no_room_beside_what_nobody_counts_is_refused_once_that_stays(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(ram_budget, "_LOOK", 0.001)
    monkeypatch.setattr(ram_budget.time, "monotonic", lambda: clock[0])
    budget, owner, held, looks = RamBudget.shared(1000), object(), [100], []
    budget.leave(100, 100, lambda: held[0])
    held[0] = 600

    def look():
        looks.append(None)
        clock[0] += 0.3
        if len(looks) == 3:
            held[0] = 300

    with budget.claimed(500, look):
        assert len(looks) == 3
    held[0] = 600
    refused = pytest.raises(Overloaded, match=r"needs about 500 bytes of RAM; 366 bytes of the limit are free")
    looks[:] = [None] * 10
    with refused, budget.claimed(500, look):
        pass
    assert len(looks) == 14  # more than a second
    with refused, budget.claimed(500, look):
        pass
    assert len(looks) == 14  # nor does the next one keep anyone up who waits behind it
    with budget.claimed(366, look):
        assert not budget._line
    held[0] = 0  # what the system does not say this once is what it said before
    assert budget._room() == 366
    budget.keep(owner, 1, 1, 100)
    held[0] = 100 + 250 + 101  # what is kept takes more than it said
    monkeypatch.setattr(budget, "_drop", lambda *place: (held.__setitem__(0, 100), RamBudget._drop(budget, *place)))
    with budget.claimed(700, look):
        assert budget.kept_bytes == 0


def test_memories_that_share_a_budget_take_what_they_need_of_one_bound():
    budget = RamBudget.shared(1000)
    budget.leave(200, 100)
    assert (budget.most_bytes, budget.largest) == (680, 170)
    budget.leave(300, 100)
    assert (budget.most_bytes, budget.largest) == (425, 106)
    budget.leave(-300, 100)
    assert budget.most_bytes == 425
    with pytest.raises(BadInput, match=r"^ram=1 kB is too small: opening the memory takes 900 bytes"):
        budget.leave(400, 100)


GB = 10**9


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GB // 4096}.get)
    (tmp_path / "proc/self").mkdir(parents=True)

    def build(groups, **files):
        (tmp_path / "proc/self/cgroup").write_text(groups)
        for name, text in files.items():
            file = tmp_path / "sys/fs/cgroup" / name.replace("__", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            # A dot is none of Python's names.
            file.with_name(file.name.replace("max", "memory.max").replace("limit", "memory.limit_in_bytes")).write_text(
                text
            )
        return tmp_path

    return build


NONE = "9223372036854771712\n"


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/\n", {}, 64 * GB),
        ("0::/\n", {"max": "max\n"}, 64 * GB),
        # A container of version 2, a service of systemd, and a slice above it that has less.
        ("0::/\n", {"max": "2000000000\n"}, 2 * GB),
        ("0::/system.slice/a.service\n", {"system.slice__a.service__max": "3000000000\n"}, 3 * GB),
        ("0::/a/b\n", {"a__b__max": "3000000000\n", "a__max": "1000000000\n"}, GB),
        # Version 1: a group by its path, a container that sees its own as the root, and no limit.
        ("9:name=systemd:/\n4:memory:/a/b\n0::/\n", {"memory__a__b__limit": "5000000000\n"}, 5 * GB),
        ("4:cpu,memory:/docker/0123\n", {"memory__limit": "1000000000\n"}, GB),
        ("4:memory:/a\n", {"memory__a__limit": NONE, "memory__limit": NONE}, 64 * GB),
        # What is no such file.
        ("nonsense\n", {"max": "two\n"}, 64 * GB),
        ("3:cpu:/a\n", {"memory__a__limit": "1\n"}, 64 * GB),
    ],
)
def test_the_least_limit_counts(root, groups, files, found):
    assert memory_bytes(root(groups, **files)) == found
