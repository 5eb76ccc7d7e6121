from __future__ import annotations

import pytest

from alula.core.errors import InputError
from alula.core.words import TEXT_TASKS
from alula.verify import texts_for


@pytest.mark.parametrize("task", TEXT_TASKS)
def test_every_task_has_at_least_eight_different_texts_of_many_lengths(task: str) -> None:
    texts = texts_for(task)
    assert len(set(texts)) == len(texts) >= 8
    sizes = [sum(len(part) for part in text) for text in texts]
    assert max(sizes) > 10 * min(sizes)


def test_pairs_are_given_where_the_task_takes_pairs() -> None:
    assert {len(text) for text in texts_for("reranking")} == {2}
    assert {len(text) for text in texts_for("embeddings")} == {1}


def test_an_unknown_task_has_no_texts() -> None:
    with pytest.raises(InputError, match="no texts for task 'poetry'"):
        texts_for("poetry")
