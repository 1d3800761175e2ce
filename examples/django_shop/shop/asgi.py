"""The shop as an ASGI application: `uvicorn shop.asgi:application`. The jobs are at /ops/jobs, for staff."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django_application = get_asgi_application()

from holdfast.integrations.django.asgi import with_server  # noqa: E402  # Django must be set up first

application = with_server(django_application, prefix="/ops/jobs")
