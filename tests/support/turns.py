"""Two clients of a registry that take turns, request by request, in every order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from support.registries import Fault, proxied

Work = Callable[[str], object]
"""What one client does with a registry, whose address it gets."""
PATIENCE = 60.0  # seconds until a client that does not come back fails the test


@dataclass
class Turns:
    """Lets one client at a time send its next request; ``order`` says whose turn it is.

    Where that ends, or names a client that is done, the same one goes on.  ``choices`` are the
    clients that could go on at each turn, and ``taken`` those that did.
    """

    order: Sequence[int]
    choices: list[set[int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    waiting: set[int] = field(default_factory=set)
    turn: int | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, client: int) -> None:
        """Called before each request of a client: wait for its turn."""
        with self.changed:
            self.waiting.add(client)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.turn == client, PATIENCE)
            self.turn = None
            self.waiting.discard(client)

    def run(self, threads: Sequence[threading.Thread]) -> None:
        """Give turns until all are done."""
        while True:
            with self.changed:

                def settled() -> bool:
                    alive = {n for n, thread in enumerate(threads) if thread.is_alive()}
                    return self.turn is None and alive == self.waiting

                while not settled():
                    self.changed.wait(0.001)
                if not self.waiting:
                    return
                at = len(self.taken)
                last = self.taken[-1] if self.taken else min(self.waiting)
                wanted = self.order[at] if at < len(self.order) else last
                client = wanted if wanted in self.waiting else min(self.waiting)
                self.choices.append(set(self.waiting))
                self.taken.append(client)
                self.turn = client
                self.changed.notify_all()


def _switches(order: Sequence[int]) -> int:
    return sum(one != other for one, other in pairwise(order))


def interleavings(
    registry: str, matching: str, works: Callable[[int], Sequence[Work]], switches: int
) -> Iterator[tuple[list[int], list[object]]]:
    """Run two clients in all orders of their requests with at most so many switches.

    ``works`` gives what they do in a run, by its number.  With the order, and what each returned or
    raised.
    """
    with ExitStack() as stack:
        proxies = [stack.enter_context(proxied(registry)) for _ in range(2)]
        waiting: list[list[int]] = [[]]
        number = 0
        while waiting:
            order = waiting.pop()
            turns, results = Turns(order), [None, None]
            threads = []
            for client, (proxy, work) in enumerate(zip(proxies, works(number), strict=True)):
                gate = Fault(matching, "pass", 10**6, first=partial(turns.wait, client))
                proxy.faults = [gate]
                arguments = (work, proxy.address, results, client)
                threads.append(threading.Thread(target=_finish, args=arguments))
            for thread in threads:
                thread.start()
            turns.run(threads)
            yield turns.taken, results
            number += 1
            for at in range(len(order), len(turns.taken)):
                for other in turns.choices[at] - {turns.taken[at]}:
                    branch = [*turns.taken[:at], other]
                    if _switches(branch) <= switches:
                        waiting.append(branch)


def _finish(work: Work, address: str, results: list[object], client: int) -> None:
    try:
        results[client] = work(address)
    except Exception as error:
        results[client] = error
