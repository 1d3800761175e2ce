"""Each store does what memory does, call by call. HOLDFAST_EXAMPLES=2000 draws so many new runs, not the fixed ones."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.agreement.machine import Stores
from tests.agreement.postgres import stores_at
from tests.agreement.redis import stores_on
from tests.agreement.workflows import Workflows
from tests.servers import RedisServer

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "0"))


def drawn(examples: int) -> settings:
    return settings(
        max_examples=EXAMPLES or examples,
        stateful_step_count=60,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.slow  # a hundred runs of sixty steps
def test_memory_and_sqlite_agree() -> None:
    run_state_machine_as_test(Stores, settings=drawn(120))


@pytest.mark.slow  # every step is a dozen round trips
def test_memory_and_postgres_agree(postgres_server: str) -> None:
    run_state_machine_as_test(stores_at(postgres_server), settings=drawn(25))


@pytest.mark.slow  # a hundred runs of sixty steps
def test_memory_and_sqlite_agree_about_workflows() -> None:
    run_state_machine_as_test(Workflows, settings=drawn(120))


@pytest.mark.slow  # every step is a dozen round trips
def test_memory_and_postgres_agree_about_workflows(postgres_server: str) -> None:
    run_state_machine_as_test(stores_at(postgres_server, Workflows), settings=drawn(25))


@pytest.mark.slow  # every step is a dozen round trips
def test_memory_and_redis_agree(redis_server: RedisServer) -> None:
    run_state_machine_as_test(stores_on(redis_server), settings=drawn(12))


@pytest.mark.slow  # every step is a dozen round trips
def test_memory_and_redis_agree_about_workflows(redis_server: RedisServer) -> None:
    run_state_machine_as_test(stores_on(redis_server, Workflows), settings=drawn(12))
