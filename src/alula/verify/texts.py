"""A few real texts of every length: ids drawn at random never form a word, and margins between labels differ there."""

from __future__ import annotations

from alula.core.errors import InputError

SINGLES: tuple[str, ...] = (
    "Hello",
    "A man is playing a guitar.",
    "Someone plays an acoustic guitar on a small stage.",
    "My name is Sarah Connor and I live at 42 Elm Street, Boston.",
    "Please call 415-555-0132 or write to sarah.connor@example.com before Friday.",
    "I has went to the store yesterday and buyed there book .",
    "The film was far too long, the plot made no sense, and I would still watch it again.",
    "Die Rechnung Nr. 2024-118 über 1.240,50 € ist am 3. März fällig.",
    "El gato duerme; le chat dort; der Hund bellt; кот спит; 猫在睡觉。",
    "Great!!! 😀👍 Totally recommend it to everyone who loves pizza 🍕 and long walks.",
    "SELECT name, total FROM orders WHERE total > 100 ORDER BY total DESC;",
    "The central bank raised interest rates by a quarter of a point on Thursday, the third rise this year, "
    "and said that further steps would depend on prices and on the labour market.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. It happens in the chloroplasts "
    "of plant cells, where chlorophyll absorbs mostly blue and red light and leaves the green for us to see.",
    "In the year 1878 I took my degree, and proceeded to the hospital to go through the course prescribed for "
    "surgeons in the army. Having completed my studies there, I was duly attached to a regiment as assistant. "
    "Before I could join it, the war had broken out. " * 2,
    "To reset a forgotten password, open the sign-in page, choose the link below the form, and follow the mail "
    "that arrives within a few minutes. " * 5,
    "yes no maybe " * 60,
)

PAIRS: tuple[tuple[str, str], ...] = (
    ("What is the capital of France?", "Paris is the capital and largest city of France."),
    ("What is the capital of France?", "The guitar has six strings and a hollow body."),
    (
        "Who wrote the letter?",
        "The letter was found in 1912. It had been written by Anna Berg to her brother in Oslo.",
    ),
    ("How many people live in Berlin?", "Berlin has about 3.7 million inhabitants; Hamburg has 1.9 million."),
    ("how to boil an egg", "Put the egg in boiling water for seven minutes, then cool it under the tap."),
    (
        "When is the invoice due?",
        "Invoice 2024-118 over 1,240.50 EUR is due on 3 March. Late payment costs 5 %.",
    ),
    ("emoji?", "Some replies are only 😀 or 👍, and that is fine."),
    (
        "What turns light into sugar?",
        "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen. It happens in the chloroplasts "
        "of plant cells, where chlorophyll absorbs mostly blue and red light. " * 3,
    ),
)


def texts_for(task: str) -> tuple[tuple[str, ...], ...]:
    """Texts as the task takes them: one each, or pairs of question or query and passage."""
    if task in {"reranking", "question-answering"}:
        return PAIRS
    if task in {"embeddings", "sequence-classification", "token-classification"}:
        return tuple((text,) for text in SINGLES)
    raise InputError(f"no texts for task {task!r}")
