"""Attributes that are computed at their first use."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801  its name in functools
        """`functools.cached_property` as it is since Python 3.12: without a lock.

        Before 3.12, all objects of a class shared one lock. If a signal handler called a model while its thread held that lock, it waited
        for ever, since the thread that compiles needs the lock too. And a forked child could inherit the locked lock. Without a lock, two
        threads may compute a value at the same time. That does no harm: the values are equal.
        """

        def __init__(self, compute: Any) -> None:
            self.compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            values = instance.__dict__
            if self.name not in values:
                values[self.name] = self.compute(instance)
            return values[self.name]
