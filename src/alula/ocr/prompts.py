"""What HunyuanOCR is told for each task, word for word as Tencent publishes it: other words read worse."""

# ruff: noqa: RUF001 - Chinese punctuation belongs to the prompts

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from alula.core.errors import InputError
from alula.documents import Task
from alula.ocr.reader import Ask

Version: TypeAlias = Literal["1.0", "1.5"]

_ENGLISH: Mapping[Task, str] = {
    "document": (
        "Extract all information from the main body of the document image and represent it in markdown format, "
        "ignoring headers and footers. Tables should be expressed in HTML format, formulas in the document should be "
        "represented using LaTeX format, and the parsing should be organized according to the reading order."
    ),
    "text": "Extract the text in the image.",
    "spotting": "Detect and recognize text in the image, and output the text coordinates in a formatted manner.",
    "table": "Parse the table in the image into HTML.",
    "formula": "Identify the formula in the image and represent it using LaTeX format.",
    "chart": (
        "Parse the chart in the image; use Mermaid format for flowcharts and Markdown for other charts."
    ),
    "fields": "Extract the content of the fields: {fields} from the image and return it in JSON format.",
    "subtitle": "Extract the subtitles from the image.",
    "translate": (
        "First extract the text, then translate the text content into {to}. If it is a document, ignore the header "
        "and footer. Formulas should be represented in LaTeX format, and tables should be represented in HTML format."
    ),
}
_CHINESE: Mapping[Task, str] = {
    "document": (
        "提取文档图片中正文的所有信息用 markdown 格式表示，其中页眉、页脚部分忽略，表格用 html 格式表达，"
        "文档中公式用 latex 格式表示，按照阅读顺序组织进行解析。"
    ),
    "text": "提取图中的文字。",
    "spotting": "检测并识别图片中的文字，将文本坐标格式化输出。",
    "table": "把图中的表格解析为 HTML。",
    "formula": "识别图片中的公式，用 LaTeX 格式表示。",
    "chart": "解析图中的图表，对于流程图使用 Mermaid 格式表示，其他图表使用 Markdown 格式表示。",
    "fields": "提取图片中的: {fields} 的字段内容，并按照 JSON 格式返回。",
    "subtitle": "提取图片中的字幕。",
    "translate": (
        "先提取文字，再将文字内容翻译为{to}。若是文档，则其中页眉、页脚忽略。公式用latex格式表示，表格用html格式表示。"
    ),
}
_NEWER: Mapping[Task, str] = {
    "document": (
        "提取文档图片中正文的所有信息用markdown格式表示，其中页眉、页脚部分忽略，表格用html格式表达，"
        "文档中公式用latex格式表示，按照阅读顺序组织进行解析。"
    ),
    "text": "提取图中的文字。",
    "spotting": "检测并识别图片中的文字，将文本坐标格式化输出。",
    "table": "把图中的表格解析为HTML。",
    "formula": "识别图片中的公式，用LaTeX格式表示。",
    "chart": "解析图中的图表，对于流程图使用Mermaid格式表示，其他图表使用Markdown格式表示。",
    "translate": (
        "按照阅读顺序，提取图中文字，公式用latex格式表示，表格用markdown格式表示，再将文字内容翻译为{to}。"
    ),
}
"""Of version 1.5, which has them in Chinese only; what it lacks is as in 1.0."""

_LANGUAGES = {"en": ("English", "英文"), "zh": ("Chinese", "中文")}


def prompt(ask: Ask, version: Version = "1.0") -> str:
    """What to tell the model. `ask` itself for the task of that name; the fixed words for all others."""
    if ask.task == "ask":
        return ask.question
    chinese = ask.language == "zh"
    words = {**_CHINESE, **(_NEWER if version == "1.5" else {})} if chinese else _ENGLISH
    return words[ask.task].format(fields=_listed(ask.fields), to=_language(ask, chinese) if ask.to else "")


def _listed(fields: tuple[str, ...]) -> str:
    """Names in single quotes without spaces between, as the published prompt lists them."""
    quoted = ("'" + field.replace("\\", "\\\\").replace("'", "\\'") + "'" for field in fields)
    return f"[{','.join(quoted)}]"


def _language(ask: Ask, chinese: bool) -> str:
    if ask.to not in _LANGUAGES:
        raise InputError(f"to is {ask.to!r}; HunyuanOCR translates into: {', '.join(_LANGUAGES)}")
    return _LANGUAGES[ask.to][chinese]
