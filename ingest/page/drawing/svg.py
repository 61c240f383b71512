"""Elements of SVG as text, with everything escaped."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape


def tag(name: str, *content: str | Markup, **attributes: object) -> Markup:
    """Return an element. `_` in the names of attributes stands for `-`, a trailing one is dropped.

    Content that is not `Markup` is escaped, and so is every value.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    inner = Markup("").join(escape(part) for part in content)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), Markup(written), inner)  # noqa: S704  (escaped above)


def text(x: float, y: float, words: str, **attributes: object) -> Markup:
    """Return text at a place."""
    return tag("text", words, x=x, y=y, **attributes)


def picture(width: float, height: float, parts: Iterable[Markup], label: str, **attributes: object) -> Markup:
    """Return a whole picture of this size, which readers of a screen are told about by `label`."""
    size = f"0 0 {_text(width)} {_text(height)}"
    given = {"role": "img", "class_": "plot", **attributes}
    return tag(
        "svg",
        tag("title", label),
        *parts,
        viewBox=size,
        width=width,
        height=height,
        aria_label=label,
        **given,
    )


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
