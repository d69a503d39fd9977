"""Taps of layers that are modules: each kind of module is one file, registered by its type."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import nullcontext
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dualform.errors import RecordingError
from dualform.record.taps import Call, Listener, Tap


class ModuleTap(Tap):
    """A layer that is a module, watched by a forward hook. A subclass names the module type it taps."""

    module_type: ClassVar[type[nn.Module]]
    _kinds: ClassVar[dict[type[nn.Module], type[ModuleTap]]] = {}

    def __init_subclass__(cls, *, module_type: type[nn.Module] | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if module_type is not None:
            cls.module_type = module_type
            ModuleTap._kinds[module_type] = cls

    @staticmethod
    def kind_of(module: nn.Module) -> type[ModuleTap] | None:
        """The kind that taps a module; None where there is none."""
        return next((kind for base, kind in ModuleTap._kinds.items() if isinstance(module, base)), None)

    def __init__(self, name: str, module: nn.Module, values: bool = True) -> None:
        """`values`: error signals are wanted, too."""
        super().__init__(name, values)
        self.module = module
        self._handle: RemovableHandle | None = None

    @classmethod
    @abstractmethod
    def refusal(cls, module: nn.Module) -> str:
        """Why this kind cannot tap a module of its type; empty where it can."""

    @abstractmethod
    def call_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Call:
        """What a forward call was, from its arguments and its output. Raises RecordingError for one without keys."""

    @abstractmethod
    def output_of(self, outputs: tuple[Tensor, ...]) -> Any:
        """`Call.outputs` put together as the module returns them."""

    def parameter_name(self, name: str) -> str:
        """A parameter's name in the model's state dict."""
        return f"{self.name}.{name}" if self.name else name

    def attach(self, listener: Listener) -> None:
        self._handle = self.module.register_forward_hook(_Hook(self, listener), with_kwargs=True)

    def detach(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


class _Hook:
    """The forward hook of a tap. A copy of it, in a model that is copied or saved, does nothing."""

    def __init__(self, tap: ModuleTap, listener: Listener) -> None:
        self._tap, self._listener = tap, listener

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        mode = self._listener.forward_mode()
        if mode is None or (mode == "step" and not module.training):
            return None
        try:
            call = self._tap.call_of(args, kwargs, output)
        except RecordingError as error:
            self._listener.refused(self._tap, error)
            return None
        outputs = self._tap.passed(self._listener, call)
        return None if outputs is call.outputs else self._tap.output_of(outputs)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes any arguments and returns None, so that a saved model loads
        # where dualform is not installed.
        return getattr, (nullcontext(), "__exit__")
