"""The workflows that are measured; their store comes from $HOLDFAST_DB."""

from __future__ import annotations

from holdfast import App, AsyncFlow, Flow

app = App()


async def nothing() -> None:
    pass


def sync_nothing() -> None:
    pass


@app.workflow
async def async_steps(flow: AsyncFlow, steps: int) -> None:
    """So many steps that do nothing, one after the other."""
    for _ in range(steps):
        await flow.step(nothing)


@app.workflow
def sync_steps(flow: Flow, steps: int) -> None:
    for _ in range(steps):
        flow.step(sync_nothing)


@app.workflow
async def resumed(flow: AsyncFlow, steps: int) -> None:
    """The same, and then a wait: what comes after it replays all of them."""
    for _ in range(steps):
        await flow.step(nothing)
    await flow.wait("go")


@app.workflow
async def listening(flow: AsyncFlow, signals: int) -> None:
    """Take so many signals, one after the other."""
    for _ in range(signals):
        await flow.wait("go")
