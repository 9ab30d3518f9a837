"""Two computations at once, where a machine has two processors: one here, the other in a copy of this process.

The copy computes and decides nothing: what it answers is what this process would have computed itself, which it does when
there is no copy, or the copy failed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import BinaryIO, Final, Generic, TypeVar, cast

from reconciler.documents.kept import again_from, keep_in

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h

_There = TypeVar("_There")
_Here = TypeVar("_Here")
_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")


def both(there: Callable[[], _There], here: Callable[[], _Here], *, worth: bool = True) -> tuple[_There, _Here]:
    """The results of both. What `there` answers has to be small: it is copied. Errors are raised as without a copy."""
    with Beside[None, _There](lambda _: there(), worth=worth) as copy:
        copy.ask(None)
        result = here()
        return copy.answer(), result


class Beside(Generic[_Question, _Answer]):
    """One function, asked several times in turn, in a copy that remembers what it worked out for earlier questions.

    Questions and answers are copied and have to be small. Without a copy `ask` works the answer out itself, as `answer`
    does when the copy failed; the function has to come to the same whatever it was asked before.
    """

    def __init__(self, work: Callable[[_Question], _Answer], *, worth: bool = True) -> None:
        """`worth`: whether the work is worth a copy."""
        self._work = work
        self._question: _Question | None = None
        self._worked_out: list[_Answer] = []
        self._copy = _begin(work) if worth and _able() else None

    def __enter__(self) -> Beside[_Question, _Answer]:
        return self

    def ask(self, question: _Question) -> None:
        """Let the copy begin; `answer` comes next."""
        self._question = question
        if self._copy is None:
            self._worked_out = [self._work(question)]
            return
        with contextlib.suppress(OSError):  # it is gone: no answer will come either
            keep_in(self._copy.questions, question)
            self._copy.questions.flush()

    def answer(self) -> _Answer:
        """The answer to what was asked last."""
        if self._copy is not None:
            with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
                return cast("_Answer", again_from(self._copy.answers))
            self.__exit__(None, None, None)
        if not self._worked_out:
            self._worked_out = [self._work(cast("_Question", self._question))]
        return self._worked_out.pop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        if self._copy is None:
            return
        copy, self._copy = self._copy, None
        os.kill(copy.pid, signal.SIGKILL)  # it has nothing to tidy up
        os.waitpid(copy.pid, 0)
        for pipe in (copy.questions, copy.answers):
            with contextlib.suppress(OSError):
                pipe.close()


class _Copy:
    __slots__ = ("answers", "pid", "questions")

    def __init__(self, pid: int, questions: BinaryIO, answers: BinaryIO) -> None:
        self.pid, self.questions, self.answers = pid, questions, answers


def _able() -> bool:
    """A copy has one thread: locks that others hold in this moment would stay locked in it for ever."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1 and threading.active_count() == 1


def _begin(work: Callable[[_Question], _Answer]) -> _Copy | None:
    """Start the copy. None when there is no room for one."""
    asked, asking = os.pipe()
    answered, answering = os.pipe()
    owner = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        for pipe in (asked, asking, answered, answering):
            os.close(pipe)
        return None
    if pid:
        os.close(asked)
        os.close(answering)
        return _Copy(pid, os.fdopen(asking, "wb"), os.fdopen(answered, "rb"))
    try:
        _end_with(owner)
        os.close(asking)
        os.close(answered)
        _answer_all(work, os.fdopen(asked, "rb"), os.fdopen(answering, "wb"))
    finally:
        os._exit(1)  # nothing of what this process was about to do is done twice


def _end_with(owner: int) -> None:
    """In the copy: it ends when the process it is of does, even one that was killed and could not say so."""
    import ctypes  # only here: looking for it costs more than many a copy saves

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner:
        os._exit(1)  # it had gone before the kernel was asked


def _answer_all(work: Callable[[_Question], _Answer], asked: BinaryIO, answering: BinaryIO) -> None:
    """Until nobody asks any more. An error ends the copy: it will be raised where it belongs."""
    with contextlib.suppress(EOFError):
        while True:
            keep_in(answering, work(cast("_Question", again_from(asked))))
            answering.flush()
