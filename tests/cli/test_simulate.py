"""`holdfast simulate`: what a planned fleet asks of its store."""

from pathlib import Path

from tests.cli.conftest import Run

SMALL = ("simulate", "--workers", "2", "--jobs-per-day", "1e5", "--duration-ms", "50")
LARGE = ("simulate", "--workers", "2000", "--jobs-per-day", "500e6", "--duration-ms", "300")


def test_a_small_plan_fits_and_opens_no_store(run: Run, folder: Path) -> None:
    for store in ("sqlite", "postgres"):
        found = run(*SMALL, "--store", store)
        assert "The plan fits" in found.stdout
        assert "Changes, " not in found.stdout
        assert "Costs were measured on" in found.stderr
    assert not list(folder.iterdir())


def test_a_plan_that_is_too_large_names_its_bottleneck_and_what_to_change(run: Run) -> None:
    found = run(*LARGE, code=7)
    assert "The plan does not fit. First bottleneck: connections, full without any job." in found.stdout
    changes = found.stdout.partition("Changes, one after the other:\n")[2].splitlines()
    assert changes[0].startswith("  --workers ")
    assert ": fits, " in changes[-1]


def test_what_is_advised_fits(run: Run) -> None:
    """The options that are printed are options of the command, with values that it takes."""
    advised = run(*LARGE, code=7).stdout.partition("Changes, one after the other:\n")[2].splitlines()
    options = [word for line in advised for word in line.partition(":")[0].split()]
    assert "The plan fits" in run(*LARGE, *options).stdout


def test_a_program_reads_numbers(run: Run) -> None:
    found = run.json(*LARGE, code=7)
    assert set(found) == {
        *("store", "measured", "plan", "fits", "bottleneck", "jobs_s", "running", "batch"),
        *("server_cores", "worker_cores", "producer_cores", "transactions_s", "wal_bytes_s", "wal_bytes_day"),
        *("disk_bytes_day", "disk_bytes", "connections_idle", "connections", "limits", "events", "changes"),
    }
    assert (found["fits"], found["bottleneck"]) == (False, "connections")
    assert found["jobs_s"] == 11570
    assert set(found["limits"][0]) == {"limit", "used", "available", "full_at_jobs_day", "share"}
    assert set(found["changes"][0]) == {"change", "to", "fits", "bottleneck", "server_cores"}
    disk = next(each for each in found["limits"] if each["limit"] == "disk")
    assert disk["available"] is None  # JSON has no infinity


def test_the_disk_can_be_the_bottleneck(run: Run) -> None:
    found = run.json(*SMALL, "--disk-gb", "0.1", "--retention", "30d", code=7)
    assert found["bottleneck"] == "disk"
    assert [change["change"] for change in found["changes"]] == ["retention_s"]
