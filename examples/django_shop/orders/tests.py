"""The tests of the shop: `python manage.py test`."""

from django.db import transaction

from holdfast.integrations.django import app
from holdfast.integrations.django.test import TestCase, TransactionTestCase

from .models import Order, Receipt
from .tasks import charge, fulfil, report, send_receipt


class OrderTests(TestCase):
    """Most tests: nothing is committed, and jobs are in memory."""

    def test_buying_stores_the_order_and_its_job(self) -> None:
        answer = self.client.post("/orders/", {"customer": "Ann", "cents": "999"}).json()
        job = self.jobs.assert_enqueued(fulfil, answer["order"])
        self.assertEqual(job.id, answer["job"])

    def test_a_rollback_takes_the_job_with_it(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            fulfil.enqueue(1)
            raise ZeroDivisionError
        self.jobs.assert_not_enqueued(fulfil)

    def test_an_order_without_a_price_is_cancelled(self) -> None:
        order = Order.objects.create(customer="Bob", cents=0)
        job = fulfil.enqueue(order.pk)
        self.jobs.drain()
        self.assertEqual(job.refresh().state, "rolled_back")
        self.assertEqual(Order.objects.get().state, "cancelled")

    def test_a_charge_is_not_repeated_after_a_crash(self) -> None:
        order = Order.objects.create(customer="Eve", cents=100)
        job = fulfil.enqueue(order.pk)
        self.jobs.crash(during=charge)
        self.jobs.drain()
        self.assertEqual(job.refresh().state, "held")

    def test_the_report_is_made_every_night(self) -> None:
        app.counts()
        self.jobs.advance(days=3)
        self.assertEqual(len(self.jobs.enqueued(report)), 3)


class ReceiptTests(TransactionTestCase):
    """`ctx.transaction()` needs the real store."""

    jobs_store = "database"

    def test_an_order_is_shipped_and_has_one_receipt(self) -> None:
        answer = self.client.post("/orders/", {"customer": "Ann", "cents": "999"}).json()
        self.jobs.drain()
        self.assertEqual(self.client.get(f"/orders/{answer['order']}/").json(), {"state": "shipped", "job": "done"})
        self.assertEqual(Receipt.objects.get().text, "Ann paid 999")

    def test_a_receipt_is_written_once_although_its_worker_dies(self) -> None:
        order = Order.objects.create(customer="Ann", cents=999)
        job = send_receipt.enqueue(order.pk)
        self.jobs.crash(during=send_receipt)
        self.jobs.drain()
        self.assertEqual(job.result(timeout=0), "Ann paid 999")
        self.assertEqual(Receipt.objects.count(), 1)
