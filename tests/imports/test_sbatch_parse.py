"""What each option says: forms, limits, and what sbatch refuses."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.imports.sbatch.lines import repaired
from reconciler.imports.sbatch.parse import parse_sbatch
from tests.imports.scripts import component, parsed, text_of


def codes(directives: str) -> list[str]:
    return [problem.code for problem in parsed(directives).problems]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("30", 1800),
        ("1:30", 90),
        ("02:00:00", 7200),
        ("2-12", 216_000),
        ("1-0:30", 88_200),
        ("2-12:30:00", 217_800),
        ("0", "unlimited"),
        ("UNLIMITED", "unlimited"),
        ("infinite", "unlimited"),
    ],
)
def test_time(written: str, seconds: int | str) -> None:
    assert component(f"#SBATCH -t {written}").asked == {"time_limit_s": seconds}


@pytest.mark.parametrize("written", ["", "abc", "1:2:3:4", "1h", "-5", "9999999999999"])
def test_time_that_is_none(written: str) -> None:
    assert codes(f"#SBATCH --time={written}") == ["INVALID_TIME"]


@pytest.mark.parametrize(
    ("option", "asked"),
    [
        ("--mem=4096", {"mem": {"per_node_mb": 4096}}),
        ("--mem=1500K", {"mem": {"per_node_mb": 2}}),
        ("--mem=2T", {"mem": {"per_node_mb": 2 << 20}}),
        ("--mem=1GB", {"mem": {"per_node_mb": 1024}}),
        ("--mem=0", {"mem": {"all_of_node": True}}),
        ("--mem=8G --mem-per-cpu=2G", {"mem": {"per_cpu_mb": 2048}}),
        ("-N 2k", {"nodes": {"min": 2048, "max": 2048}}),
        ("--gres=gpu", {"gpus": {"per_node": 1}}),
        ("--gres=gpu:h100", {"gpus": {"per_node": 1, "type": "h100"}}),
        ("--gres=gres/gpu:h100=4", {"gpus": {"per_node": 4, "type": "h100"}}),
        ("--gres=gpu:4 --gres=none", {}),
        ("-G 8 --gpus-per-task=h100:1", {"gpus": {"per_task": 1, "total": 8, "type": "h100"}}),
        ("--gres=gpu:0", {}),
        ("--signal=10@30", {"signal": {"name": "USR1", "seconds": 30, "target": "steps"}}),
        ("--signal=b:SIGTERM", {"signal": {"name": "TERM", "seconds": 60, "target": "batch"}}),
        ("--requeue --no-requeue", {"requeue": False}),
        ("--no-requeue --requeue", {"requeue": True}),
        ("--exclusive=user", {"exclusive": "user"}),
        ("--exclusive -s", {}),
        ("--nice", {"nice": 100}),
        ("--nice=-5", {"nice": -5}),
        ("-Hp a,b", {"hold": True, "partitions": ["a", "b"]}),
        ("-w n[01-03],x", {"nodelist": ["n01", "n02", "n03", "x"]}),
        ("--switches=2", {"switches": {"count": 2}}),
        ("--switches=2@1-0", {"switches": {"count": 2, "max_wait_s": 86_400}}),
        ("--array=1,3,5-9:2%2", {"array": {"ids": [1, 3, 5, 7, 9], "max_concurrent": 2}}),
        ("-d after:1+5:2", {"dependency": [{"type": "after", "jobs": [1], "delay_min": 5}, {"type": "after", "jobs": [2]}], "dependency_join": "all"}),
        ("-d afterok:1?afterany:2_3", {"dependency": [{"type": "afterok", "jobs": [1]}, {"type": "afterany", "jobs": ["2_3"]}], "dependency_join": "any"}),
        ("-n 4 --ntasks-per-no 2", {"ntasks_per_node": 2, "ntasks_total": 4}),
    ],
)  # fmt: skip
def test_option(option: str, asked: dict[str, Any]) -> None:
    assert component(f"#SBATCH {option}").asked == asked


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("--nodes=4-2", "INVALID_NODES"),
        ("--nodes=1,2", "INVALID_NODES"),
        ("--nodes=0", "INVALID_NODES"),
        ("-N=2", "INVALID_NODES"),
        ("--gpus=a100:2,h100:2", "INVALID_GPUS"),
        ("--gres=gpu:a100:2,gpu:h100:2", "INVALID_GRES"),
        ("--array=0-2000000000", "INVALID_ARRAY"),
        ("--array=5-1", "INVALID_ARRAY"),
        ("--signal=USR9", "INVALID_SIGNAL"),
        ("--mem=lots", "INVALID_MEM"),
        ("--dependency=afterok:$ID", "INVALID_DEPENDENCY"),
        ("--nodelist=n[1-99999999]", "INVALID_NODELIST"),
        ("--nodelist=/etc/hosts", "INVALID_NODELIST"),
        ("--gpus-per-node", "OPTION_FORM"),
        ("--contiguous=yes", "OPTION_FORM"),
        ("--ntasks-per=2", "UNKNOWN_OPTION"),
        ("-y", "UNKNOWN_OPTION"),
        ("nodes=2", "UNEXPECTED_WORD"),
        ("--nodes 2 3", "UNEXPECTED_WORD"),
        ("\u2013nodes=2", "DAMAGED_DASH"),
        ('--job-name="open', "UNCLOSED_QUOTE"),
        ("-N 2 --gpus-per-node=8 --gpus=4", "CONFLICTING_GPUS"),
        ("--gres=gpu:4 --gpus-per-node=8", "CONFLICTING_GPUS"),
        ("--gres=gpu:a100:4 --gpus=h100:4", "CONFLICTING_GPUS"),
    ],
)
def test_option_that_is_refused(option: str, code: str) -> None:
    script = parsed(f"#SBATCH {option}")
    assert [problem.code for problem in script.problems] == [code]
    assert script.problems[0].line in {2, 0}


def test_all_problems_are_told_at_once() -> None:
    assert codes("#SBATCH --nodes=0\n#SBATCH --tme=4\n#SBATCH --mem=x") == [
        "INVALID_NODES", "UNKNOWN_OPTION", "INVALID_MEM",
    ]  # fmt: skip


def test_a_component_inherits_some_options_and_starts_others_anew() -> None:
    script = parsed(
        "#SBATCH -A a -J first -t 60 --mem=8G -N 4 --gres=gpu:8 -p x --exclusive --switches=1 -n 4 -w n1 -C c\n"
        "#SBATCH hetjob\n#SBATCH --gpus=1\n#SBATCH packjob\n#SBATCH --mem-per-cpu=1G\n#SBATCH hetjob"
    )
    kept = {"account": "a", "job_name": "first", "time_limit_s": 3600}
    _, second, third, fourth = (dict(component.asked) for component in script.components)
    assert second == {**kept, "mem": {"per_node_mb": 8192}, "gpus": {"total": 1}}
    assert third == {**kept, "mem": {"per_cpu_mb": 1024}}
    assert fourth == kept


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "EMPTY_SCRIPT"),
        (b"\n\n", "EMPTY_SCRIPT"),
        (b"#!/bin/bash\r\n#SBATCH -N 1\r\nsrun x\r\n", "DOS_LINE_BREAKS"),
        (b"#SBATCH -N 1\nsrun x\n", "NO_SHEBANG"),
        (b"#!/bin/bash\n#SBATCH -N 1\n// SBATCH -G 8\nsrun x\n", "DAMAGED_DIRECTIVES"),
        (b"#!/bin/bash\n//SBATCH -G 8\nsrun x\n", "NO_DIRECTIVES"),
        (b"#!/bin/bash\n\xff\xfe\n", "NOT_UTF8"),
        (b"#!/bin/bash\n\x00\n", "CONTROL_CHARACTER"),
        (b"#!/bin/bash\n#" + b"x" * (1 << 20), "TOO_LARGE"),
    ],
)
def test_what_is_no_script(content: bytes, code: str) -> None:
    script = parse_sbatch(content)
    assert code in [problem.code for problem in script.problems]
    assert script.neutral("x")["status"] == "error"
    assert not script.components


def test_damage_is_undone_and_nothing_else() -> None:
    damaged = "// !/bin/bash\r\n// SBATCH -N 2\r\n// a comment\r\n//srun ./x\r\nsrun ./x // y\r\n"
    assert repaired(damaged) == "#!/bin/bash\n#SBATCH -N 2\n# a comment\n//srun ./x\nsrun ./x // y\n"
    assert (
        repaired("#!/bin/bash\n#SBATCH \u2014nodes=2 \u2013\u2013time=4\n")
        == "#!/bin/bash\n#SBATCH --nodes=2 --time=4\n"
    )
    sound = text_of("#SBATCH -N 2 # a \u2014 b\n# // SBATCH", "// is no comment here")
    assert repaired(sound) == sound


def test_a_repaired_script_is_read() -> None:
    script = parse_sbatch(b"// !/bin/bash\n// SBATCH -N 2\nsrun ./x\n")
    assert [problem.code for problem in script.problems] == ["NO_SHEBANG", "NO_DIRECTIVES"]
    assert script.corrected is not None
    again = parse_sbatch(script.corrected.encode())
    assert not again.problems
    assert again.components[0].asked == {"nodes": {"min": 2, "max": 2}}
