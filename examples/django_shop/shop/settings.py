"""The settings of the shop. Everything is in one SQLite file, or in the PostgreSQL database of DATABASE_URL."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

FOLDER = Path(os.environ.get("SHOP_FOLDER", Path(__file__).resolve().parent.parent))
SECRET_KEY = os.environ.get("SHOP_SECRET", "for development only")
DEBUG = "SHOP_SECRET" not in os.environ
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "holdfast.integrations.django",
    "orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
ROOT_URLCONF = "shop.urls"
ASGI_APPLICATION = "shop.asgi.application"
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": FOLDER / "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
        "TEST": {"NAME": FOLDER / "test.db"},
    }
}
if url := os.environ.get("DATABASE_URL"):
    parts = urlsplit(url)
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }

HOLDFAST = {"OPTIONS": {"keep": {"done": "7d"}}}
