"""Fifty prompts of many kinds and lengths, for models that write text."""

from __future__ import annotations

_LONG = (
    "The river rose all night. By morning the lower street was under water, and the baker carried his flour to the "
    "attic in wet sacks while his sons tied the boat to the railing. Nobody had seen it as high since the year the "
    "mill burned, and the old people who remembered that year said so to everyone who would listen. At noon the bridge "
    "was closed. The mayor stood on the steps of the school in rubber boots and read names from a list, and those who "
    "were not on it went home again, if there was a home to go to. "
)

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "What is the difference between a lake and a pond?",
    "Write a short poem about autumn.",
    "def fibonacci(n):",
    "Dear Sir or Madam,",
    "Water boils at",
    "The three primary colors are",
    "Explain photosynthesis to a child.",
    "Q: What is 17 + 25?\nA:",
    "1, 1, 2, 3, 5, 8,",
    "import numpy as np\n\ndef softmax(x):\n",
    "SELECT name, COUNT(*) FROM orders",
    "The quick brown fox",
    "In 1969, the first humans",
    "My favourite recipe for bread begins with",
    "translate English to German: The house is wonderful.",
    "summarize: " + _LONG,
    _LONG + _LONG + "In the evening",
    "List five animals that live in the desert:\n1.",
    "The meeting was moved to Thursday because",
    "<html>\n<head>\n<title>",
    '{"name": "Ada", "born":',
    "A haiku about rain:\n",
    "Why is the sky blue?",
    "How do I boil an egg?",
    "Der Zug nach Berlin fährt",
    "Le chat est assis sur",
    "El perro corre por",
    "Once the engine is cold, remove the cap and",
    "The mitochondria is",
    "Two trains leave two cities at the same time.",
    "Roses are red, violets are blue,",
    "To be, or not to be,",
    "Python is a programming language that",
    "The advantages of solar power are",
    "Rewrite politely: Send me the report now.",
    "Newton's first law says that",
    "The doctor looked at the chart and",
    "Breaking news:",
    "Ingredients: flour, sugar, butter.\nMethod:",
    "a b c d e f",
    "I",
    "...",
    "What would you do with a million dollars, and why?",
    "Steps: open the settings, choose the network, type the password, press connect.",
    "Review: The film was far too long, but the music was lovely.\nSentiment:",
    "She opened the letter, read it twice, and",
    "The population of Tokyo in 2020 was about",
    _LONG * 3 + "What happened at noon?",
)
