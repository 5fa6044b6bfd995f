from __future__ import annotations

from proxy.sim.tools import ToolSpec, ToolWish, tools_to_call

TOOLS = (ToolSpec("get_weather"), ToolSpec("send_mail"))


def names(*args: object, **wish: object) -> list[str]:
    text, count = args
    asked = ToolWish(**wish)  # type: ignore[arg-type]  # the fields of ToolWish by name
    return [tool.name for tool in tools_to_call(TOOLS, asked, text, count)]  # type: ignore[arg-type]


def test_calls_nothing_unless_asked() -> None:
    assert names("How are you?", None) == []


def test_calls_the_tools_that_the_user_names() -> None:
    assert names("Get weather in Rome and then send_mail.", None) == ["get_weather", "send_mail"]


def test_calls_one_tool_where_parallel_calls_are_off() -> None:
    assert names("get_weather, send_mail", None, may_be_parallel=False) == ["get_weather"]


def test_calls_a_tool_when_the_user_asks_for_one() -> None:
    assert names("Please use one of your tools.", None) == ["get_weather"]
    assert names("This tool is useful, don't you think?", None) == []


def test_does_not_call_again_after_a_result() -> None:
    assert names(None, None) == []


def test_required_and_named_choices_always_call() -> None:
    assert names("Hello", None, mode="required") == ["get_weather"]
    assert names("Hello", None, mode="required", named="send_mail") == ["send_mail"]
    assert names(None, None, mode="required") == ["get_weather"]


def test_none_never_calls() -> None:
    assert names("get_weather", 2, mode="none") == []


def test_the_header_sets_the_number_of_calls() -> None:
    assert names("Hello", 3) == ["get_weather", "send_mail", "get_weather"]
    assert names("get_weather", 0) == []


def test_an_unknown_named_tool_is_not_invented() -> None:
    assert names("Hello", 1, mode="required", named="other") == []
