"""The ways for code with an ORM to write inside a task's transaction, each as a class with the same verbs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy
from django.db import connections, models
from django.db import transaction as django_transaction
from sqlalchemy import func, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from holdfast.integrations import django as holdfast_django
from holdfast.integrations import sqlalchemy as holdfast_sqlalchemy
from tests.api.doors import with_django

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Base(DeclarativeBase):
    """What the application's tables have in common."""


class Effect(Base):
    """The table of the user's own."""

    __tablename__ = "effect"
    job: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int]
    at: Mapped[datetime | None] = mapped_column(sqlalchemy.DateTime(timezone=True))


Maker = sessionmaker(sqlalchemy.create_engine("sqlite://"), expire_on_commit=False)


class WithSession:
    """A Session of SQLAlchemy's, by the application's own sessionmaker."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def block(self, db: Any) -> Iterator[Any]:
        with holdfast_sqlalchemy.session(db, Maker) as session:
            yield session

    def write(self, door: Any, job: str, fence: int) -> None:
        door.add(Effect(job=job, fence=fence, at=AT))
        door.flush()

    def count(self, door: Any) -> int:
        return int(door.scalar(select(func.count()).select_from(Effect)))

    def part(self, door: Any) -> AbstractContextManager[object]:
        """Return a block inside, which takes its writes back alone."""
        nested: AbstractContextManager[object] = door.begin_nested()
        return nested


class WithConnection(WithSession):
    """A Connection of SQLAlchemy's."""

    @contextmanager
    def block(self, db: Any) -> Iterator[Any]:
        with holdfast_sqlalchemy.connection(db) as connection:
            yield connection

    def write(self, door: Any, job: str, fence: int) -> None:
        door.execute(insert(Effect).values(job=job, fence=fence, at=AT))


class WithDjango:
    """Django's ORM."""

    def __init__(self, url: str) -> None:
        with_django({"default": database(url)})
        self.model = django_model()

    @contextmanager
    def block(self, db: Any) -> Iterator[Any]:
        with holdfast_django.transaction(db):
            yield connections["default"]

    def write(self, door: Any, job: str, fence: int) -> None:
        self.model.objects.create(job=job, fence=fence, at=AT)

    def count(self, door: Any) -> int:
        return int(self.model.objects.count())

    def part(self, door: Any) -> AbstractContextManager[object]:
        nested: AbstractContextManager[object] = django_transaction.atomic()
        return nested


ORMS: dict[str, Any] = {"session": WithSession, "connection": WithConnection, "django": WithDjango}
_models: list[Any] = []


def django_model() -> Any:
    """Return the model; it can be made once Django is set up, and only once."""
    if not _models:

        class DjangoEffect(models.Model):
            job = models.CharField(primary_key=True, max_length=64)
            fence = models.IntegerField()
            at = models.DateTimeField(null=True)

            class Meta:
                app_label = "tests"
                db_table = "effect"

        _models.append(DjangoEffect)
    return _models[0]


def database(url: str) -> dict[str, Any]:
    """Return the settings of Django for the database of a store."""
    if url.startswith("sqlite"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///").split("?")[0]}
    parts = urlsplit(url)
    place = {"NAME": parts.path[1:], "USER": parts.username, "HOST": parts.hostname, "PORT": parts.port}
    return {"ENGINE": "django.db.backends.postgresql", **place}
