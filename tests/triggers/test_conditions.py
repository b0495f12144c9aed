"""JSON pointers and comparisons: what they find, and what they never do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layby.errors import UsageError
from layby.triggers import Compare

DOCUMENT = {
    "job": {"state": "done", "tries": 3, "ok": True, "a/b": 1, "m~n": 2, "": 4},
    "rows": [{"id": 7}, {"id": 8}],
    "none": None,
}


@pytest.mark.parametrize(
    ("pointer", "op", "value", "holds"),
    [
        ("/job/state", "==", "done", True),
        ("/job/state", "==", "failed", False),
        ("/job/state", "!=", "failed", True),
        ("/job/nothing", "!=", "failed", False),  # nothing was said yet
        ("/job/state", "in", ["done", "failed"], True),
        ("/job/tries", "in", ["3"], False),
        ("/job/tries", ">=", 3, True),
        ("/job/tries", ">", 3, False),
        ("/job/tries", "<", 3.5, True),
        ("/job/tries", "<=", 2, False),
        ("/job/state", ">", "dinner", True),
        ("/job/state", ">", 3, False),  # texts and numbers are not ordered
        ("/job/ok", "==", 1, False),  # JSON's true is not 1
        ("/job/ok", ">", 0, False),
        ("/none", "exists", None, True),
        ("/none", "==", None, True),
        ("/nothing", "exists", None, False),
        ("/rows/1/id", "==", 8, True),
        ("/rows/01/id", "exists", None, False),
        ("/rows/2", "exists", None, False),
        ("/rows/-1", "exists", None, False),
        ("/rows/length", "exists", None, False),
        ("/job/a~1b", "==", 1, True),
        ("/job/m~0n", "==", 2, True),
        ("/job/", "==", 4, True),
        ("/job/__class__", "exists", None, False),
        ("", "exists", None, True),
    ],
)
def test_what_a_comparison_says(pointer, op, value, holds):
    """A pointer that leads nowhere makes each comparison false."""
    assert Compare(pointer, op, value).holds(DOCUMENT) is holds


@pytest.mark.parametrize(
    ("pointer", "op", "value"), [("job", "exists", None), ("/a", "in", "abc"), ("/a", "=", 1)]
)
def test_what_is_refused(pointer, op, value):
    """Mistakes are told where they are made."""
    with pytest.raises(UsageError):
        Compare(pointer, op, value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
OPS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "exists"])


@given(JSON, st.lists(st.text(max_size=3), max_size=3), OPS, JSON)
def test_any_answer_gives_yes_or_no(document, path, op, value):
    """Whatever a service answers, a comparison never raises."""
    pointer = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)
    assert Compare(pointer, op, value).holds(document) in (True, False)


@given(JSON)
def test_the_whole_document_is_itself(document):
    """An empty pointer compares everything."""
    assert Compare("", "==", document).holds(document)
