"""The pages of the shop, as JSON."""

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from holdfast.integrations.django import app

from .models import Order
from .tasks import fulfil


@require_POST
def buy(request: HttpRequest) -> JsonResponse:
    """Store the order and its job: both, or neither."""
    with transaction.atomic():
        order = Order.objects.create(customer=request.POST["customer"], cents=int(request.POST["cents"]))
        order.job = fulfil.enqueue(order.pk).id
        order.save()
    return JsonResponse({"order": order.pk, "job": order.job}, status=202)


def show(request: HttpRequest, number: int) -> JsonResponse:
    order = Order.objects.get(pk=number)
    return JsonResponse({"state": order.state, "job": app.get(order.job).state.value})
