"""Where a cluster is, as users write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.cluster.place import ClusterPlace, parse_place
from tilewright.cluster.slurm import job_options
from tilewright.errors import UserError


def test_places() -> None:
    assert parse_place("local:4") == ClusterPlace("local", "", 4)
    assert parse_place("tcp://127.0.0.1:8786").url == "tcp://127.0.0.1:8786"
    place = parse_place("tls://farm.example:8786?folder=/shared/files")
    assert (place.url, place.folder) == ("tls://farm.example:8786", Path("/shared/files"))
    assert place.is_encrypted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tcp://farm.example:8786", "plain TCP"),
        ("tcp://10.0.0.1:8786", "tilewright cluster certs"),
        ("tls://farm.example", "tls://HOST:PORT"),
        ("tls://farm.example:x", "tls://HOST:PORT"),
        ("http://farm.example:80", "no cluster"),
        ("local:many", "local:N"),
        ("local:100000", "from 0 to 10000"),
        ("slurm:0", "from 1 to 10000"),
        ("", "no cluster"),
        ("local:2?color=red", r"'color' is no option of it \(allowed: none\)"),
    ],
)
def test_what_is_no_place_is_said(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_place(text)


def test_jobs_of_slurm() -> None:
    jobqueue = pytest.importorskip(
        "dask_jobqueue.slurm", reason="dask-jobqueue is not installed (extra `cluster`)"
    )
    place = parse_place(
        "slurm:2?queue=long&folder=/shared&device=cuda://0&gres=gpu:1&walltime=01:00:00&memory=6GB"
    )
    jobs = job_options(place, Path("/shared/my certs"))
    assert list(jobs) == ["compile-0", "compile-1", "device-0"]
    script = jobqueue.SLURMJob("tls://head:1", name="device-0", **jobs["device-0"]).job_script()
    assert "#SBATCH -p long" in script
    assert "#SBATCH --mem=6G" in script
    assert "#SBATCH --gres=gpu:1" in script
    (command,) = [line for line in script.splitlines() if "tilewright" in line]
    assert " worker --scheduler tls://head:1 --name device-0 " in command
    assert command.endswith("--role device --device cuda://0 --certs '/shared/my certs'")
    compiling = jobqueue.SLURMJob("tls://head:1", name="c", **jobs["compile-0"]).job_script()
    assert "gres" not in compiling
    with pytest.raises(UserError, match="devices=none"):
        job_options(parse_place("slurm:1?devices=none"), Path("/shared"))
