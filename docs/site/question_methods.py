"""How the reference shows the methods that ask: each makes a question, and returns what answers it."""

from __future__ import annotations

from typing import Any

import griffe


class QuestionMethods(griffe.Extension):
    """Shows no return type of them: it is that of the question. Their docstrings begin with that of the answer."""

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if any(str(decorator.value) == "_asks" for decorator in func.decorators):
            func.returns = None
