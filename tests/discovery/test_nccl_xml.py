"""NCCL topology files, sound, odd and hostile."""

from __future__ import annotations

import pytest

from reconciler.discovery.nccl_xml import parse
from reconciler.discovery.parsed import Kind, Status
from tests.discovery.samples import SAMPLES

_TEXT = SAMPLES[Kind.NCCL_XML]


def test_reads_devices_paths_and_nearest_nics() -> None:
    found = parse(_TEXT)
    assert found.status is Status.OK
    content = found.content
    assert content["cpus"] == [{"numaid": 0, "cpus": "0-7", "arch": "x86_64", "vendor": "GenuineIntel"}]
    assert content["gpus"] == [
        {
            "busid": busid,
            "numaid": 0,
            "pci_path": path,
            "dev": dev,
            "rank": dev,
            "sm_or_cu": 90,
            "links": [{"type": "nvlink", "target": "0000:0a:00.0", "count": 18, "kind": "nvswitch"}],
            "link_total": 18,
        }
        for busid, path, dev in (("0000:02:00.0", ["0000:01:00.0"], 0), ("0000:04:00.0", [], 1))
    ]
    assert content["nvswitches"] == ["0000:0a:00.0"]
    assert content["link_domains"] == [["0000:02:00.0", "0000:04:00.0"]]
    assert content["nearest_nics"] == {
        "0000:02:00.0": {"link": "PIX", "nics": ["0000:03:00.0"]},
        "0000:04:00.0": {"link": "PHB", "nics": ["0000:03:00.0"]},
    }


def test_a_mask_of_several_words_has_the_highest_cpus_first() -> None:
    found = parse(_TEXT.replace('affinity="ff"', 'affinity="1,00000000,80000001"'))
    assert found.content["cpus"][0]["cpus"] == "0,31,64"  # type: ignore[index,call-overload]  # a list of mappings


def test_links_between_gpus_and_to_nobody() -> None:
    text = _TEXT.replace(
        'target="0000:0a:00.0" count="18" tclass="0x068000"', 'target="0000:04:00.0" count="4" tclass=""', 1
    )
    text = text.replace(
        'target="0000:0a:00.0" count="18" tclass="0x068000"', 'target="0000:99:00.0" count="4" tclass=""'
    )
    found = parse(text)
    assert found.content["link_domains"] == [["0000:02:00.0", "0000:04:00.0"]]
    assert found.content["dangling_link_targets"] == ["0000:99:00.0"]
    assert (found.status, [w.code for w in found.warnings]) == (Status.PARTIAL, ["DANGLING_LINKS"])


@pytest.mark.parametrize(
    ("was", "becomes", "code"),
    [
        ('numaid="0"', 'numaid="zero"', "BAD_ATTRIBUTE"),
        ('affinity="ff"', 'affinity="xyz"', "BAD_AFFINITY"),
        ('affinity="ff" ', "", "NO_AFFINITY"),
        ('count="18" ', "", "NO_LINK_COUNT"),
        ("</cpu>", '<pci busid="0000:09:00.0"/></cpu>', "UNCLASSIFIED_PCI"),
    ],
)
def test_gaps_are_named(was: str, becomes: str, code: str) -> None:
    assert was in _TEXT
    found = parse(_TEXT.replace(was, becomes, 1))
    assert found.status is Status.PARTIAL
    assert code in {w.code for w in found.warnings}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (_TEXT.replace("0000:04:00.0", "0000:02:00.0"), "DUPLICATE_BUSID"),
        (_TEXT.replace('busid="0000:04:00.0" ', ""), "NO_BUSID"),
        (_TEXT[:-20], "XML_NOT_WELL_FORMED"),
        ("<system>" * 200, "XML_TOO_LARGE"),
        ("<system>" + "<pci/>" * 60_000 + "</system>", "XML_TOO_LARGE"),
        ('<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>', "XML_DTD_FORBIDDEN"),
        ('<!DOCTYPE system [<!ENTITY a "b">]><system version="&a;"/>', "XML_DTD_FORBIDDEN"),
        ("<graphs/>", "NOT_NCCL"),
        ("<?xml version='1.0' encoding='nonsense'?><graphs/>", "NOT_NCCL"),
        ("no xml", "XML_NOT_WELL_FORMED"),
    ],
)
def test_refused(text: str, code: str) -> None:
    found = parse(text)
    assert [e.code for e in found.errors] == [code]
    assert not found.content
