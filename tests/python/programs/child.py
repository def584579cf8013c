"""Runs a function in a forked child, so that a crash or an endless loop is a result like any other."""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Any

# No child may inherit the end of another's pipe: the reader would not see that one's death.
_forking = threading.Lock()


class ChildFailed(Exception):
    """The child crashed, did not end in time, or (`raised`) raised: the text says which."""

    def __init__(self, text: str, raised: bool = False) -> None:
        super().__init__(text)
        self.raised = raised


def in_child(function: Callable[[], Any], seconds: float) -> Any:
    """The result of `function`, computed in a child process; ChildFailed if there is none."""
    with _forking:
        reading, writing = os.pipe()
        child = os.fork()
        if child != 0:
            os.close(writing)
    if child == 0:
        os.close(reading)
        try:
            answer = (True, function())
        except BaseException:
            answer = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    with os.fdopen(reading, "rb") as pipe:
        in_time = bool(select.select([pipe], [], [], seconds)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not in_time:
        raise ChildFailed(f"no end after {seconds:g} seconds")
    if not data:
        code = os.waitstatus_to_exitcode(status)
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise ChildFailed(f"the process died: {how}")
    fine, value = pickle.loads(data)
    if not fine:
        raise ChildFailed(value, raised=True)
    return value
