"""How does a person's verb act in their own name? Their identity, their key, their way to log in; never the clone's word.

A commit that somebody proposes carries their name, and is pushed with their credentials: what their own configuration
says of that counts, what the configuration of the clone says about programs does not. What is proposed is left to the
runtime, telling the outcomes of a push apart to `publish`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reconciler.errors import GangOpsError, StoreError, Unreachable, UsageError
from reconciler.store.failures import redact
from reconciler.store.names import checked_object_id, checked_ref
from reconciler.store.runner import SSH_COMMAND, Git

# Programs that git would start for a signature. A clone may not name others; the person may.
_PROGRAMS = {"gpg.program": "gpg", "gpg.openpgp.program": "gpg", "gpg.x509.program": "gpgsm",
             "gpg.ssh.program": "ssh-keygen", "gpg.ssh.defaultkeycommand": ""}  # fmt: skip
_NAMELESS = ("tell me who you are", "identity unknown", "empty ident name", "no email was given", "no name was given")
_NO_RIGHTS = ("Permission to", "error: 403", "not allowed to push", "insufficient permission", "Permission denied to")
_NOT_MEANT_FOR_A_PERSON = (
    "Try `git push` by hand: it asks, and tells more. `gh auth setup-git` or an ssh key settles it."
)


def as_person(git: Git) -> Git:
    """The same clone, used in the name of whoever runs this: their environment, their credential helpers, their key.

    Of what the clone's own configuration says, no program is run.
    """
    if git.person:
        return git
    own = replace(git, person=True)
    told = own.run("config", "--list", "--show-scope", "--includes", "-z").stdout.decode("utf-8", "replace").split("\0")
    config = dict(_PROGRAMS)
    helpers: list[tuple[str, str]] = []
    for scope, row in zip(told[::2], told[1::2], strict=False):
        key, _, value = row.partition("\n")
        if scope not in {"system", "global"}:
            continue
        if key.startswith("credential."):
            helpers.append((key, value))
        elif key in _PROGRAMS or key == SSH_COMMAND:
            config[key] = value
    kept = (*config.items(), *helpers, ("user.useConfigOnly", "true"))
    return replace(own, config=(*git.config, *((key, value) for key, value in kept if value or key in _PROGRAMS)))


def commit_as(git: Git, tree: str, parent: str, message: str) -> str:
    """A commit of a tree on a parent, by whoever runs this, signed when their settings say so; no ref is touched.

    `git` is that of `as_person`. Raises: UsageError(NoIdentity), StoreError(SigningFailed).
    """
    wants = git.run("config", "--type=bool", "--get", "commit.gpgsign", accept=(0, 1)).stdout.strip() == b"true"
    try:
        made = git.run(
            "commit-tree", *(("-S",) if wants else ()), "-p", checked_object_id(parent), "-F", "-",
            checked_object_id(tree), stdin=message.encode(),
        )  # fmt: skip
    except GangOpsError as err:
        raise _uncommitted(err) from err
    return checked_object_id(made.stdout.decode("ascii").strip())


def signing_key(git: Git, key: Path | None) -> str:
    """The SSH key that this person signs with, as git would be told it: a file, or `key::` or `ssh-` and a public key.

    `key` when given; else git's `user.signingKey` where that is an SSH key; else `~/.ssh/id_ed25519`, as ssh has it.
    `git` is that of `as_person`. Raises UsageError (NoSigningKey).
    """
    if key is not None:
        if not key.expanduser().is_file():
            raise UsageError(f"there is no key {key}", code="NoSigningKey", remedy=_KEY)
        return str(key.expanduser().absolute())
    told = git.run("config", "--get", "user.signingkey", accept=(0, 1)).stdout.decode("utf-8", "replace").strip()
    if told.startswith(LITERAL):
        return told
    form = git.run("config", "--get", "gpg.format", accept=(0, 1)).stdout.decode("utf-8", "replace").strip()
    file, usual = Path(told).expanduser(), Path.home() / ".ssh" / "id_ed25519"
    # A file is an SSH key, whatever git signs commits with: GnuPG's keys are no files.
    if told and (form == "ssh" or (file.is_absolute() and file.is_file())):
        return str(file)
    if usual.is_file():
        return str(usual)
    why = "your git settings name no SSH key to sign with" if not told else "your git settings sign with no SSH key"
    raise UsageError(f"this is signed, and {why}; there is no {usual} either", code="NoSigningKey", remedy=_KEY)


LITERAL = ("key::", "ssh-")
"""What a key begins with that is given itself and not as a file, whose private half an ssh-agent has."""
_KEY = (
    "name one with --key ~/.ssh/id_ed25519 or GANGOPS_KEY; or for good:\n"
    "    git config --global gpg.format ssh\n"
    "    git config --global user.signingKey ~/.ssh/id_ed25519.pub\n"
    "  Its public half stands under sshKeys of your User document."
)


def commit_alone(git: Git, path: str, content: bytes, message: str, key: str) -> str:
    """A commit of one file, without a parent, by whoever runs this and signed with this SSH key; no ref is touched.

    `git` is that of `as_person`. Raises: UsageError(NoIdentity), StoreError(SigningFailed).
    """
    blob = git.run("hash-object", "-w", "--stdin", stdin=content).stdout.decode("ascii").strip()
    listed = f"100644 blob {checked_object_id(blob)}\t{path}\n".encode()
    tree = git.run("mktree", stdin=listed).stdout.decode("ascii").strip()
    signing = replace(git, config=(*git.config, ("gpg.format", "ssh"), ("user.signingkey", key)))
    try:
        made = signing.run("commit-tree", "-S", "-F", "-", checked_object_id(tree), stdin=message.encode())
    except GangOpsError as err:
        raise _uncommitted(err) from err
    return checked_object_id(made.stdout.decode("ascii").strip())


def author_line(git: Git) -> str:
    """`Ada <ada@example.org>` of whoever runs this; "gangops <gangops>" where git does not know. `git` is that of `as_person`."""
    told = git.run("var", "GIT_AUTHOR_IDENT", accept=(0, 1, 128)).stdout.decode("utf-8", "replace")
    name, found, _ = told.partition(">")
    return f"{name}>" if found else "gangops <gangops>"


def scratch_commit(git: Git, tree: str, parent: str, message: str, author: str = "gangops <gangops>") -> str:
    """A commit to look at what a change would do, with its author's name and nobody's proof; no ref is touched."""
    head = f"tree {checked_object_id(tree)}\nparent {checked_object_id(parent)}\n"
    head += f"author {author} 0 +0000\ncommitter gangops <gangops> 0 +0000\n\n"
    written = git.run("hash-object", "-t", "commit", "-w", "--stdin", stdin=head.encode() + message.encode())
    return checked_object_id(written.stdout.decode("ascii").strip())


def _uncommitted(err: GangOpsError) -> GangOpsError:
    if any(words in err.message for words in _NAMELESS):
        return UsageError(
            "git does not know who you are, and a change is proposed in your name",
            code="NoIdentity",
            remedy='git config --global user.name "Your Name"; git config --global user.email you@example.org',
        )
    if "failed to write commit object" in err.message or "sign" in err.message:
        return StoreError(
            f"your commit could not be signed: {err.message}",
            code="SigningFailed",
            remedy="Try `git commit -S` by hand; `git config commit.gpgSign false` does without.",
        )
    return err


def push_branch(git: Git, commit: str, branch: str) -> None:
    """Makes `commit` the new branch `branch` at origin; a branch of that name is never moved.

    `git` is that of `as_person`. Raises: StoreError(BranchExists | NoPushRights | PushRejected);
    Unreachable(RemoteUnreachable | AuthenticationFailed).
    """
    from reconciler.store.publish import PushResult, read_porcelain  # most who read in their own name never push

    ref = checked_ref(f"refs/heads/{branch}")
    try:
        pushed = git.run(
            "push", "--porcelain", "--no-verify", "--receive-pack=git-receive-pack", f"--force-with-lease={ref}:",
            "--end-of-options", "origin", f"{checked_object_id(commit)}:{ref}",
            accept=(0, 1), network=True,
        )  # fmt: skip
    except GangOpsError as err:
        raise _not_through(err, branch) from err
    if any(line.startswith("=\t") for line in pushed.stdout.decode("utf-8", "replace").splitlines()):
        raise branch_exists(branch)  # to the same commit: made within the same second
    told = read_porcelain(redact(pushed.stdout.decode("utf-8", "replace")), pushed.stderr, ref)
    if told is None:
        raise Unreachable(f"the push was not answered: {pushed.stderr}", remedy=_NOT_MEANT_FOR_A_PERSON)
    if told.result is PushResult.LOST_RACE:
        raise branch_exists(branch)
    if told.result is not PushResult.OK:
        rights = any(words in told.message for words in _NO_RIGHTS)
        raise StoreError(
            f"branch {branch} was refused: {told.message}",
            code="NoPushRights" if rights else "PushRejected",
            remedy=_ASK if rights else "The remote's own words say which rule it was; nothing was proposed.",
        )


_ASK = "Ask for the right to push branches, or propose it from a fork: --dry-run shows the change to make there."


def _not_through(err: GangOpsError, branch: str) -> GangOpsError:
    if any(words in err.message for words in _NO_RIGHTS):
        return StoreError(f"branch {branch} was refused: {err.message}", code="NoPushRights", remedy=_ASK)
    if isinstance(err, Unreachable):
        return Unreachable(err.message, code=err.code, remedy=_NOT_MEANT_FOR_A_PERSON)
    return err


def branch_exists(branch: str) -> StoreError:
    """The error for a change that somebody proposed before, from the same commit."""
    return StoreError(
        f"this very change is proposed already: the remote has branch {branch}",
        code="BranchExists",
        remedy=f"Merge it; or `git push origin --delete {branch}`, and again.",
    )
