"""The addresses of the shop."""

from django.urls import path
from orders import views

urlpatterns = [
    path("orders/", views.buy),
    path("orders/<int:number>/", views.show),
]
