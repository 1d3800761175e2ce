"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """What a customer has bought. `state` says how far it is."""

    customer = models.CharField(max_length=100)
    cents = models.IntegerField()
    state = models.CharField(max_length=20, default="new")
    job = models.CharField(max_length=64, default="")


class Receipt(models.Model):
    """A receipt that was sent. There is one for each order."""

    order = models.IntegerField(unique=True)
    text = models.CharField(max_length=200)
