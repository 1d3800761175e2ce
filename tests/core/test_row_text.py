"""Row text: facts of a workflow, and what its row keeps of them."""

import msgspec
import pytest

from holdfast.core.row_text import (
    Awaited,
    Awaits,
    CurrentStep,
    CurrentSteps,
    awaited,
    current_steps,
    from_row,
    texts_of,
)

THINGS = {
    "signal:go": Awaited("signal", "go"),
    "signal:a:b": Awaited("signal", "a:b"),
    "job:0193": Awaited("job", "0193"),
    "step:2/3:mail: all": Awaited("step", "mail: all", 2, 3),
}


@pytest.mark.parametrize("text", THINGS)
def test_what_a_workflow_waits_for_is_read_as_it_was_written(text: str) -> None:
    assert awaited(text) == THINGS[text]
    assert THINGS[text].text == text


def test_only_a_signal_of_a_person_answers_a_question() -> None:
    things = [awaited(text) for text in ("signal:approve:4.1.2", "signal:go", "job:approve:1", "step:1/2:approve:1")]
    assert [each.question for each in things] == ["4.1.2", None, None, None]


def test_the_steps_of_an_attempt_are_read_as_they_were_written() -> None:
    texts = ["1 reserve", "2.1.1 mail it"]
    assert current_steps(texts) == (CurrentStep("1", "reserve"), CurrentStep("2.1.1", "mail it"))
    assert texts_of(current_steps(texts)) == texts


def test_a_column_is_read_by_its_type_and_refused_if_it_is_damaged() -> None:
    assert from_row(Awaits, ["signal:go"]) == (Awaited("signal", "go"),)
    assert from_row(CurrentSteps, ["1 reserve"]) == (("1", "reserve"),)
    with pytest.raises(msgspec.ValidationError):
        from_row(Awaits, [1])
