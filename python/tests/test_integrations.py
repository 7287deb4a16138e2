"""Leased cores in other packages: joblib, Parsl, Dask, and progress bars; each where it is installed."""

import io
import multiprocessing
import os
import sys
import threading
import time
import types

import pytest

import sublet
from sublet import _kept, _modules
from waiting import until, with_growing_time


def double(x):
    return 2 * x


# joblib


@pytest.fixture
def joblib(platform):
    joblib = pytest.importorskip("joblib", minversion="1.5")
    import sublet.joblib  # noqa: F401

    yield joblib
    _kept.release()


def process_and_inner(joblib, n):
    """Where this is executed, and what a `Parallel` within it is."""
    inner = joblib.Parallel(n_jobs=2)
    return os.getpid(), inner(joblib.delayed(double)(k) for k in range(n)), type(inner._backend).__name__


def test_joblib_calls_are_executed_on_leased_cores(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        assert joblib.Parallel()(joblib.delayed(double)(n) for n in range(1000)) == list(range(0, 2000, 2))
        pids = joblib.Parallel(batch_size=1)(joblib.delayed(os.getpid)() for _ in range(20))
    assert os.getpid() not in pids


def test_joblib_may_be_told_the_leases_options_by_parallel_itself(joblib, platform):
    parallel = joblib.Parallel(2, backend="sublet", client=platform, environment={"COLOUR": "red"}, wait=60)
    assert parallel(joblib.delayed(os.getenv)("COLOUR") for _ in range(4)) == ["red"] * 4
    with joblib.parallel_config(backend="sublet", colour="red"):
        with pytest.raises(sublet.InvalidArgument, match="colour"):
            joblib.Parallel(n_jobs=2)([joblib.delayed(double)(1)])


def test_joblib_raises_what_the_function_raised_and_gives_the_cores_back(joblib, platform):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        with pytest.raises(ZeroDivisionError) as raised:
            joblib.Parallel()(joblib.delayed(divmod)(1, n - 5) for n in range(100))
        assert isinstance(raised.value.__cause__, sublet.RemoteTraceback)
        with pytest.raises(sublet.WorkerDied):
            joblib.Parallel()(joblib.delayed(os._exit)(n) for n in range(10))
        with pytest.raises(TypeError, match="cannot be sent"):
            joblib.Parallel(pre_dispatch="all", batch_size=1)(joblib.delayed(double)(threading.Lock()) for _ in range(50))
    with platform.lease(2):
        pass


def test_joblib_keeps_its_workers_within_a_with_block(joblib):
    with joblib.Parallel(2, backend="sublet", batch_size=1, wait=60) as parallel:
        before = set(parallel(joblib.delayed(os.getpid)() for _ in range(20)))
        assert before >= set(parallel(joblib.delayed(os.getpid)() for _ in range(20)))
        with pytest.raises(ZeroDivisionError):
            parallel(joblib.delayed(divmod)(1, 0) for _ in range(20))
        assert parallel(joblib.delayed(double)(n) for n in range(3)) == [0, 2, 4]


def identity():
    """An identifier of this worker: in their sandboxes, several may have the same process number."""
    import builtins

    if not hasattr(builtins, "identity"):
        builtins.identity = os.urandom(8)
    return builtins.identity


def processes(joblib, count=20):
    return set(joblib.Parallel(batch_size=1)(joblib.delayed(identity)() for _ in range(count)))


def test_joblib_keeps_its_workers_from_call_to_call(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        before = processes(joblib)
        assert all(processes(joblib) <= before for _ in range(3))
        with joblib.parallel_config(backend="sublet", n_jobs=2, environment={"COLOUR": "red"}, wait=60):
            assert not processes(joblib) & before, "workers of other options"
            with pytest.raises(ZeroDivisionError):
                joblib.Parallel()(joblib.delayed(divmod)(1, 0) for _ in range(4))
            assert joblib.Parallel()(joblib.delayed(os.getenv)("COLOUR") for _ in range(2)) == ["red"] * 2
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60, idle_worker_timeout=0):
        before = processes(joblib)
        assert _kept.is_empty() and not processes(joblib) & before


def test_joblib_shares_kept_workers_by_client_number_and_options(joblib, platform):
    from sublet.joblib import _key_of

    key = _key_of(platform, 2, {"path": [], "wait": 60})
    assert key == _key_of(platform, 2, {"path": [], "wait": 5}), "how long the lease was waited for does not matter"
    assert key != _key_of(platform, 3, {"path": [], "wait": 60})
    assert key != _key_of(object(), 2, {"path": [], "wait": 60})
    assert key != _key_of(platform, 2, {"path": [], "memory": "1GiB"})
    assert _key_of(platform, 2, {"path": [], "environment": threading.Lock()}) is None, "cannot be compared"


def test_joblib_collects_modules_again_only_after_imports(joblib, monkeypatch):
    collected, selected = [], _modules.selected
    monkeypatch.setattr(_modules, "selected", lambda paths, visible=(): collected.append(paths) or selected(paths, visible))
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        processes(joblib)
        monkeypatch.setitem(sys.modules, "imported_now", types.ModuleType("imported_now"))
        collected.clear()
        for _ in range(3):
            processes(joblib)
    assert collected == [None]


def test_joblib_gives_kept_cores_back_to_whatever_needs_them(joblib):
    with sublet.local(cores=2, listen="127.0.0.1:0") as client:
        uses = (
            lambda: client.lease(2).close(),
            lambda: client.lease(2, wait=60).close(),
            lambda: sublet.Executor(2, client=client).shutdown(),
        )
        with joblib.parallel_config(backend="sublet", n_jobs=2, client=client, wait=60):
            for use in uses:
                processes(joblib)
                assert not _kept.is_empty()
                begun = time.monotonic()
                use()
                assert _kept.is_empty() and time.monotonic() - begun < 30


@pytest.mark.parametrize(
    ("kind", "use", "argument"),
    [(sublet.Lease, "grow", 1), (sublet.Application, "run", b""), (sublet.Application, "resume", "a run")],
)
def test_kept_cores_are_given_back_before_others_are_needed(monkeypatch, kind, use, argument):
    released = []
    monkeypatch.setattr(_kept, "release", lambda: released.append(use))
    # An object that was not opened cannot allocate.
    with pytest.raises(AttributeError):
        getattr(kind, use)(types.SimpleNamespace(), argument)
    assert released == [use]


def test_joblib_gives_kept_cores_back_when_their_platform_stops(joblib):
    with sublet.local(cores=2, listen="127.0.0.1:0") as client:
        with joblib.parallel_config(backend="sublet", n_jobs=2, client=client, wait=60):
            processes(joblib)
        assert not _kept.is_empty()
    assert _kept.is_empty()


def test_joblib_gives_idle_cores_back(joblib, platform):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60, idle_worker_timeout=0.3):
        processes(joblib)
        until(_kept.is_empty, "the idle cores are given back")
        assert len(processes(joblib)) > 0


def test_joblib_leases_anew_when_a_kept_lease_is_over(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        before = processes(joblib)
        _kept._kept[0].lease._invoker.deallocate()
        assert not processes(joblib) & before


def test_joblib_sends_modules_that_were_imported_later(joblib, tmp_path, monkeypatch):
    (tmp_path / "comes_later.py").write_text("def triple(n):\n    return 3 * n\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        processes(joblib)
        import comes_later

        assert joblib.Parallel()(joblib.delayed(comes_later.triple)(n) for n in range(4)) == [0, 3, 6, 9]


def test_joblib_generators_and_timeouts(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        assert list(joblib.Parallel(return_as="generator")(joblib.delayed(double)(n) for n in range(50))) == list(range(0, 100, 2))
        unordered = joblib.Parallel(return_as="generator_unordered")(joblib.delayed(double)(n) for n in range(50))
        assert sorted(unordered) == list(range(0, 100, 2))
        begun = time.monotonic()
        with pytest.raises(multiprocessing.TimeoutError):
            joblib.Parallel(timeout=0.3)(joblib.delayed(time.sleep)(3600) for _ in range(2))
        # Workers that still execute abandoned tasks are not kept.
        assert joblib.Parallel()(joblib.delayed(double)(n) for n in range(10)) == list(range(0, 20, 2))
        assert time.monotonic() - begun < 1800


class SleeplessTime:
    """The module `time`, as joblib sees it: counts its sleeps."""

    def __init__(self):
        self.sleeps = 0
        self.time = time.time

    def sleep(self, seconds):
        self.sleeps += 1
        time.sleep(seconds)


def test_joblib_does_not_sleep_until_results_have_come(joblib, monkeypatch):
    clock = SleeplessTime()
    monkeypatch.setattr(joblib.parallel, "time", clock)
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        assert joblib.Parallel()(joblib.delayed(double)(n) for n in range(10)) == list(range(0, 20, 2))
        with joblib.Parallel() as parallel:
            assert [parallel(joblib.delayed(double)(n) for n in range(k)) for k in (1, 5)] == [[0], [0, 2, 4, 6, 8]]
        assert joblib.Parallel(pre_dispatch="all")(joblib.delayed(time.sleep)(0.1) for _ in range(4)) == [None] * 4
    assert clock.sleeps == 0


def fail_after(tasks):
    yield from tasks
    raise KeyError("no more tasks")


def test_joblib_raises_the_first_failure_while_other_tasks_run(joblib):
    sleep = joblib.delayed(time.sleep)
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        processes(joblib)
        begun = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()([sleep(3600), joblib.delayed(divmod)(1, 0)])
        # joblib takes the tasks after these in a callback, where the iterable fails.
        with pytest.raises(KeyError, match="no more tasks"):
            joblib.Parallel(pre_dispatch=2, batch_size=1)(fail_after([sleep(3600), sleep(0)]))
        assert time.monotonic() - begun < 1800


@pytest.fixture
def renewals(monkeypatch):
    """The durations for which leases are renewed."""
    durations = []
    renew = sublet.Lease.renew

    def renew_and_count(lease, timeout):
        durations.append(timeout)
        renew(lease, timeout)

    monkeypatch.setattr(sublet.Lease, "renew", renew_and_count)
    return durations


def test_joblib_renews_kept_leases_unless_just_confirmed(joblib, renewals):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        processes(joblib, 2)
        lease = _kept._kept[0].lease
        lease._renewed_at = time.monotonic()
        processes(joblib, 2)
        assert renewals == []
        lease._renewed_at -= 1000
        processes(joblib, 2)
        assert renewals == [600] and time.monotonic() - lease._renewed_at < 900
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60, timeout=90):
        processes(joblib, 2)
        processes(joblib, 2)
        assert renewals == [600, 90]


def test_joblib_renews_the_lease_while_tasks_run(joblib, renewals, monkeypatch):
    monkeypatch.setattr(sublet.joblib, "RENEWAL_SECONDS", 0.05)
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        def renews(run):
            before = len(renewals)
            run()
            return True if len(renewals) > before + 1 else None

        def several(seconds):
            list(joblib.Parallel(batch_size=1, return_as="generator")(joblib.delayed(time.sleep)(seconds) for _ in range(8)))

        # On a machine that stands still, tasks may end before a lease is renewed twice.
        with_growing_time(0.5, lambda seconds: renews(lambda: joblib.Parallel()([joblib.delayed(time.sleep)(seconds)])))
        with_growing_time(0.1, lambda seconds: renews(lambda: several(seconds)))
    renewals.clear()
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60, timeout=90):
        joblib.Parallel(batch_size=1)(joblib.delayed(time.sleep)(0.2) for _ in range(6))
    assert renewals == []


def test_joblib_within_a_worker_is_sequential(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        got = joblib.Parallel()(joblib.delayed(process_and_inner)(joblib, n) for n in range(4))
    assert [inner for _, inner, _ in got] == [[2 * k for k in range(n)] for n in range(4)]
    assert {kind for _, _, kind in got} == {"SequentialBackend"}


def test_joblib_counts_cores_as_its_other_backends(joblib):
    from sublet.joblib import SubletBackend

    backend = SubletBackend(nesting_level=0)
    assert backend.effective_n_jobs(-1) == joblib.cpu_count()
    assert backend.effective_n_jobs(-1000) == backend.effective_n_jobs(None) == 1
    assert backend.effective_n_jobs(3) == 3
    with joblib.parallel_config(backend="sublet", wait=60):
        assert joblib.effective_n_jobs(-1) == joblib.cpu_count()
        assert joblib.Parallel(n_jobs=1)(joblib.delayed(os.getpid)() for _ in range(2)) == [os.getpid()] * 2
        with pytest.raises(ValueError, match="n_jobs == 0"):
            joblib.Parallel(n_jobs=0)([joblib.delayed(double)(1)])


def test_joblib_limits_the_threads_of_libraries(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, inner_max_num_threads=3, wait=60):
        assert joblib.Parallel()(joblib.delayed(os.getenv)("OMP_NUM_THREADS") for _ in range(2)) == ["3", "3"]


def test_joblib_is_silent_on_workers(joblib, capfd):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        joblib.Parallel()(joblib.delayed(double)(n) for n in range(10))
    assert capfd.readouterr().err == ""


def loky_processes(joblib):
    """How many processes joblib would start here."""
    with joblib.parallel_config(backend="loky"):
        return joblib.effective_n_jobs(4)


def test_joblib_starts_no_processes_on_workers(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, wait=60):
        assert joblib.Parallel()(joblib.delayed(loky_processes)(joblib) for _ in range(4)) == [1] * 4


def test_joblib_hears_of_the_end_of_its_lease(joblib):
    with joblib.parallel_config(backend="sublet", n_jobs=2, timeout=1, wait=60):
        with pytest.raises(sublet.Error):
            joblib.Parallel(batch_size=1)(joblib.delayed(time.sleep)(0.2) for _ in range(1000))


# Parsl


@pytest.fixture
def parsl(platform, tmp_path):
    parsl = pytest.importorskip("parsl")
    from sublet.parsl import SubletExecutor

    executor = SubletExecutor(cores=2, client=platform, wait=60)
    config = parsl.Config(executors=[executor], run_dir=str(tmp_path / "runinfo"), retries=1, initialize_logging=False)
    with parsl.load(config):
        yield parsl


def test_parsl_apps_are_executed_on_leased_cores(parsl):
    @parsl.python_app
    def add(a, b):
        return a + b

    @parsl.python_app
    def process():
        return os.getpid()

    # An app waits for the futures among its arguments.
    total = add(0, 0)
    for n in range(10):
        total = add(total, n)
    assert total.result() == 45
    assert os.getpid() not in {process().result() for _ in range(4)}


def test_parsl_hears_what_an_app_raised(parsl):
    @parsl.python_app
    def fails():
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        fails().result()


def test_parsl_retries_an_app_whose_worker_ended(parsl, platform):
    @parsl.python_app
    def dies():
        os._exit(7)

    @parsl.python_app
    def lives():
        return "well"

    with pytest.raises(sublet.WorkerDied, match="status 7"):
        dies().result()
    assert lives().result() == "well"


def test_parsl_reports_that_apps_have_one_core_each(parsl):
    @parsl.python_app
    def wants(parsl_resource_specification={}):
        return 1

    with pytest.raises(parsl.executors.errors.InvalidResourceSpecification, match="one leased core"):
        wants(parsl_resource_specification={"cores": 4}).result()


def test_a_parsl_executor_shows_how_it_was_made(platform):
    pytest.importorskip("parsl")
    from sublet.parsl import SubletExecutor

    assert repr(SubletExecutor(label="leased", cores=2)) == "SubletExecutor(client=None, cores=2, label='leased')"


# Dask


def test_dask_computes_delayed_functions(executor):
    dask = pytest.importorskip("dask")
    parts = [dask.delayed(double)(n) for n in range(20)]
    total = dask.delayed(sum)(parts)
    assert dask.compute(total, scheduler=executor) == (380,)
    assert os.getpid() != dask.compute(dask.delayed(os.getpid)(), scheduler=executor)[0]
    assert total.compute(scheduler=executor) == 380


def test_dask_computes_arrays(executor):
    array = pytest.importorskip("dask.array")
    import dask
    import numpy

    whole = numpy.arange(1_000_000.0).reshape(1000, 1000)
    x = array.from_array(whole, chunks=(500, 500))
    got, mean = dask.compute(x + x.T, x.mean(), scheduler=executor)
    assert (got == whole + whole.T).all()
    assert mean == whole.mean()


def test_dask_raises_what_a_function_raised(executor):
    dask = pytest.importorskip("dask")
    with pytest.raises(ZeroDivisionError):
        dask.compute(dask.delayed(divmod)(1, 0), scheduler=executor)
    assert dask.compute(dask.delayed(double)(4), scheduler=executor) == (8,)


def test_dask_takes_an_executor_as_its_pool_of_processes(executor):
    dask = pytest.importorskip("dask")
    with dask.config.set(scheduler="processes", pool=executor):
        assert os.getpid() != dask.compute(dask.delayed(os.getpid)())[0]


# Progress


def test_tqdm_shows_the_progress_of_a_map(lease):
    tqdm = pytest.importorskip("tqdm")
    shown = io.StringIO()
    items = range(200)
    assert list(tqdm.tqdm(lease.map(double, items), total=len(items), file=shown)) == [2 * n for n in items]
    assert "200/200" in shown.getvalue()


def test_rich_shows_the_progress_of_a_map(lease):
    pytest.importorskip("rich")
    from rich.console import Console
    from rich.progress import track

    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    items = range(200)
    assert list(track(lease.map(double, items), "doubling", total=len(items), console=console)) == [2 * n for n in items]
    assert "doubling" in console.file.getvalue() and "100%" in console.file.getvalue()
