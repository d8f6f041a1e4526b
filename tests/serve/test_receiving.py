"""Bodies that arrive fast, slowly and not at all, and the memory that all of them take together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from vitrail.serve import uploads
from vitrail.serve.uploads import UploadBudget, read_body
from vitrail.tasks.serving import ClientGoneError, RefusalError

LIMIT = 20

pytestmark = pytest.mark.anyio


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "PATIENCE_S", 0.0)


class Sender:
    """Sends a body when it is told to."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.request = Request({"type": "http", "headers": []}, self.messages.get)

    def send(self, size: int, *, more: bool) -> None:
        self.messages.put_nowait({"type": "http.request", "body": bytes(size), "more_body": more})

    async def read(self, budget: UploadBudget, timeout_s: float = 20.0) -> bytes:
        return await read_body(self.request, limit=LIMIT, timeout_s=timeout_s, budget=budget)


async def stall(budget: UploadBudget, sizes: list[int]) -> list[tuple[Sender, asyncio.Task[bytes]]]:
    """Return uploads that have sent so many bytes each, and then nothing."""
    stalled = []
    for size in sizes:
        sender = Sender()
        sender.send(size, more=True)
        stalled.append((sender, asyncio.create_task(sender.read(budget))))
        while not sender.messages.empty():
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    return stalled


async def give_up(stalled: list[tuple[Sender, asyncio.Task[bytes]]]) -> list[Any]:
    for _, task in stalled:
        task.cancel()
    return await asyncio.gather(*(task for _, task in stalled), return_exceptions=True)


async def sent(budget: UploadBudget, size: int) -> bytes:
    sender = Sender()
    sender.send(size, more=False)
    return await sender.read(budget)


@pytest.mark.usefixtures("impatient")
async def test_stalled_uploads_give_way_to_others() -> None:
    budget = UploadBudget(8 * LIMIT)
    stalled = await stall(budget, [19] * 7 + [18])
    assert budget.held_bytes == 151

    body = await sent(budget, 15)

    assert len(body) == 15
    assert budget.held_bytes == 151 - 19 + 15
    (ended,), _ = await asyncio.wait([task for _, task in stalled], return_when=asyncio.FIRST_COMPLETED)
    error = ended.exception()
    assert isinstance(error, RefusalError)
    assert error.status == 408
    assert "others need its room" in str(error)
    await give_up(stalled)
    assert budget.held_bytes == 15


@pytest.mark.usefixtures("impatient")
async def test_who_gave_way_cannot_go_on() -> None:
    budget = UploadBudget(25)
    ((sender, task),) = await stall(budget, [19])
    sender.send(1, more=False)  # comes in the same moment
    body = await sent(budget, 10)

    with pytest.raises(RefusalError, match="others need its room"):
        await task
    assert (len(body), budget.held_bytes) == (10, 10)


async def test_uploads_that_are_not_slow_are_left_alone() -> None:
    budget = UploadBudget(25)
    stalled = await stall(budget, [19])

    with pytest.raises(RefusalError, match="other uploads take 19 bytes") as refused:
        await sent(budget, 10)

    assert refused.value.status == 429
    assert not stalled[0][1].done()
    await give_up(stalled)
    assert budget.held_bytes == 0


@pytest.mark.usefixtures("impatient")
async def test_the_slowest_does_not_push_out_others() -> None:
    budget = UploadBudget(25)
    (greedy, modest) = await stall(budget, [18, 6])
    greedy[0].send(1, more=True)
    greedy[0].send(1, more=True)

    with pytest.raises(RefusalError) as refused:
        await greedy[1]

    assert refused.value.status == 429
    assert budget.held_bytes == 6
    await give_up([modest])


@pytest.mark.usefixtures("impatient")
async def test_what_is_computed_is_not_pushed_out() -> None:
    budget = UploadBudget(25)
    await sent(budget, 20)

    with pytest.raises(RefusalError) as refused:
        await sent(budget, 10)

    assert refused.value.status == 429
    assert budget.held_bytes == 20


async def test_slow_uploads_may_go_on_until_the_time_is_over_where_there_is_room() -> None:
    budget = UploadBudget(25)
    sender = Sender()
    sender.send(3, more=True)

    with pytest.raises(RefusalError, match=r"3 bytes came within 0\.05 s") as refused:
        await sender.read(budget, timeout_s=0.05)

    assert refused.value.status == 408
    assert budget.held_bytes == 0


async def test_who_hangs_up_leaves_nothing_behind() -> None:
    budget = UploadBudget(25)
    sender = Sender()
    sender.send(3, more=True)
    sender.messages.put_nowait({"type": "http.disconnect"})

    with pytest.raises(ClientGoneError):
        await sender.read(budget)

    assert budget.held_bytes == 0
