"""A shop with FastAPI: orders and their jobs in one transaction, on SQLite or on the PostgreSQL of DATABASE_URL.

uvicorn shop:api                 with a worker inside; for more, SHOP_SLOTS=0 and: holdfast worker shop:app
"""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Response
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from starlette.routing import Mount

from holdfast import App, Context, Flow, Retry
from holdfast.integrations.fastapi import get_app, lifespan, progress_events, status_of
from holdfast.integrations.sqlalchemy import install_sessions, transaction
from holdfast.server import Server, User

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
scheme, colon, rest = URL.partition(":")

app = App(URL, keep={"done": "7d"})
engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
sessions = async_sessionmaker(engine, expire_on_commit=False)
app.queue("mail", limit=2)
install_sessions(app)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "purchase"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


class Receipt(Base):
    __tablename__ = "receipt"
    order: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    text: Mapped[str]


@app.task(queue="mail", retry=Retry(attempts_max=5))
def send_receipt(ctx: Context, order: int, text: str) -> None:
    """Write the receipt in the transaction that ends the job: there is one, whatever dies."""
    ctx.progress(0.5, note="writing")
    with ctx.session(Session) as orm:
        orm.add(Receipt(order=order, text=text))


def charge(cents: int) -> int:
    if cents <= 0:
        raise ValueError("the price must be positive")
    return cents


def refund(result: int | None, cents: int) -> None:
    """Give the money back. The payment of this example needs none."""


@app.workflow(on_crash="rollback", retry=Retry(attempts_max=1))
def fulfil(flow: Flow, order: int, customer: str, cents: int) -> str:
    paid = flow.step(charge, cents, undo=refund, repeatable=False)
    return flow.start(send_receipt, order, f"{customer} paid {paid}").id


@app.task
def report() -> int:
    return app.counts()["done"]


app.cron("0 3 * * *", report)


@asynccontextmanager
async def opened(api: FastAPI) -> AsyncGenerator[None, None]:
    async with engine.begin() as db:
        await db.run_sync(Base.metadata.create_all)
    async with lifespan(app, slots=int(os.environ.get("SHOP_SLOTS", "4")))(api):
        yield
    await engine.dispose()


def user_of(scope: Any) -> User | None:
    """Say who may see the jobs. A real shop asks its session."""
    return User("local", "viewer") if scope["client"] and scope["client"][0] in ("127.0.0.1", "testclient") else None


api = FastAPI(lifespan=opened, routes=[Mount("/ops/jobs", Server(app, user=user_of))])
Jobs = Annotated[App, Depends(get_app)]


@api.post("/orders", status_code=202)
async def buy(customer: str, cents: int) -> dict[str, Any]:
    """Store the order and its job: both, or neither."""
    async with transaction(sessions) as db:
        order = Order(customer=customer, cents=cents)
        db.add(order)
        await db.flush()
        job = await fulfil.using(connection=db).aenqueue(order.id, customer, cents)
    return {"order": order.id, "job": job.id}


@api.get("/jobs/{id}")
async def show(id: str, jobs: Jobs) -> dict[str, Any]:
    return status_of(await jobs.aio.get(id))


@api.get("/jobs/{id}/events")
async def events(id: str, jobs: Jobs) -> Response:
    return progress_events(jobs, id)
