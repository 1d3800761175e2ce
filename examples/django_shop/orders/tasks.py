"""The background work of the shop. `manage.py holdfast worker` finds this module by its name."""

from holdfast import Context, Flow, Retry
from holdfast.integrations.django import app, transaction

from .models import Order, Receipt

app.queue("mail", limit=2, rate="100/60s")


@app.task(queue="mail", retry=Retry(attempts_max=5))
def send_receipt(ctx: Context, number: int) -> str:
    """Write the receipt in the transaction that ends the job: there is one, whatever dies."""
    order = Order.objects.get(pk=number)
    with ctx.transaction() as db, transaction(db):
        receipt = Receipt.objects.create(order=number, text=f"{order.customer} paid {order.cents}")
        return str(receipt.text)


def reserve(number: int) -> None:
    Order.objects.filter(pk=number).update(state="reserved")


def release(result: None, number: int) -> None:
    Order.objects.filter(pk=number).update(state="cancelled")


def charge(number: int) -> int:
    order = Order.objects.get(pk=number)
    if order.cents <= 0:
        raise ValueError("the price must be positive")
    return int(order.cents)


def refund(result: int | None, number: int) -> None:
    """Give the money back. The payment of this example needs none."""


def ship(number: int) -> None:
    Order.objects.filter(pk=number).update(state="shipped")


@app.workflow(on_crash="rollback", retry=Retry(attempts_max=1))
def fulfil(flow: Flow, number: int) -> None:
    flow.step(reserve, number, undo=release)
    flow.step(charge, number, undo=refund, repeatable=False)
    flow.step(ship, number)
    flow.start(send_receipt, number)


@app.task
def report() -> int:
    """Count the orders that are on their way."""
    return int(Order.objects.filter(state="shipped").count())


app.cron("0 3 * * *", report)
