"""What several statements of a query file share stands there once, and is put in when the file is loaded."""

from __future__ import annotations

import pytest

from holdfast.stores.sql import expand

FILE = """-- A file.

-- fragment: wall
-- The clock.
coalesce(:wall, 0)

-- fragment: late
AND at < {wall}
    AND done = 0

-- name: one
SELECT * FROM {schema}.job
WHERE true
    {late};

-- name: two
SELECT {wall}, '{}';
"""


def test_a_fragment_is_put_where_statements_and_later_fragments_use_it() -> None:
    assert expand(FILE) == (
        "-- A file.\n\n"
        "-- name: one\nSELECT * FROM {schema}.job\nWHERE true\n    AND at < coalesce(:wall, 0)\n    AND done = 0;\n\n"
        "-- name: two\nSELECT coalesce(:wall, 0), '{}';\n"
    )


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        (FILE.replace("{late}", "{later}"), "there is no fragment 'later' above its use"),
        (FILE.replace("at < {wall}", "at < {late}"), "there is no fragment 'late' above its use"),
        (FILE.replace("{late}", ""), "nothing uses the fragments ['late']"),
        (FILE.replace("fragment: late", "fragment: wall"), "there are two fragments 'wall'"),
        (FILE.replace("fragment: late", "fragment: schema"), "there are two fragments 'schema'"),
    ],
)
def test_a_fragment_that_is_not_there_or_not_used_is_refused_at_the_start(file: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="fragment") as refused:
        expand(file)
    assert str(refused.value) == wrong
