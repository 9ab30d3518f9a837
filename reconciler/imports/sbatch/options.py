"""Which options does sbatch have, what does each take, and is it of concern to where a job goes?

One table, from sbatch's manual. Prefixes are options too, when only one option begins so; that is getopt's rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Takes(Enum):
    """What follows an option: nothing, a value, or a value only when attached by `=`."""

    NOTHING = 0
    VALUE = 1
    MAYBE = 2


class Use(Enum):
    """What the neutral format does with an option."""

    READ = "read"
    INFORMATIONAL = "informational"  # legal, without effect on where the job goes
    UNSUPPORTED = "unsupported"  # has an effect, and no field


@dataclass(frozen=True, slots=True)
class Option:
    """One option by its long name."""

    name: str
    takes: Takes
    use: Use


_READ: Final = """
account=A array=a begin=b constraint=C contiguous! container-image: container-mounts: container-workdir:
cpus-per-gpu: cpus-per-task=c dependency=d exclude=x exclusive? gpus=G gpus-per-node: gpus-per-task: gres: hold!H
job-name=J kill-on-invalid-dep: mem: mem-per-cpu: mem-per-gpu: nice? no-requeue! nodelist=w nodes=N ntasks=n
ntasks-per-gpu: ntasks-per-node: partition=p qos=q requeue! reservation: signal: switches: time=t time-min:
"""
_INFORMATIONAL: Final = """
acctg-freq: chdir=D comment: error=e export: export-file: extra: get-user-env? gid: help!h ignore-pbs! input=i
mail-type: mail-user: mcs-label: open-mode: output=o parsable! profile: propagate? quiet!Q test-only! uid: usage!
verbose!v version!V wait!W wckey: stepmgr!
"""
_UNSUPPORTED: Final = """
batch: bb: bbf: cluster-constraint: clusters=M container: container-id: consolidate-segments! core-spec=S
cores-per-socket: cpu-freq: deadline: delay-boot: distribution=m exclusive-topo! extra-node-info=B gpu-bind:
gpu-freq: gpus-per-socket: gres-flags: hint: licenses=L mem-bind: mincpus: network: no-kill?k nodefile=F
ntasks-per-core: ntasks-per-socket: oom-kill-step? overcommit!O oversubscribe!s power: prefer: priority: reboot!
resv-ports? segment: sockets-per-node: spread-job! thread-spec: threads-per-core: tmp: tres-bind: tres-per-task:
use-min-nodes! wait-all-nodes: wrap:
"""
_SIGNS: Final = {"=": Takes.VALUE, ":": Takes.VALUE, "!": Takes.NOTHING, "?": Takes.MAYBE}


def _table() -> tuple[dict[str, Option], dict[str, Option]]:
    by_name, by_letter = {}, {}
    for words, use in ((_READ, Use.READ), (_INFORMATIONAL, Use.INFORMATIONAL), (_UNSUPPORTED, Use.UNSUPPORTED)):
        for word in words.split():
            name, sign, letter = next(word.partition(sign) for sign in _SIGNS if sign in word)
            by_name[name] = option = Option(name, _SIGNS[sign], use)
            if letter:
                by_letter[letter] = option
    return by_name, by_letter


OPTIONS, LETTERS = _table()
"""By long name, and by letter."""


def find_option(name: str) -> Option | None:
    """The option of this long name, or the only one that begins so; None when there is none or several."""
    if name in OPTIONS:
        return OPTIONS[name]
    begun = [option for known, option in OPTIONS.items() if name and known.startswith(name)]
    return begun[0] if len(begun) == 1 else None
