"""The tests of the shop: `pytest`, in a folder of the test's own."""

from collections.abc import Iterator

import pytest
import shop
from fastapi.testclient import TestClient

from holdfast.testing import AppTester


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(shop.api) as client:
        yield client


def test_an_order_is_fulfilled_and_has_one_receipt(client: TestClient) -> None:
    bought = client.post("/orders", params={"customer": "Ann", "cents": 999}).json()
    receipt = shop.app.get(bought["job"]).result(timeout=60)
    with client.stream("GET", f"/jobs/{receipt}/events") as events:
        last = [line for line in events.iter_lines() if line][-1]
    assert '"state":"done"' in last
    assert client.get(f"/jobs/{bought['job']}").json()["state"] == "done"


def test_an_order_without_a_price_is_rolled_back(client: TestClient) -> None:
    bought = client.post("/orders", params={"customer": "Bob", "cents": 0}).json()
    with pytest.raises(Exception, match="the price must be positive"):
        shop.app.get(bought["job"]).result(timeout=60)


def test_the_jobs_are_mounted(client: TestClient) -> None:
    assert client.get("/ops/jobs/v1/jobs").status_code == 200


def test_the_report_is_made_every_night(holdfast: AppTester) -> None:
    shop.app.counts()
    holdfast.advance(days=3)
    assert len(holdfast.enqueued(shop.report)) == 3


def test_a_receipt_is_sent_again_after_a_crash(holdfast: AppTester) -> None:
    job = shop.fulfil.enqueue(1, "Ann", 999)
    holdfast.crash(during=shop.charge)
    holdfast.drain()
    assert job.refresh().state == "held"
