"""A small training program: ranks meet over TCP, count steps together, write checkpoints, and resume from them.

Runs under any agent: rank and world come from the environment that GangOps sets. Standard library only. The leader
listens at MASTER_ADDR:MASTER_PORT; a step is a barrier among all ranks. SIGUSR1 to the leader asks for a
checkpoint after the present step. Usage: train.py STEPS SECONDS_A_STEP [FILE]: with FILE it also ends, with a last
checkpoint, once the leader sees that file.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

STEPS = int(sys.argv[1])
PACE = float(sys.argv[2])
UNTIL = Path(sys.argv[3]) if len(sys.argv) > 3 else None
# Launched per node it is one process a node, as torchrun would be; launched per GPU, one a rank.
PER_NODE = "PET_NNODES" in os.environ
RANK = int(os.environ["PET_NODE_RANK" if PER_NODE else "RANK"])
WORLD = int(os.environ["PET_NNODES" if PER_NODE else "WORLD_SIZE"])
LEADER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
FOLDER = Path(os.environ["GANGOPS_CHECKPOINT_DIR"])
LATEST = FOLDER / "latest"
EVERY = 20


def main() -> None:
    asked = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(True))
    step = json.loads(LATEST.read_text())["step"] if LATEST.exists() else 0
    print(f"rank {RANK} of {WORLD} starts at step {step}", flush=True)
    peers = meet()
    while step < STEPS:
        began = time.monotonic()
        if not barrier(peers):
            break
        time.sleep(PACE)
        step += 1
        if RANK == 0:
            beat(step, time.monotonic() - began)
            if step % EVERY == 0 or step == STEPS or asked:
                save(step, "asked" if asked else "due")
                asked.clear()
    if RANK == 0 and step < STEPS:
        save(step, "last")
    print(f"rank {RANK} done at step {step}", flush=True)


def meet() -> list[socket.socket]:
    """The leader's connections to all others, or each other's one connection to the leader."""
    end = time.monotonic() + 60
    if RANK == 0:
        listener = socket.create_server(LEADER, backlog=WORLD)
        listener.settimeout(60)
        return [listener.accept()[0] for _ in range(WORLD - 1)]
    while True:
        try:
            return [socket.create_connection(LEADER, timeout=60)]
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def barrier(peers: list[socket.socket]) -> bool:
    """Everyone says a byte, then the leader tells everyone whether there is another step; a peer that is gone ends the
    program with 1."""
    if RANK != 0:
        peers[0].sendall(b"r")
        return receive(peers[0]) == b"g"
    for peer in peers:
        receive(peer)
    goes_on = UNTIL is None or not UNTIL.exists()
    for peer in peers:
        peer.sendall(b"g" if goes_on else b"e")
    return goes_on


def receive(peer: socket.socket) -> bytes:
    try:
        if found := peer.recv(1):
            return found
    except OSError:
        pass
    print(f"rank {RANK} lost a peer", flush=True)
    sys.exit(1)


def save(step: int, why: str) -> None:
    # Who asked may stop us as soon as the file is there: not before we have said so.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    FOLDER.mkdir(parents=True, exist_ok=True)
    fresh = FOLDER / "latest.tmp"
    fresh.write_text(json.dumps({"step": step}))
    fresh.replace(LATEST)
    print(f"checkpoint at step {step} ({why})", flush=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def beat(step: int, seconds: float) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    line = {"step": step, "stepSeconds": round(seconds, 3), "mfu": 0.4}
    (FOLDER / "heartbeat.tmp").write_text(json.dumps(line) + "\n")
    (FOLDER / "heartbeat.tmp").replace(FOLDER / "heartbeat")


main()
