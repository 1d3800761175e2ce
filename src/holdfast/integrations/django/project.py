"""The app of the project that DJANGO_SETTINGS_MODULE names, for programs that do not set Django up themselves.

holdfast worker holdfast.integrations.django.project:app
"""

from __future__ import annotations

import django
from django.apps import apps

from holdfast.errors import UsageError
from holdfast.integrations.django.configuration import project_app

if not apps.ready:
    django.setup()
if not apps.is_installed("holdfast.integrations.django"):
    raise UsageError('add "holdfast.integrations.django" to INSTALLED_APPS: that imports the tasks of your apps')

app = project_app()
