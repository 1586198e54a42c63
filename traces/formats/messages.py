"""Chat messages: whose they are and what they say, in the shapes in which files hold them."""

from .json_value import JsonValue

_TEXT_KEYS = ("content", "value", "parts", "text")
_ROLE_KEYS = ("role", "from")


def message_role(message: JsonValue) -> str:
    for key in _ROLE_KEYS:
        if (role := message.get(key)) is not None:
            return role.text()
    return message["role"].text()


def message_text(message: JsonValue) -> str:
    """The text of a message; that of its parts, one behind the other; empty where it has none."""
    for key in _TEXT_KEYS:
        said = message.get(key)
        if said is not None:
            break
    else:
        return ""
    if type(said.value) is str:
        return said.value
    return "".join(
        part.value if type(part.value) is str else message_text(part) for part in said.items()
    )
