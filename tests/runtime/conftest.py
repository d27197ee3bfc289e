"""Requests and programs for launching, without a toolchain where none is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kernelfarm.compiler.seam.request import SourceRequest

MakeRequest = Callable[..., SourceRequest]


@pytest.fixture
def interpreted() -> MakeRequest:
    """Make a SourceRequest for the interpreter, which looks at text, signature and constexprs."""

    def make(
        text: str, entry: str, signature: Sequence[tuple[str, str]], **constexprs: Any
    ) -> SourceRequest:
        unread: Any = None
        return SourceRequest(
            text=text,
            helper_digest="",
            entry=entry,
            signature=tuple(signature),
            constexprs=tuple(constexprs.items()),
            attributes=(),
            options=unread,
            target=unread,
            toolchain=unread,
        )

    return make
