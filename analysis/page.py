"""From a template and figures to one self-contained HTML document."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

MIME_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}


def render(template: str, figures: Mapping[str, bytes], **values: Any) -> str:
    """`template` with `values`, and `images`: the figures, by file name, as data URIs."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    images = {name: _data_uri(name, content) for name, content in figures.items()}
    return environment.get_template(template).render(images=images, **values)


def _data_uri(name: str, content: bytes) -> str:
    return f"data:{MIME_TYPES[Path(name).suffix]};base64,{base64.b64encode(content).decode()}"
