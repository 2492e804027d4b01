"""Cases of test_process.py: hbc in a process that forks, has threads, gets signals and ends.

    python process_cases.py TIMES CASE…

imports and fits everything once. Each time, each case runs in a child of that process, which then ends as Python ends. A line of output
says how: the case, and "good" or what went wrong.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any, NoReturn

import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression, RidgeClassifier

import hbc
from hbc.process import building

AT_EXIT: list[Callable[[], object]] = []
"""What a child does at its exit after hbc's own exit hook: this is registered before the tvm backend is imported."""
atexit.register(lambda: [function() for function in AT_EXIT])
LIMIT = 300.0  # seconds of a case; the longest take 5 on a quiet machine
X = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
LARGE = np.tile(X, (1000, 1))
SOURCES = [LogisticRegression(C=c).fit(X, X[:, 0] > X[:, 1]) for c in (1, 2)] + [RidgeClassifier().fit(X, np.arange(300) % 3)]
"""The first two share their code, the third one has its own."""
EXPECTED = [source.decision_function(X) for source in SOURCES]
CASES: dict[str, Callable[[random.Random], None]] = {}


def case(function: Callable[[random.Random], None]) -> Callable[[random.Random], None]:
    CASES[function.__name__] = function
    return function


def model(which: int, threads: int = 1) -> Any:
    return hbc.convert(SOURCES[which], "tvm", threads=threads)


def check(compiled: Any, which: int) -> None:
    """Results are right; the first call compiles."""
    np.testing.assert_allclose(compiled.decision_function(X), EXPECTED[which], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(compiled.decision_function(X[:1]), EXPECTED[which][:1], rtol=1e-5, atol=1e-5)


def check_large(compiled: Any, which: int) -> None:
    """Results are right where threads share the work."""
    np.testing.assert_allclose(compiled.decision_function(LARGE)[-len(X) :], EXPECTED[which], rtol=1e-5, atol=1e-5)


@building
def forget() -> None:
    """Empty the cache of code: models that are made now compile at their first call."""
    from hbc.compiler.tvm.run import cache

    cache._recent.clear()
    cache._alive.clear()


def in_background(function: Callable[[], object]) -> threading.Thread:
    """A daemon thread that repeats the work."""

    def run() -> None:
        while True:
            function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def compiling() -> threading.Thread:
    def compile_all() -> None:
        forget()
        for which in range(3):
            check(model(which), which)

    return in_background(compile_all)


def forked(function: Callable[[], object]) -> None:
    """Does the work in a forked child, which must end."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def hang_up(pause: float = 0.3) -> None:
    """End this process, whose thread runs, in a moment."""
    time.sleep(pause)
    sys.exit()


# --- fork --------------------------------------------------------------------------------------------------------------


@case
def fork_while_a_thread_compiles(chance: random.Random) -> None:
    forget()
    shared = model(0)
    threading.Thread(target=check, args=(shared, 0), daemon=True).start()
    compiling()
    for _ in range(3):
        time.sleep(chance.uniform(0, 0.3))
        forked(lambda: (check(shared, 0), check(model(1), 1)))


@case
def fork_in_a_thread_while_the_main_one_compiles(chance: random.Random) -> None:
    forget()
    shared = model(0)

    def fork() -> None:
        time.sleep(chance.uniform(0, 0.3))
        forked(lambda: (check(shared, 0), check(model(1), 1)))

    with ThreadPoolExecutor(1) as pool:
        forks = pool.submit(fork)
        check(shared, 0)
        check(model(2), 2)
        forks.result()


@case
def fork_while_threads_call(chance: random.Random) -> None:
    few, many = model(0), model(0, threads=2)
    check(few, 0)
    in_background(lambda: few.decision_function(X[:1]))
    in_background(lambda: many.decision_function(LARGE))
    for _ in range(3):
        time.sleep(chance.uniform(0, 0.1))
        forked(lambda: (check(few, 0), check_large(many, 0)))


@case
def worker_processes_while_a_thread_compiles(chance: random.Random) -> None:
    compiling()
    shared = model(0, threads=2)
    with get_context("fork").Pool(2) as pool:
        parts = pool.map(shared.decision_function, [X, X])
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as executor:
        parts.append(executor.submit(shared.decision_function, X).result())
    for part in parts:
        np.testing.assert_array_equal(part, shared.decision_function(X))


# --- threads -----------------------------------------------------------------------------------------------------------


@case
def first_calls_at_once(chance: random.Random) -> None:
    forget()
    shared, barrier = model(0, threads=2), threading.Barrier(6)

    def call(method: str) -> Any:
        barrier.wait()
        return getattr(shared, method)(LARGE)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(call, ["decision_function", "predict", "predict_proba"] * 2))
    for first, second in zip(results[:3], results[3:], strict=True):
        np.testing.assert_array_equal(first, second)
    check(shared, 0)
    for part in joblib.Parallel(n_jobs=2, backend="threading")(joblib.delayed(shared.decision_function)(X) for _ in range(4)):
        np.testing.assert_array_equal(part, shared.decision_function(X))


@case
def calls_after_the_main_thread_ended(chance: random.Random) -> None:
    before, after = model(0, threads=2), model(1, threads=2)
    before.decision_function(LARGE)

    def call() -> None:
        try:
            threading.main_thread().join()
            check(before, 0)
            check_large(before, 0)
            check_large(after, 1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=call).start()


# --- exit --------------------------------------------------------------------------------------------------------------


@case
def exit_while_a_thread_calls(chance: random.Random) -> None:
    shared = model(0)
    check(shared, 0)
    in_background(lambda: shared.decision_function(X[:1]))
    handle, row = shared.bind("decision_function"), X[:1].copy()
    out = handle.empty(1)
    in_background(lambda: handle(row, out))
    hang_up(chance.uniform(0.01, 0.1))


@case
def exit_while_threads_share_a_call(chance: random.Random) -> None:
    alone, shared = model(0), model(0, threads=2)
    in_background(lambda: alone.decision_function(LARGE))
    in_background(lambda: shared.decision_function(LARGE))
    hang_up(chance.uniform(0.1, 0.3))


@case
def exit_while_a_thread_compiles(chance: random.Random) -> None:
    compiling()
    hang_up(chance.uniform(0, 0.5))


@case
def exit_handlers_call_models(chance: random.Random) -> None:
    forget()
    first, second, large = model(0), model(1), model(2, threads=2)
    check(first, 0)
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            first.decision_function(LARGE)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    AT_EXIT.extend([lambda: (stop.set(), thread.join()), lambda: check(first, 0), lambda: check(second, 1)])
    atexit.register(check_large, large, 2)


@case
def a_thread_exits(chance: random.Random) -> None:
    shared = model(0)
    thread = threading.Thread(target=lambda: (shared.decision_function(X), sys.exit(3)))
    thread.start()
    thread.join()
    globals()["kept"] = shared
    check(shared, 0)


@case
def exit_at_once(chance: random.Random) -> None:
    compiling()
    time.sleep(chance.uniform(0, 0.3))
    os._exit(0)


# --- signals -----------------------------------------------------------------------------------------------------------


class Late(Exception):
    """The error that a user's signal handler raises."""


@case
def interrupted(chance: random.Random) -> None:
    def late(*_: object) -> NoReturn:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have it ignored by what they start in the background
    forget()
    start = time.perf_counter()
    check(model(0), 0)
    usual = time.perf_counter() - start
    for which, (kind, error) in enumerate([(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Late)]):
        compiled = model(which + 1)
        forget()
        timer = threading.Timer(chance.uniform(0, usual / 2), os.kill, (os.getpid(), kind))
        try:
            timer.start()
            for _ in range(1000):  # it comes in one of them
                compiled.decision_function(X)
                time.sleep(0.01)
            raise AssertionError("no signal came")
        except error:
            pass
        timer.join()
        check(compiled, which + 1)
        check(model(which + 1), which + 1)
        with ThreadPoolExecutor(1) as pool:  # no lock is held
            forget()
            pool.submit(check, model(0), 0).result()


@case
def handlers_call_models(chance: random.Random) -> None:
    forget()
    shared, other, calls = model(0), model(1), []

    def handle(*_: object) -> None:
        check(shared, 0)
        check(other, 1)
        forked(lambda: (check(shared, 0), check(model(2), 2)))
        calls.append(None)

    signal.signal(signal.SIGALRM, handle)
    timer = threading.Timer(chance.uniform(0, 0.3), os.kill, (os.getpid(), signal.SIGALRM))
    timer.start()
    check(shared, 0)
    timer.join()
    while not calls:
        time.sleep(0.01)


# --- all of them ---------------------------------------------------------------------------------------------------------


def run(name: str, time_of: int) -> str:
    """How a case ended, which ran in a child of this process. In the child itself: "", and it must end."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            CASES[name](random.Random(f"{name} {time_of}"))
        except Exception:
            traceback.print_exc()
            os._exit(1)
        return ""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return "good" if code == 0 else f"exit code {code}"
        time.sleep(0.01)
    os.kill(child, signal.SIGABRT)  # faulthandler prints where it hangs
    os.waitpid(child, 0)
    return "does not end"


def main() -> None:
    model(0)  # imports what every child would import
    times, *names = sys.argv[1:]
    for time_of in range(int(times)):
        if time_of == 1:  # most cases need not compile more than once
            check(model(0), 0)
            check(model(2), 2)
        for name in names or CASES:
            result = run(name, time_of)
            if not result:
                return
            print(f"{name}: {result}", flush=True)


if __name__ == "__main__":
    main()
