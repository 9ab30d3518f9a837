"""Where a remote's address is on the web, and the page that opens a pull request there."""

from __future__ import annotations

import pytest

from reconciler.runtime.proposals.pulls import forge_of

GITLAB = (
    "https://gitlab.example/gpu/team/cluster/-/merge_requests/new?merge_request%5Bsource_branch%5D="
    "gangops%2Fsuspend-a-1a2b3c4&merge_request%5Btarget_branch%5D=main"
)
GITHUB = "https://github.com/acme/cluster/compare/main...gangops/suspend-a-1a2b3c4?expand=1"


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://github.com/acme/cluster.git", GITHUB),
        ("https://github.com/acme/cluster", GITHUB),
        ("https://ada@github.com/acme/cluster/", GITHUB),
        ("git@github.com:acme/cluster.git", GITHUB),
        ("ssh://git@github.com:22/acme/cluster.git", GITHUB),
        (
            "https://forge.example:8443/a/b.git",
            "https://forge.example:8443/a/b/compare/main...gangops/suspend-a-1a2b3c4?expand=1",
        ),
        (
            "git@gitlab.example:gpu/team/cluster.git",
            GITLAB,
        ),
        ("/srv/git/cluster.git", ""),
        ("file:///srv/git/cluster.git", ""),
        ("https://github.com/", ""),
        ("https://github.com/a b/c", ""),
        ("", ""),
    ],
)
def test_the_link_of_a_remote(url: str, link: str) -> None:
    forge = forge_of(url)
    assert (forge.link("main", "gangops/suspend-a-1a2b3c4") if forge is not None else "") == link
