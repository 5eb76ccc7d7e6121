"""The published prompts of HunyuanOCR, letter by letter, for the tasks that the small model learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DOCUMENT = (
    "Extract all information from the main body of the document image and represent it in markdown format, "
    "ignoring headers and footers. Tables should be expressed in HTML format, formulas in the document should be "
    "represented using LaTeX format, and the parsing should be organized according to the reading order."
)
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "text": ("Extract the text in the image.", "提取图中的文字。"),
    "spotting": (
        "Detect and recognize text in the image, and output the text coordinates in a formatted manner.",
        "检测并识别图片中的文字，将文本坐标格式化输出。",
    ),
    "table": (
        "Parse the table in the image into HTML.",
        "把图中的表格解析为 HTML。",
        "把图中的表格解析为HTML。",
    ),
    "document": (
        DOCUMENT,
        "提取文档图片中正文的所有信息用 markdown 格式表示，其中页眉、页脚部分忽略，表格用 html 格式表达，"
        "文档中公式用 latex 格式表示，按照阅读顺序组织进行解析。",
        "提取文档图片中正文的所有信息用markdown格式表示，其中页眉、页脚部分忽略，表格用html格式表达，"
        "文档中公式用latex格式表示，按照阅读顺序组织进行解析。",
    ),
}
"""Of each task the English one first, then the Chinese ones: of version 1.0 and, where it differs, of 1.5."""

FIELDS: tuple[tuple[str, str], ...] = (
    ("Extract the content of the fields: [", "] from the image and return it in JSON format."),
    ("提取图片中的: [", "] 的字段内容，并按照 JSON 格式返回。"),
)
"""What stands before and behind the names of the fields."""

NO_TEXT = "没有文字"
"""What the model says of a page without text."""

TASKS = (*PROMPTS, "fields")


def fields_prompt(keys: Sequence[str], kind: int = 0) -> str:
    """The prompt for fields by their names, in the published spelling: quoted, commas without blanks."""
    before, after = FIELDS[kind]
    return before + ",".join(f"'{key}'" for key in keys) + after


def pieces() -> list[str]:
    """Everything in prompts that is always the same: each is one token of the small vocabulary."""
    return [
        *(prompt for kinds in PROMPTS.values() for prompt in kinds),
        *(part for pair in FIELDS for part in pair),
    ]
