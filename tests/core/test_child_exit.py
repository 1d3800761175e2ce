"""The exit codes of a worker process: what its supervisor does about each."""

from __future__ import annotations

import pytest

from holdfast.core.child_exit import (
    EXIT_BROKEN,
    EXIT_FENCED,
    EXIT_LOCKED,
    EXIT_REPLACED,
    EXIT_STUCK,
    EXIT_TOO_OLD,
    EXIT_UNSUPPORTED,
    EXIT_UNUSABLE,
    RESTART_MAX_S,
    YOUNG_S,
    Next,
    Restart,
    how_a_child_ended,
    is_excused,
    is_given_back,
    next_act,
    restart_after,
)

CODES = (None, -9, 0, 1, EXIT_UNUSABLE, *range(EXIT_STUCK, EXIT_REPLACED + 1))


@pytest.mark.parametrize("code", CODES)
def test_only_a_child_that_left_in_good_order_gives_its_jobs_back(code: int | None) -> None:
    assert is_given_back(code, stopping=False) is (code in {EXIT_STUCK, EXIT_TOO_OLD})
    assert is_given_back(code, stopping=True) is (code in {EXIT_STUCK, EXIT_TOO_OLD, 0})


@pytest.mark.parametrize("code", CODES)
def test_only_a_store_that_took_no_heartbeat_excuses_the_jobs(code: int | None) -> None:
    assert is_excused(code) is (code == EXIT_FENCED)


@pytest.mark.parametrize("code", CODES)
def test_a_child_is_replaced_unless_no_other_could_use_the_store(code: int | None) -> None:
    otherwise = Next.CHECK_SCHEMA if code == EXIT_TOO_OLD else Next.RESTART
    assert next_act(code, enrolled=True) is otherwise
    assert next_act(code, enrolled=False) is (Next.LEAVE if code == EXIT_UNSUPPORTED else otherwise)


def test_a_child_that_dies_young_is_restarted_more_slowly_each_time() -> None:
    assert restart_after(0, 0.0) == Restart(1, 0.2)
    assert restart_after(1, YOUNG_S) == Restart(2, 0.4)
    assert restart_after(8, 0.0) == Restart(9, RESTART_MAX_S)
    assert restart_after(10**6, 0.0).pause_s == RESTART_MAX_S
    assert restart_after(8, YOUNG_S + 0.1) == Restart(0, 0.1)


def test_three_young_deaths_in_a_row_are_a_crash_loop() -> None:
    assert [restart_after(young, 0.0).is_crash_loop for young in (0, 1, 2, 3)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "ended, and its exit code is not known"),
        (0, "exited with code 0"),
        (-9, "was killed by SIGKILL"),
        (EXIT_UNUSABLE, "exited with code 2"),
        (EXIT_STUCK, "exited with code 75: handlers did not stop, or results could not be saved"),
        (EXIT_FENCED, "exited with code 76: no beat had reached the store in time"),
        (EXIT_TOO_OLD, "exited with code 77: it is too old for the schema of the store"),
        (EXIT_BROKEN, "exited with code 78: a required thread had died"),
        (EXIT_UNSUPPORTED, "exited with code 79: no worker can use the store as it is set up"),
        (EXIT_LOCKED, "exited with code 80: a handler had left a transaction of its own open"),
        (
            EXIT_REPLACED,
            "exited with code 81: the file of the store, or its -wal or -shm file, was replaced",
        ),
    ],
)
def test_codes_of_our_own_have_words(code: int | None, words: str) -> None:
    assert how_a_child_ended(code, silent=False, enrolled=True) == words


def test_a_child_that_lived_and_sent_no_heartbeat_was_ended_by_its_supervisor() -> None:
    words = "was killed by SIGKILL: it was alive but did not beat, so its supervisor ended it"
    assert how_a_child_ended(-9, silent=True, enrolled=True) == words
    assert how_a_child_ended(None, silent=True, enrolled=True) == "ended, and its exit code is not known"


def test_a_child_that_could_not_load_the_app_has_said_why() -> None:
    words = "could not load the app; it has logged the reason"
    assert how_a_child_ended(EXIT_UNUSABLE, silent=False, enrolled=False) == words
    assert how_a_child_ended(1, silent=False, enrolled=False) == "exited with code 1"
